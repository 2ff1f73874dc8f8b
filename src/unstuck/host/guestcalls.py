"""What the parts of the guests' service share: a guest's state, calls in its name, limits on what it says."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from unstuck.blobs.objects import BlobError, Problem
from unstuck.core.agents import Ask
from unstuck.core.backup.content import Chunk, Content
from unstuck.core.instance.guestwire import NotNow, Response
from unstuck.core.instance.guestwire import Refused as No
from unstuck.core.instance.view import DatabaseView
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.instance.wire import Place, Who
from unstuck.core.port import Port
from unstuck.core.server.data import Want
from unstuck.core.time import backoff
from unstuck.host.control import DatabaseControl, Declined, Refused, Unreachable
from unstuck.host.logbook import LogBook
from unstuck.host.pieces import Pieces, digest

T = TypeVar("T")

PIECES_MAX: Final = 100_000
"""What one message can name: 400 GB in pieces of 4 MiB."""
AHEAD: Final = 64
"""How far a piece's number may be ahead of what is stored: several are on their way at once."""
_OVERHEAD: Final = 4096
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_LARGE: Final = 2**53
SUPERSEDED: Final = "guest-superseded"
"""What the control plane calls it when a newer process of a guest's agent has come."""


class Said(Exception):
    """The answer, from where it is clear."""

    def __init__(self, response: Response) -> None:
        super().__init__(str(response))
        self.response = response

    @property
    def late(self) -> bool:
        """What was asked about is over."""
        return isinstance(self.response, No) and self.response.code == "late"

    def no_or_not_now(self) -> No | NotNow:
        """As one of those two, which it is wherever a call was not answered as hoped."""
        if isinstance(self.response, No | NotNow):
            return self.response
        return NotNow(Problem.FAULT, str(self))


def refuse(code: str, reason: str) -> Said:
    return Said(No(code, reason))


