"""Running the server's program on data that nobody else uses yet: to make it, and to make it ours."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from unstuck.guest.datastores.mariadb.server import PROGRAM
from unstuck.guest.tools import ToolFailed, Tools, last_words, run

INIT: Final = 600.0
"""Seconds to make empty data; on an emulated machine it takes minutes."""
STATEMENTS: Final = 120.0
_QUIET: Final = (
    "--skip-networking", "--skip-log-bin", "--innodb-buffer-pool-size=16M", "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=1M", "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-buffer-pool-load-at-startup=OFF",
)  # fmt: skip


async def install(tools: Tools, data: Path) -> None:
    """Empty data with the server's own tables. Raises :class:`ToolFailed`."""
    await run(tools, [
        "mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-name-resolve",
        "--force",  # whether its host has a name is nobody's business
        "--auth-root-authentication-method=socket", f"--auth-root-socket-user={tools.user}",
        # It is synced as a whole afterwards.
        "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-log-file-size=16M",
        *_QUIET,
    ], INIT)  # fmt: skip


async def statements(tools: Tools, data: Path, text: str) -> None:
    """Let the server do them, alone and without asking who it is. Raises :class:`ToolFailed`."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as words:
        source.write(text.encode())
        source.flush()
        source.seek(0)
        child = await tools.start(
            [PROGRAM, "--no-defaults", "--bootstrap", f"--datadir={data}", "--log-warnings=0",
             "--innodb-log-file-size=16M", *_QUIET],
            stdin=source.fileno(), stdout=words.fileno(), stderr=words.fileno(),
        )  # fmt: skip
        try:
            async with asyncio.timeout(STATEMENTS):
                code = await child.wait()
        except TimeoutError:
            raise ToolFailed(f"the server's program did not end within {STATEMENTS:.0f} s") from None
        finally:
            child.cut()
        said = [line for line in last_words(words.fileno()).splitlines() if "ERROR" in line]
    if code != 0 or said:
        raise ToolFailed(f"the server's program ended with {code}: {(said or ['no word of why'])[0][:300]}")
