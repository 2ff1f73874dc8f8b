"""The host agent: for each server on this host look, plan, do one thing, report; again and again.

Nothing that matters is kept in memory. An agent that died is replaced by the next incarnation, which is
told everything anew, looks, and goes on; what runs is adopted, what was begun is finished (law 7).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, assert_never

import msgspec
import structlog

from unstuck.core.agents import (
    Answer,
    Ask,
    Claim,
    Heartbeat,
    Holdings,
    HostFacts,
    Register,
    Report,
    Terms,
    Told,
    World,
)
from unstuck.core.console import SERIAL
from unstuck.core.generation import Mark
from unstuck.core.port import Port
from unstuck.core.server.data import (
    BootImage,
    Fence,
    FetchFailed,
    Missing,
    Observation,
    Step,
    Trouble,
    View,
    Want,
)
from unstuck.core.server.host import Act, Do, Hold, Rest, after_failure, plan_host
from unstuck.core.time import backoff
from unstuck.host.control import Behind, Control, Incompatible, Refused, Superseded, Unreachable
from unstuck.host.driver import Driver, DriverError, shortage
from unstuck.host.reportword import report_word
from unstuck.runtime.marks import Forgetful, Marks

T = TypeVar("T")

RELOOK = 10.0
"""Seconds between two looks at a server at rest, if no event wakes us."""
BACKOFF_MAX = 60.0
INCOMPATIBLE = 15.0
"""Seconds until an agent whose protocol was refused asks again: somebody is upgrading."""
CONSOLE_LIMIT = 256 * 1024
CONSOLE = "console"
GUEST = "guest"
"""The kind of a question that only the agent in a guest can answer."""

log = structlog.get_logger(__name__)


class Held(msgspec.Struct, frozen=True):
    """A want and when it was received, by this process's clock."""

    want: Want
    at: float


class Guests(Protocol):
    """The agents in this host's guests (``host/guests.py``)."""

    def hold(self, want: Want) -> None: ...

    def forget(self, server_id: str) -> None: ...

    def ask(self, ask: Ask) -> None: ...


class Serials(Protocol):
    """The serial ports of this host's guests (``host/serials.py``)."""

    def hold(self, want: Want) -> None: ...

    def forget(self, server_id: str) -> None: ...

    def ask(self, ask: Ask) -> None: ...


