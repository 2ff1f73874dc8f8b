"""Users, operators and mishaps of the simulated databases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.core.archive.ledger import Window
from unstuck.core.backup.data import Phase
from unstuck.core.backup.limits import Wish
from unstuck.core.errors import Conflict, NotFound, Unavailable
from unstuck.core.instance.requests import CreateUsers, DatabaseAnswer, Failed, ListUsers, Ok
from unstuck.core.instance.status import status
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import WantedDatabase, WantedUser
from unstuck.core.server.data import Power
from unstuck.sim.blobs import Mode, damage
from unstuck.sim.databases import Databases
from unstuck.sim.user import SimUser
from unstuck.store import asks, backups, configurations, instance_asks, instances, server_actions
from unstuck.store.archive_moments import moments
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.backups import NewBackup
from unstuck.store.engine import Tx
from unstuck.store.instance_configuration import set_configuration
from unstuck.store.instance_rows import load_instance
from unstuck.store.instances import AskedInstance, NewIds
from unstuck.store.rows import load_server
from unstuck.store.schema.database import backups as backup_table
from unstuck.store.schema.database import instances as instance_table
from unstuck.store.servers import Caller

if TYPE_CHECKING:
    from unstuck.sim.runner import Run

P = ParamSpec("P")
T = TypeVar("T")

LIMITS: Final = Wish(
    claim=100.0, starting=60.0, copying=60.0, finishing=60.0, uploading=60.0, verify=300.0, unknown=60.0
)
"""Deadlines of simulated backups: shorter than the defaults, and for nothing else."""
READY: Final = 900.0
CLIENT: Final = 100.0
"""Seconds for which somebody tries to write."""


class DatabaseUser(SimUser):
    """A user with the database API; requests go to the store functions that the API calls."""

    def __init__(self, run: Run, world: Databases) -> None:
        super().__init__(run)
        self._world = world
        self.asked: dict[str, str] = {}
        """What instances (by name) and backups (``backup name``) are to be in the end."""
        self.written: dict[str, list[str]] = {}
        """Rows that were acknowledged, by instance."""

    # --- requests

    async def _db(
        self, name: str, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """One request, repeated only while the control plane is down. Raises what the API refuses it with."""
        run = self._run
        while True:
            if run.control is not None:

                async def work() -> T:
                    return run.store.transact(tx, *args, **kwargs)

                try:
                    answer = await self._process.port.effect(f"api.{name}", work)
                except Unavailable as error:
                    self.log(f"{error.status}: {error}")
                else:
                    host = answer.host_id if isinstance(answer, BackupRow) else answer
                    self._world.wake("control", "backups", f"host:{host}")
                    return answer
            await self.wait(1.0)

    async def request(
        self, name: str, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A request of whoever knows what it may be refused with."""
        answer = await self._db(name, tx, *args, **kwargs)
        self._world.wake("control", "schedules", "verifications")
        return answer

    def short_deadlines(self, name: str) -> None:
        """What its backups have that do not say so themselves."""
        wish = msgspec.json.encode(LIMITS).decode()
        query = sa.update(instance_table).where(instance_table.c.id == name).values(backup_limits=wish)
        self.transact(lambda tx: tx.execute(query))

    def now(self) -> float:
        """Seconds that have really passed, whatever the clock shows."""
        return self._run.engine.now

    def jump(self, seconds: float) -> None:
        """The clock is set, by somebody or by itself."""
        self._run.set_clock(seconds)
        self.log(f"    *** the clock jumps by {seconds:.0f} s")

    async def _insist(
        self, name: str, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Again while it is refused for now; None where what it is for has gone."""
        while True:
            try:
                return await self._db(name, tx, *args, **kwargs)
            except Conflict as error:
                self.log(f"409: {error}")
            except NotFound:
                return None
            await self.wait(2.0)

    async def create_db(
        self, name: str, *, backup: str | None = None, of: str | None = None, at: float | None = None
    ) -> None:  # fmt: skip
        asked = AskedInstance(
            name=name, flavor_id="small", volume_gb=1, backup_id=backup, point_of=of, at=at,
            databases=() if backup or of else (WantedDatabase("shop"),),
            users=() if backup or of else (WantedUser("anna", "SCRAM-SHA-256$verifier", ("shop",)),),
        )  # fmt: skip
        ids = NewIds(name, f"server-{name}", f"port-{name}", f"data-{name}")
        await self._db("create-instance", instances.create_instance, asked, ids, self._caller())
        self.asked[name] = "ACTIVE"

    async def delete_db(self, name: str, *, trash: float = 0.0) -> None:
        """In the trash for so many seconds first, where there is any data."""
        self._wish(f"server-{name}", "delete")
        self._world.truth.unwanted.add(name)
        await self._db(
            "delete-instance", instances.delete_instance, name, "p", self._caller(), trash_seconds=trash
        )
        self.asked[name] = "DELETED" if trash < 7200 else "TRASH"

    async def delete_databases(self) -> None:
        """All that the store knows of; then there is none."""
        for name in self.transact(_instance_names):
            try:
                await self.delete_db(name)
            except NotFound:
                continue
        for name in self.transact(_backup_names):
            await self.delete_backup(name)
        self.asked.clear()

    async def check_backups(self) -> None:
        """What was complete, and was not deleted by its user, can still be restored, whoever knows of it."""
        lost = self._world.truth.complete - self._world.truth.unwanted
        for name in sorted(lost):
            if not any(f"backups/{name}/" in key for key in self._world.blobs.objects):
                self.fail(f"the complete backup {name} is gone, and its user never deleted it")

    def abandon(self) -> None:
        super().abandon()
        self.asked.clear()
        self.written.clear()
        self._world.truth.put_back()

    async def undelete_db(self, name: str) -> None:
        self._world.truth.undeleted.add(name)
        await self._insist("undelete-instance", instances.undelete_instance, name, "p", self._caller())
        self.asked[name] = "ACTIVE"

    async def restart_db(self, name: str) -> None:
        await self._insist("restart-instance", instances.restart_instance, name, "p", self._caller())

    async def resize_db(self, name: str, flavor: str = "large") -> None:
        await self._insist("resize-instance", instances.resize_instance, name, "p", flavor, self._caller())

    async def resize_volume(self, name: str, size_gb: int = 2) -> None:
        await self._insist("resize-volume", instances.resize_volume, name, "p", size_gb, self._caller())

    async def upgrade_db(self, name: str, version: str = "new") -> None:
        await self._insist("upgrade-instance", instances.upgrade_instance, name, "p", version, self._caller())

    async def rebuild_db(self, name: str) -> None:
        operator = msgspec.structs.replace(self._caller(), admin=True)
        await self._insist("rebuild-instance", instances.rebuild_instance, name, None, operator)

    async def configure(self, group: str = "g", **values: object) -> None:
        """Make a configuration group, or give it other values."""
        try:
            _, hosts = await self._db(
                "change-configuration", configurations.change_configuration, group, "p", values=values,
                replace=True,
            )  # fmt: skip
        except NotFound:
            await self._db("create-configuration", _create_group, group, values)
        else:
            self._world.wake(*(f"host:{host}" for host in hosts))

    async def attach(self, name: str, group: str | None = "g") -> None:
        """Give an instance a configuration group, or take it away."""
        await self._insist("attach", set_configuration, name, "p", group, self._caller())

    async def backup(
        self, name: str, instance: str = "db", *, location: str | None = None, parent: str | None = None,
        incremental: bool = False,
    ) -> bool:  # fmt: skip
        """False where one is under way, or its parent does not do."""
        new = NewBackup(
            id=name, nonce=self._run.engine.nonce(), name=name, instance_id=instance, location=location,
            limits=LIMITS, parent_id=parent, incremental=incremental,
        )  # fmt: skip
        world = self._world
        try:
            await self._db(
                "create-backup", backups.create_backup, new, "p", keyring=world.keyring,
                places=world.stores.places(),
            )  # fmt: skip
        except Conflict as error:
            self.log(f"409: {error}")
            return False
        return True

    async def retry(self, old: str, new: str) -> None:
        world = self._world
        await self._insist(
            "retry-backup", backups.retry_backup, old, "p", new_id=new, nonce=self._run.engine.nonce(),
            keyring=world.keyring, places=world.stores.places(),
        )  # fmt: skip

    async def cancel(self, name: str) -> None:
        try:
            await self._db("cancel-backup", backups.cancel_backup, name, "p")
        except Conflict as error:
            self.log(f"409: {error}")  # it has ended

    async def delete_backup(self, name: str, *, cascade: bool = False) -> None:
        self._world.truth.unwanted.add(name)
        if cascade:
            self._world.truth.unwanted |= set(self.transact(backups.below, name))
        try:
            await self._db("delete-backup", backups.delete_backup, name, "p", cascade=cascade)
        except NotFound:
            self.log(f"404: backup {name}")
        self.asked[f"backup {name}"] = "DELETED"

    # --- waiting

    def _backup(self, name: str) -> BackupRow:
        found = self._run.store.read(load_backup, name)
        assert found is not None
        return found

    async def ended(self, name: str, *endings: str) -> str:
        """Until it has ended; it is to stay so. That it ends in time is judged for every backup anyway."""
        began = self._run.engine.now
        while self._run.engine.now < began + self._run.patience:
            ended = self._backup(name).backup.ended
            if ended is not None:
                word = ended.ending.value
                if endings and word not in endings:
                    self.fail(f"backup {name} is {word} ({ended.reason}), expected {'/'.join(endings)}")
                self.asked.setdefault(f"backup {name}", word)
                return word
            await self.wait(2.0)
        self.fail(f"backup {name} did not end")
        return ""

    async def claimed(self, name: str, phase: Phase | None = None) -> bool:
        """Until its agent works on it (in this phase); False if it ended before."""
        while True:
            backup = self._backup(name).backup
            if backup.ended is not None:
                return False
            claimed = backup.attempt.claimed
            if claimed is not None and phase in (None, claimed.phase):
                return True
            await self.wait(0.5)

    def shown(self, name: str) -> tuple[str, str]:
        def look(tx: Tx) -> tuple[str, str]:
            loaded = load_instance(tx, name)
            assert loaded is not None
            found = status(loaded.instance, tx.now)
            word = "DELETED" if loaded.instance.removed else found.status
            return word, found.operating_status

        return self._run.store.read(look)

    async def ready(self, name: str = "db") -> None:
        """Until it is ACTIVE and HEALTHY."""
        await self.db_until(name, ("ACTIVE", "HEALTHY"))

    async def db_until(self, name: str, *words: tuple[str, str]) -> None:
        began = self._run.engine.now
        while self._run.engine.now < began + READY:
            if self.shown(name) in words:
                return
            await self.wait(2.0)
        self.fail(f"instance {name} did not become {words} in time, but {self.shown(name)}")

    # --- what somebody else does in a database

    async def write(self, name: str, count: int = 1) -> None:
        """From outside, for as long as a client has patience; a row counts once it is acknowledged."""
        rows = self.written.setdefault(name, [])
        end = self._run.engine.now + CLIENT
        for _ in range(count):
            while self._run.engine.now < end:
                inside = self._world.inside_of(f"server-{name}")
                volume = None if inside is None else inside.volume
                live = (
                    inside is not None and inside.server is ServerState.UP and inside.guest.state == "running"
                )
                if volume is not None and live and not volume.full:
                    row = f"{name}-{len(rows)}"
                    volume.rows.append(row)
                    self._world.truth.archives.row_written(volume.timeline, len(volume.rows))
                    rows.append(row)
                    break
                await self.wait(1.0)
            await self.wait(0.2)

    async def expect_rows(self, name: str, rows: list[str]) -> None:
        """What a restored instance holds."""
        volume = self._world.volume_of(f"server-{name}")
        if volume is None or volume.rows[: len(rows)] != rows:
            self.fail(f"{name} does not hold the rows of its backup")
        self.written.setdefault(name, [] if volume is None else list(volume.rows))

    async def ask(self, name: str, request: object) -> DatabaseAnswer:
        """A question through the agent, again until it is answered; its asker waits 10 s each time."""
        while True:
            ask_id = self._run.engine.nonce()
            argument = msgspec.json.encode(request).decode()
            try:
                await self._db(
                    "ask",
                    instance_asks.ask_instance,
                    name,
                    "p",
                    ask_id=ask_id,
                    argument=argument,
                    seconds=10.0,
                )
            except Conflict as error:
                self.log(f"409: {error}")
            else:
                for _ in range(11):
                    await self.wait(1.0)
                    text = self._run.store.read(asks.read_answer, ask_id)
                    if text is not None:
                        self._run.store.transact(asks.drop_ask, ask_id)
                        return msgspec.json.decode(text, type=DatabaseAnswer)
            await self.wait(2.0)

    async def create_user(self, name: str, user: str) -> None:
        """Again until it is there: an earlier try may have come through unheard."""
        while True:
            said = await self.ask(name, CreateUsers((WantedUser(user, "SCRAM-SHA-256$verifier"),)))
            if isinstance(said, Ok) or (isinstance(said, Failed) and said.code == "exists"):
                break
            await self.wait(2.0)
        listed = await self.ask(name, ListUsers(20))
        if isinstance(listed, Ok) and user not in {found.name for found in listed.users}:
            self.fail(f"the user {user} of {name} is not there")

    async def create_user_if_it_lives(self, name: str) -> None:
        """One question, whose asker goes away after its deadline."""
        ask_id = self._run.engine.nonce()
        argument = msgspec.json.encode(CreateUsers((WantedUser("carla", "SCRAM-SHA-256$verifier"),))).decode()
        try:
            await self._db(
                "ask", instance_asks.ask_instance, name, "p", ask_id=ask_id, argument=argument, seconds=10.0
            )
        except (NotFound, Conflict) as error:
            self.log(f"{error.status}: {error}")

    # --- at any time

    def choose(self, among: Sequence[T]) -> T:
        """By the seed."""
        return self._run.rng.choice(among)

    async def try_once(self, what: str, name: str) -> None:
        """A request that may be refused, and then is not repeated."""
        caller = self._caller()
        operator = msgspec.structs.replace(caller, admin=True)
        server = f"server-{name}"
        match what:
            case "restart":
                await self._db(what, instances.restart_instance, name, "p", caller)
            case "resize":
                await self._db(what, instances.resize_instance, name, "p", "large", caller)
            case "upgrade":
                await self._db(what, instances.upgrade_instance, name, "p", "new", caller)
            case "upgrade-badly":
                await self._db(what, instances.upgrade_instance, name, "p", "bad", caller)
            case "attach":
                await self._db(what, set_configuration, name, "p", "g", caller)
            case "detach":
                await self._db(what, set_configuration, name, "p", None, caller)
            case "rebuild":
                await self._db(what, instances.rebuild_instance, name, None, operator)
            case "pause":
                await self._db(what, server_actions.pause_server, server, operator)
            case "unpause":
                await self._db(what, server_actions.unpause_server, server, operator)
            case _:
                was = name in self._world.truth.undeleted
                self._world.truth.undeleted.add(name)
                try:
                    await self._db(what, instances.undelete_instance, name, "p", caller)
                except Conflict:
                    if not was:
                        self._world.truth.undeleted.discard(name)
                    raise
                self.asked.pop(name, None)

    async def let_go_on(self, name: str) -> None:
        """Whoever paused its server unpauses it."""
        for _ in range(60):
            server = self._run.store.read(load_server, f"server-{name}")
            if server is None or server.server.deleted or server.server.power is not Power.PAUSED:
                return
            with contextlib.suppress(Conflict, NotFound):
                await self.try_once("unpause", name)
            await self.wait(2.0)

    # --- mishaps

    async def agent_dies(self, name: str, *, back_after: float | None = 0.0) -> None:
        """kill −9. PID 1 starts it again after ``back_after`` seconds (None: there is none any more)."""
        server = f"server-{name}"
        if back_after is None or back_after:
            self._world.without_agent.add(server)
        inside = self._world.inside_of(server)
        if inside is not None and inside.agent is not None:
            inside.agent.kill()
        if back_after:
            self._run.engine.at(back_after, lambda: self._world.without_agent.discard(server))

    async def agent_comes(self, name: str) -> None:
        self._world.without_agent.discard(f"server-{name}")

    async def no_agent(self, name: str) -> None:
        self._world.without_agent.add(f"server-{name}")

    async def agent_speaks(self, name: str, *, other: bool) -> None:
        """Its agent is of a version that the host does not understand, or of the right one again."""
        server = f"server-{name}"
        (self._world.other_version.add if other else self._world.other_version.discard)(server)
        await self.agent_dies(name)

    async def freeze_agent(self, name: str, seconds: float) -> None:
        inside = self._world.inside_of(f"server-{name}")
        if inside is not None and inside.agent is not None:
            inside.agent.frozen_until = self._run.engine.now + seconds
            self.log(f"    *** the agent of {name} is frozen for {seconds:.0f} s")

    async def hang(self, name: str, phase: Phase | None) -> None:
        """Its backup tool hangs in this phase from now on (None: no longer)."""
        server = f"server-{name}"
        if phase is None:
            self._world.hangs.pop(server, None)
        else:
            self._world.hangs[server] = phase

    async def blobs(self, mode: Mode) -> None:
        self._world.blobs.set_mode(mode)

    async def damage(self, how: str, backup: str) -> dict[str, bytes]:
        """What was there before."""
        self._world.damaged.add(backup)
        before = dict(self._world.blobs.objects)
        damage(self._world.blobs, how)
        return before

    async def put_back(self, before: dict[str, bytes], backup: str) -> None:
        """Its pieces are what they were."""
        mine = {key: data for key, data in before.items() if key.startswith(f"backups/{backup}/")}
        self._world.blobs.objects.update(mine)

    async def control_away(self, seconds: float) -> None:
        """The control plane is killed, and started again much later."""
        run = self._run
        if run.control is not None:
            run.control.kill()
            run.control = None
            run.engine.at(seconds, run.boot_control)

    async def restart_host_agents(self) -> None:
        for host in self._run.hosts:
            self._run.host_down(host, 1.0)

    async def pause_guest(self, name: str, *, paused: bool) -> None:
        """An operator pauses the instance's server, or lets it go on."""
        operator = Caller(self._caller().request_id, "op", "p", admin=True)
        action = server_actions.pause_server if paused else server_actions.unpause_server
        await self._request("pause" if paused else "unpause", action, f"server-{name}", operator)

    async def volume_full(self, name: str, *, full: bool) -> None:
        """The server ends at its next write, and so does each that is started, until there is room again."""
        server = f"server-{name}"
        volume, inside = self._world.volume_of(server), self._world.inside_of(server)
        if volume is not None:
            volume.full = full
        if full and inside is not None and inside.server is ServerState.UP:
            inside.crash_server()

    def archive(self) -> None:
        """From now on logs are kept."""
        self._world.archiving = True

    def wall(self) -> float:
        """The store's clock."""
        return self._run.store.read(lambda tx: tx.now.wall)

    @property
    def undisturbed(self) -> bool:
        """Whether this run is to go as its scenario says."""
        return not self._run.faults

    async def moment(self, name: str, at: float) -> bool:
        """Until this moment can be restored, or it is clear that it never will be: of a time in which nothing
        was heard of the database, which only a fault makes."""
        began = self._run.engine.now
        while self._run.engine.now < began + READY:
            if self.claims(name, at):
                return True
            if not self.undisturbed and any(one.earliest > at for one in self.windows(name)):
                return False
            await self.wait(2.0)
        self.fail(f"{name} cannot be restored to {at:.1f} in time: {self._run.store.read(moments, name)}")
        return False

    async def kept_until(self, name: str, at: float) -> None:
        """Until a moment not before this one can be restored."""
        began = self._run.engine.now
        while self._run.engine.now < began + READY:
            if any(one.latest >= at for one in self.windows(name)):
                return
            await self.wait(2.0)
        self.fail(f"{name} is not kept until {at:.1f} in time: {self._run.store.read(moments, name)}")

    def claims(self, name: str, at: float) -> bool:
        """Whether this moment is said to be restorable."""
        return any(one.earliest <= at <= one.latest for one in self.windows(name))

    def windows(self, name: str) -> tuple[Window, ...]:
        return self._run.store.read(moments, name).windows

    async def no_archive(self) -> None:
        """Until nothing is left of any."""
        began = self._run.engine.now
        while any(key.startswith("archives/") for key in self._world.blobs.objects):
            if self._run.engine.now > began + 2 * 3600.0:
                self.fail("an instance is gone, and its archive is not")
                return
            await self.wait(30.0)

    async def lose_volume(self, name: str) -> None:
        """The volume that is there is another one, and empty; the guest is started anew."""
        volume = self._world.volume_of(f"server-{name}")
        if volume is not None:
            volume.generation, volume.rows, volume.applied = "", [], False
        self.written.pop(name, None)
        for host in self._run.hosts:
            host.guests.pop(f"server-{name}", None)
            self._run.agents[host.id].wake(f"server-{name}")

    async def crash_server(self, name: str) -> None:
        inside = self._world.inside_of(f"server-{name}")
        if inside is not None and inside.server is ServerState.UP:
            inside.crash_server()

    def patient(self) -> None:
        """Wait at the end also for what could still arrive late."""
        self._world.patient = True


def _instance_names(tx: Tx) -> list[str]:
    query = sa.select(instance_table.c.id).where(sa.not_(instance_table.c.deleted))
    return list(tx.execute(query.order_by(instance_table.c.id)).scalars())


def _backup_names(tx: Tx) -> list[str]:
    query = sa.select(backup_table.c.id).where(sa.not_(backup_table.c.deleted))
    return list(tx.execute(query.order_by(backup_table.c.id)).scalars())


def _create_group(tx: Tx, group: str, values: dict[str, object]) -> None:
    configurations.create_configuration(
        tx, group, "p", name=group, description=None, values=values, datastore=None, version=None
    )
