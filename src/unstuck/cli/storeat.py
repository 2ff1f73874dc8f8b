"""Where a store of objects is, from options, a file or the environment; never a secret in argv."""

from __future__ import annotations

import os
from pathlib import Path

from unstuck.blobs.objects import Location
from unstuck.cli.errors import CliError

ACCESS = "AWS_ACCESS_KEY_ID"
SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105


def location(url: str, endpoint: str | None, region: str | None, credentials: Path | None) -> Location:
    """``url`` is ``s3://bucket/prefix``, ``file:///folder``, or a folder's path."""
    if "://" not in url:
        return Location(Path(url).expanduser().absolute().as_uri())
    if not url.startswith("s3://"):
        return Location(url)
    access, secret = _credentials(credentials)
    return Location(url, endpoint or "", region or "us-east-1", access, secret)


def _credentials(path: Path | None) -> tuple[str, str]:
    known = dict(os.environ) if path is None else _read(path)
    access, secret = known.get(ACCESS, ""), known.get(SECRET, "")
    if not access or not secret:
        where = "the environment" if path is None else str(path)
        raise CliError(f"{where} does not hold {ACCESS} and {SECRET}: both are needed to enter the store.")
    return access, secret


def _read(path: Path) -> dict[str, str]:
    """Lines ``NAME=VALUE``, in a file that only its owner may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise CliError(f"{path} holds credentials and may be read by others: chmod 600 {path}")
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}.") from None
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
