"""A copy that becomes an instance's data: unpacked aside, prepared, run once, and only then renamed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from unstuck.core.archive.data import Point
from unstuck.core.backup.chain import size_of
from unstuck.core.backup.content import Content
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest.datastore import REMEDY, DatastoreError, LogSource, damaged
from unstuck.guest.datastores.mariadb import accounts
from unstuck.guest.datastores.mariadb.base import WHOLE, series
from unstuck.guest.datastores.mariadb.config import server_id
from unstuck.guest.datastores.mariadb.place import Place, place_of
from unstuck.guest.datastores.mariadb.replay import Replay
from unstuck.guest.datastores.mariadb.server import ORDERLY, PROGRAM, last_error
from unstuck.guest.datastores.mariadb.session import DatabaseError, Session
from unstuck.guest.datastores.mariadb.tape import CHANGES, FORM, OWN, Tape
from unstuck.guest.processes import offspring, parent_of
from unstuck.guest.tools import Child, ToolFailed, enlarge, last_words, run
from unstuck.guest.turns import Mute, StartingUp

if TYPE_CHECKING:
    from unstuck.guest.datastores.mariadb.datastore import MariaDB

SPARE: Final = 96 << 20
"""Bytes beside the data that a server needs for its first steps."""
PREPARE: Final = 6 * 3600.0
RECOVERY: Final = 3600.0


class Unpacking:
    """One restore. Cut off anywhere, the next begins anew."""

    def __init__(
        self, datastore: MariaDB, want: DatabaseWant, chain: tuple[Content, ...], making: Path
    ) -> None:
        self._datastore = datastore
        self._want = want
        self._chain = chain
        self._making = making
        self._number = 0
        self._tape = Tape()
        self._thread = ThreadPoolExecutor(1, "unpack")
        self._pipe = -1
        self._child: Child | None = None
        self._replays: tuple[LogSource, Point] | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    @property
    def _data(self) -> Path:
        return self._making / "data"

    @property
    def _socket(self) -> Path:
        return self._datastore.places.sockets / "trial.sock"

    @property
    def _changes(self) -> Path:
        """A child's, until they are in the data."""
        return self._making / "changes"

    @classmethod
    async def receiving(cls, datastore: MariaDB, want: DatabaseWant, chain: tuple[Content, ...]) -> Unpacking:
        for number, content in enumerate(chain):
            _check(want, content, FORM if number == 0 else CHANGES)
        free, _ = datastore.volume.space()
        need = size_of(chain) + SPARE
        if need > free:
            need >>= 20
            raise DatastoreError(f"the backup needs {need} MiB and the volume has {free >> 20} MiB free",
                                 "resize the instance's volume", code="volume-full")  # fmt: skip
        return cls(datastore, want, chain, datastore.volume.begin())

    async def begin(self, number: int) -> None:
        if number:
            await self._unpacked()
        self._number, self._tape = number, Tape()
        target = self._changes if number else self._data
        folders = [target] if number else [target, self._making / "binlog"]
        await self._tool(["mkdir", "-m", "0700", *(str(folder) for folder in folders)], 30)
        try:
            await self._start(target)
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error

    async def _start(self, target: Path) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._pipe = writing
        enlarge(writing)
        try:
            self._child = await self._datastore.tools.start(
                ["mbstream", "-x", "-C", str(target)],
                stdin=reading, stdout=self._words.fileno(), stderr=self._words.fileno(),
            )  # fmt: skip
        finally:
            os.close(reading)

    async def write(self, data: bytes | memoryview) -> None:
        """What is wrong with it is seen before the tool is given it."""
        self._tape.feed(data)
        if self._tape.bad:
            raise damaged(self._tape.bad)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, _write_all, self._pipe, data)
        except BrokenPipeError:
            await self._ended()
            raise damaged("more follows its end") from None

    async def _ended(self) -> None:
        """Raise what the unpacking tool ended with, if it was not well."""
        assert self._child is not None
        code = await self._child.wait()
        if code == 0:
            return
        words = last_words(self._words.fileno())[-300:] or "no word of why"
        full = "No space" in words or "Errcode: 28" in words
        raise DatastoreError(f"the backup cannot be unpacked: {words}", "resize the instance's volume",
                             code="volume-full" if full else "effect-failed")  # fmt: skip

    async def _unpacked(self) -> None:
        """What was begun last is there, whole and of the place that its manifest says; it becomes data of one
        moment, together with all that came before it."""
        os.close(self._pipe)
        self._pipe = -1
        try:
            _, place = self._tape.places()
        except DatastoreError as error:
            raise damaged(error.reason) from error
        await self._ended()
        wanted = self._place(self._number)
        if wanted.at == 0:  # before it nothing had happened in that file of the log
            place = msgspec.structs.replace(place, at=0)
        if place != wanted:
            raise damaged(f"it ends at {place.text}, not at {wanted.text}")
        await self._prepare()

    async def unpacked(self) -> None:
        await self._unpacked()
        # The copied server's settings have no say here.
        for name in (*OWN, "backup-my.cnf", "mariadb.pid"):
            await self._tool(["rm", "-f", str(self._data / name)], 30)

    def _place(self, number: int) -> Place:
        try:
            return place_of(self._chain[number].stop.lsn)
        except ValueError as error:
            raise damaged(str(error)) from error

    async def _prepare(self) -> None:
        memory = max(16, self._want.ram_mb // 4)
        changes = [f"--incremental-dir={self._changes}"] if self._number else []
        try:
            said = await run(self._datastore.tools, [
                "mariadb-backup", "--no-defaults", "--prepare", f"--target-dir={self._data}", *changes,
                f"--use-memory={memory}M",
            ], PREPARE)  # fmt: skip
        except ToolFailed as error:
            raise _unprepared(str(error)) from error
        if not (said.splitlines() or [""])[-1].endswith(WHOLE):
            raise damaged(f"it could not be prepared: {said[-300:]}")
        if changes:
            await self._tool(["rm", "-rf", str(self._changes)], 300)

    async def _tool(self, command: list[str], seconds: float) -> None:
        try:
            await run(self._datastore.tools, command, seconds)
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error

    async def replay(self, log: LogSource, point: Point) -> None:
        self._replays = log, point

    async def prove(self) -> None:
        """Run a server on it, for nobody but us: it comes up, it is the data that was backed up, and it has
        come as far. From then on it is data of its own."""
        datastore = self._datastore
        await datastore.dress(self._making, self._want)
        # Whoever could log in where it comes from: here it is us alone, by the socket's folder.
        await self._try(["--skip-grant-tables"], self._judge)
        try:
            await datastore.own(self._making, self._want)
        except ToolFailed as error:
            raise DatastoreError(f"the restored data could not be made the instance's: {error}") from error
        if self._replays is not None:
            relay = datastore.volume.shared(self._making / "relay")
            await self._try(Replay.options(relay, server_id(self._want.generation)), self._apply)
            await self._tool(["rm", "-rf", str(relay)], 300)
        # At once, not file by file; the volume has nothing else to write.
        await self._tool(["sync", "-f", str(self._data)], RECOVERY)

    async def _try(self, options: list[str], work: Callable[[Child, int], Awaitable[None]]) -> None:
        """A server for nobody but us, while this is done with it."""
        command = [
            PROGRAM, "--no-defaults", f"--datadir={self._data}", f"--socket={self._socket}",
            "--skip-networking", "--skip-log-bin", "--skip-symbolic-links", "--skip-slave-start",
            "--event-scheduler=OFF", f"--pid-file={self._data / 'mariadb.pid'}",
            "--innodb-buffer-pool-load-at-startup=OFF", "--key-buffer-size=1M",
            "--aria-pagecache-buffer-size=1M", "--innodb-log-file-size=16M",
            f"--innodb-buffer-pool-size={max(16, self._want.ram_mb // 4)}M", *options,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as log:
            child = await self._datastore.tools.start(command, stdout=log.fileno(), stderr=log.fileno())
            try:
                await work(child, log.fileno())
            finally:
                child.cut()
                await child.wait()
        await self._tool(["rm", "-f", str(self._socket), str(self._data / "mariadb.pid")], 30)

    async def _apply(self, child: Child, log: int) -> None:
        assert self._replays is not None
        await self._up(child, log)
        source, point = self._replays
        base = self._place(len(self._chain) - 1)
        relay = self._making / "relay"
        await Replay(self._datastore.sessions, self._socket, relay, source, base, point).run()
        await self._end(child)

    async def _judge(self, child: Child, log: int) -> None:
        generation, lsn = await self._up(child, log)
        content, wanted = self._chain[-1], self._place(len(self._chain) - 1)
        if generation != content.system_identifier:
            raise damaged(f"it is of data {generation or 'without a name'}, not {content.system_identifier}")
        if lsn < wanted.lsn:
            raise damaged(f"its log ends at {lsn}, before {wanted.lsn}")
        await self._end(child)

    async def _up(self, child: Child, log: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        ended = asyncio.ensure_future(child.wait())
        end = loop.time() + RECOVERY
        while loop.time() < end:
            if ended.done():
                raise damaged(f"no server comes up on it: {last_error(Path(f'/proc/self/fd/{log}'))}")
            try:
                return await self._datastore.sessions.run(self._socket, _told, 10.0)
            except (Mute, StartingUp):
                await asyncio.wait([ended], timeout=0.1)
            except DatabaseError as error:
                raise damaged(str(error)) from error
        raise DatastoreError(f"the restored server did not come up within {RECOVERY:.0f} s", REMEDY)

    async def _end(self, child: Child) -> None:
        """In order, so that its next start has nothing to recover."""
        for process in offspring(child.pid):
            if parent_of(process.pid) == child.pid:
                await self._datastore.tools.signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ORDERLY):
                await child.wait()

    async def publish(self) -> None:
        self._datastore.volume.publish(self._datastore.marker(self._want))

    async def close(self) -> None:
        if self._child is not None:
            self._child.cut()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child is not None:
            await self._child.wait()
        self._words.close()


def _unprepared(words: str) -> DatastoreError:
    if "No space" in words or "errno: 28" in words or "Errcode: 28" in words:
        return DatastoreError(f"the backup cannot be prepared: {words}", "resize the instance's volume",
                              code="volume-full")  # fmt: skip
    return damaged(f"it cannot be prepared: {words}")


def _check(want: DatabaseWant, content: Content, form: str) -> None:
    found, line = content.datastore, series(want.version)
    if found.type != want.datastore or series(found.version) != line:
        reason = f"the backup is of {found.type} {found.version}, the instance of {want.datastore} {line}"
        raise DatastoreError(reason, REMEDY, final=True, code="backup-unfit")
    if content.content != form:
        reason = f"the backup holds {content.content[:40]!r}, and this agent reads {form!r} only"
        raise DatastoreError(reason, REMEDY, final=True, code="backup-unfit")


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _told(session: Session) -> tuple[str, int]:
    """Whose data it is, and how far its log has come."""
    row = session.one(f"SELECT generation FROM {accounts.TABLE} WHERE id = 1")
    status = session.one("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'")
    return "" if row is None else str(row[0]), 0 if status is None else int(status[1])
