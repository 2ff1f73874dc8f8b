"""The guest agent: look, plan, do one thing, tell; again and again. Nothing that matters is in its memory.

An agent that died is replaced by the next, which is told everything anew, looks, and goes on: what runs is
adopted, what was half made is made again from nothing. Its host's silence stops no database (law 7).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar, assert_never

import msgspec
import structlog

from unstuck.core.archive.data import LogView
from unstuck.core.instance.guest import Act, Decision, Do, Hold, Rest, plan_guest
from unstuck.core.instance.guestwire import (
    PROTOCOL,
    Answered,
    Done,
    GuestAsk,
    Hello,
    Look,
    NotNow,
    Orders,
    Request,
    Response,
    Seen,
    Welcome,
)
from unstuck.core.instance.requests import (
    AgentProcess,
    DatabaseAnswer,
    DatabaseRequest,
    Describe,
    DisableExtension,
    EnableExtension,
    EndLoan,
    Failed,
    Lend,
    ListExtensions,
    MoreRequest,
    Ok,
    ReadLog,
)
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.port import Port
from unstuck.core.server.data import Thing, Trouble
from unstuck.core.time import backoff
from unstuck.guest import datastore as kinds
from unstuck.guest.archive import Archive
from unstuck.guest.backup import Backups
from unstuck.guest.control import Away, GuestControl
from unstuck.guest.datastore import Datastore, DatastoreError
from unstuck.guest.restore import restore
from unstuck.guest.wire import PROTOCOL_PAUSE, OtherVersion, Threads, ask

T = TypeVar("T")

RELOOK: Final = 5.0
"""Seconds between two looks at a server at rest, if nothing wakes us."""
BACKOFF_MOST: Final = 60.0
LOOK_WAIT: Final = 20.0
"""Seconds that the host may hold an unchanged answer back."""
UNWELCOME: Final = 15.0
"""Seconds until an agent that is not welcome says hello again."""
MIB: Final = 1 << 20

log = structlog.get_logger(__name__)


class Agent:
    """One process of a guest's agent. ``run`` ends when it is superseded (:class:`Superseded`)."""

    def __init__(
        self, port: Port, control: GuestControl, datastore: Datastore, start: str, threads: Threads,
        folder: Path, version: str = "", describe: Callable[[], AgentProcess] | None = None,
    ) -> None:  # fmt: skip
        self._port = port
        self._control = control
        self._datastore = datastore
        self._hello = Hello(start, PROTOCOL, version)
        self._heartbeat = 5.0
        self._want: DatabaseWant | None = None
        self._version = -1
        self._view: DatabaseView | None = None
        self._told: DatabaseView | None = None
        self._words = 0
        self._answered = 0
        self._looked_after = 0
        self._progress: tuple[int, int] = (0, 0)
        self._failures = 0
        self._final: tuple[Do, DatabaseWant] | None = None
        self._trouble: Trouble | None = None
        self._restoring = False
        self._asked: dict[str, str] = {}
        self._threads = threads
        self._describe = describe
        self._backups = Backups(port, control, datastore, threads)
        self._archive = Archive(port, control, datastore, threads, folder)
        self._swept = False

    async def run(self) -> None:
        """Say hello, then work beside listening, telling and answering."""
        await self._greet()
        await self._effect("guest.serve-log", lambda: self._datastore.serve_log(self._archive.keep))
        self._port.spawn("orders", self._listen())
        self._port.spawn("telling", self._tell_forever())
        self._port.spawn("backups", self._backups.run())
        await self._work()

    # --- the host

    async def _greet(self) -> None:
        while not isinstance(answer := await self._patiently("guest.hello", self._hello), Welcome):
            # The host has nothing to do with this guest (any more), or not yet.
            log.warning("the host does not welcome us", answer=str(answer))
            await self._port.pause(UNWELCOME, "hello")
        self._heartbeat = answer.heartbeat
        log.info("the host said welcome", incarnation=answer.incarnation)

    async def _patiently(self, name: str, request: Request) -> Response:
        """Until the host answers; another version of the protocol is a state that somebody is changing."""
        tries = 0
        while True:
            try:
                answer, _ = await self._effect(name, lambda: ask(self._control, request))
            except OtherVersion as error:
                answer = NotNow("refused", str(error), PROTOCOL_PAUSE)
                if not isinstance(request, Hello):
                    # Its host agent was replaced by one of another version, which will be as well.
                    await self._greet()
                    continue
            except Away as error:
                answer = NotNow("unreachable", str(error))
            if not isinstance(answer, NotNow):
                return answer
            tries += 1
            seconds = max(answer.seconds, backoff(tries, 0.5, 15.0))
            log.info("the host does not answer", what=name, reason=answer.reason, seconds=seconds)
            await self._port.pause(seconds, "hello")

    async def _effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._port.effect(name, work)

    async def _listen(self) -> None:
        """What is wanted, as soon as it changes. What was heard last holds while nobody answers."""
        while True:
            answer = await self._patiently("guest.look", Look(self._version, LOOK_WAIT))
            if isinstance(answer, Orders):
                self._hear(answer)
            else:
                log.warning("a strange answer", answer=type(answer).__name__)
                await self._port.pause(1.0, "hello")

    def _hear(self, orders: Orders) -> None:
        self._version = orders.version
        if orders.want is not None and orders.want != self._want:
            self._want = orders.want
            self._failures = 0
            self._port.wake("look")
            self._port.wake("again")
        if orders.want is not None:
            # Before a backup begins: what follows it is to be kept.
            self._archive.wanted(orders.want.archive)
        if orders.want is not None:  # a host that does not know yet ends no attempt
            self._backups.wanted(orders.want.backup)
        open_asks = {found.id for found in orders.asks}
        self._asked = {key: text for key, text in self._asked.items() if key in open_asks}
        for found in orders.asks:
            if found.id not in self._asked:
                self._asked[found.id] = ""
                self._port.spawn("ask", self._answer(found))

    async def _tell_forever(self) -> None:
        """News at once, and a sign of life in any case."""
        while True:
            if self._view is not None:
                view = self._fresh(self._view)
                self._words += 1
                word = Seen(view, self._words, self._looked_after)
                try:
                    answer, _ = await self._effect("guest.tell", functools.partial(ask, self._control, word))
                    self._told = view
                    if isinstance(answer, Done):
                        self._answered = word.number
                except Away as error:
                    log.info("the host does not answer", what="guest.tell", reason=str(error))
            await self._port.pause(self._heartbeat, "tell")

    def _fresh(self, view: DatabaseView) -> DatabaseView:
        done, total = self._progress
        return msgspec.structs.replace(view, done=done, total=total)

    # --- the database

    async def _work(self) -> None:
        while True:
            answered = self._answered
            try:
                look = await self._effect("guest.see", lambda: self._datastore.look(self._want))
            except (DatastoreError, OSError) as error:
                log.warning("the database cannot be seen", error=str(error))
                await self._port.pause(2.0, "look")
                continue
            want = self._want
            decision = plan_guest(want, look.sight)
            self._looked_after = answered
            self._report(want, look, decision)
            up = look.sight.server is ServerState.UP and look.sight.data is Thing.PRESENT
            if up and not self._swept:
                await self._sweep()
            ends = isinstance(decision, Act) and decision.do is Do.STOP
            self._backups.server_is_up(up and want is not None and not ends)
            await self._follow(want, decision)

    async def _follow(self, want: DatabaseWant | None, decision: Decision) -> None:
        match decision:
            case Act(do, _):
                assert want is not None
                await self._act(do, want)
            case Hold(_, seconds, _):
                await self._port.pause(seconds, "look")
            case Rest():
                self._failures = 0
                await self._port.pause(RELOOK, "look")
            case _ as never:
                assert_never(never)

    async def _act(self, do: Do, want: DatabaseWant) -> None:
        """One effect. A failure is told and waited off; what no repetition can help is not repeated."""
        if self._final == (do, _work_of(want)):
            await self._port.pause(30.0, "look")
            return
        log.info("acts", do=do.value)
        try:
            if do is Do.RESTORE:  # many effects
                self._restoring = True
                try:
                    await restore(
                        self._port, self._control, self._datastore, want, self._threads, self._moved
                    )
                finally:
                    self._restoring = False
            else:
                await self._effect(f"guest.{do.value}", lambda: self._do(do, want))
        except (DatastoreError, OSError) as error:
            await self._failed(do, want, error)
        else:
            self._trouble, self._failures, self._final = None, 0, None

    async def _failed(self, do: Do, want: DatabaseWant, error: DatastoreError | OSError) -> None:
        self._failures += 1
        known = error if isinstance(error, DatastoreError) else DatastoreError(_why(error))
        self._trouble = Trouble(known.code, known.reason, known.remedy, known.final)
        if known.final:
            self._final = (do, _work_of(want))
        log.warning("failed", do=do.value, reason=known.reason, final=known.final)
        if self._view is not None:
            self._show(msgspec.structs.replace(self._view, step=GuestStep.WAITING, trouble=self._trouble))
        # Not until the next event: the end of a server that was just started is one.
        await self._port.pause(backoff(self._failures, 1.0, BACKOFF_MOST), "again")

    async def _do(self, do: Do, want: DatabaseWant) -> None:
        match do:
            case Do.INIT:
                await self._datastore.init(want)
            case Do.RESTORE:
                raise AssertionError("it consists of effects of its own")
            case Do.START:
                await self._datastore.start(want)
            case Do.STOP:
                await self._datastore.stop()
            case Do.APPLY:
                await self._datastore.apply(want)
            case Do.RECONFIGURE:
                await self._datastore.reconfigure(want)
            case _ as never:
                assert_never(never)

    def _moved(self, done: int, total: int, waits_for: str) -> None:
        if not self._restoring:
            return  # pieces that were asked for ahead; why it ended is not to be taken back
        self._progress = (done, total)
        if self._view is None:
            return
        trouble = None
        if waits_for:
            trouble = Trouble(
                "backup-unread", f"the backup cannot be read: {waits_for}", "none: it goes on by itself"
            )
        if trouble != self._view.trouble:
            self._show(msgspec.structs.replace(self._view, trouble=trouble))

    async def _sweep(self) -> None:
        """Once per process: what a killed one left in the server."""
        try:
            await self._effect("guest.sweep", lambda: self._datastore.sweep(self._backups.nonce))
            self._swept = True
        except (DatastoreError, OSError) as error:
            log.warning("old backups' slots cannot be removed", reason=str(error))

    # --- telling

    def _report(self, want: DatabaseWant | None, look: kinds.Look, decision: Decision) -> None:
        trouble = decision.trouble if isinstance(decision, Hold) else None
        step = decision.step
        if isinstance(decision, Act) and self._trouble is not None:
            trouble = self._trouble  # it is tried again
            step = GuestStep.WAITING if trouble.final else step
        if isinstance(decision, Rest):
            self._trouble = None
        if want is None:
            return  # whose data it is cannot be said yet
        sight = look.sight
        self._show(
            DatabaseView(
                generation=want.generation,
                data=sight.data,
                server=sight.server,
                step=step,
                applied=sight.applied,
                restart=sight.restart,
                root_enabled=look.root_enabled,
                volume_used_mb=look.used // MIB,
                volume_size_mb=look.size // MIB,
                facts=look.facts,
                log=self._log_of(look),
                configured=look.configured,
                trouble=trouble,
            )
        )

    def _log_of(self, look: kinds.Look) -> LogView | None:
        if look.log is None:
            return None
        return msgspec.structs.replace(look.log, gap=self._archive.gap)

    def _show(self, view: DatabaseView) -> None:
        self._view = view
        if self._told is None or self._fresh(view) != self._told:
            self._port.wake("tell")

    # --- questions

    async def _answer(self, question: GuestAsk) -> None:
        """Within its deadline; who asked is told in any case, and an answer that got lost is told again."""
        text = await self._effect("guest.answer", lambda: self._text_for(question))
        self._asked[question.id] = text
        end = self._port.clock() + question.seconds
        while self._port.clock() < end:
            try:
                answer, _ = await self._effect(
                    "guest.answered", lambda: ask(self._control, Answered(question.id, text))
                )
            except Away as error:
                answer = NotNow("unreachable", str(error))
            if not isinstance(answer, NotNow):
                return
            await self._port.pause(answer.seconds, "hello")

    async def _ask(self, request: DatabaseRequest | MoreRequest | Describe, seconds: float) -> DatabaseAnswer:
        match request:
            case Describe():
                return self._described()
            case ReadLog() | ListExtensions() | EnableExtension() | DisableExtension() | Lend() | EndLoan():
                if isinstance(self._datastore, kinds.Offers):
                    return await self._datastore.more(request, seconds)
                return Failed("invalid", "this datastore does not offer that")
            case _:
                return await self._datastore.ask(request, seconds)

    def _described(self) -> DatabaseAnswer:
        if self._describe is None:
            return Failed("invalid", "this agent does not say")
        try:
            return Ok(agent=self._describe())
        except OSError as error:
            return Failed("unready", _why(error))

    async def _text_for(self, question: GuestAsk) -> str:
        answer: DatabaseAnswer
        try:
            request = msgspec.json.decode(question.argument, type=DatabaseRequest | MoreRequest | Describe)
        except msgspec.MsgspecError as error:
            answer = Failed("invalid", str(error))
        else:
            answer = await self._ask(request, max(question.seconds, 0.5))
        self._port.wake("look")
        return msgspec.json.encode(answer).decode()


def _work_of(want: DatabaseWant) -> DatabaseWant:
    """Without what has nothing to do with it: a backup that is offered makes no failed restore possible."""
    return msgspec.structs.replace(want, backup=None, archive=None, parameters={}, cidrs=(), superuser=False)


def _why(error: OSError) -> str:
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
