"""A simulated database: a volume that outlives everything, a server that dies with its guest, and tools
that die with the agent. What a backup consists of is real (pieces, keys, manifest), its data is small."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from unstuck.core.archive.data import LogView, Piece, Point
from unstuck.core.backup.content import Content, Position
from unstuck.core.backup.content import Datastore as Source
from unstuck.core.backup.data import Phase
from unstuck.core.instance.guest import Config, Sight
from unstuck.core.instance.requests import (
    Check,
    Checked,
    CreateDatabases,
    CreateUsers,
    DatabaseAnswer,
    DatabaseInfo,
    DatabaseRequest,
    DropUser,
    Failed,
    ListDatabases,
    ListUsers,
    Ok,
    UserInfo,
)
from unstuck.core.instance.trial import Trial
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.server.data import Thing
from unstuck.guest.datastore import Copied, DatastoreError, LogSource, Look
from unstuck.sim import parameters
from unstuck.sim.engine import NoReply, Reply, sleep
from unstuck.sim.verify_scenarios import WRONG

if TYPE_CHECKING:
    from unstuck.sim.guest import Inside

PIECE: Final = 256
"""Bytes of a piece in the simulated cloud; the product's are 4 MiB."""
HEAD: Final = 2
"""Full pieces before the one with the rows."""
START_SECONDS: Final = 1.0
WORK_SECONDS: Final = {Phase.STARTING: 2.0, Phase.COPYING: 0.5, Phase.FINISHING: 2.0}
_SYSTEM: Final = "system-"
BAD_IMAGE: Final = "system-bad"
"""No server of this one comes up on data that another has made."""


class Volume(msgspec.Struct):
    """The data of one instance. ``rows`` only ever grow; their count is the position in the log."""

    generation: str = ""
    timeline: int = 0
    rows: list[str] = []
    applied: bool = False
    databases: set[str] = set()
    users: set[str] = set()
    config: str = ""
    trial: Trial = Trial()
    half: bool = False
    cuts: list[int] = []
    archived: int = 0
    """Pieces of the log end here; up to here it may be forgotten."""
    full: bool = False


class Kept(msgspec.Struct, frozen=True):
    """The rows as they lie in a backup's last piece. ``since``: how many there were before, in its parent."""

    timeline: int
    rows: tuple[str, ...]
    since: int = 0


def place(timeline: int, rows: int) -> Position:
    """In the form of PostgreSQL's positions: the log counts rows."""
    return Position(timeline, f"0/{rows:X}")


def row_of(position: Position) -> int:
    return int(position.lsn.partition("/")[2], 16)


def rows_in(plain: bytes) -> Kept:
    """Raises :class:`msgspec.DecodeError`."""
    return msgspec.json.decode(plain.rpartition(b"\0")[2], type=Kept)


class SimCopy:
    """The backup tool: it reads the running server, phase by phase, and may hang in any."""

    def __init__(self, inside: Inside, nonce: str, parent: Content | None) -> None:
        self._inside = inside
        self._nonce = nonce
        self._since = 0 if parent is None else row_of(parent.stop)
        self._over = Reply(inside.engine)
        self._phase = Phase.STARTING
        self._number = 0
        self._given = 0
        self._tail: bytes | None = None
        self._why = ""
        self._stop = len(inside.volume.rows)
        self._start = self._stop if parent is None else self._since
        self._content = "tar" if parent is None else "wal"

    async def _work(self, phase: Phase) -> None:
        """Work in a phase, unless it hangs there; cut short when the tool ends."""
        self._phase = phase
        seconds = 1e9 if self._inside.hangs is phase else WORK_SECONDS[phase]
        try:
            await self._over.within(seconds)
        except NoReply:
            self._number += 1
            return
        raise DatastoreError(self._why)

    async def read(self, size: int, _into: bytearray) -> bytes:
        if self._over.given:
            raise DatastoreError(self._why)
        if self._number == 0:
            await self._work(Phase.STARTING)
        if self._given < HEAD:
            await self._work(Phase.COPYING)
            self._given += 1
            return b"\0" * size
        if self._tail is None:
            await self._work(Phase.FINISHING)
            volume = self._inside.volume
            self._stop = len(volume.rows)
            self._tail = msgspec.json.encode(
                Kept(volume.timeline, tuple(volume.rows[self._since :]), self._since)
            )
        piece, self._tail = self._tail[:size], self._tail[size:]
        return piece

    async def look(self) -> tuple[Phase, int]:
        return self._phase, self._number

    async def finish(self) -> Copied:
        if self._over.given:
            raise DatastoreError(self._why)
        timeline = self._inside.volume.timeline
        return Copied(
            datastore=Source("postgresql", "15", "15.14"), system_identifier=f"{_SYSTEM}{timeline}",
            start=place(timeline, self._start), stop=place(timeline, self._stop),
            content=self._content,
        )  # fmt: skip

    def end(self, why: str) -> None:
        """The tool is no more; its slot in the server stays until somebody removes it."""
        self._why = self._why or why
        if self in self._inside.tools:
            self._inside.tools.remove(self)
        self._over.give(None)

    async def close(self) -> None:
        self.end("the tool was ended")
        self._inside.slots.discard(self._nonce)


