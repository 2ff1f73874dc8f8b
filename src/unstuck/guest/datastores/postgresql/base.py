"""A base backup of a running server: ``pg_basebackup`` into a pipe, on a leash, with its WAL held by a slot.

The WAL is fetched at the end (a pipe allows nothing else), so a slot of the attempt's own keeps it until
then, up to a cap: the server outlives a backup that takes too long. The slot never outlives the attempt.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from unstuck.core.backup.content import Datastore
from unstuck.core.backup.data import Phase
from unstuck.guest.datastore import Copied, DatastoreError
from unstuck.guest.datastores.postgresql.config import ADMIN, SLOT, Places
from unstuck.guest.datastores.postgresql.server import Living
from unstuck.guest.datastores.postgresql.session import Connection, first_line
from unstuck.guest.datastores.postgresql.tape import Tape
from unstuck.guest.piped import Piped
from unstuck.guest.processes import ticks
from unstuck.guest.tools import ToolFailed, Tools

if TYPE_CHECKING:
    from unstuck.guest.datastores.postgresql.datastore import PostgreSQL

ASK: Final = 5.0
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

    def __init__(self, datastore: PostgreSQL, nonce: str, told: tuple[str, str]) -> None:
        self._datastore = datastore
        self._slot = slot_name(nonce)
        self._version, self._identifier = told
        self._tape = Tape()
        self._tool = Piped(self._tape.feed)
        self._phase = Phase.STARTING

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
        copy = cls(datastore, nonce, told)
        where = f"host={places.sockets} port={living.port} user={ADMIN} application_name={slot}"
        try:
            await copy._tool.start(tools, [
                str(programs / "pg_basebackup"), "-d", where, "--no-password", "-D", "-", "-Ft",
                "-X", "fetch", "-c", "fast", "--manifest-checksums=SHA256", "-l", slot,
            ])  # fmt: skip
        except ToolFailed as error:
            await copy.close()
            raise DatastoreError(str(error)) from error
        return copy

    async def read(self, size: int, into: bytearray) -> memoryview:
        return await self._tool.read(size, into)

    async def look(self) -> tuple[Phase, int]:
        pids = self._tool.pids()
        if self._tool.flows and self._phase is Phase.STARTING:
            self._phase = Phase.COPYING
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
        await self._tool.ended()
        start, stop = self._tape.positions()
        major = self._version.split(".")[0]
        return Copied(
            datastore=Datastore("postgresql", major, self._version),
            system_identifier=self._identifier,
            start=start,
            stop=stop,
        )

    async def close(self) -> None:
        if not await self._tool.close():
            return
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
