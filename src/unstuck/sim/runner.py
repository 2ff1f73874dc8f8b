"""One run: a scenario, a schedule, its faults, and the verdict."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.blobs.objects import BlobError, Problem
from unstuck.control.loop import Controller
from unstuck.guest.control import Away
from unstuck.guest.wire import Superseded as GuestSuperseded
from unstuck.host.agent import Agent
from unstuck.host.control import Superseded, Unreachable
from unstuck.runtime.marks import Forgetful
from unstuck.sim.database_chaos import chaos_of_databases
from unstuck.sim.database_invariants import fingerprint as database_fingerprint
from unstuck.sim.database_scenarios import DATABASE_SCENARIOS
from unstuck.sim.database_user import DatabaseUser
from unstuck.sim.databases import Databases, populate, small_pieces
from unstuck.sim.engine import NETWORK, Engine, Fault, Process, Spinning, Task, run_now
from unstuck.sim.invariants import Truth, differences, fingerprint, stable, unfinished_images, unsettled
from unstuck.sim.scenarios import SCENARIOS, SETBACK_ONLY, TWO_HOSTS
from unstuck.sim.setback import Jump, Setback, aftermath, database_aftermath
from unstuck.sim.user import PATIENCE, SimUser
from unstuck.sim.world import MemoryStore, SimControl, SimDriver, SimHost, SimStore
from unstuck.store import agents, clock, generation, networks
from unstuck.store.engine import Tx
from unstuck.store.schema import metadata
from unstuck.store.schema.identity import projects

BOUND = 180.0
"""Virtual seconds after the last fault within which everything has to be at rest (decisions: numbers)."""
WITH_DATABASES = {**DATABASE_SCENARIOS, chaos_of_databases.__name__: chaos_of_databases}
FaultPlan = dict[int, Fault | None]
"""Faults by the number of the effect they hit; None: any that can happen there, by the seed."""

AGENT_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FREEZE, Fault.FREEZE_REPLACED, Fault.HOST_REBOOT)
CONTROL_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FREEZE)
GUEST_FAULTS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FREEZE)
GUEST_ASKS = frozenset(
    f"guest.{verb}"
    for verb in (
        "hello", "look", "tell", "answered", "take", "renew", "store", "finish", "give-up", "ask-restore",
        "fetch",
    )
)  # fmt: skip
"""What a guest's agent says to its host."""
OBJECT_CALLS = frozenset({
    "guests.store", "guests.manifest", "guests.reread", "guests.fetch", "guests.keep-object",
    "guests.fetch-log",
})  # fmt: skip


class Verdict(msgspec.Struct, frozen=True):
    """What one run showed."""

    scenario: str
    effects: int
    violations: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    trace: tuple[str, ...] = ()
    seconds: float = 0.0
    commits: int = 0
    incarnations: tuple[int, ...] = ()


