"""The host's service for the agents in its guests: it answers what they ask, with the identity it adds.

A guest is its tenant: it hears what is wanted of its own database, reports on itself, writes its current
attempt and reads what a restore grants. Everything it says is bounded and checked here; what has an effect on
the store goes to the control plane, fenced by the server's grant and both incarnations.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, assert_never

import msgspec
import structlog

from unstuck.blobs.keys import Signer
from unstuck.blobs.objects import Problem
from unstuck.core.agents import Answer, Ask
from unstuck.core.instance.guestwire import (
    PROTOCOL,
    Answered,
    AskLog,
    AskRestore,
    Done,
    Fetch,
    FetchLog,
    Finish,
    GiveUp,
    GuestAsk,
    Hello,
    Keep,
    KeepChunk,
    KeepEnd,
    Look,
    NotNow,
    Orders,
    Renew,
    Request,
    Response,
    Seen,
    Store,
    Take,
    Welcome,
)
from unstuck.core.instance.guestwire import Refused as No
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.wire import GuestRegister, GuestReport, Place
from unstuck.core.port import Port
from unstuck.core.server.data import Machine, Want
from unstuck.core.time import backoff
from unstuck.host.archives import Archives
from unstuck.host.attempts import Attempts
from unstuck.host.control import DatabaseControl, Declined, Refused, Unreachable
from unstuck.host.driver import DriverError
from unstuck.host.guestcalls import Bucket, Desk, Guest, Said, Voice, Waiting, check_view, refuse
from unstuck.host.pieces import Pieces, digest
from unstuck.host.restores import Restores

WAIT_MAX: Final = 60.0
LOOK_AGAIN: Final = 5.0
"""Seconds after which a question that was handed over and not answered is handed over again."""
BETWEEN: Final = 0.2
"""Seconds between two reports of one guest."""
TEXT_MAX: Final = 256 * 1024
"""Bytes of an answer to a question: the agents' API takes a JSON body of 1 MiB."""
START_MAX: Final = 64

log = structlog.get_logger(__name__)


class Ending(Protocol):
    """A channel that can be ended."""

    def end(self) -> None: ...


OpenChannel = Callable[["GuestService", str, Path, Machine], Ending]


class Held:
    """One guest with its parts."""

    def __init__(self, desk: Desk, guest: Guest, signer: Signer) -> None:
        self.guest = guest
        self.attempts = Attempts(desk, guest, signer)
        self.restores = Restores(desk, guest)
        self.archives = Archives(desk, guest, signer)
        self.channel: Ending | None = None