class Agent:
    """One incarnation of a host's agent. ``run`` ends when it is superseded."""

    def __init__(
        self,
        port: Port,
        control: Control,
        driver: Driver,
        facts: HostFacts,
        start: str,
        marks: Marks | None = None,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._port = port
        self._control = control
        self._driver = driver
        self._facts = facts
        self._start = start
        self._marks: Marks = Forgetful() if marks is None else marks
        self._wall = wall
        self._history = ""
        """The store's history that this agent has told what is here."""
        self._lost = False
        """The store does not know this incarnation any more, or wants to hear first what is here."""
        self._unsaid = False
        """What is here could not be seen when it was to be told."""
        self._registering = False
        self._incarnation = 0
        self._sequence = 0
        self._version = -1
        self._heartbeat = 5.0
        self._lease = 30.0
        self._answered = 0.0
        self._held: dict[str, Held] = {}
        self._tended: set[str] = set()
        self._claimed: dict[str, tuple[Fence, int]] = {}
        self._reported: dict[str, tuple[Fence, Observation]] = {}
        self._asked: set[str] = set()
        self._marked: set[str] = set()
        self._continued: dict[str, tuple[int, float]] = {}
        self._knows_world = False
        self._guests: Guests | None = None
        self._make_guests: Callable[[], Guests] | None = None
        self._serials: Serials | None = None

    def serve(self, make: Callable[[], Guests]) -> None:
        """Pass on what concerns the databases in guests; ``make`` is called when there is the first one."""
        self._make_guests = make

    def show(self, serials: Serials) -> None:
        """Pass on what concerns the serial ports of guests."""
        self._serials = serials

    def want_of(self, server_id: str) -> Want | None:
        """What is wanted of a server; None where it is not this host's."""
        return self._want(server_id)

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def history(self) -> str:
        """The history of the store that it follows."""
        return self._history

    @property
    def heartbeat(self) -> float:
        return self._heartbeat

    @property
    def lease(self) -> float:
        return self._lease

    @property
    def caught_up(self) -> bool:
        """It knows its world, and has reported every server of it since it started."""
        return self._knows_world and self._held.keys() <= self._reported.keys()

    def images_wanted(self) -> dict[str, tuple[BootImage, ...]] | None:
        """The images of every server of its world; None before it knows that."""
        if not self._knows_world:
            return None
        wants = [held.want for held in self._held.values()]
        return {want.server_id: () if want.gone else want.spec.images for want in wants}

    async def run(self) -> None:
        """Register, then work until superseded (then :class:`Superseded` is raised here or in a task)."""
        await self._register()
        self._port.spawn("heartbeat", self._beat_forever())
        await self._follow_world()

    async def _call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        answer = await self.call(f"control.{name}", work)
        self._answered = self._port.clock()
        return answer

    async def call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """One effect that asks the control plane as this incarnation."""
        spoke_as = self._incarnation
        try:
            return await self._port.effect(name, work)
        except Behind:
            self._lost = True
            self._port.wake("world")
            raise
        except Superseded as error:
            if self._registering or spoke_as != self._incarnation:
                # By ourselves: the store had forgotten us, and we have a new number since.
                raise Unreachable(f"said under an incarnation of our own that is over: {error}") from error
            raise

    def _hear(self, terms: Terms, version: int = 0) -> None:
        """Keep how far the store has come; where it is another than the one that was told, tell it."""
        mark = Mark(terms.generation, terms.generation_id, terms.tick, version, self._incarnation)
        self._marks.hear(mark)
        if self._history and terms.history != self._history:
            self._port.wake("world")

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    async def _register(self) -> None:
        after = -1
        for attempt in itertools.count(1):
            ask = Register(self._start, self._facts, after, self._marks.mark)
            try:
                terms = await self._call("register", functools.partial(self._control.register, ask))
            except Unreachable as error:
                await self._port.pause(
                    _patience("registration", error, backoff(attempt, 0.25, 2.0, key=self._start)), "register"
                )
                continue
            if not terms.granted:
                after = terms.incarnation
                continue
            self._incarnation = terms.incarnation
            self._heartbeat, self._lease = terms.heartbeat, terms.lease
            self._hear(terms.terms)
            log.info("registered", incarnation=terms.incarnation, generation=terms.terms.generation)
            return

    async def _meet(self) -> None:
        """The store is another than the one that was told what is here: tell it, before hearing what it
        wants, and then say everything anew. What was told before it may have lost."""
        if self._lost:
            self._lost = False
            self._registering = True
            await self._register()
            self._registering = False
        told = await self._tell()
        if told.again:
            raise Unreachable("the state folder cannot be read, and the store has to know what is in it")
        if told.terms.history != self._history:
            self._history = told.terms.history
            self._version = -1
            self._claimed.clear()
            self._reported.clear()
            for server_id in self._held:
                self._port.wake(server_id)

    async def _tell(self) -> Told:
        given = await self._holdings()
        told = await self._call("tell", functools.partial(self._control.tell, given))
        self._unsaid = not given.complete
        self._hear(told.terms)
        return told

    async def _holdings(self) -> Holdings:
        mark, sequence = self._marks.mark, self.next_sequence()
        try:
            held = await self._port.effect("driver.holdings", self._driver.holdings)
        except DriverError as error:
            log.warning("what is here cannot be seen", error=str(error))
            return Holdings(self._incarnation, sequence, (), complete=False, mark=mark)
        return Holdings(self._incarnation, sequence, held, mark=mark)

    async def _beat_forever(self) -> None:
        while True:
            try:
                await self._beat()
            except Unreachable as error:
                _patience("heartbeat", error, self._heartbeat)
            await self._port.pause(self._heartbeat, "heartbeat")

    async def _beat(self) -> None:
        strangers = await self._strangers()
        wall = None if self._wall is None else self._wall()
        beat = Heartbeat(self._incarnation, self.next_sequence(), strangers, self._marks.mark, wall)
        self._hear(await self._call("heartbeat", lambda: self._control.heartbeat(beat)))
        if self._unsaid:
            await self._tell()  # nothing new is given to a host that has not said what it holds

    async def _strangers(self) -> tuple[str, ...]:
        """Ids of what is on this host and not in its world: shown, never touched (law 7)."""
        if not self._knows_world:
            return ()
        try:
            found = await self._port.effect("driver.found", self._driver.found)
        except DriverError:
            return ()
        return tuple(sorted(found - self._held.keys()))

    async def _follow_world(self) -> None:
        failures = 0
        while True:
            try:
                world = await self._world()
            except Unreachable as error:
                failures += 1
                await self._port.pause(
                    _patience("world", error, backoff(failures, 0.5, 2.0, key=self._start)), "world"
                )
                continue
            failures = 0
            news = self._take_world(world)
            if not news:
                # A question that is being answered makes the call return at once: do not spin on it.
                await self._port.pause(max(self._control.idle, _breath(world)), "world")

    async def _world(self) -> World:
        """The next news, of a store that knows what is here."""
        while True:
            if self._lost or not self._history:
                await self._meet()
            world = await self._call(
                "world", lambda: self._control.world(self._incarnation, self._version, self._history)
            )
            if world.terms.history == self._history:
                return world
            self._history = ""

    def _take_world(self, world: World) -> bool:
        """Keep the newest of everything; true if there was anything new."""
        now = self._port.clock()
        news = world.version != self._version
        self._version = world.version
        self._hear(world.terms, world.version)
        self._knows_world = True
        for want in world.wants:
            known = self._held.get(want.server_id)
            if known is not None and known.want.version != want.version:
                self._reported.pop(want.server_id, None)  # told anew: so that is what it asks of us, too
                if known.want.mark != want.mark:
                    self._marked.add(want.server_id)
            self._held[want.server_id] = Held(want, now)
            self._port.wake(want.server_id)
            if want.database is not None and self._guests is None and self._make_guests is not None:
                self._guests = self._make_guests()
            if self._guests is not None:
                self._guests.hold(want)
            if self._serials is not None:
                self._serials.hold(want)
        ids = frozenset(world.ids)
        for server_id in [known for known in self._held if known not in ids]:
            self._forget(server_id)
        for server_id in self._held:
            if server_id not in self._tended:
                self._tended.add(server_id)
                self._port.spawn(f"server {server_id}", self._tend(server_id))
        for ask in world.asks:
            if ask.id not in self._asked:
                self._asked.add(ask.id)
                self._hand_on(ask)
        self._asked.intersection_update(ask.id for ask in world.asks)
        return news

    def _hand_on(self, ask: Ask) -> None:
        if ask.kind == GUEST:
            if self._guests is not None:
                self._guests.ask(ask)
        elif ask.kind == SERIAL and self._serials is not None:
            self._serials.ask(ask)
        else:
            self._port.spawn(f"ask {ask.id}", self._answer(ask))

    def _forget(self, server_id: str) -> None:
        self._held.pop(server_id, None)
        self._claimed.pop(server_id, None)
        self._reported.pop(server_id, None)
        self._marked.discard(server_id)
        self._continued.pop(server_id, None)
        self._port.wake(server_id)
        if self._guests is not None:
            self._guests.forget(server_id)
        if self._serials is not None:
            self._serials.forget(server_id)

    def _want(self, server_id: str) -> Want | None:
        """What is wanted now; the patience it came with has been running out since."""
        held = self._held.get(server_id)
        if held is None:
            return None
        left = max(held.want.patience - (self._port.clock() - held.at), 0.0)
        return msgspec.structs.replace(held.want, patience=left)

    async def _tend(self, server_id: str) -> None:
        """The loop of one server. Its errors are its own: they are backed off here (law 8)."""
        failures = lasting = 0
        try:
            while (want := self._want(server_id)) is not None:
                try:
                    seconds = await self._step(want)
                    failures = lasting = 0
                except Refused:
                    if self._unchanged(want):
                        self._forget(server_id)
                        return
                    seconds = 0.0
                except Unreachable:
                    failures += 1
                    seconds = backoff(failures, 1.0, 5.0, key=server_id)
                except (DriverError, OSError) as error:
                    failures += 1
                    seconds = backoff(failures, 1.0, BACKOFF_MAX, key=server_id)
                    failed = error if isinstance(error, DriverError) else shortage(error)
                    lasting = lasting + 1 if failed.lasting else 0
                    await self._report_failure(want, failed, lasting)
                except Superseded:
                    raise
                except Exception:
                    failures += 1
                    seconds = backoff(failures, 2.0, BACKOFF_MAX, key=server_id)
                    log.exception("step failed", server=server_id)
                if seconds:
                    await self._port.pause(seconds, server_id)
        finally:
            self._tended.discard(server_id)

    def _unchanged(self, want: Want) -> bool:
        """The grant that was refused is still the one we hold: it was not renewed while we asked."""
        held = self._held.get(want.server_id)
        return held is not None and held.want.fence == want.fence

    async def _step(self, want: Want) -> float:
        """Look, decide, act; returns the seconds to wait before the next look."""
        view = await self._port.effect("driver.look", lambda: self._driver.look(want))
        view = self._afresh(want.server_id, view)
        decision = plan_host(want, view)
        match decision:
            case Act(Do.RECORD_DISK as do, step):
                await self._act(want, view, do, step)
                return await self._after_record(want.server_id, view)
            case Act(Do.RESUME) if decision.trouble is not None:
                return await self._continue(want, view, decision, decision.trouble)
            case Act(do, step, then, trouble):
                if trouble is not None:
                    await self._report(want, view, step, trouble)
                await self._act(want, view, do, step)
                return then
            case Hold(step, seconds, trouble):
                await self._report(want, view, step, trouble)
                return seconds
            case Rest(step):
                await self._report(want, view, step, None)
                self._forget_stops(want.server_id)
                return RELOOK
            case _ as never:
                assert_never(never)

    def _afresh(self, server_id: str, view: View) -> View:
        """After an operator's mark, what an earlier fetch came to counts no more, once."""
        if server_id in self._marked and isinstance(view.images, FetchFailed):
            self._marked.discard(server_id)
            return msgspec.structs.replace(view, images=Missing())
        return view

    async def _continue(self, want: Want, view: View, act: Act, trouble: Trouble) -> float:
        """The guest stopped by itself: let it go on, each time after twice the wait.

        Its next stop wakes this loop at once, so the wait has to be kept here.
        """
        await self._report(want, view, Step.WAITING, trouble)
        tries, at = self._continued.get(want.server_id, (0, 0.0))
        left = at + min(2.0**tries, BACKOFF_MAX) - self._port.clock() if tries else 0.0
        if left > 0:
            return left
        self._continued[want.server_id] = (min(tries + 1, 6), self._port.clock())
        await self._act(want, view, act.do, act.step)
        return 0.0

    def _forget_stops(self, server_id: str) -> None:
        """It has been running for longer than the longest wait: the next stop is a new story."""
        if server_id in self._continued:
            _, at = self._continued[server_id]
            if self._port.clock() - at > BACKOFF_MAX:
                del self._continued[server_id]

    async def _after_record(self, server_id: str, view: View) -> float:
        """Recording changed nothing on the host: ports, which may be made again, need no new look."""
        want = self._want(server_id)
        if want is None:
            return 0.0
        match plan_host(want, view):
            case Act(Do.MAKE_NICS as do, step, then):
                await self._act(want, view, do, step)
                return then
            case _:
                return 0.0  # anything else is decided on a look of its own

    async def _act(self, want: Want, view: View, do: Do, step: Step) -> None:
        await self._be_fresh()
        await self._claim(want)
        if self._want_changed(want):
            return
        log.info("act", server=want.server_id, do=do.value, guest=type(view.guest).__name__)
        if do is Do.RECORD_DISK:
            await self._record_disk(want, view, step)
            return
        work = self._work(do)
        await self._port.effect(f"driver.{do.value}", lambda: work(want))

    def _want_changed(self, want: Want) -> bool:
        """Something newer arrived while we claimed: decide again rather than act on the old."""
        held = self._held.get(want.server_id)
        return held is None or held.want.intent != want.intent or held.want.fence != want.fence

    def _work(self, do: Do) -> Callable[[Want], Awaitable[None]]:
        driver = self._driver
        match do:
            case Do.FETCH:
                return driver.fetch
            case Do.MAKE_DISK:
                return driver.make_disk
            case Do.DROP_DISKS:
                return driver.drop_disks
            case Do.GROW_DISK:
                return driver.grow_disk
            case Do.CAPTURE:
                return driver.capture
            case Do.DROP_COPIES:
                return driver.drop_copies
            case Do.MAKE_NICS:
                return driver.make_nics
            case Do.START:
                return driver.start
            case Do.PAUSE:
                return driver.pause
            case Do.RESUME:
                return driver.resume
            case Do.SAVE:
                return driver.save
            case Do.DROP_MEMORY:
                return driver.drop_memory
            case Do.POWER_DOWN:
                return driver.power_down
            case Do.QUIT:
                return driver.quit
            case Do.REMOVE_NICS:
                return driver.remove_nics
            case Do.REMOVE_FOLDER:
                return driver.remove_folder
            case Do.RECORD_DISK:
                raise AssertionError("recording a disk is no effect of the driver")
            case _ as never:
                assert_never(never)

    async def _be_fresh(self) -> None:
        """After a gap in answers longer than half a lease, renew before the next effect."""
        if self._port.clock() - self._answered > self._lease / 2:
            await self._beat()

    async def _claim(self, want: Want) -> None:
        """Work has an owner and a deadline before it begins (law 2); once for each intent."""
        claimed = (want.fence, want.intent)
        if self._claimed.get(want.server_id) == claimed:
            return
        ask = Claim(self._incarnation, want.server_id, want.fence)
        await self._call("claim", lambda: self._control.claim(ask))
        self._claimed[want.server_id] = claimed

    async def _record_disk(self, want: Want, view: View, step: Step) -> None:
        """From here on the store knows that the disk was made, and an empty one is never made again."""
        observation = Observation(want.intent, view.guest, view.disk, step, memory=view.memory)
        disk_id = f"{want.server_id}.{want.fence.generation}.{want.fence.epoch}.{want.nonce}"
        await self._send(want, observation, "disk", disk_id)
        held = self._held.get(want.server_id)
        if held is not None and (held.want.fence, held.want.nonce) == (want.fence, want.nonce):
            recorded = msgspec.structs.replace(held.want, disk_recorded=True)
            self._held[want.server_id] = msgspec.structs.replace(held, want=recorded)

    async def _report_failure(self, want: Want, error: DriverError, lasting: int) -> None:
        """An effect failed: say so, with the guest as it is now, and that it will be tried again."""
        log.warning("effect failed", server=want.server_id, error=str(error))
        trouble = after_failure(str(error), error.remedy, lasting)
        try:
            view = await self._port.effect("driver.look", lambda: self._driver.look(want))
            await self._report(want, view, Step.WAITING, trouble)
        except (Unreachable, Refused):
            return

    async def _report(self, want: Want, view: View, step: Step, trouble: Trouble | None) -> None:
        """Report what is seen, unless just that was reported already: no news writes nothing."""
        observation = Observation(want.intent, view.guest, view.disk, step, trouble, view.memory)
        if self._reported.get(want.server_id) == (want.fence, observation):
            return
        await self._send(want, observation, report_word(observation), None)

    async def _send(self, want: Want, observation: Observation, word: str, disk_id: str | None) -> None:
        ask = Report(
            incarnation=self._incarnation,
            sequence=self.next_sequence(),
            server_id=want.server_id,
            fence=want.fence,
            observation=observation,
            disk_id=disk_id,
        )
        await self._call(f"report.{word}", lambda: self._control.report(ask))
        self._reported[want.server_id] = (want.fence, observation)

    async def _answer(self, ask: Ask) -> None:
        """The console log; to what is not known here nothing, so that its asker need not wait."""
        text = ""
        try:
            if ask.kind == CONSOLE:
                text = await self._port.effect(
                    "driver.console", lambda: self._driver.console(ask.server_id, ask.lines)
                )
        except DriverError as error:
            text = f"[the console log cannot be read: {error}]"
        answer = Answer(self._incarnation, text[-CONSOLE_LIMIT:])
        try:
            await self._call("answer", lambda: self._control.answer(ask.id, answer))
        except Unreachable:
            return  # the question has a deadline, and its asker hears of it


def _breath(world: World) -> float:
    """Seconds between two looks while a question is open: a guest may take long over it."""
    if not world.asks:
        return 0.0
    return 0.2 if all(ask.kind == GUEST for ask in world.asks) else 0.05


def _patience(call: str, error: Unreachable, seconds: float) -> float:
    """Log why there was no answer; the seconds to wait: more where only an upgrade helps."""
    if isinstance(error, Incompatible):
        log.error("the control plane refuses this version", call=call, reason=str(error))
        return INCOMPATIBLE
    log.info(f"{call} unanswered", error=str(error))
    return seconds