class SimReceiver:
    """A restore into a temporary name."""

    def __init__(self, inside: Inside, want: DatabaseWant, chain: tuple[Content, ...]) -> None:
        self._inside = inside
        self._want = want
        self._chain = chain
        self._number = 0
        self._plain = b""
        self._rows: list[str] = []
        self._log: LogSource | None = None
        self._point: Point | None = None

    async def begin(self, number: int) -> None:
        if number:
            self._one_unpacked()
        self._number, self._plain = number, b""

    async def write(self, data: bytes | memoryview) -> None:
        if self._inside.volume.full:
            raise DatastoreError("no space left on the volume")
        await sleep(0.1)
        self._plain += data

    async def unpacked(self) -> None:
        self._one_unpacked()
        if self._number != len(self._chain) - 1:
            raise _damaged("not all of its chain was written")

    def _one_unpacked(self) -> None:
        content = self._chain[self._number]
        try:
            kept = rows_in(self._plain)
        except msgspec.DecodeError as error:
            raise _damaged("it cannot be unpacked") from error
        if len(self._plain) != content.size:
            raise _damaged("it is not as long as it should be")
        if f"{_SYSTEM}{kept.timeline}" != content.system_identifier:
            raise _damaged("it is another system's")
        if kept.since != len(self._rows) or (content.content == "wal") != (self._number > 0):
            raise _damaged("it does not go on where its parent ends")
        self._rows += kept.rows

    async def replay(self, log: LogSource, point: Point) -> None:
        self._log, self._point = log, point

    async def prove(self) -> None:
        await sleep(START_SECONDS)
        if len(self._rows) != row_of(self._chain[-1].stop):
            raise _damaged("its server does not reach the position")
        if self._log is not None and self._point is not None:
            await self._replay(self._log, self._point)

    async def _replay(self, log: LogSource, point: Point) -> None:
        for name in log.names:
            data = await log.get(name)
            assert data is not None
            first = int(name[7:])
            rows: list[str] = msgspec.json.decode(data)
            if first > len(self._rows):
                raise _damaged("a piece of its log is missing")
            self._rows[first:] = rows
        end = int(point.position, 16)
        if len(self._rows) < end:
            raise _damaged("its log ends before the point")
        del self._rows[end:]

    async def publish(self) -> None:
        inside, volume = self._inside, self._inside.volume
        if inside.world.cutting:
            return
        if volume.generation:
            raise DatastoreError("there is data already")
        inside.world.truth.restored(inside, self._want, self._chain[-1], list(self._rows))
        volume.generation, volume.applied = self._want.generation, False
        inside.new_timeline(list(self._rows))

    async def close(self) -> None:
        return


def _damaged(reason: str) -> DatastoreError:
    return DatastoreError(f"the backup is damaged: {reason}", "restore another", final=True,
                          code="backup-damaged")  # fmt: skip


