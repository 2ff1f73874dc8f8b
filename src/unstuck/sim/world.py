"""The simulated world: hosts with disks, guests and taps, and the control plane's calls between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.core.agents import (
    Answer,
    Claim,
    Heartbeat,
    Holding,
    Holdings,
    HostFacts,
    Register,
    Registered,
    Report,
    Terms,
    Told,
    World,
)
from unstuck.core.image import Data
from unstuck.core.server.data import (
    Copy,
    CopyFailed,
    Copying,
    Delivered,
    Fetching,
    Flavor,
    Gone,
    Guest,
    Images,
    Missing,
    Mute,
    Off,
    Paused,
    Ready,
    Running,
    Thing,
    Unclear,
    View,
    Want,
)
from unstuck.host.control import Behind, Refused, Superseded, Unreachable
from unstuck.host.driver import DriverError
from unstuck.runtime.marks import Forgetful
from unstuck.store import agents, captures, generation
from unstuck.store.clock import read_now
from unstuck.store.engine import Store, Tx
from unstuck.store.holdings import tell

if TYPE_CHECKING:
    from unstuck.sim.engine import Engine, Process

P = ParamSpec("P")
T = TypeVar("T")

FETCH_SECONDS = 1.5
COPY_SECONDS = 1.5
FORK_SECONDS = 2.5
"""How long a cut start hangs between fork and exec: longer than an agent takes to come back."""
STRANGER = "a-guest-that-nobody-told-us-of"


class SimGuest(msgspec.Struct):
    """A guest process. ``forked``: between fork and exec; ``boots`` counts its power-ons."""

    edge: int
    state: str = "running"
    forked: bool = False
    flavor: Flavor | None = None
    stubborn: bool = False
    since: float = 0.0


class SimFolder(msgspec.Struct):
    """A server's folder. ``data``: a guest has run on the disk, so its loss would be a loss."""

    nonce: str
    want: Want | None = None
    """The record of the grant, written before the disk and at each start."""
    disk: bool = False
    half: bool = False
    data: bool = False
    starts: int = 0
    writes: int = 0
    """Rises whenever a CPU has run: a memory of before does not fit to the disk any more."""
    memory: tuple[int, int] | None = None
    """The edge and the ``writes`` of the memory that was saved last."""
    size: int = 0
    """GiB of the disk."""
    old: tuple[str, ...] = ()
    """Disks that were replaced and are still there."""
    copies: tuple[str, ...] = ()
    """Images of the disk, by their ids."""
    counted: tuple[int, int] = (0, 0)
    """The edge and the operator's mark that ``starts`` counts for."""


class SimHost:
    """What outlives an agent: folders, guests, taps, cache. A reboot keeps folders and cache only."""

    def __init__(self, engine: Engine, host_id: str) -> None:
        self.engine = engine
        self.id = host_id
        self.boot = 1
        self.folders: dict[str, SimFolder] = {}
        self.guests: dict[str, SimGuest] = {STRANGER: SimGuest(edge=0)}
        self.taps: dict[str, tuple[str, ...]] = {}
        """Addresses in use, by server."""
        self.wake: Callable[[str], None] = lambda _: None
        self.marks = Forgetful()
        """The file with the store's mark: it outlives agents."""
        self.cached = False
        self.image_exists = True
        self.image_usable = True
        self.full = False
        """The disk is full: guests stop at their next write."""
        self.broken = False
        """Guests end as soon as they are started."""
        self.quits: list[str] = []

    def reboot(self) -> None:
        self.boot += 1
        self.guests = {key: guest for key, guest in self.guests.items() if key == STRANGER}
        self.taps.clear()
        self.engine.log(f"host {self.id} reboots")

    def facts(self) -> HostFacts:
        return HostFacts(
            hostname=self.id, machine_id=self.id, boot_id=str(self.boot), vcpus=4, ram_mb=4096, disk_gb=100,
            accelerator="none", driver="simulated", driver_version="1",
        )  # fmt: skip


