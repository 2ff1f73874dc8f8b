"""A base backup of a running server: ``pg_basebackup`` into a pipe, on a leash, with its WAL held by a slot.

The WAL is fetched at the end (a pipe allows nothing else), so a slot of the attempt's own keeps it until
then, up to a cap: the server outlives a backup that takes too long. The slot never outlives the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import psycopg

from unstuck.core.backup.content import Datastore
from unstuck.core.backup.data import Phase
from unstuck.guest.datastore import Copied, DatastoreError
from unstuck.guest.datastores.postgresql.config import ADMIN, SLOT, Places
from unstuck.guest.datastores.postgresql.server import Living, offspring, ticks
from unstuck.guest.datastores.postgresql.session import Connection, first_line
from unstuck.guest.datastores.postgresql.tape import Tape
from unstuck.guest.tools import Child, ToolFailed, Tools, enlarge, last_words

if TYPE_CHECKING:
    from unstuck.guest.datastores.postgresql.datastore import PostgreSQL

ASK: Final = 5.0
END: Final = 30.0
"""Seconds for the tool to end after its stream has."""
_PHASES: Final = {
    "initializing": Phase.STARTING,
    "waiting for checkpoint to finish": Phase.STARTING,
    "estimating backup size": Phase.COPYING,
    "streaming database files": Phase.COPYING,
    "waiting for wal archiving to finish": Phase.FINISHING,
    "transferring wal files": Phase.FINISHING,
}


class BaseCopy:
    """One that is being made."""

    def __init__(self, datastore: PostgreSQL, living: Living, nonce: str, told: tuple[str, str]) -> None:
        self._datastore = datastore
        self._living = living
        self._slot = slot_name(nonce)
        self._version, self._identifier = told
        self._tape = Tape()
        self._phase = Phase.STARTING
        self._thread = ThreadPoolExecutor(1, "copy")
        self._pipe = -1
        self._child: Child | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._closed = False

    @classmethod
    async def begin(
        cls, datastore: PostgreSQL, tools: Tools, programs: Path, places: Places, living: Living, nonce: str
    ) -> BaseCopy:
        """Secure the WAL, then start the tool. Raises :class:`DatastoreError`."""
        slot = slot_name(nonce)
        try:
            told = await datastore.call(lambda connection: _secure(connection, slot), ASK * 2)
        except psycopg.Error as error:
            raise DatastoreError(f"no backup can begin: {first_line(error)}") from error
        copy = cls(datastore, living, nonce, told)
        try:
            await copy._start(tools, programs, places)
        except ToolFailed as error:
            await copy.close()
            raise DatastoreError(str(error)) from error
        return copy

    async def _start(self, tools: Tools, programs: Path, places: Places) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._pipe = reading
        enlarge(writing)
        where = f"host={places.sockets} port={self._living.port} user={ADMIN} application_name={self._slot}"
        try:
            self._child = await tools.start(
                [str(programs / "pg_basebackup"), "-d", where, "--no-password", "-D", "-", "-Ft",
                 "-X", "fetch", "-c", "fast", "--manifest-checksums=SHA256", "-l", self._slot],
                stdout=writing, stderr=self._words.fileno(),
            )  # fmt: skip
        finally:
            os.close(writing)

    # --- what it gives

    async def read(self, size: int, into: bytearray) -> memoryview:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, size, into)

    def _read(self, size: int, into: bytearray) -> memoryview:
        """Whole pieces; the last one is shorter. Its waits are short, so that closing need not break in."""
        view, filled = memoryview(into)[:size], 0
        waiter = select.poll()
        waiter.register(self._pipe, select.POLLIN)
        while filled < size:
            if self._closed:
                raise DatastoreError("the copy was stopped")
            if not waiter.poll(500):
                continue
            got = os.readv(self._pipe, [view[filled:]])
            if got == 0:
                break
            filled += got
        if filled and self._phase is Phase.STARTING:
            self._phase = Phase.COPYING
        self._tape.feed(view[:filled])
        return view[:filled]

    async def look(self) -> tuple[Phase, int]:
        pids = [] if self._child is None else [found.pid for found in offspring(self._child.pid)]
        with contextlib.suppress(DatastoreError, psycopg.Error):
            row = await self._datastore.call(self._progress, ASK)
            if row is not None:
                self._phase = _PHASES.get(row[1], self._phase)
                pids.append(row[0])
        return self._phase, ticks(pids)

    def _progress(self, connection: Connection) -> tuple[int, str] | None:
        row = connection.execute(
            "SELECT p.pid, p.phase FROM pg_stat_progress_basebackup p JOIN pg_stat_activity a USING (pid)"
            " WHERE a.application_name = %s",
            [self._slot],
        ).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    async def finish(self) -> Copied:
        """Its exit code and its content: either alone has lied before."""
        assert self._child is not None
        try:
            async with asyncio.timeout(END):
                code = await self._child.wait()
        except TimeoutError:
            raise DatastoreError(f"pg_basebackup did not end within {END:.0f} s") from None
        if code != 0:
            words = last_words(self._words.fileno()).splitlines() or ["no word of why"]
            raise DatastoreError(f"pg_basebackup ended with {code}: {words[-1][:300]}")
        start, stop = self._tape.positions()
        major = self._version.split(".")[0]
        return Copied(
            datastore=Datastore("postgresql", major, self._version),
            system_identifier=self._identifier,
            start=start,
            stop=stop,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._child is not None:
            self._child.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK):
                    await self._child.wait()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self._words.close()
        # Best effort: what cannot be removed now is, at the next attempt or when the agent starts again.
        with contextlib.suppress(DatastoreError, psycopg.Error):
            await self._datastore.call(lambda connection: drop_slots(connection, only=self._slot), ASK * 2)


def slot_name(nonce: str) -> str:
    """Slots have names of lower case letters, digits and underscores, 63 at most."""
    return SLOT + "".join(char if char.isalnum() and char.isascii() else "_" for char in nonce.lower())[:40]


def _secure(connection: Connection, slot: str) -> tuple[str, str]:
    drop_slots(connection)
    connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
    row = connection.execute(
        "SELECT current_setting('server_version'), system_identifier::text FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return str(row[0]).split(" ")[0], str(row[1])


def drop_slots(connection: Connection, *, keep: str | None = None, only: str | None = None) -> None:
    """The slots of our attempts, but not this attempt's; or only this one. Whoever holds one is ended."""
    kept = None if keep is None else slot_name(keep)
    rows = connection.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE starts_with(slot_name, %s)", [SLOT]
    ).fetchall()
    for name, pid in rows:
        if name == kept or (only is not None and name != only):
            continue
        if pid is not None:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with contextlib.suppress(psycopg.errors.UndefinedObject):  # whoever held it dropped it in the end
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
