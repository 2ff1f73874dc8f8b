"""The binary log behind a backup, applied to it up to a point, by the server's own replication.

Its files are laid down as a replica's relay log, some at a time, and the last one ends where the point is:
what lies behind that is not there to be applied. Every statement and row is applied by the code that applies
them on replicas, with their own sets of characters, modes and times; none of it is turned into text.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, TypeVar

from unstuck.core.archive.data import Point
from unstuck.core.archive.positions import binlog_of
from unstuck.guest.datastore import DatastoreError, LogSource, damaged
from unstuck.guest.datastores.mariadb import binlog
from unstuck.guest.datastores.mariadb.place import Place
from unstuck.guest.datastores.mariadb.scheduled import Scheduled
from unstuck.guest.datastores.mariadb.session import DatabaseError, Session, Sessions
from unstuck.guest.datastores.mariadb.words import literal
from unstuck.guest.turns import Mute, StartingUp

T = TypeVar("T")

BATCH: Final = 64 << 20
"""Bytes of the log that lie on the volume at a time; one file that is larger lies there alone."""
CALL: Final = 30.0
LOOK: Final = 0.1
STANDS: Final = 6 * 3600.0
"""Seconds in which something has to be applied; one statement can rebuild a large table."""
BASE: Final = "relay"
REMEDY: Final = "restore to another moment, or a backup, into a new instance"


class Replay:
    """``base``: where in the log the backup ends. ``folder``: the relay log's, for us and the server."""

    def __init__(
        self, sessions: Sessions, socket: Path, folder: Path, log: LogSource, base: Place, point: Point
    ) -> None:
        self._sessions = sessions
        self._socket = socket
        self._folder = folder
        self._log = log
        self._first = binlog.number_of(base.file), base.at
        self._last = binlog_of(point.position)
        self._scheduled = Scheduled()

    @staticmethod
    def options(folder: Path, server_id: int) -> list[str]:
        """Of the server that applies it: its number is not that of the one that wrote it."""
        return [
            f"--server-id={server_id}", f"--relay-log={folder / BASE}",
            f"--master-info-file={folder / 'master.info'}", f"--relay-log-info-file={folder / 'relay.info'}",
            "--relay-log-purge=ON", "--slave-sql-verify-checksum=ON", "--slave-parallel-threads=0",
            "--slave-max-allowed-packet=1073741824", "--max-allowed-packet=1073741824",
            "--innodb-strict-mode=OFF", "--character-set-server=utf8mb4",
            # A crash begins it anew; all of it is synced when it is whole.
            "--innodb-flush-log-at-trx-commit=0",
        ]  # fmt: skip

    async def run(self) -> None:
        """Raises :class:`DatastoreError`."""
        laid, size, batch, start = list[Path](), 0, 1, self._first[1]
        for number in range(self._first[0], self._last[0] + 1):
            if (number, 0) == self._last or self._last <= self._first:
                break  # nothing of it belongs to the point
            path = self._folder / f"{BASE}-b{batch}.{len(laid) + 1:06d}"
            size += await self._lay(number, path)
            laid.append(path)
            if size >= BATCH or number == self._last[0]:
                await self._apply(batch, laid, start)
                laid, size, batch, start = [], 0, batch + 1, 0
        if laid:
            await self._apply(batch, laid, start)
        await self._call(self._settle)

    # --- laying down

    async def _lay(self, number: int, path: Path) -> int:
        """One file, as much of it as belongs to the point; its size."""
        start = self._first[1] if number == self._first[0] else 0
        end, following = 0, -1
        with path.open("xb") as file:
            os.fchmod(file.fileno(), 0o660)
            for name in self._log.names:
                of, index = binlog.parts_of(name)
                if of != number or (of, index * binlog.SLICE) >= self._last:
                    continue
                if index != following and (following >= 0 or index * binlog.SLICE > start):
                    raise damaged(f"{name} does not follow what is there of its file", REMEDY)
                following = index + 1
                data = await self._log.get(name)
                if data is None:
                    raise damaged(f"{name} is not there", REMEDY)
                end = await asyncio.to_thread(_write, file, data, index)
        if number == self._last[0]:
            if end < self._last[1]:
                raise damaged("its log ends before the point", REMEDY)
            end = self._last[1]
        elif end == 0:
            raise damaged(f"nothing is there of file {number} of its log", REMEDY)
        whole = await asyncio.to_thread(self._cut, path, start, end)
        if number == self._last[0] and whole != end:
            raise damaged("no event of its log ends at the point", REMEDY)
        return whole

    def _cut(self, path: Path, start: int, end: int) -> int:
        """End it where the last event ends that is whole; its size then."""
        with path.open("r+b") as file:
            file.truncate(end)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                whole = binlog.whole_until(view, start)
                self._scheduled.read(view, start, whole)
            file.truncate(whole)
            return whole

    # --- applying

    async def _apply(self, batch: int, laid: list[Path], start: int) -> None:
        name = f"b{batch}"
        index = self._folder / f"{BASE}-{name}.index"
        index.write_text("".join(f"{path}\n" for path in laid))
        index.chmod(0o660)
        # What the server opens behind them, and comes to when all of them are applied.
        behind = f"{BASE}-{name}.{len(laid) + 1:06d}"

        def begin(session: Session) -> None:
            session.ask(
                f"CHANGE MASTER {literal(name)} TO MASTER_HOST = 'none', MASTER_USER = 'none',"
                f" RELAY_LOG_FILE = {literal(laid[0].name)}, RELAY_LOG_POS = {max(start, 4)},"
                " MASTER_USE_GTID = no"
            )
            session.ask(f"START SLAVE {literal(name)} SQL_THREAD")

        def end(session: Session) -> None:
            session.ask(f"STOP SLAVE {literal(name)}")
            session.ask(f"RESET SLAVE {literal(name)} ALL")

        await self._call(begin)
        loop = asyncio.get_running_loop()
        place, moved = ("", ""), loop.time()
        while place[0] != behind:
            told = await self._call(lambda session: session.named(f"SHOW SLAVE {literal(name)} STATUS"))
            now = told.get("Relay_Log_File", ""), told.get("Relay_Log_Pos", "")
            if told.get("Slave_SQL_Running") != "Yes":
                why = told.get("Last_SQL_Error") or "no word of why"
                raise damaged(f"its log cannot be applied: {why}", REMEDY)
            if now != place:
                place, moved = now, loop.time()
            elif loop.time() > moved + STANDS:
                raise DatastoreError(f"nothing of the log was applied within {STANDS:.0f} s")
            else:
                await asyncio.sleep(LOOK)
        await self._call(end)

    def _settle(self, session: Session) -> None:
        """Data that was restored is nobody's replica."""
        self._scheduled.settle(session)
        session.ask("SET GLOBAL gtid_slave_pos = ''")

    async def _call(self, work: Callable[[Session], T]) -> T:
        try:
            return await self._sessions.run(self._socket, work, CALL)
        except (Mute, StartingUp) as error:
            raise DatastoreError(f"the server that applies the log does not answer: {error}") from error
        except DatabaseError as error:
            raise DatastoreError(f"the log cannot be applied: {error}") from error


def _write(file: IO[bytes], data: bytes, index: int) -> int:
    """A piece of a file, behind the file's head; where it ends."""
    if index:
        head = binlog.head_of(data)
        if file.tell() == 0:
            file.write(head)
        file.seek(index * binlog.SLICE)
        data = data[len(head) :]
    file.write(data)
    return file.tell()
