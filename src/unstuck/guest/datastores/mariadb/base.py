"""A copy of a running server: ``mariadb-backup`` into a pipe, on a leash, with the log of that time.

It is whole only when the tool ended well, said its own words for that, and its stream has an end to every
file in it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from unstuck.core.backup.content import Content, Datastore, Position
from unstuck.core.backup.data import Phase
from unstuck.guest.datastore import Copied, DatastoreError
from unstuck.guest.datastores.mariadb import binlog, config
from unstuck.guest.datastores.mariadb.place import Place, place_of
from unstuck.guest.datastores.mariadb.session import DatabaseError
from unstuck.guest.datastores.mariadb.tape import CHANGES, FORM, Tape
from unstuck.guest.piped import Piped
from unstuck.guest.processes import ticks
from unstuck.guest.tools import ToolFailed

if TYPE_CHECKING:
    from unstuck.guest.datastores.mariadb.datastore import MariaDB

ASK: Final = 10.0
FULL: Final = "make a full backup"
WHOLE: Final = "completed OK!"
_ENDS: Final = ("BACKUP STAGE BLOCK_COMMIT", "BACKUP STAGE END", "Stopping log copying")
"""Words of the tool from when on it waits for transactions and writes the end of the log."""


class BaseCopy:
    """One that is being made."""

    def __init__(self, datastore: MariaDB, version: str, generation: str, parent: Content | None) -> None:
        self._version = version
        self._generation = generation
        self._parent = parent
        self._tape = Tape()
        self._tool = Piped(self._tape.feed)
        self._finishing = False
        self._datastore = datastore

    @classmethod
    async def begin(cls, datastore: MariaDB, parent: Content | None) -> BaseCopy:
        """With a parent, what has changed since its checkpoint. Raises :class:`DatastoreError`."""
        from unstuck.guest.datastores.mariadb.datastore import whose

        try:
            version, generation = await datastore.call(whose, ASK)
        except DatabaseError as error:
            raise DatastoreError(f"no backup can begin: {error}") from error
        since = () if parent is None else (f"--incremental-lsn={_since(parent, version, generation)}",)
        copy = cls(datastore, version, generation, parent)
        places = datastore.places
        try:
            await copy._tool.start(datastore.tools, [
                "mariadb-backup", f"--defaults-file={places.file}", "--backup", "--stream=mbstream",
                f"--user={places.owner}", f"--socket={places.socket}", f"--datadir={places.data}",
                # Nothing is written there, the stream takes it all; but it has to be named.
                f"--target-dir={places.sockets / 'none'}", *since,
            ])  # fmt: skip
        except ToolFailed as error:
            await copy.close()
            raise DatastoreError(str(error)) from error
        return copy

    async def read(self, size: int, into: bytearray) -> memoryview:
        return await self._tool.read(size, into)

    async def look(self) -> tuple[Phase, int]:
        self._finishing = self._finishing or any(word in self._tool.words() for word in _ENDS)
        phase = Phase.COPYING if self._tool.flows else Phase.STARTING
        return Phase.FINISHING if self._finishing else phase, ticks(self._tool.pids())

    async def finish(self) -> Copied:
        await self._tool.ended()
        last = (self._tool.words().splitlines() or [""])[-1]
        if not last.endswith(WHOLE):
            raise DatastoreError(f"mariadb-backup ended without saying that it is done: {last[:300]}")
        start, place = self._tape.places()
        place = await self._quiet(place)
        timeline = config.server_id(self._generation)
        begins = Position(timeline, Place(0, 0).text)
        if self._parent is not None:
            begins = self._parent.stop
            if start != place_of(begins.lsn).checkpoint:
                raise DatastoreError(f"the copy begins at {start}, and its parent ends elsewhere")
        elif start:
            raise DatastoreError("the copy is no full one")
        return Copied(
            datastore=Datastore("mariadb", series(self._version), self._version),
            system_identifier=self._generation,
            start=begins,
            stop=Position(timeline, place.text),
            content=FORM if self._parent is None else CHANGES,
        )

    async def _quiet(self, place: Place) -> Place:
        """Where nothing has happened in a file of the log yet, all of it is what follows."""
        with contextlib.suppress(DatastoreError, DatabaseError):
            quiet = await self._datastore.call(
                lambda session: binlog.is_quiet(session, place.file, place.at), ASK
            )
            if quiet:
                return msgspec.structs.replace(place, at=0)
        return place  # nothing can be said of it, and it is right as it is

    async def close(self) -> None:
        await self._tool.close()


def _since(parent: Content, version: str, generation: str) -> int:
    """The checkpoint that the parent ends with, of this very data and server."""
    for what, was, found in (
        ("data", parent.system_identifier, generation),
        ("version", parent.datastore.server_version, version),
    ):
        if was != found:
            reason = f"its parent is of {what} {was}, and the server of {found}: {FULL}"
            raise DatastoreError(reason, FULL, final=True, code="parent-unfit")
    try:
        return place_of(parent.stop.lsn).checkpoint
    except ValueError as error:
        raise DatastoreError(f"{error}: {FULL}", FULL, final=True, code="parent-unfit") from error


def series(version: str) -> str:
    """The name of its version: of one, data goes from server to server as it is."""
    return ".".join(version.split(".")[:2])