class Watch:
    """Hooks by which the invariants see each effect on a host, at the moment it happens."""

    def started(self, host: SimHost, want: Want) -> None: ...

    def stopping(self, host: SimHost, server_id: str, guest: SimGuest) -> None: ...

    def continuing(self, host: SimHost, server_id: str, guest: SimGuest) -> None: ...

    def quitting(self, host: SimHost, server_id: str, guest: SimGuest) -> None: ...

    def disk_made(self, host: SimHost, want: Want) -> None: ...

    def loaded(self, host: SimHost, want: Want) -> None: ...

    def forgetting(self, host: SimHost, want: Want) -> None: ...

    def dropping(self, host: SimHost, want: Want) -> None: ...

    def growing(self, host: SimHost, want: Want) -> None: ...

    def nics_made(self, host: SimHost, want: Want) -> None: ...

    def removing(self, host: SimHost, want: Want) -> None: ...


class SimDriver:
    """The driver of one agent process; fetches are in its memory and die with it."""

    def __init__(self, host: SimHost, watch: Watch, sink: SimControl, process: Process) -> None:
        self._host = host
        self._watch = watch
        self._sink = sink
        self._process = process
        self._jobs: dict[str, tuple[str, Copy]] = {}
        """The image that is being made of a server's disk, and how far it is."""
        self._fetched_at: float | None = None
        self.cutting = False
        """The next effect is cut in the middle."""

    async def look(self, want: Want) -> View:
        folder = self._host.folders.get(want.server_id)
        disk = Thing.PRESENT if folder is not None and folder.disk else Thing.ABSENT
        if folder is not None and folder.disk and folder.nonce != want.nonce:
            disk = Thing.ABSENT if folder.nonce in want.replaced else Thing.UNKNOWN
        job = self._jobs.get(want.server_id)
        old = folder is not None and (bool(folder.old) or (folder.disk and folder.nonce in want.replaced))
        return View(
            guest=self._guest(want, folder),
            images=self._images(),
            disk=disk,
            nics=Thing.PRESENT if want.server_id in self._host.taps else Thing.ABSENT,
            folder=Thing.PRESENT if folder is not None else Thing.ABSENT,
            replaced=Thing.PRESENT if old else Thing.ABSENT,
            memory=Thing.PRESENT if _saved(folder, want) else Thing.ABSENT,
            copy=job[1] if job is not None and job[0] == want.capture else None,
            copies=Thing.PRESENT if folder is not None and folder.copies else Thing.ABSENT,
            short=disk is Thing.PRESENT and folder is not None and folder.size < want.spec.flavor.disk_gb,
        )

    def _guest(self, want: Want, folder: SimFolder | None) -> Guest:
        guest = self._host.guests.get(want.server_id)
        if guest is None:
            counted = folder is not None and (want.edge, want.mark) == folder.counted
            return Gone(starts=folder.starts if folder is not None and counted else 0)
        if guest.forked:
            return Unclear("starting")
        match guest.state:
            case "running":
                return Running(guest.edge)
            case "mute":
                return Mute(guest.edge)
            case "paused":
                return Paused(guest.edge)
            case "io-error":
                return Paused(guest.edge, "io-error")
            case _:
                return Off(guest.edge)

    def _images(self) -> Images:
        engine = self._host.engine
        if self._host.cached:
            return Ready()
        if self._fetched_at is None:
            return Missing()
        if engine.now >= self._fetched_at:
            self._host.cached = True
            return Ready()
        return Fetching(1, 2)

    async def fetch(self, want: Want) -> None:
        if self._fetched_at is None:
            self._fetched_at = self._host.engine.now + FETCH_SECONDS

    async def make_disk(self, want: Want) -> None:
        if not self._host.image_usable:
            raise DriverError("no disk can be made of this image", lasting=True)
        folder = self._host.folders.setdefault(want.server_id, SimFolder(want.nonce))
        if not folder.disk:
            folder.want = want
        if self.cutting:
            folder.half = True
            return
        if folder.disk:
            if folder.nonce not in want.replaced:
                raise DriverError("there is a disk already")
            folder.old += (folder.nonce,)
        self._watch.disk_made(self._host, want)
        folder.nonce, folder.disk, folder.half, folder.data = want.nonce, True, False, False
        folder.size = want.spec.flavor.disk_gb

    async def drop_disks(self, want: Want) -> None:
        folder = self._host.folders.get(want.server_id)
        if folder is None or not folder.disk or folder.nonce != want.nonce:
            raise DriverError("the new disk is not there")
        self._watch.dropping(self._host, want)
        folder.old = ()

    async def grow_disk(self, want: Want) -> None:
        folder = self._host.folders.get(want.server_id)
        if folder is None or not folder.disk or folder.nonce != want.nonce:
            raise DriverError("no such disk")
        self._watch.growing(self._host, want)
        folder.size = max(folder.size, want.spec.flavor.disk_gb)

    async def capture(self, want: Want) -> None:
        """The copy takes a while, and so does its delivery; each ends by itself while the process lives."""
        folder, job = self._host.folders.get(want.server_id), self._jobs.get(want.server_id)
        if folder is None or not folder.disk or folder.nonce != want.nonce:
            raise DriverError("no such disk")
        if job is not None and job[0] == want.capture and isinstance(job[1], Copying):
            return
        tries = job[1].tries if job is not None and isinstance(job[1], CopyFailed) else 0
        self._jobs[want.server_id] = (want.capture, Copying(0, 1))
        nonce = self._host.engine.nonce()
        self._later(want, tries, lambda: self._copied(want, tries, nonce))

    def _later(self, want: Want, tries: int, work: Callable[[], None]) -> None:
        def try_it() -> None:
            job = self._jobs.get(want.server_id)
            if self._process.dead or job is None or job[0] != want.capture:
                return
            if self._process.frozen_until > self._host.engine.now:
                self._host.engine.at(COPY_SECONDS, try_it)
                return
            try:
                work()
            except (Unreachable, Superseded, Behind, DriverError, Refused) as error:
                final = isinstance(error, Refused)
                self._jobs[want.server_id] = (want.capture, CopyFailed(str(error), final, tries + 1))
            self._host.wake(want.server_id)

        self._host.engine.at(COPY_SECONDS, try_it)

    def _copied(self, want: Want, tries: int, nonce: str) -> None:
        folder = self._host.folders.get(want.server_id)
        if folder is None or not folder.disk or folder.nonce != want.nonce:
            raise DriverError("the disk is not there")
        folder.copies = (*folder.copies, want.capture)
        self._sink.claim_capture(want, nonce)
        self._later(want, tries, lambda: self._delivered(want, nonce))

    def _delivered(self, want: Want, nonce: str) -> None:
        self._sink.finish_capture(want, nonce)
        self._jobs[want.server_id] = (want.capture, Delivered())

    async def drop_copies(self, want: Want) -> None:
        self._jobs.pop(want.server_id, None)
        folder = self._host.folders.get(want.server_id)
        if folder is not None:
            folder.copies = ()

    async def make_nics(self, want: Want) -> None:
        self._watch.nics_made(self._host, want)
        self._host.taps[want.server_id] = tuple(nic.address for nic in want.spec.nics)

    async def start(self, want: Want) -> None:
        folder = self._host.folders.get(want.server_id)
        if folder is None or not folder.disk or want.server_id not in self._host.taps:
            raise DriverError("no disk or no tap")
        if folder.nonce != want.nonce:
            raise DriverError("another disk")
        if want.server_id in self._host.guests:
            raise DriverError("the lock is held: a guest lives")
        self._watch.started(self._host, want)
        folder.data, folder.want = True, want
        folder.starts = 1 + (folder.starts if folder.counted == (want.edge, want.mark) else 0)
        folder.counted = (want.edge, want.mark)
        if self._host.broken:
            raise DriverError("the guest ended at once")
        guest = self._host.guests[want.server_id] = SimGuest(
            edge=want.edge, forked=self.cutting, since=self._host.engine.now, flavor=want.spec.flavor
        )
        if _saved(folder, want):
            guest.state = "paused"
            self._watch.loaded(self._host, want)
        else:
            folder.memory = None
            folder.writes += 1
        if guest.forked:
            self._host.engine.at(FORK_SECONDS, lambda: setattr(guest, "forked", False))

    async def pause(self, want: Want) -> None:
        guest = self._host.guests.get(want.server_id)
        if guest is not None and guest.state == "running":
            self._watch.stopping(self._host, want.server_id, guest)
            guest.state = "paused"

    async def resume(self, want: Want) -> None:
        guest = self._host.guests.get(want.server_id)
        folder = self._host.folders.get(want.server_id)
        if _saved(folder, want):
            raise DriverError("the saved memory is still there")
        if folder is not None and guest is not None and guest.state in ("paused", "io-error"):
            folder.writes += 1
            self._watch.continuing(self._host, want.server_id, guest)
            guest.state = "io-error" if self._host.full else "running"

    async def save(self, want: Want) -> None:
        guest, folder = self._host.guests.get(want.server_id), self._host.folders.get(want.server_id)
        if guest is None or folder is None or guest.forked:
            raise DriverError("no monitor")
        if guest.state == "running":
            self._watch.stopping(self._host, want.server_id, guest)
            guest.state = "paused"
        if not self.cutting:
            folder.memory = (want.edge, folder.writes)

    async def drop_memory(self, want: Want) -> None:
        self._watch.forgetting(self._host, want)
        folder = self._host.folders.get(want.server_id)
        if folder is not None:
            folder.memory = None

    async def power_down(self, want: Want) -> None:
        guest = self._host.guests.get(want.server_id)
        if guest is not None and not guest.stubborn:
            self._host.engine.at(2.0, lambda: self.powered_off(want.server_id, guest))

    def powered_off(self, server_id: str, guest: SimGuest) -> None:
        if self._host.guests.get(server_id) is guest and guest.state == "running":
            guest.state = "off"
            self._host.wake(server_id)

    async def quit(self, want: Want) -> None:
        guest = self._host.guests.get(want.server_id)
        if guest is not None:
            self._watch.quitting(self._host, want.server_id, guest)
            del self._host.guests[want.server_id]
            folder = self._host.folders.get(want.server_id)
            if folder is not None:
                folder.starts = 0  # it ended because it was told to

    async def remove_nics(self, want: Want) -> None:
        self._host.taps.pop(want.server_id, None)

    async def remove_folder(self, want: Want) -> None:
        self._watch.removing(self._host, want)
        folder = self._host.folders.get(want.server_id)
        if self.cutting and folder is not None:
            folder.disk = False
            return
        self._host.folders.pop(want.server_id, None)

    async def found(self) -> frozenset[str]:
        return frozenset(self._host.folders.keys() | self._host.guests.keys() | self._host.taps.keys())

    async def holdings(self) -> tuple[Holding, ...]:
        return tuple(self._holding(name, folder) for name, folder in sorted(self._host.folders.items()))

    def _holding(self, server_id: str, folder: SimFolder) -> Holding:
        guest = Thing.PRESENT if server_id in self._host.guests else Thing.ABSENT
        disk = Thing.PRESENT if folder.disk else Thing.ABSENT
        want = folder.want
        if want is None:
            return Holding(server_id, guest, disk)
        return Holding(server_id, guest, disk, want.fence, want.nonce, want.edge, want.intent, want.spec)

    async def console(self, server_id: str, lines: int | None) -> str:
        return ""


