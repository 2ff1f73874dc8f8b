"""A server's own certificate, made where it is used: nobody else ever has its key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from unstuck.guest.datastore import DatastoreError
from unstuck.guest.tools import ToolFailed, Tools, run

_CALL: Final = 30.0


async def certify(tools: Tools, folder: Path, name: str) -> None:
    """``server.key`` and ``server.crt`` for ``name`` in a folder of the datastore's user, and on the disk.

    Raises :class:`DatastoreError`.
    """
    subject = f"/CN={re.sub(r'[^A-Za-z0-9.-]', '-', name)[:64] or 'database'}"
    key, certificate = folder / "server.key", folder / "server.crt"
    try:
        await run(tools, ["mkdir", "-p", "-m", "0700", str(folder)], _CALL)
        await run(tools, [
            "openssl", "req", "-new", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-days", "3650", "-subj", subject,
            "-keyout", str(key), "-out", str(certificate),
        ], _CALL)  # fmt: skip
        await run(tools, ["sync", str(key), str(certificate), str(folder)], _CALL)
    except ToolFailed as error:
        raise DatastoreError(f"the certificate could not be made: {error}") from error