class Voice(Protocol):
    """How the host's agent speaks: its number, and the order of what it says."""

    @property
    def incarnation(self) -> int: ...

    @property
    def history(self) -> str:
        """Another whenever the store may not know what was said before."""
        ...

    @property
    def lease(self) -> float: ...

    @property
    def heartbeat(self) -> float: ...

    def next_sequence(self) -> int: ...

    async def call(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """One effect; the errors of :class:`Control`."""
        ...


class Waiting(msgspec.Struct):
    """A question for the guest. Times by this process's clock."""

    ask: Ask
    until: float
    given: float = -math.inf
    """When it was last handed over."""


class Bucket:
    """So many in a burst, then so many a second."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._at = 0.0

    def take(self, now: float) -> bool:
        self._left = min(self._left + max(now - self._at, 0.0) * self._rate, self._burst)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Guest:
    """One server's database, and the agent in it that was welcomed last."""

    def __init__(self, server_id: str, folder: Path, now: float) -> None:
        self.server_id = server_id
        self.folder = folder
        self.want: Want | None = None
        self.version = 0
        self.incarnation = 0
        self.heard = now
        self.view: DatabaseView | None = None
        self.log = LogBook()
        self.reported: object = None
        self.asks: dict[str, Waiting] = {}
        self.bucket = Bucket(100.0, 20.0)
        self.failures = 0
        """Of the blob store, in a row."""
        self.gone = False

    @property
    def database(self) -> DatabaseWant:
        """Raises :class:`Said` while the store has told nothing."""
        if self.want is None or self.want.database is None:
            raise Said(NotNow(Problem.UNREACHABLE, "the host has not heard what is wanted yet"))
        return self.want.database


class Desk:
    """Where calls for guests are made."""

    def __init__(
        self, port: Port, control: DatabaseControl, voice: Voice, open_place: Callable[[Place], Pieces],
        digest_of: Callable[[bytes], Awaitable[str]] = digest,
    ) -> None:  # fmt: skip
        self.port = port
        self.control = control
        self.voice = voice
        self._open_place = open_place
        self.digest = digest_of

    def place(self, place: Place) -> Pieces:
        try:
            return self._open_place(place)
        except BlobError as error:
            raise Said(NotNow(error.problem, error.reason, 10.0)) from error

    def who(self, guest: Guest) -> Who:
        if guest.want is None:
            raise Said(NotNow(Problem.UNREACHABLE, "the host has not heard what is wanted yet"))
        return Who(
            incarnation=self.voice.incarnation, server_id=guest.server_id, fence=guest.want.fence,
            guest=guest.incarnation,
        )  # fmt: skip

    async def call(self, verb: str, code: str, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the control plane; ``code`` says what its refusal means to the guest."""
        try:
            return await self.voice.call(f"guests.{verb}", work)
        except Refused as error:
            raise refuse("superseded" if error.kind == SUPERSEDED else code, str(error)) from error
        except Declined as error:
            raise refuse("invalid", str(error)) from error
        except Unreachable as error:
            raise Said(NotNow(Problem.UNREACHABLE, f"the control plane is away: {error}", 2.0)) from error
        except BlobError as error:  # it had to look there to answer
            raise Said(NotNow(error.problem, error.reason, 5.0)) from error

    async def objects(self, guest: Guest, verb: str, work: Callable[[], Awaitable[T]]) -> T:
        """Ask the blob store. What is not certain is "not now", never a yes or a no."""
        try:
            answer = await self.port.effect(f"guests.{verb}", work)
        except BlobError as error:
            guest.failures += 1
            seconds = backoff(guest.failures, 1.0, 30.0, key=guest.server_id)
            raise Said(NotNow(error.problem, error.reason, seconds)) from error
        except Refused as error:
            raise refuse("late", str(error)) from error
        except Declined as error:
            raise refuse("invalid", str(error)) from error
        guest.failures = 0
        return answer


def check_chunk(chunk: Chunk, chunk_size: int, stored: int) -> None:
    """Raise :class:`Said` unless a piece can be one of this attempt's."""
    if chunk.index >= PIECES_MAX:
        raise refuse("invalid", f"a backup has at most {PIECES_MAX} pieces: it needs larger ones")
    if not 0 <= chunk.index < stored + AHEAD:
        raise refuse("invalid", f"piece {chunk.index} is not one of the next ones")
    if not 0 < chunk.length <= chunk_size:
        raise refuse("invalid", f"piece {chunk.index} must have 1 to {chunk_size} bytes of data")
    if not 0 < chunk.sealed_length <= chunk_size + chunk_size // 64 + _OVERHEAD:
        raise refuse("invalid", f"the object of piece {chunk.index} is longer than its data can make it")
    if not _DIGEST.match(chunk.digest) or not _DIGEST.match(chunk.sealed_digest):
        raise refuse("invalid", f"the digests of piece {chunk.index} are none")


def check_content(content: Content, chunk_size: int) -> None:
    """What goes into a manifest that bears our signature."""
    words = (
        *msgspec.structs.astuple(content.datastore), content.system_identifier, content.start.lsn,
        content.stop.lsn, content.content,
    )  # fmt: skip
    _check_words(words, 128)
    _check_numbers(content.start.timeline, content.stop.timeline, content.size)
    if content.chunk_size != chunk_size:
        raise refuse("invalid", f"the attempt's pieces have {chunk_size} bytes")


def check_view(view: DatabaseView) -> None:
    """What goes on to the store: within the limits of the agents' API."""
    if len(view.facts) > 32:
        raise refuse("invalid", "`facts` holds too much")
    _check_words((view.generation, *view.facts), 64)
    _check_words(tuple(view.facts.values()), 256)
    _check_numbers(view.restart, view.volume_used_mb, view.volume_size_mb, view.done, view.total)
    if view.log is not None:
        gap = view.log.gap
        _check_words((view.log.position, *(() if gap is None else (gap.archive_id, gap.name))), 128)
        _check_numbers(view.log.timeline, view.log.waiting_mb)
    if view.trouble is not None:
        _check_words((view.trouble.code,), 64)
        _check_words((view.trouble.reason, view.trouble.remedy), 2000)


def check_work(phase: str, size: int, idle: float, put_off: str) -> None:
    _check_words((phase,), 32)
    _check_words((put_off,), 500)
    _check_numbers(size)
    if not 0.0 <= idle < 1e9:
        raise refuse("invalid", "`idle` must be seconds since the last progress")


def _check_words(words: tuple[str, ...], most: int) -> None:
    if any(len(word) > most or "\0" in word for word in words):
        raise refuse("invalid", f"a text is longer than {most} characters, or holds a NUL")


def _check_numbers(*numbers: int) -> None:
    if any(not 0 <= number <= _LARGE for number in numbers):
        raise refuse("invalid", "a number is negative or too large")
