"""An incremental backup: the log from its parent's end to now, which is replayed on it when it is restored.

The server is told to begin another segment, so that all that was committed before is in whole ones. They are
read from its folder, where ``wal_keep_size`` keeps them for a while; what has gone from there is gone.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psycopg

from unstuck.core.backup.content import Content, Datastore, Position
from unstuck.core.backup.data import Phase
from unstuck.guest.datastore import Copied, DatastoreError
from unstuck.guest.datastores.postgresql.segments import lsn_of, name_of, needed, number_of
from unstuck.guest.datastores.postgresql.session import Connection, first_line

if TYPE_CHECKING:
    from unstuck.guest.datastores.postgresql.datastore import PostgreSQL

FORM: Final = "wal"
"""What ``Content.content`` calls it: a tar of segments."""
SWITCH: Final = 60.0
_READ: Final = 1 << 20
FULL: Final = "make a full backup"


class Now(msgspec.Struct, frozen=True):
    """The server, and where its log ends: at the beginning of a segment. Sizes in bytes."""

    version: str
    identifier: str
    timeline: int
    stop: int
    segment: int


class WalCopy:
    """One that is being made; no tool is needed for it."""

    def __init__(self, folder: Path, parent: Content, now: Now) -> None:
        self._folder = folder
        self._parent = parent
        self._now = now
        self._thread = ThreadPoolExecutor(1, "copy")
        self._bytes = 0
        self._closed = False
        start = number_of(parent.stop.lsn)
        self._names = [name_of(now.timeline, at, now.segment) for at in needed(start, now.stop, now.segment)]
        self._stream = self._tar()
        self._rest = b""

    @classmethod
    async def begin(cls, datastore: PostgreSQL, parent: Content) -> WalCopy:
        """Raises :class:`DatastoreError`."""
        try:
            now = await datastore.call(_switch, SWITCH)
        except psycopg.Error as error:
            raise DatastoreError(f"no backup can begin: {first_line(error)}") from error
        _check(parent, now)
        copy = cls(datastore.places.data / "pg_wal", parent, now)
        lacking = [name for name in copy._names if not (copy._folder / name).exists()]
        if lacking:
            raise DatastoreError(
                f"the log since its parent is not on the volume any more ({lacking[0]}): {FULL}",
                FULL, final=True, code="log-gone",
            )  # fmt: skip
        return copy

    def _tar(self) -> Iterator[bytes]:
        for name in self._names:
            head = tarfile.TarInfo(name)
            head.size, head.mode = self._now.segment, 0o640
            yield head.tobuf(tarfile.USTAR_FORMAT)
            yield from self._segment(self._folder / name)
        yield bytes(tarfile.BLOCKSIZE * 2)

    def _segment(self, path: Path) -> Iterator[bytes]:
        try:
            with path.open("rb", buffering=0) as file:
                left = self._now.segment
                while left:
                    data = file.read(min(_READ, left))
                    if not data:
                        raise DatastoreError(f"the log's segment {path.name} is too short")
                    left -= len(data)
                    yield data
                # A server that needs it no more gives the file another name, and writes into it.
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            same = False
        if not same:
            reason = f"the log's segment {path.name} went from the volume before it was backed up: {FULL}"
            raise DatastoreError(reason, FULL, final=True, code="log-gone")

    async def read(self, size: int, _into: bytearray) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, size)

    def _read(self, size: int) -> bytes:
        found = [self._rest]
        length = len(self._rest)
        while length < size:
            if self._closed:
                raise DatastoreError("the copy was stopped")
            data = next(self._stream, b"")
            if not data:
                break
            found.append(data)
            length += len(data)
            self._bytes += len(data)
        whole = b"".join(found)
        self._rest = whole[size:]
        return whole[:size]

    async def look(self) -> tuple[Phase, int]:
        return Phase.COPYING, self._bytes

    async def finish(self) -> Copied:
        now = self._now
        return Copied(
            datastore=Datastore("postgresql", now.version.split(".")[0], now.version),
            system_identifier=now.identifier, start=self._parent.stop,
            stop=Position(now.timeline, lsn_of(now.stop)), content=FORM,
        )  # fmt: skip

    async def close(self) -> None:
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)


def _check(parent: Content, now: Now) -> None:
    """Whether the parent is of this very server, and its log goes on in this one."""
    for what, was, found in (
        ("system", parent.system_identifier, now.identifier),
        ("timeline", str(parent.stop.timeline), str(now.timeline)),
        ("major version", parent.datastore.version, now.version.split(".")[0]),
    ):
        if was != found:
            reason = f"its parent is of {what} {was}, and the server of {found}: {FULL}"
            raise DatastoreError(reason, FULL, final=True, code="parent-unfit")
    if number_of(parent.stop.lsn) > now.stop:
        reason = f"its parent ends at {parent.stop.lsn}, and the server's log before that: {FULL}"
        raise DatastoreError(reason, FULL, final=True, code="parent-unfit")


def _switch(connection: Connection) -> Now:
    """Where there is nothing new since the last switch, the server does not switch again."""
    row = connection.execute(
        "SELECT current_setting('server_version'), (SELECT system_identifier::text FROM pg_control_system()),"
        " pg_walfile_name(pg_current_wal_insert_lsn()),"
        " (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')"
    ).fetchone()
    switched = connection.execute("SELECT pg_switch_wal()::text").fetchone()
    assert row is not None
    assert switched is not None
    version, identifier, name, segment = row
    stop = -(-number_of(str(switched[0])) // int(segment)) * int(segment)
    return Now(str(version).split(" ")[0], str(identifier), int(str(name)[:8], 16), stop, int(segment))
