"""A base backup that becomes an instance's data: unpacked aside, checked, run once, and only then renamed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import psycopg

from unstuck.core.archive.data import Point
from unstuck.core.backup.chain import size_of
from unstuck.core.backup.content import Content
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest.datastore import REMEDY, DatastoreError, LogSource, damaged
from unstuck.guest.datastores.postgresql import config
from unstuck.guest.datastores.postgresql.segments import lsn_of, number_of
from unstuck.guest.datastores.postgresql.server import FAST, last_error
from unstuck.guest.datastores.postgresql.session import Connection, first_line
from unstuck.guest.datastores.postgresql.walcopy import FORM as WAL
from unstuck.guest.processes import offspring, parent_of
from unstuck.guest.tools import Child, ToolFailed, enlarge, last_words, run
from unstuck.guest.turns import Mute, StartingUp

if TYPE_CHECKING:
    from unstuck.guest.datastores.postgresql.datastore import PostgreSQL

PORT: Final = 1
"""The trial server's: it names its socket only, the trial listens nowhere else."""
SPARE: Final = 64 << 20
"""Bytes beside the data that a server needs for its first steps."""
VERIFY: Final = 6 * 3600.0
LOG_READ: Final = 1 << 20
"""Bytes of the trial's log that are looked at."""
RECOVERY: Final = 6 * 3600.0
ENDED: Final = "recovery ended before configured recovery target was reached"
_DAMAGED: Final = 3


