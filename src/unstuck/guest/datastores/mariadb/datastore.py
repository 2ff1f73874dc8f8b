"""MariaDB as the agent's loops see it: looks and effects."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from unstuck.core.archive.data import LogView, Piece
from unstuck.core.backup.content import Content
from unstuck.core.instance.guest import Config, Sight
from unstuck.core.instance.requests import DatabaseAnswer, DatabaseRequest, Failed
from unstuck.core.instance.view import Configured, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.server.data import Thing
from unstuck.guest.certificate import certify
from unstuck.guest.datastore import DatastoreError, Look
from unstuck.guest.datastores.mariadb import accounts, binlog, boot, config, names, requests, variables
from unstuck.guest.datastores.mariadb.base import BaseCopy
from unstuck.guest.datastores.mariadb.config import Places
from unstuck.guest.datastores.mariadb.keeping import Keeping
from unstuck.guest.datastores.mariadb.receive import Unpacking
from unstuck.guest.datastores.mariadb.server import LOG_MOST, PROGRAM, Living, Server, last_error
from unstuck.guest.datastores.mariadb.session import DatabaseError, Session, Sessions
from unstuck.guest.parameters import Parameters
from unstuck.guest.starts import Starts
from unstuck.guest.tools import ToolFailed, Tools, run
from unstuck.guest.turns import Mute, StartingUp, Use
from unstuck.guest.volume import FORMAT, Found, Marker, Volume, rotate
from unstuck.runtime.files import write_whole

T = TypeVar("T")
Spawn = Callable[[str, Coroutine[Any, Any, None]], None]

LOOK: Final = 3.0
"""Seconds for an answer about how the server is."""
CALL: Final = 30.0
NOT_SO: Final = "delete the instance and create it without that"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a server that answers says of itself."""

    facts: dict[str, str] = {}
    root: bool = False
    level: Config = Config.UNKNOWN
    configured: Configured | None = None


