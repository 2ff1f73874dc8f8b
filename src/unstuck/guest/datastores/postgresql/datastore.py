"""PostgreSQL as the agent's loops see it: looks and effects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import psycopg

from unstuck.core.archive.data import LogView, Piece
from unstuck.core.archive.positions import lsn_place
from unstuck.core.backup.content import Content
from unstuck.core.instance.guest import Config, Sight
from unstuck.core.instance.requests import DatabaseAnswer, DatabaseRequest, Failed, MoreRequest, ReadLog
from unstuck.core.instance.view import Configured, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.server.data import Thing
from unstuck.guest import push
from unstuck.guest.certificate import certify
from unstuck.guest.datastore import DatastoreError, LogSource, Look
from unstuck.guest.datastores.postgresql import config, extras, names, owners, requests
from unstuck.guest.datastores.postgresql.base import BaseCopy, drop_slots
from unstuck.guest.datastores.postgresql.config import ADMIN, Places
from unstuck.guest.datastores.postgresql.logsocket import LogSocket, piece_of
from unstuck.guest.datastores.postgresql.receive import Unpacking
from unstuck.guest.datastores.postgresql.server import LOG_MOST, Living, Server, last_error
from unstuck.guest.datastores.postgresql.session import Connection, Sessions, first_line
from unstuck.guest.datastores.postgresql.walcopy import WalCopy
from unstuck.guest.logfile import read_log
from unstuck.guest.parameters import Parameters
from unstuck.guest.starts import Starts
from unstuck.guest.tools import ToolFailed, Tools, run
from unstuck.guest.turns import Mute, StartingUp, Use
from unstuck.guest.volume import FORMAT, Found, Marker, Volume, rotate
from unstuck.runtime.files import write_whole

T = TypeVar("T")

LOOK: Final = 3.0
"""Seconds for an answer about how the server is."""
CALL: Final = 30.0
INIT: Final = 600.0
"""Seconds for initdb; on an emulated machine it took almost one minute."""
WAITING_MOST: Final = 100
"""Names of parameters that are told: as many as there may be, and no more."""
NOT_SO: Final = "delete the instance and create it without that"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a server that answers says of itself."""

    facts: dict[str, str] = {}
    root: bool = False
    stray: bool = False
    digest: str = ""
    level: Config = Config.UNKNOWN
    configured: Configured | None = None