class Cloud:
    """A database in memory that is put back to its template before each run."""

    def __init__(self, hosts: int = 1, *, databases: bool = False) -> None:
        self.time = 1_000_000.0
        self.store = MemoryStore(lambda: self.time)
        self.host_ids = [f"host-{n}" for n in range(hosts)]
        self.store.transact(_populate, self.host_ids)
        if databases:
            self.store.transact(populate)
        self._clear = [f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)]  # noqa: S608
        self.template = self.dump()

    def dump(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """All rows, as statements that put them back."""
        found = []
        for table in metadata.sorted_tables:
            rows = self.store.driver.execute(f"SELECT * FROM {table.name}").fetchall()  # noqa: S608
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                found.append((f"INSERT INTO {table.name} VALUES ({marks})", rows))  # noqa: S608
        return found

    def reset(self) -> None:
        """Rows, not pages: the prepared statements stay valid, which makes a run twice as fast."""
        self.time = 1_000_000.0
        self.fill(self.template)

    def fill(self, copy: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        """Put a copy back."""
        driver = self.store.driver
        driver.execute("BEGIN")
        for text in self._clear:
            driver.execute(text)
        for text, rows in copy:
            driver.executemany(text, rows)
        driver.execute("COMMIT")


def _populate(tx: Tx, host_ids: list[str]) -> None:
    clock.init_clock(tx, generation_id="g")
    networks.ensure_default_network(tx, project_id="p", cidr="10.77.0.0/24")
    tx.execute(sa.insert(projects).values(id="p", name="p", description="", enabled=True, extra="{}"))
    for host_id in host_ids:
        agents.add_host(tx, host_id=host_id, hostname=host_id, secret_hash=host_id, machine_id=host_id)


@functools.cache
def cloud(hosts: int = 1, *, databases: bool = False) -> Cloud:
    return Cloud(hosts, databases=databases)


class Run:
    """The processes and the world of one run."""

    def __init__(
        self,
        scenario: str,
        *,
        seed: int | None,
        faults: FaultPlan,
        tracing: bool,
        hosts: int = 1,
        setback: Setback | None = None,
        jump: Jump | None = None,
    ) -> None:
        with_databases = scenario in WITH_DATABASES
        self.cloud = cloud(2 if scenario in TWO_HOSTS else hosts, databases=with_databases)
        self.cloud.reset()
        self.store = self.cloud.store
        self.scenario = scenario
        self.engine = Engine(seed)
        self.engine.tracing = tracing
        self.faults = faults
        self.names: list[tuple[str, str]] = []
        self.marks: list[int] | None = None
        self.marks_say_what_is_on_its_way = False
        self.hosts = [SimHost(self.engine, host_id) for host_id in self.cloud.host_ids]
        self.truth = Truth(self.store, self.hosts)
        self.expected: dict[str, str] = {}
        self.images: dict[str, bool] = {}
        """Images that users asked for, and whether they still want them."""
        self.control: Process | None = None
        self.control_since = 0.0
        self.agents: dict[str, Process] = {}
        self.down_until: dict[str, float] = {}
        self.drivers: dict[Process, SimDriver] = {}
        self.minds: dict[str, Agent] = {}
        self.scripts = 0
        self.running = False
        self.user: SimUser
        self.setback = setback
        self.jump = jump
        self.shift = 0.0
        self.jumped_at = 0.0
        self.patience = PATIENCE if not with_databases else 2 * PATIENCE
        self.commits = 0
        self.sessions = 0
        self.copied = self.cloud.template
        self.marks_kept = Forgetful()
        self.store.on_commit = self._committed
        self.databases: Databases | None = Databases(self) if with_databases else None
        if setback is not None:
            self.truth.wishes = {}
        self.rng = self.engine.random
        self.engine.fault_at = self._fault_at
        self.engine.apply_fault = self._apply
        self.engine.half = self._half
        self.engine.lost = _lost
        self.engine.ended = self._ended
        self.lose_wakes = seed is not None and self.rng.random() < 0.3
        self.truth.late = 25.0 if self.lose_wakes else 0.0

    # processes

    def boot_control(self) -> None:
        if self.control is not None:
            return
        self.sessions += 1
        self.control_since = self.engine.now
        self.store.reopen(f"session-{self.sessions}")
        process = self.control = self.engine.process("control")
        self.store.transact(generation.notice, self.marks_kept.mark, "the control plane's own record")
        controller = Controller(
            process.port, SimStore(self.store), self.notify, tick=4.0, marks=self.marks_kept
        )
        process.spawn("servers", controller.servers_forever())
        process.spawn("tick", controller.tick_forever())
        if self.databases is not None:
            self.databases.boot_control(process)

    def host_down(self, host: SimHost, seconds: float) -> None:
        """Its agent ends and nothing starts one there, neither who replaces a frozen one, until then."""
        self.agents[host.id].kill()
        self.down_until[host.id] = self.engine.now + seconds
        self.engine.at(seconds, functools.partial(self.boot_agent, host))

    def boot_agent(self, host: SimHost) -> None:
        if self.engine.now < self.down_until.get(host.id, 0.0):
            return
        old = self.agents.get(host.id)
        if old is not None:
            old.kill()  # the host's lock: whoever takes over ends the holder first
        process = self.agents[host.id] = self.engine.process(f"agent-{host.id}")
        client = SimControl(self.store, host.id, self.control_up, self._reported, small_pieces)
        driver = SimDriver(host, self.truth, client, process)
        self.drivers[process] = driver
        agent = Agent(process.port, client, driver, host.facts(), self.engine.nonce(), host.marks, self._wall)
        if self.databases is not None:
            self.databases.serve(process, agent, host)
        self.minds[host.id] = agent
        host.wake = process.wake
        process.spawn("main", agent.run())

    def _reported(self) -> None:
        self.wake("control")
        if self.databases is not None:
            self.databases.wake("control")

    def _wall(self) -> float:
        return self.engine.now

    # the store is set back

    def _committed(self) -> None:
        self.commits += 1
        if self.databases is not None and self.running:
            self.databases.truth.committed()
        plan = self.setback
        if plan is None or not self.running:
            return
        if self.commits == plan.copy:
            self.copied = self.cloud.dump()
            self.engine.log(f"    *** commit {self.commits}: a copy is made")
        if self.commits == plan.back:
            # The record is written once a tick: a copy that is put back within the second in which it was
            # made is noticed by hosts only.
            self.engine.at(5.0 if plan.record else 0.0, self._put_back)

    def _put_back(self) -> None:
        """The operator stops the control plane, puts the copy back, and starts it again."""
        plan = self.setback
        assert plan is not None
        self.engine.log(f"    *** after commit {self.commits}: the copy of commit {plan.copy} is put back")
        self.setback = None
        if self.control is not None:
            self.control.kill()
        self.control = None
        self.user.abandon()
        self.cloud.fill(self.copied)
        if not plan.record:
            self.marks_kept = Forgetful()
        self.engine.at(1.0, self.boot_control)
        if plan.silent:
            self.agents[self.hosts[0].id].kill()
        for host in self.hosts:
            if self.agents[host.id].dead:
                self.engine.at(1.5 + plan.silent, functools.partial(self._revive, host))
        if isinstance(self.user, DatabaseUser):
            self.user.beside(database_aftermath(self.user, plan))
        else:
            self.user.beside(aftermath(self.user, plan))

    def _revive(self, host: SimHost) -> None:
        if self.agents[host.id].dead:
            self.boot_agent(host)

    def control_up(self) -> bool:
        return self.control is not None and self.control.frozen_until <= self.engine.now

    def notify(self, key: str) -> None:
        for host_id, process in self.agents.items():
            if key == f"host:{host_id}" and not self.lose_wakes:
                process.wake("world")

    def wake(self, key: str) -> None:
        if self.control is not None and not self.lose_wakes:
            self.control.wake(key)

    def _ended(self, error: Exception) -> None:
        if not isinstance(error, Superseded | GuestSuperseded):
            self.truth.fail(f"a process ended: {error!r}")

    # faults

    def _fault_at(self, number: int, process: Process, name: str) -> Fault | None:
        self.names.append((process.name.split("-")[0], name))
        if self.jump is not None and number == self.jump.effect:
            self._jump(self.jump)
        if self.marks is not None:
            self._set_time()
            mark: object = self.store.read(fingerprint, self.hosts)
            if self.databases is not None:
                mark = (mark, self.store.read(database_fingerprint, self.databases))
            self.marks.append(stable(repr((mark, self._on_its_way()))))
        if number not in self.faults:
            return None
        possible = applicable(process.name, name)
        fault = self.faults[number]
        if fault is None:
            return self.rng.choice(possible)
        return fault if fault in possible else None

    def _on_its_way(self) -> object:
        """What is neither in the store nor on a host: late copies, restarts to come, who is frozen."""
        if not self.marks_say_what_is_on_its_way:
            return None
        engine = self.engine
        frozen = sorted(p.name for p in engine.processes if not p.dead and p.frozen_until > engine.now)
        away = sorted(name for name, process in self.agents.items() if process.dead)
        return (
            self.scripts,
            self.control is None,
            away,
            frozen,
            len(engine.timers),
            len(engine.network.tasks),
        )

    def _jump(self, jump: Jump) -> None:
        if not jump.asleep:
            self.set_clock(jump.seconds)
            self._set_time()
        elif self.control is not None:
            self.control.frozen_until = self.engine.now + jump.seconds
            self.patience += jump.seconds

    def set_clock(self, seconds: float) -> None:
        """The clock jumps by that, and nobody can have noticed before now."""
        self.shift += seconds
        self.jumped_at = self.engine.now

    def _set_time(self) -> None:
        self.cloud.time = self.engine.now + self.shift

    def _half(self, _name: str, work: Callable[[], Awaitable[Any]]) -> None:
        for process, driver in self.drivers.items():
            driver.cutting = not process.dead
        if self.databases is not None:
            self.databases.cutting = True
        try:
            run_now(work())
        except Exception as error:
            self.engine.log(f"cut effect: {error!r}")
        for driver in self.drivers.values():
            driver.cutting = False
        if self.databases is not None:
            self.databases.cutting = False

    def _apply(self, fault: Fault, process: Process, _task: Task) -> None:
        engine = self.engine
        again = self.rng.choice((0.2, 3.0, 20.0)) if not engine.fair else 1.0
        if fault is Fault.FREEZE:
            process.frozen_until = engine.now + (self.rng.choice((10.0, 45.0)) if not engine.fair else 45.0)
            return
        if process is self.control:
            process.kill()
            self.control = None
            engine.at(again, self.boot_control)
            return
        if process.name.startswith("guest"):
            process.kill()  # PID 1 starts it again
            return
        host = next(h for h in self.hosts if self.agents.get(h.id) is process)
        if fault is Fault.FREEZE_REPLACED:
            process.frozen_until = engine.now + 1e9
            engine.at(2.0, lambda: self.boot_agent(host))
            return
        process.kill()
        if fault is Fault.HOST_REBOOT:
            host.reboot()
        engine.at(again, lambda: self.boot_agent(host))

    # verdict

    def run(self) -> Verdict:
        engine = self.engine
        self.running = True
        self.boot_control()
        for host in self.hosts:
            self.boot_agent(host)
        self.user = self._user()
        start = engine.now
        engine.after_step = self._after_step
        try:
            engine.run(start + self.patience, done=self._at_rest)
            if self.patience > PATIENCE:
                engine.run(start + self.patience, done=self._at_rest)
            if not self._at_rest():
                self.truth.fail(
                    f"not at rest after {self.patience:.0f} s: {self._unsettled()} rows, "
                    f"{self.scripts} scripts"
                )
            self.truth.violations.extend(self.store.read(differences, self.hosts, self.expected))
            self.truth.violations.extend(self.store.read(unfinished_images))
            if self.databases is not None:
                self.truth.violations.extend(self.databases.differences())
        except Broken:
            pass
        except Spinning as error:
            self.truth.fail(str(error))
        finally:
            if self.databases is not None:
                self.databases.close()
            for process in engine.processes:
                process.kill()
            self.user.close()
            self.store.on_commit = lambda: None
        return Verdict(
            scenario=self.scenario,
            effects=engine.effects,
            violations=tuple(self.truth.violations),
            names=tuple(self.names),
            trace=tuple(engine.trace),
            seconds=engine.now - start,
            commits=self.commits,
            incarnations=tuple(mind.incarnation for mind in self.minds.values()),
        )

    def _user(self) -> SimUser:
        """Whoever does what the scenario says."""
        if self.databases is None:
            user = SimUser(self)
            user.beside({**SCENARIOS, **SETBACK_ONLY}[self.scenario](user))  # type: ignore[arg-type]
            return user
        asker = self.databases.user = DatabaseUser(self, self.databases)
        asker.beside(WITH_DATABASES[self.scenario](asker))  # type: ignore[arg-type]
        auditor = self.engine.process("auditor")
        auditor.faultable = False
        auditor.spawn("audit", self.databases.audit_forever(auditor))
        return asker

    def _after_step(self) -> None:
        self._set_time()
        if self.databases is not None:
            self.databases.sync()
        if self.truth.violations:
            raise Broken

    def _unsettled(self) -> int:
        self._set_time()
        return self.store.read(unsettled) + (0 if self.databases is None else self.databases.unsettled())

    def _at_rest(self) -> bool:
        """Nothing is left to do, and every agent has told what its host looks like since it started:
        a host that has rebooted unheard is not at rest, whatever the rows say (seed 504892)."""
        return not self.scripts and self.quiet()

    def quiet(self) -> bool:
        """Everybody follows the store as it is now, and no row waits for anything."""
        if self.engine.timers or self.engine.network.tasks or self.control is None or self._unsettled():
            return False
        if any(process.tasks and process.frozen_until > self.engine.now for process in self.engine.processes):
            return False
        if self.databases is not None and not self.databases.quiet():
            return False
        history = self.store.read(agents.terms).history
        return all(mind.caught_up and mind.history == history for mind in self.minds.values())


class Broken(Exception):
    """A safety invariant failed; the run ends here."""


def applicable(process: str, name: str) -> tuple[Fault, ...]:
    """The faults that can happen at an effect."""
    if process.startswith("agent"):
        crashes: tuple[Fault, ...] = AGENT_FAULTS
        if name in ("driver.make_disk", "driver.start", "driver.save", "driver.remove_folder"):
            crashes += (Fault.CRASH_HALF,)
        asks = name.startswith(("control.", "guests.")) and name != "guests.note"
        return crashes + NETWORK if asks else crashes
    if process.startswith("guest"):
        crashes = GUEST_FAULTS
        if name in ("guest.init", "guest.publish"):
            crashes += (Fault.CRASH_HALF,)
        return crashes + NETWORK if name in GUEST_ASKS else crashes
    return CONTROL_FAULTS


def _lost(process: Process, name: str) -> Exception:
    """What a lost message is to whoever sent it."""
    if process.name.startswith("guest"):
        return Away("no answer")
    if name in OBJECT_CALLS:
        return BlobError(Problem.UNREACHABLE, "no answer")
    return Unreachable("no answer")


def simulate(
    scenario: str,
    *,
    seed: int | None = None,
    faults: FaultPlan | None = None,
    tracing: bool = False,
    setback: Setback | None = None,
    jump: Jump | None = None,
    hosts: int = 1,
) -> Verdict:
    """Run one scenario: by ``seed`` (random order), or fair; with the faults planned by effect number."""
    run = Run(
        scenario, seed=seed, faults=faults or {}, tracing=tracing, setback=setback, jump=jump, hosts=hosts
    )
    return run.run()