def _saved(folder: SimFolder | None, want: Want) -> bool:
    return folder is not None and folder.memory is not None and folder.memory[0] == want.edge


class MemoryStore(Store):
    """The store in memory, on one connection that is kept: a simulated run is thousands of transactions."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__("sqlite://", wall=wall)
        self.create_all()
        self.connection = self.engine.connect()
        self.on_commit: Callable[[], None] = lambda: None
        driver: Any = self.connection.connection.driver_connection
        self.driver = driver

    @staticmethod
    def _begin(conn: sa.Connection) -> None:
        """Transactions are begun and ended on the driver's connection, below."""

    def transact(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.driver.execute("BEGIN IMMEDIATE")
        before = self.driver.total_changes
        try:
            answer = tx(Tx(self.connection, self._wall, read_now), *args, **kwargs)
        except BaseException:
            self.driver.execute("ROLLBACK")
            raise
        changed = self.driver.in_transaction and self.driver.total_changes != before
        self.driver.execute("COMMIT")
        if changed:
            self.on_commit()
        return answer

    def reopen(self, session: str) -> None:
        """As when a process opens the file: whoever talks to it has to see that it may be another one."""
        self.connection.info["session"] = session

    def read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.transact(tx, *args, **kwargs)


class SimStore:
    """The real store functions on SQLite in memory, by the engine's clock."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.transact(tx, *args, **kwargs)

    async def run_read(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.read(tx, *args, **kwargs)


class SimControl:
    """The agents' API without HTTP: each call is one store function, unless the control plane is down."""

    idle = 20.0

    def __init__(
        self, store: Store, host_id: str, up: Callable[[], bool], wake: Callable[[], None],
        shape: Callable[[World], World] = lambda world: world,
    ) -> None:  # fmt: skip
        self._store = store
        self._shape = shape
        self._host_id = host_id
        self._up = up
        self._wake = wake
        self._incarnation = 0

    def _call(self, tx: Callable[Concatenate[Tx, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._up():
            raise Unreachable("the control plane is down")
        try:
            return self._store.transact(tx, self._host_id, *args, **kwargs)
        except agents.Superseded as error:
            raise Superseded(str(error)) from error
        except agents.UnknownHost as error:
            # The process would end with that reason, and be started again by its supervisor, and so on.
            raise Unreachable("no host has this credential") from error
        except agents.Stale as error:
            raise Refused(str(error)) from error
        except generation.Behind as error:
            raise Behind(str(error)) from error

    async def register(self, ask: Register) -> Registered:
        answer = self._call(agents.register, ask)
        if answer.granted:
            self._incarnation = answer.incarnation
        return answer

    def claim_capture(self, want: Want, nonce: str) -> None:
        self._call(
            captures.claim_capture, self._incarnation, want.server_id, want.fence, want.capture,
            nonce=nonce, seconds=60.0,
        )  # fmt: skip

    def finish_capture(self, want: Want, nonce: str) -> None:
        data = Data(name=f"{want.capture}.{nonce}", size=1, virtual_size=1, checksum="c", sha512="s")
        if not self._call(
            captures.finish_capture, want.server_id, want.fence, want.capture, nonce=nonce, data=data
        ):
            raise Refused("the delivery has lost the image")
        self._wake()

    async def heartbeat(self, beat: Heartbeat) -> Terms:
        return self._call(agents.heartbeat, beat)

    async def tell(self, holdings: Holdings) -> Told:
        return self._call(tell, holdings)

    async def world(self, incarnation: int, since: int, history: str = "") -> World:
        return self._shape(self._call(agents.world, incarnation, since, history))

    async def claim(self, ask: Claim) -> None:
        self._call(agents.claim, ask)

    async def report(self, ask: Report) -> None:
        self._call(agents.report, ask)
        self._wake()

    async def answer(self, ask_id: str, answer: Answer) -> None:
        self._call(agents.answer_ask, answer.incarnation, ask_id, answer.text)