class SimDatastore:
    """Implements :class:`unstuck.guest.datastore.Datastore` for one process of the agent."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    async def look(self, want: DatabaseWant | None) -> Look:
        inside, volume = self._inside, self._inside.volume
        foreign = ""
        if want is None:
            data = Thing.UNKNOWN
        elif not volume.generation:
            data = Thing.ABSENT
        elif volume.generation == want.generation:
            data = Thing.PRESENT
        else:
            data, foreign = Thing.UNKNOWN, volume.generation
        current = want is not None and volume.config == _config(inside, want)
        sight = Sight(
            data=data, server=inside.server, foreign=foreign, restart=inside.restart, applied=volume.applied,
            config=Config.CURRENT if current else Config.OLD, starts=inside.failed,
        )  # fmt: skip
        log = None
        if inside.server is ServerState.UP:
            position = f"{len(volume.rows):016X}"
            log = LogView(timeline=volume.timeline, position=position, waiting_mb=0)
        return Look(
            sight=sight,
            used=len(volume.rows),
            size=1 << 30,
            facts={"timeline": str(volume.timeline)},
            log=log,
            configured=None if want is None else parameters.look(inside, want),
        )

    async def init(self, want: DatabaseWant) -> None:
        volume = self._inside.volume
        if volume.full:
            raise DatastoreError("no space left on the volume")
        volume.half = True
        if self._inside.world.cutting:
            return
        if volume.generation:
            raise DatastoreError("there is data already")
        self._inside.world.truth.data_made(self._inside, want)
        volume.half, volume.generation, volume.applied = False, want.generation, False
        self._inside.new_timeline([])

    async def start(self, want: DatabaseWant) -> None:
        inside, volume = self._inside, self._inside.volume
        if volume.generation != want.generation:
            raise DatastoreError("there is no such data")
        if inside.server in (ServerState.UP, ServerState.STARTING):
            raise DatastoreError("a server runs already")
        if inside.image == BAD_IMAGE:
            raise DatastoreError("this version does not start on this data", final=True)
        comes_up = parameters.before_start(inside, want)
        volume.config = _config(inside, want)
        inside.start_server(want.restart)
        if not comes_up:
            inside.crash_server()
            raise DatastoreError("the server ended at once: no memory")
        if volume.full:
            inside.crash_server()
            raise DatastoreError("the server ended at once: no space left on the volume")

    async def stop(self) -> None:
        self._inside.stop_server(ServerState.DOWN)

    async def apply(self, want: DatabaseWant) -> None:
        if self._inside.server is not ServerState.UP:
            raise DatastoreError("the server does not answer")
        volume = self._inside.volume
        volume.databases |= {database.name for database in want.origin.databases}
        volume.users |= {user.name for user in want.origin.users}
        volume.applied = True

    async def reconfigure(self, want: DatabaseWant) -> None:
        parameters.reload(self._inside, want)
        self._inside.volume.config = _config(self._inside, want)

    async def ask(self, request: DatabaseRequest, seconds: float) -> DatabaseAnswer:
        volume = self._inside.volume
        if self._inside.server is not ServerState.UP:
            return Failed("unready", "the server does not answer")
        await sleep(0.1)
        match request:
            case ListDatabases():
                return Ok(databases=tuple(DatabaseInfo(name) for name in sorted(volume.databases)))
            case ListUsers():
                return Ok(users=tuple(UserInfo(name, ()) for name in sorted(volume.users)))
            case CreateDatabases(databases):
                volume.databases |= {database.name for database in databases}
            case CreateUsers(users):
                there = [user.name for user in users if user.name in volume.users]
                if there:
                    return Failed("exists", f"there is a user {there[0]}")
                volume.users |= {user.name for user in users}
            case Check(query=query):
                if query == WRONG:
                    return Failed("wrong", "the statement gave false", "query")
                return Ok(checked=Checked(1, 1, 1, len(volume.rows)))
            case DropUser(name):
                volume.users.discard(name)
            case _:
                return Failed("invalid", "not simulated")
        return Ok()

    async def copy(self, nonce: str, parent: Content | None) -> SimCopy:
        inside = self._inside
        if inside.server is not ServerState.UP:
            raise DatastoreError("the server does not answer")
        if parent is not None and parent.stop.timeline != inside.volume.timeline:
            raise DatastoreError("its parent is of another timeline", final=True)
        inside.slots.add(nonce)
        made = SimCopy(inside, nonce, parent)
        inside.tools.append(made)
        return made

    async def receive(self, want: DatabaseWant, chain: tuple[Content, ...]) -> SimReceiver:
        return SimReceiver(self._inside, want, chain)

    async def serve_log(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        self._inside.keep_log = keep

    async def log_piece(self, name: str) -> tuple[Piece, bytes]:
        return self._inside.log_piece(name)

    async def log_waiting(self) -> int:
        return self._inside.log_waiting()

    async def sweep(self, nonce: str | None) -> None:
        self._inside.slots &= {nonce}


def _config(inside: Inside, want: DatabaseWant) -> str:
    return msgspec.json.encode([want.cidrs, parameters.written(inside, want)]).decode()


__all__ = ["PIECE", "Kept", "SimCopy", "SimDatastore", "Volume", "rows_in"]