class Unpacking:
    """One restore. Cut off anywhere, the next begins anew."""

    def __init__(
        self, datastore: PostgreSQL, want: DatabaseWant, chain: tuple[Content, ...], making: Path
    ) -> None:
        self._datastore = datastore
        self._want = want
        self._chain = chain
        self._making = making
        self._thread = ThreadPoolExecutor(1, "unpack")
        self._pipe = -1
        self._point: Point | None = None
        self._child: Child | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    @property
    def _data(self) -> Path:
        return self._making / "pg"

    @property
    def _log(self) -> Path:
        """Segments of children, until they are replayed."""
        return self._making / "log"

    @property
    def _replays(self) -> bool:
        return len(self._chain) > 1 or self._point is not None

    @classmethod
    async def receiving(
        cls, datastore: PostgreSQL, want: DatabaseWant, chain: tuple[Content, ...]
    ) -> Unpacking:
        for number, content in enumerate(chain):
            _check(want, content, "tar" if number == 0 else WAL)
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
        try:
            await self._start([str(self._data)] if number == 0 else [str(self._log), "over"])
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error

    async def _start(self, target: list[str]) -> None:
        text = Path(__file__).with_name("unpack.py").read_text()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._pipe = writing
        enlarge(writing)
        try:
            self._child = await self._datastore.tools.start(
                [sys.executable, "-I", "-S", "-c", text, *target],
                stdin=reading, stderr=self._words.fileno(),
            )  # fmt: skip
        finally:
            os.close(reading)

    async def write(self, data: bytes | memoryview) -> None:
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
        words = last_words(self._words.fileno())[:300] or "no word of why"
        if code == _DAMAGED:
            raise damaged(words.removeprefix("damaged: "))
        raise DatastoreError(f"the backup cannot be unpacked: {words}", "resize the instance's volume",
                             code="volume-full" if "No space" in words else "effect-failed")  # fmt: skip

    async def _unpacked(self) -> None:
        """What was begun last is there, whole."""
        os.close(self._pipe)
        self._pipe = -1
        await self._ended()

    async def unpacked(self) -> None:
        """Every file of the manifest, of its size, and no other; the log from start to stop. Digests were
        compared while the data was unpacked."""
        await self._unpacked()
        verify = [str(self._datastore.programs / "pg_verifybackup"), "-q", "--skip-checksums"]
        try:
            await run(self._datastore.tools, [*verify, str(self._data)], VERIFY)
        except ToolFailed as error:
            raise damaged(str(error)) from error
        # Settings of whoever made the backup have no say here, not even in the trial.
        unwanted = ("postgresql.auto.conf", "standby.signal", "recovery.signal", "postmaster.pid")
        await self._tool(["rm", "-f", *(str(self._data / name) for name in unwanted)], 30)

    async def _tool(self, command: list[str], seconds: float) -> None:
        try:
            await run(self._datastore.tools, command, seconds)
        except ToolFailed as error:
            raise DatastoreError(str(error)) from error

    async def replay(self, log: LogSource, point: Point) -> None:
        self._datastore.hand_out(log)
        self._point = point

    async def prove(self) -> None:
        """Run a server on it, for nobody but us, until it is consistent; then ask whose data it is.

        With children it replays their log to its end, to a point the log up to there; both ways it goes on in
        a timeline of its own.
        """
        await self._datastore.dress(self._making, self._want)
        try:
            await self._prove(self._point)
        except DatastoreError as error:
            fault = self._datastore.fault_of_log()
            if fault is not None:
                raise fault from error
            # Nothing begins at the point or behind it: all that there is, is what was there.
            if self._point is None or ENDED not in error.reason:
                raise
            await self._prove(None)
        await self._tool(["rm", "-rf", str(self._data / "postmaster.pid"), str(self._log)], 300)
        # At once, not a thousand files one by one; the volume has nothing else to write.
        await self._tool(["sync", "-f", str(self._data)], RECOVERY)

    async def _prove(self, target: Point | None) -> None:
        programs, log = self._datastore.programs, tempfile.TemporaryFile()  # noqa: SIM115
        options = {
            "listen_addresses": "", "unix_socket_directories": str(self._datastore.places.sockets),
            "port": str(PORT), "hba_file": str(self._making / "conf" / "pg_hba.conf"),
            "ident_file": str(self._making / "conf" / "pg_ident.conf"), "archive_mode": "off",
            "logging_collector": "off", "autovacuum": "off", "restore_command": "",
            "shared_preload_libraries": "", "wal_level": "replica",
        }  # fmt: skip
        options |= config.at_once(self._want.version)
        if self._replays:
            await self._tool(["touch", str(self._data / "recovery.signal")], 30)
            # Whatever the backed up server's settings were: nobody reads from this one meanwhile.
            options["hot_standby"] = "off"
            options["restore_command"] = f'cp "{self._log}/%f" "%p"'
            options["recovery_target_timeline"] = "current"
        if self._point is not None:
            ask = self._datastore.places.push('"%f" "%p"')
            options["restore_command"] = f'cp "{self._log}/%f" "%p" 2>/dev/null || {ask}'
        if target is not None:
            options["recovery_target_lsn"] = lsn_of(int(target.position, 16))
            options["recovery_target_inclusive"] = "off"
            options["recovery_target_action"] = "promote"
        self._datastore.write_clients(self._making, self._want)
        command = [str(programs / "postgres"), "-D", str(self._data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with log:
            child = await self._datastore.tools.start(command, stdout=log.fileno(), stderr=log.fileno())
            try:
                await self._judge(child, log.fileno())
            finally:
                child.cut()
                await child.wait()

    async def _judge(self, child: Child, log: int) -> None:
        identifier, timeline, position = await self._recovered(child, log)
        content = self._chain[-1]
        if identifier != content.system_identifier:
            raise damaged(f"it is of system {identifier}, not {content.system_identifier}")
        begun = timeline > content.stop.timeline if self._replays else timeline == content.stop.timeline
        wanted = number_of(content.stop.lsn)
        if self._point is not None:
            wanted = max(wanted, int(self._point.position, 16))
        if not begun or position < wanted:
            raise damaged(f"its log ends before {lsn_of(wanted)}")
        try:
            await self._datastore.sessions.run(PORT, _checkpoint, RECOVERY)
        except (Mute, StartingUp, psycopg.Error) as error:
            raise DatastoreError(f"the restored server does not answer: {first_line(error)}") from error
        await self._end(child)

    async def _end(self, child: Child) -> None:
        """In order, so that its first start as the instance's server has nothing to recover."""
        for process in offspring(child.pid):
            if parent_of(process.pid) == child.pid:
                await self._datastore.tools.signal(process, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAST):
                await child.wait()

    async def _recovered(self, child: Child, log: int) -> tuple[str, int, int]:
        loop = asyncio.get_running_loop()
        ended = asyncio.ensure_future(child.wait())
        end = loop.time() + RECOVERY
        while loop.time() < end:
            if ended.done():
                raise damaged(f"no server comes up on it: {_error_in(log)}")
            try:
                return await self._datastore.sessions.run(PORT, _told, 10.0)
            except (Mute, StartingUp, psycopg.OperationalError):
                await asyncio.wait([ended], timeout=0.1)
            except psycopg.Error as error:
                raise damaged(first_line(error)) from error
        raise DatastoreError(f"the restored server was not consistent within {RECOVERY:.0f} s", REMEDY)

    async def publish(self) -> None:
        self._datastore.volume.publish(self._datastore.marker(self._want))

    async def close(self) -> None:
        self._datastore.hand_out(None)
        if self._child is not None:
            self._child.cut()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child is not None:
            await self._child.wait()
        self._words.close()


def _check(want: DatabaseWant, content: Content, form: str) -> None:
    found, major = content.datastore, want.version.split(".")[0]
    if found.type != want.datastore or found.version.split(".")[0] != major:
        reason = f"the backup is of {found.type} {found.version}, the instance is {want.datastore} {major}"
        raise DatastoreError(reason, REMEDY, final=True, code="backup-unfit")
    if content.content != form:
        reason = f"the backup holds {content.content[:40]!r}, and this agent reads {form!r} only"
        raise DatastoreError(reason, REMEDY, final=True, code="backup-unfit")


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _told(connection: Connection) -> tuple[str, int, int]:
    row = connection.execute(
        "SELECT system_identifier::text, pg_walfile_name(pg_current_wal_insert_lsn()),"
        " pg_current_wal_insert_lsn()::text FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return str(row[0]), int(str(row[1])[:8], 16), number_of(str(row[2]))


def _checkpoint(connection: Connection) -> None:
    connection.execute("CHECKPOINT")


def _error_in(log: int) -> str:
    """Why it ended; not what it said to us while it was not ready yet, which may come later."""
    text = os.pread(log, LOG_READ, max(0, os.fstat(log).st_size - LOG_READ)).decode(errors="replace")
    bad = [
        line for line in text.splitlines()
        if any(word in line for word in ("FATAL:", "PANIC:")) and "the database system is" not in line
    ]  # fmt: skip
    return bad[-1].partition("  ")[2][:300] if bad else last_error(Path(f"/proc/self/fd/{log}"))