class PostgreSQL:
    """One database on one volume. ``on_event`` is called when the server ends."""

    def __init__(
        self, volume: Volume, places: Places, programs: Path, tools: Tools,
        clock: Callable[[], float], on_event: Callable[[], None],
    ) -> None:  # fmt: skip
        self.volume = volume
        self.places = places
        self.programs = programs
        self.tools = tools
        self._clock = clock
        self.sessions = Sessions(places.sockets)
        self._server = Server(places, programs, tools, on_event)
        self._starts = Starts(volume, clock)
        self._parameters = Parameters(places.conf, clock)
        self._log_view: LogView | None = None
        self._asked = LogSocket(places.log_socket, _nobody)
        self._superuser = False
        """Whether the tenant's root may be one, by the newest want."""

    @property
    def _log(self) -> Path:
        return self.volume.log / "postgresql.log"

    # --- looking

    async def look(self, want: DatabaseWant | None) -> Look:
        found = self.volume.look(want.generation) if want is not None else Found(Thing.UNKNOWN)
        self._superuser = want is not None and want.superuser
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
            told = await self.sessions.run(living.port, lambda c: self._told(c, want), LOOK, Use.LOOK)
        except StartingUp as error:
            state, reason = ServerState.STARTING, str(error)
        except Mute as error:
            state = ServerState.STARTING if living.word in ("starting", "stopping") else ServerState.UNCLEAR
            reason = str(error)
        except psycopg.Error as error:  # it answered
            reason = first_line(error)
        if want is not None and told.level is Config.CURRENT and found.data is Thing.PRESENT:
            self._parameters.up(want, (living.process, told.digest))
        sight = self._sight(want, found, state, living.restart, config=told.level, reason=reason)
        sight = msgspec.structs.replace(sight, stray=told.stray)
        return Look(
            sight=sight, root_enabled=told.root, used=used, size=size, facts=told.facts,
            configured=told.configured, log=self._log_view if told.facts else None,
        )  # fmt: skip

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

    def _told(self, connection: Connection, want: DatabaseWant | None) -> Told:
        row = connection.execute(
            "SELECT pg_current_wal_flush_lsn()::text, (SELECT timeline_id FROM pg_control_checkpoint()),"
            " current_setting('server_version'), (SELECT system_identifier::text FROM"
            " pg_control_system()), current_setting('unstuck.config', true), EXISTS (SELECT 1 FROM pg_roles"
            " WHERE rolname = %s AND rolcanlogin), (SELECT array_agg(name ORDER BY name) FROM"
            " pg_settings WHERE pending_restart)",
            [names.ROOT],
        ).fetchone()
        assert row is not None
        lsn, timeline, version, identifier, digest, root, pending = row
        self._log_view = LogView(
            timeline=int(timeline), position=lsn_place(str(lsn)), waiting_mb=self._waiting()
        )
        facts = {"server_version": str(version).split(" ")[0], "system_identifier": str(identifier)}
        found = Told(facts=facts, root=bool(root), digest=str(digest or ""))
        if want is None:
            return found
        stray = not want.superuser and owners.unbound(connection)
        found = msgspec.structs.replace(found, stray=stray)
        waiting = tuple(str(name) for name in pending or ())[:WAITING_MOST]
        chosen = self._parameters.chosen(want)
        if digest != config.files(want, self.places, chosen.parameters).digest:
            configured = Configured(waiting=waiting, refused=chosen.refused)
            return msgspec.structs.replace(found, level=Config.OLD, configured=configured)
        applied = {name: text for name, text in chosen.parameters.items() if name not in waiting}
        return msgspec.structs.replace(
            found,
            level=Config.PENDING if waiting else Config.CURRENT,
            configured=Configured(applied, waiting, chosen.refused),
        )

    # --- effects

    async def init(self, want: DatabaseWant) -> None:
        """Make empty data, whole or not at all."""
        await self.clear()
        making = self.volume.begin()
        places = self._at(making)
        try:
            await run(self.tools, [
                str(self.programs / "initdb"), "-D", str(places.data), "-U", ADMIN, "-E", "UTF8",
                "--locale=C.UTF-8", "--data-checksums", "--allow-group-access", "-A", "peer", "--no-sync",
            ], INIT)  # fmt: skip
            await self.dress(making, want)
            # A thousand files one by one would take seconds; the volume has nothing else to write.
            await run(self.tools, ["sync", "-f", str(places.data)], INIT)
        except ToolFailed as error:
            raise DatastoreError(f"the data could not be made: {error}") from error
        self.volume.publish(self.marker(want))

    def marker(self, want: DatabaseWant) -> Marker:
        return Marker(FORMAT, want.generation, want.datastore, want.version)

    def _at(self, root: Path) -> Places:
        return Places(root, self.places.sockets, self.places.users)

    async def clear(self) -> None:
        """Remove what is half made, as those who made it."""
        if not self.volume.making.exists():
            return
        await self._as_owner(["find", str(self.volume.making), "-mindepth", "1", "-delete"])
        await asyncio.to_thread(shutil.rmtree, self.volume.making)

    async def _as_owner(self, command: list[str]) -> None:
        # What belongs to the other user stays for the second step, which says what is wrong.
        with contextlib.suppress(ToolFailed):
            await run(self.tools, command, CALL * 4)

    async def dress(self, root: Path, want: DatabaseWant) -> None:
        """What lies beside the data: a certificate of its own, and the configuration's folder."""
        await certify(self.tools, root / "tls", want.instance_id)
        (root / "conf").mkdir(exist_ok=True)
        (root / "conf").chmod(0o2750)

    def write_clients(self, root: Path, want: DatabaseWant) -> None:
        """Who may come in, of the configuration in this folder."""
        made = self._files(want)
        write_whole(root / "conf" / "pg_hba.conf", made.hba.encode(), mode=0o640)
        write_whole(root / "conf" / "pg_ident.conf", made.ident.encode(), mode=0o640)

    def _files(self, want: DatabaseWant) -> config.Files:
        return config.files(want, self.places, self._parameters.chosen(want).parameters)

    async def _configure(self, want: DatabaseWant) -> None:
        """Write it, after PostgreSQL itself has read it: one bad value would keep the server down."""
        self._parameters.judge(want)
        self.write_clients(self.places.database, want)
        while True:
            try:
                await self._try(self._files(want))
                return
            except ToolFailed as error:
                if not self._parameters.chosen(want).parameters:
                    raise DatastoreError(f"the configuration is refused: {error}") from error
                self._parameters.refuse(want, str(error))

    async def _try(self, made: config.Files) -> None:
        conf = self.places.conf
        trial = conf / "trial.conf"
        write_whole(trial, made.settings.encode(), mode=0o640, durable=False)
        await run(self.tools, [
            str(self.programs / "postgres"), "-D", str(self.places.data),
            "-c", f"config_file={trial}", "-C", "shared_buffers",
        ], CALL)  # fmt: skip
        trial.rename(conf / "postgresql.conf")

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
        await self._server.reload()
        end = self._clock() + CALL
        digest = self._files(want).digest
        while self._clock() < end:
            if await self.call(_digest, CALL) == digest:
                return
            await asyncio.sleep(0.05)
        raise DatastoreError("the server did not take its new configuration", "see the database's log")

    async def apply(self, want: DatabaseWant) -> None:
        """The initial databases and users, whichever of them are not there yet."""

        def work(connection: Connection) -> None:
            owners.harden(connection)
            if not want.superuser:
                owners.bound(connection)
            for database in want.origin.databases:
                failed(names.bad_database(database.name, "databases"))
                if owners.owner_of(connection, database.name) is None:
                    failed(requests.create_databases(connection, (database,)))
            for user in want.origin.users:
                failed(names.bad_wanted_user(user))
                if not owners.has_role(connection, user.name):
                    failed(requests.create_users(connection, (user,)))

        try:
            await self.call(work, INIT)
        except requests.INVALID as error:
            raise DatastoreError(first_line(error), NOT_SO, final=True) from error
        except psycopg.Error as error:
            raise DatastoreError(first_line(error)) from error
        found = self.volume.look(want.generation)
        if found.marker is not None:
            self.volume.mark(Marker(FORMAT, want.generation, want.datastore, want.version, applied=True))

    async def call(self, work: Callable[[Connection], T], seconds: float, use: Use = Use.OWN) -> T:
        living = self._server.find()
        if not isinstance(living, Living):
            raise DatastoreError("the server does not run")
        try:
            return await self.sessions.run(living.port, work, seconds, use)
        except (Mute, StartingUp) as error:
            raise DatastoreError(f"the server does not answer: {error}") from error

    async def ask(self, request: DatabaseRequest, seconds: float) -> DatabaseAnswer:
        try:
            return await self.call(
                lambda there: requests.answer(there, request, superuser=self._superuser), seconds, Use.TENANT
            )
        except DatastoreError as error:
            return Failed("unready", error.reason)
        except (psycopg.Error, OSError) as error:
            return Failed("unready", first_line(error))

    async def more(self, request: MoreRequest, seconds: float) -> DatabaseAnswer:
        if isinstance(request, ReadLog):
            return read_log(self._log, request)
        try:
            return await self.call(lambda there: extras.answer(there, request), seconds, Use.TENANT)
        except DatastoreError as error:
            return Failed("unready", error.reason)
        except (psycopg.Error, OSError) as error:
            return Failed("unready", first_line(error))

    # --- backups and restores

    async def copy(self, nonce: str, parent: Content | None) -> BaseCopy | WalCopy:
        living = self._server.find()
        if not isinstance(living, Living):
            raise DatastoreError("the server does not run")
        if parent is not None:
            return await WalCopy.begin(self, parent)
        return await BaseCopy.begin(self, self.tools, self.programs, self.places, living, nonce)

    async def receive(self, want: DatabaseWant, chain: tuple[Content, ...]) -> Unpacking:
        await self.clear()
        return await Unpacking.receiving(self, want, chain)

    # --- its log

    async def serve_log(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        program = await asyncio.to_thread(Path(push.__file__).read_bytes)
        write_whole(self.places.log_program, program, mode=0o640, durable=False)
        self._asked.keep = keep
        await self._asked.listen()

    def hand_out(self, log: LogSource | None) -> None:
        """To a server that replays it."""
        self._asked.log, self._asked.fault = log, None

    def fault_of_log(self) -> DatastoreError | None:
        """Why it could not be handed out."""
        return self._asked.fault

    async def log_piece(self, name: str) -> tuple[Piece, bytes]:
        path = self.places.data / "pg_wal" / name
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise DatastoreError(f"the log's {name} cannot be read: {error.strerror}") from error
        if not data:
            raise DatastoreError(f"the log's {name} is empty")
        return piece_of(name, data), data

    async def log_waiting(self) -> int:
        return self._waiting()

    def _waiting(self) -> int:
        """By what the server has asked for and has not been answered, in segments of 16 MiB."""
        with contextlib.suppress(OSError):
            status = self.places.data / "pg_wal" / "archive_status"
            return 16 * sum(entry.name.endswith(".ready") for entry in os.scandir(status))
        return 0

    async def sweep(self, nonce: str | None) -> None:
        """Remove slots of other attempts than this one: a slot never outlives its attempt."""
        await self.call(lambda connection: drop_slots(connection, keep=nonce), CALL)


async def _nobody(_name: str) -> bool:
    return False


def _digest(connection: Connection) -> str:
    row = connection.execute("SELECT current_setting('unstuck.config', true)").fetchone()
    return str(row[0]) if row is not None else ""


def failed(answer: DatabaseAnswer | None) -> None:
    """An initial database or user that cannot be made will not be by trying again."""
    if isinstance(answer, Failed):
        raise DatastoreError(f"{answer.field}: {answer.message}".lstrip(": "),
                             NOT_SO, final=True)  # fmt: skip