class MariaDB:
    """One database on one volume. ``on_event`` is called when the server ends."""

    def __init__(
        self, volume: Volume, places: Places, tools: Tools, clock: Callable[[], float],
        on_event: Callable[[], None], spawn: Spawn,
    ) -> None:  # fmt: skip
        self.volume = volume
        self.places = places
        self.tools = tools
        self._clock = clock
        self.sessions = Sessions(places.agent)
        self._server = Server(places, tools, on_event)
        self._starts = Starts(volume, clock)
        self._parameters = Parameters(places.conf, clock)
        self._spawn = spawn
        self._keeping = Keeping(self, clock)
        self._taken: tuple[Living, str] | None = None
        """The server that was given this file's variables: what it made of them is as good as it gets."""

    @property
    def _log(self) -> Path:
        return self.volume.log / "mariadb.log"

    # --- looking

    async def look(self, want: DatabaseWant | None) -> Look:
        found = self.volume.look(want.generation) if want is not None else Found(Thing.UNKNOWN)
        size, used = 0, 0
        with contextlib.suppress(OSError):
            if found.data is not Thing.UNKNOWN:  # else it is not known to be ours
                self.volume.prepare()
            free, size = self.volume.space()
            used = size - free
            rotate(self._log, LOG_MOST)
        try:
            living = self._server.find()
        except OSError as error:
            sight = Sight(
                data=found.data, server=ServerState.UNCLEAR, foreign=found.foreign, reason=str(error)
            )
            return Look(sight=sight, used=used, size=size)
        if isinstance(living, ServerState):
            ended = living is ServerState.CRASHED or self._starts.lately(want) > 0
            reason = found.reason or (last_error(self._log) if ended else "")
            sight = self._sight(want, found, living, 0, reason=reason)
            return Look(sight=sight, used=used, size=size)
        return await self._ask_how(want, found, living, used, size)

    async def _ask_how(
        self, want: DatabaseWant | None, found: Found, living: Living, used: int, size: int
    ) -> Look:
        state, reason, told = ServerState.UP, found.reason, Told()
        try:
            told = await self.sessions.run(
                self.places.socket, lambda session: self._told(session, want, living), LOOK, Use.LOOK
            )
        except StartingUp as error:
            state, reason = ServerState.STARTING, str(error)
        except Mute as error:
            state, reason = ServerState.UNCLEAR, str(error)
        except DatabaseError as error:  # it answered
            reason = str(error)
        log = None
        if want is not None and told.facts.get("system_identifier") == want.generation:
            log = await self._see_log(want)
        if want is not None and told.level is Config.CURRENT and found.data is Thing.PRESENT:
            self._parameters.up(want, (living, self._file(want)))
        sight = self._sight(want, found, state, living.restart, config=told.level, reason=reason)
        return Look(
            sight=sight, root_enabled=told.root, used=used, size=size, facts=told.facts,
            configured=told.configured, log=log,
        )  # fmt: skip

    async def _see_log(self, want: DatabaseWant) -> LogView | None:
        """By itself: while a large transaction is written to it, the server answers everything else."""
        with contextlib.suppress(Mute, StartingUp, DatabaseError, DatastoreError):
            found = await self.sessions.run(self.places.socket, binlog.see, LOOK, Use.LOOK)
            self._keeping.saw(found, want)
            return self._keeping.view(found)
        return None

    def _sight(
        self, want: DatabaseWant | None, found: Found, state: ServerState, restart: int,
        *, config: Config = Config.UNKNOWN, reason: str = "",
    ) -> Sight:  # fmt: skip
        return Sight(
            data=found.data,
            server=state,
            foreign=found.foreign,
            restart=restart,
            applied=found.marker is not None and found.marker.applied,
            config=config,
            full=self._starts.look(),
            starts=self._starts.lately(want),
            reason=reason,
        )

    def _told(self, session: Session, want: DatabaseWant | None, living: Living) -> Told:
        version, generation = whose(session)
        facts = {"server_version": version, "system_identifier": generation}
        told = Told(facts=facts, root=requests.root_enabled(session))
        if want is None:
            return told
        chosen = self._parameters.chosen(want)
        differ = self._others(session, want)
        waiting = tuple(sorted(other.name for other in differ if other.fixed))
        if len(differ) > len(waiting) and self._taken != (living, self._file(want)):
            configured = Configured(waiting=waiting, refused=chosen.refused)
            return msgspec.structs.replace(told, level=Config.OLD, configured=configured)
        applied = {name: text for name, text in chosen.parameters.items() if name not in waiting}
        return msgspec.structs.replace(
            told,
            level=Config.PENDING if waiting else Config.CURRENT,
            configured=Configured(applied, waiting, chosen.refused),
        )

    def _others(self, session: Session, want: DatabaseWant) -> list[variables.Other]:
        wanted = config.chosen(want, self._parameters.chosen(want).parameters)
        return variables.others(session, wanted, config.fixed(want, self.places))

    # --- effects

    async def init(self, want: DatabaseWant) -> None:
        """Make empty data, whole or not at all."""
        await self.clear()
        making = self.volume.begin()
        places = self._at(making)
        try:
            await run(self.tools, ["mkdir", "-m", "0700", str(places.data), str(places.binlog)], CALL)
            await boot.install(self.tools, places.data)
            await self.own(making, want)
            await self.dress(making, want)
            await run(self.tools, ["sync", "-f", str(places.data)], boot.INIT)
        except ToolFailed as error:
            raise DatastoreError(f"the data could not be made: {error}") from error
        self.volume.publish(self.marker(want))

    async def own(self, root: Path, want: DatabaseWant) -> None:
        """Make data ours, and this instance's. Raises :class:`ToolFailed`."""
        text = accounts.setting_up(self.places, want.generation)
        await boot.statements(self.tools, self._at(root).data, text)

    def marker(self, want: DatabaseWant) -> Marker:
        return Marker(FORMAT, want.generation, want.datastore, want.version)

    def _at(self, root: Path) -> Places:
        return Places(root, self.places.sockets, self.places.agent, self.places.owner)

    async def clear(self) -> None:
        """Remove what is half made, as those who made it."""
        if not self.volume.making.exists():
            return
        # What belongs to the other user stays for the second step, which says what is wrong.
        with contextlib.suppress(ToolFailed):
            await run(self.tools, ["find", str(self.volume.making), "-mindepth", "1", "-delete"], CALL * 4)
        await asyncio.to_thread(shutil.rmtree, self.volume.making)

    async def dress(self, root: Path, want: DatabaseWant) -> None:
        """What lies beside the data: a certificate of its own, and the configuration's folder."""
        await certify(self.tools, root / "tls", want.instance_id)
        (root / "conf").mkdir(exist_ok=True)
        (root / "conf").chmod(0o2750)

    def _file(self, want: DatabaseWant) -> str:
        return config.file(want, self.places, self._parameters.chosen(want).parameters)

    async def _configure(self, want: DatabaseWant) -> None:
        """Write it, after MariaDB itself has read it: one bad value would keep the server down."""
        self._parameters.judge(want)
        while True:
            try:
                await self._try(self._file(want))
                return
            except ToolFailed as error:
                if not self._parameters.chosen(want).parameters:
                    raise DatastoreError(f"the configuration is refused: {error}") from error
                self._parameters.refuse(want, str(error))

    async def _try(self, text: str) -> None:
        trial = self.places.conf / "trial.cnf"
        write_whole(trial, text.encode(), mode=0o640, durable=False)
        await run(self.tools, [PROGRAM, f"--defaults-file={trial}", "--verbose", "--help"], CALL)
        trial.rename(self.places.file)

    async def start(self, want: DatabaseWant) -> None:
        self._starts.note(want)
        self._parameters.before_start(want, last_error(self._log))
        await self._configure(want)
        await self._server.start(want.restart, self._log)

    async def stop(self) -> None:
        await self._server.stop()

    async def reconfigure(self, want: DatabaseWant) -> None:
        """Whatever a running server can take; the rest is pending until its next start."""
        await self._configure(want)

        def work(session: Session) -> None:
            for other in self._others(session, want):
                if not other.fixed:
                    session.ask(other.statement)

        living = self._server.find()
        try:
            await self.call(work, CALL)
        except DatabaseError as error:
            raise DatastoreError(f"the server did not take its new configuration: {error}",
                                 "see the database's log") from error  # fmt: skip
        if isinstance(living, Living):
            self._taken = (living, self._file(want))

    async def apply(self, want: DatabaseWant) -> None:
        """The initial databases and users, whichever of them are not there yet."""

        def work(session: Session) -> None:
            for database in want.origin.databases:
                failed(names.bad_database(database.name, "databases"))
                if not requests.has_database(session, database.name):
                    failed(requests.create_databases(session, (database,)))
            for user in want.origin.users:
                failed(names.bad_wanted_user(user))
                if not requests.has_user(session, user.name, user.host or names.ANYWHERE):
                    failed(requests.create_users(session, (user,)))

        try:
            await self.call(work, boot.INIT)
        except DatabaseError as error:
            if error.code in requests.INVALID:
                raise DatastoreError(str(error), NOT_SO, final=True) from error
            raise DatastoreError(str(error)) from error
        found = self.volume.look(want.generation)
        if found.marker is not None:
            self.volume.mark(Marker(FORMAT, want.generation, want.datastore, want.version, applied=True))

    async def call(self, work: Callable[[Session], T], seconds: float, use: Use = Use.OWN) -> T:
        """Raises :class:`DatastoreError`, :class:`DatabaseError`."""
        if not isinstance(self._server.find(), Living):
            raise DatastoreError("the server does not run")
        try:
            return await self.sessions.run(self.places.socket, work, seconds, use)
        except (Mute, StartingUp) as error:
            raise DatastoreError(f"the server does not answer: {error}") from error

    async def ask(self, request: DatabaseRequest, seconds: float) -> DatabaseAnswer:
        try:
            return await self.call(lambda there: requests.answer(there, request), seconds, Use.TENANT)
        except DatastoreError as error:
            return Failed("unready", error.reason)
        except (DatabaseError, OSError) as error:
            return Failed("unready", str(error))

    # --- backups and restores

    async def copy(self, nonce: str, parent: Content | None) -> BaseCopy:  # noqa: ARG002 (names nothing here)
        return await BaseCopy.begin(self, parent)

    async def receive(self, want: DatabaseWant, chain: tuple[Content, ...]) -> Unpacking:
        await self.clear()
        return await Unpacking.receiving(self, want, chain)

    # --- its log

    async def serve_log(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        self._spawn("log", self._keeping.run(keep))

    async def log_piece(self, name: str) -> tuple[Piece, bytes]:
        return await self._keeping.piece(name)

    async def log_waiting(self) -> int:
        return self._keeping.waiting()

    async def sweep(self, nonce: str | None) -> None:
        """A copy holds nothing in the server that outlives its connection."""


def whose(session: Session) -> tuple[str, str]:
    """The server's version, and which data it serves."""
    row = session.one(f"SELECT VERSION(), (SELECT generation FROM {accounts.TABLE} WHERE id = 1)")
    assert row is not None
    return str(row[0]).split("-")[0], str(row[1] or "")


def failed(answer: DatabaseAnswer | None) -> None:
    """An initial database or user that cannot be made will not be by trying again."""
    if isinstance(answer, Failed):
        raise DatastoreError(f"{answer.field}: {answer.message}".lstrip(": "),
                             NOT_SO, final=True)  # fmt: skip
