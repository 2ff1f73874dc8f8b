"""Closed files of the binary log go, piece by piece, to whoever keeps them; then the server may forget them.

The files themselves are the memory of it: what lies there and is not written to any more has yet to be kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from unstuck.core.archive.data import LogView, Piece
from unstuck.guest.datastore import DatastoreError
from unstuck.guest.datastores.mariadb import binlog, config
from unstuck.guest.datastores.mariadb.binlog import File, Log
from unstuck.guest.datastores.mariadb.session import DatabaseError
from unstuck.guest.piped import Piped
from unstuck.guest.tools import ToolFailed

if TYPE_CHECKING:
    from unstuck.core.instance.want import DatabaseWant
    from unstuck.guest.datastores.mariadb.datastore import MariaDB

CALL: Final = 10.0
"""Seconds for the server to end or to forget a file."""
AGAIN: Final = 0.3
LOOKS: Final = 60.0
"""Seconds after which it is looked at again whether a file can be forgotten that a crash needed before."""
TIMEOUT: Final = 60.0
"""Seconds after which a file in which anything happened is ended, where nobody says."""
MIB: Final = 1 << 20

log = structlog.get_logger(__name__)


class Keeping:
    """Of one server. :meth:`saw` is told of each look; what it finds to do is done by :meth:`run`."""

    def __init__(self, datastore: MariaDB, clock: Callable[[], float]) -> None:
        self._datastore = datastore
        self._clock = clock
        self._news = asyncio.Event()
        self._log: Log | None = None
        self._timeline = 0
        self._timeout = TIMEOUT
        self._begun: tuple[int, float] | None = None
        """The file that is written to, and since when anything has happened in it, as far as it is known."""
        self._kept = 0
        """All files up to this number are kept."""
        self._forgotten = -LOOKS

    # --- what a look tells

    def saw(self, found: Log, want: DatabaseWant) -> None:
        self._timeline = config.server_id(want.generation)
        self._timeout = TIMEOUT if want.archive is None else want.archive.timeout
        if found.number < self._kept:  # the log of other data: its volume was set back
            self._kept = 0
        if found.offset == 0:
            self._begun = None
        elif self._begun is None or self._begun[0] != found.number:
            self._begun = found.number, self._clock()
        self._log = found
        self._news.set()

    def view(self, found: Log) -> LogView:
        return LogView(timeline=self._timeline, position=found.position, waiting_mb=self.waiting())

    def waiting(self) -> int:
        """MiB that are closed, and not kept."""
        return -(-sum(file.size for file in self._unkept()) // MIB)

    def _unkept(self) -> list[File]:
        closed = () if self._log is None else self._log.closed
        return [file for file in closed if file.number > self._kept]

    # --- keeping

    async def run(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        """For ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._end_file()
                while files := self._unkept():
                    await self._keep(files[0], keep)
                    await self._forget()
                if self._log is not None and self._log.closed and self._clock() >= self._forgotten + LOOKS:
                    await self._forget()
            except (DatastoreError, DatabaseError, OSError) as error:
                log.warning("the log cannot be looked after", reason=str(error))
                await asyncio.sleep(AGAIN)

    async def _end_file(self) -> None:
        """A file that nobody fills is not waited for."""
        begun = self._begun
        if begun is None or self._clock() < begun[1] + self._timeout:
            return
        self._begun = None
        await self._datastore.call(binlog.end_file, CALL)
        self._log = await self._datastore.call(binlog.see, CALL)

    async def _keep(self, file: File, keep: Callable[[str], Awaitable[bool]]) -> None:
        for index in range(file.slices):
            while not await keep(binlog.name_of(file.number, index)):
                if file not in self._unkept():
                    return  # it has gone, or has never been what it seemed
                await asyncio.sleep(AGAIN)
        self._kept = max(self._kept, file.number)

    async def _forget(self) -> None:
        self._forgotten = self._clock()
        kept = self._kept
        if kept:
            await self._datastore.call(lambda session: binlog.forget_before(session, kept + 1), CALL)
            self._log = await self._datastore.call(binlog.see, CALL)

    # --- one piece

    async def piece(self, name: str) -> tuple[Piece, bytes]:
        """Raises :class:`DatastoreError`."""
        number, index = binlog.parts_of(name)
        file = next((one for one in self._unkept() if one.number == number), None)
        if file is None or index >= file.slices:
            raise DatastoreError(f"the log has no {name} to be kept (any more)")
        size = min(binlog.SLICE, file.size - index * binlog.SLICE)
        data = await self._read(file, index * binlog.SLICE, size)
        if len(data) != size:
            raise DatastoreError(f"the log's {file.name} is shorter than the server says")
        if index:
            data = binlog.head_of(await self._read(file, 0, binlog.HEAD_MOST)) + data
        return binlog.piece_of(file, index, len(data), self._timeline), data

    async def _read(self, file: File, start: int, size: int) -> bytes:
        """As the server's user: its files are nobody else's."""
        tool, into = Piped(lambda _: None), bytearray(size)
        path = self._datastore.places.binlog / file.name
        command = [
            "dd", f"if={path}", "bs=1M", f"skip={start}", f"count={size}", "status=none",
            "iflag=skip_bytes,count_bytes,fullblock",
        ]  # fmt: skip
        try:
            await tool.start(self._datastore.tools, command)
            data = bytes(await tool.read(size, into))
            await tool.ended()
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error
        finally:
            await tool.close()
        return data