class GuestService:
    """All guests with an agent on this host. ``folder_of`` names a server's folder."""

    def __init__(
        self, port: Port, control: DatabaseControl, voice: Voice, signer: Signer,
        open_place: Callable[[Place], Pieces], folder_of: Callable[[str], Path],
        open_channel: OpenChannel | None = None,
        digest_of: Callable[[bytes], Awaitable[str]] = digest,
    ) -> None:  # fmt: skip
        self._port = port
        self._control = control
        self._voice = voice
        self._signer = signer
        self._desk = Desk(port, control, voice, open_place, digest_of)
        self._folder_of = folder_of
        self._open_channel = open_channel
        self._held: dict[str, Held] = {}
        self._hellos = Bucket(50.0, 10.0)

    # --- what the agent of the host says

    def hold(self, want: Want) -> None:
        """The newest that is wanted of a server. One without a database has no channel."""
        if want.database is None:
            self.forget(want.server_id)
            return
        held = self._held.get(want.server_id)
        if held is None:
            try:
                folder = self._folder_of(want.server_id)
            except DriverError as error:
                log.error("no channel", server=want.server_id, reason=str(error))
                return
            guest = Guest(want.server_id, folder, self._port.clock())
            held = self._held[want.server_id] = Held(self._desk, guest, self._signer)
            guest.want = want
            self._port.spawn(f"reports of {want.server_id}", self._report_forever(guest))
            if self._open_channel is not None:
                held.channel = self._open_channel(self, want.server_id, guest.folder, want.spec.machine)
        held.guest.want = want
        held.guest.version = version_of(want)
        if want.database.data_recorded:
            held.restores.forget()
            held.archives.forget()
        self._port.wake(_look(want.server_id))
        self._port.wake(_report(want.server_id))

    def forget(self, server_id: str) -> None:
        """The server is not this host's any more."""
        held = self._held.pop(server_id, None)
        if held is None:
            return
        held.guest.gone = True
        held.guest.incarnation = 0
        if held.channel is not None:
            held.channel.end()
        self._port.wake(_look(server_id))
        self._port.wake(_report(server_id))

    def ask(self, ask: Ask) -> None:
        """Put a question to a guest. Who asked it waits no longer than its deadline, and so do we."""
        held = self._held.get(ask.server_id)
        if held is not None and ask.id not in held.guest.asks:
            held.guest.asks[ask.id] = Waiting(ask, self._port.clock() + ask.seconds)
            self._port.wake(_look(ask.server_id))

    # --- what the guests say

    async def hello(self, server_id: str, hello: Hello) -> Welcome | No | NotNow:
        """Register the process; the number it gets makes those before it superseded."""
        held = self._held.get(server_id)
        if held is None:
            return No("gone", "this host has nothing to do with the server")
        if hello.protocol != PROTOCOL:
            return No("protocol", f"the host speaks version {PROTOCOL} of the protocol, not {hello.protocol}")
        if not 0 < len(hello.start) <= START_MAX or "\0" in hello.start:
            return No("invalid", f"`start` must have 1 to {START_MAX} characters")
        guest = held.guest
        if not self._hellos.take(self._port.clock()) or not guest.bucket.take(self._port.clock()):
            return NotNow(Problem.UNREACHABLE, "too many hellos", 2.0)
        version = hello.agent_version.replace("\0", "")[:64]
        sequence = self._voice.next_sequence()
        word = GuestRegister(self._desk.who(guest), hello.start, hello.protocol, version, sequence)
        try:
            answer = await self._desk.call("register", "gone", lambda: self._control.guest_register(word))
        except Said as said:
            if isinstance(said.response, No) and said.response.code == "gone":
                # The store may have granted it anew and not told us yet; if it has gone, so has its channel.
                return NotNow(Problem.UNREACHABLE, said.response.reason, 2.0)
            return said.no_or_not_now()
        if answer.incarnation < guest.incarnation:
            return No("superseded", "a newer process of the agent has come")
        guest.log.greet(self._port.clock(), anew=answer.incarnation > guest.incarnation)
        if answer.incarnation > guest.incarnation:
            guest.incarnation, guest.view = answer.incarnation, None
            log.info("guest agent registered", server=server_id, incarnation=answer.incarnation)
        for waiting in guest.asks.values():
            waiting.given = -LOOK_AGAIN  # an answer to its last look may have been lost
        self._hear(guest)
        self._port.wake(_look(server_id))
        return Welcome(guest.incarnation, self._voice.heartbeat, self._voice.lease)

    async def answer(
        self, server_id: str, incarnation: int, request: Request, blob: bytes
    ) -> tuple[Response, bytes]:
        """The answer to anything but a hello. It is never an exception that a guest has caused."""
        held = self._held.get(server_id)
        if held is None:
            return No("gone", "this host has nothing to do with the server"), b""
        if incarnation != held.guest.incarnation:
            return No("superseded", "a newer process of the agent has come"), b""
        self._hear(held.guest)
        if not isinstance(request, Store | Fetch | KeepChunk | FetchLog) and not held.guest.bucket.take(
            self._port.clock()
        ):
            return NotNow(Problem.UNREACHABLE, "too many requests", 1.0), b""
        try:
            return await self._answer(held, request, blob)
        except Said as said:
            return said.response, b""

    async def _answer(self, held: Held, request: Request, blob: bytes) -> tuple[Response, bytes]:
        match request:
            case Look():
                return await self._orders(held.guest, request), b""
            case Seen():
                return self._seen(held.guest, request), b""
            case Answered():
                return await self._answered(held.guest, request), b""
            case Take():
                return await held.attempts.take(request), b""
            case Renew():
                return await held.attempts.renew(request), b""
            case Store():
                return await held.attempts.store(request, blob), b""
            case Finish():
                return await held.attempts.finish(request), b""
            case GiveUp():
                return await held.attempts.give_up(request), b""
            case AskRestore():
                return await held.restores.ask(request), b""
            case Fetch():
                return await held.restores.fetch(request)
            case Keep():
                return await held.archives.keep(request), b""
            case KeepChunk():
                return await held.archives.chunk(request, blob), b""
            case KeepEnd():
                return await held.archives.end(request), b""
            case AskLog():
                return await held.archives.log(request), b""
            case FetchLog():
                return await held.archives.fetch(request)
            case Hello():
                return No("invalid", "a hello begins a session of its own"), b""
            case _ as never:
                assert_never(never)

    def _hear(self, guest: Guest) -> None:
        was_silent = self._silent(guest)
        guest.heard = self._port.clock()
        if was_silent:
            self._port.wake(_report(guest.server_id))

    # --- orders

    async def _orders(self, guest: Guest, look: Look) -> Response:
        """At once when there is news or a question; else when there is, or time is over."""
        incarnation, end = guest.incarnation, self._port.clock() + min(max(look.wait, 0.0), WAIT_MAX)
        while True:
            now = self._port.clock()
            if guest.gone:
                return No("gone", "this host has nothing to do with the server (any more)")
            if guest.incarnation != incarnation:
                return No("superseded", "a newer process of the agent has come")
            asks = self._due(guest, now)
            if asks or guest.version != look.since or now >= end:
                for waiting in asks:
                    waiting.given = now
                given = tuple(
                    GuestAsk(each.ask.id, each.ask.argument, max(each.until - now, 0.0)) for each in asks
                )
                return Orders(guest.version, guest.database, given)
            await self._port.pause(min(end - now, LOOK_AGAIN), _look(guest.server_id))

    def _due(self, guest: Guest, now: float) -> list[Waiting]:
        """Questions to be handed over; those whose time is over are forgotten."""
        guest.asks = {key: each for key, each in guest.asks.items() if each.until > now}
        return [each for each in guest.asks.values() if now >= each.given + LOOK_AGAIN]

    async def _answered(self, guest: Guest, given: Answered) -> Response:
        if given.ask_id not in guest.asks:
            return Done()  # too late: nobody waits for it any more
        if len(given.text.encode(errors="replace")) > TEXT_MAX:
            raise refuse("invalid", f"the answer is longer than {TEXT_MAX} bytes")
        word = Answer(self._voice.incarnation, given.text)
        try:
            await self._desk.call("answer", "gone", lambda: self._control.answer(given.ask_id, word))
        except Said as said:
            if isinstance(said.response, NotNow):
                raise
        guest.asks.pop(given.ask_id, None)
        return Done()

    # --- reports

    def _seen(self, guest: Guest, seen: Seen) -> Response:
        check_view(seen.view)
        if guest.log.is_late(seen.number):
            return Done()
        guest.log.see(
            seen.view.log, stands=seen.view.server in (ServerState.DOWN, ServerState.CRASHED),
            number=seen.number, after=seen.after, now=self._port.clock(),
        )  # fmt: skip
        if seen.view != guest.view:
            guest.view = seen.view
            self._port.wake(_report(guest.server_id))
        return Done()

    def _silent(self, guest: Guest) -> bool:
        return self._port.clock() - guest.heard >= self._voice.lease

    def _news(self, guest: Guest) -> object:
        """What a report says, and to which store: equal to the last one, it is none."""
        assert guest.want is not None
        alive = guest.incarnation > 0 and not self._silent(guest)
        restoring = guest.want.database is not None and not guest.want.database.data_recorded
        # The lease of who restores is renewed by its reports: they go on also where nothing moves.
        beat = int(self._port.clock() / self._voice.heartbeat) if restoring and alive else 0
        stale = guest.log.is_stale(self._port.clock())
        return (guest.want.fence, guest.incarnation, alive, guest.view, self._voice.history, beat, stale)

    async def _report(self, guest: Guest, word: GuestReport) -> None:
        """Ages are of the moment in which it is said."""
        word = msgspec.structs.replace(word, log=guest.log.word(self._port.clock()))
        await self._control.guest_report(word)
        guest.log.taken(word.log)

    async def _report_forever(self, guest: Guest) -> None:
        """Pass on what is new of one guest, and its silence. Its errors are its own (law 8)."""
        failures = 0
        looked = self._port.clock()
        while not guest.gone:
            now = self._port.clock()
            if now - looked > self._voice.lease / 2 + self._voice.heartbeat:
                guest.heard = max(guest.heard, now - self._voice.lease / 2)  # we were not there to hear it
            looked = now
            news = self._news(guest)
            waits = guest.incarnation == 0 and not self._silent(guest)  # it may say hello any moment
            if news == guest.reported or waits or self._voice.incarnation == 0:
                await self._port.pause(self._voice.heartbeat / 2, _report(guest.server_id))
                continue
            word = GuestReport(
                self._desk.who(guest), self._voice.next_sequence(),
                guest.incarnation > 0 and not self._silent(guest), guest.view,
            )  # fmt: skip
            try:
                await self._voice.call("guests.report", functools.partial(self._report, guest, word))
            except (Unreachable, Refused) as error:
                failures += 1
                log.info("report of a guest unanswered", server=guest.server_id, error=str(error))
                await self._port.pause(
                    backoff(failures, 0.5, 5.0, key=guest.server_id), f"{guest.server_id} again"
                )
                continue
            except Declined as error:
                log.warning("report of a guest refused", server=guest.server_id, error=str(error))
            failures = 0
            guest.reported = news
            await self._port.pause(BETWEEN, f"{guest.server_id} again")


def version_of(want: Want) -> int:
    """A number for what is wanted of a database: the same for the same, whoever counts."""
    text = msgspec.json.encode(want.database)
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "big") + 1


def _look(server_id: str) -> str:
    return f"guest looks {server_id}"


def _report(server_id: str) -> str:
    return f"guest reports {server_id}"
