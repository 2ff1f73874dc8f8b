"""What an agent needs of a datastore, whichever it is: the loops are the same for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

import msgspec

from unstuck.core.archive.data import LogView, Piece, Point
from unstuck.core.backup.content import Content, Position
from unstuck.core.backup.content import Datastore as Source
from unstuck.core.backup.data import Phase
from unstuck.core.instance.guest import Sight
from unstuck.core.instance.requests import DatabaseAnswer, DatabaseRequest, MoreRequest
from unstuck.core.instance.view import Configured
from unstuck.core.instance.want import DatabaseWant

REMEDY: Final = "restore another backup into a new instance"


class DatastoreError(Exception):
    """It could not be done. ``final``: no repetition can help."""

    def __init__(self, reason: str, remedy: str = "none: it is tried again by itself", *, final: bool = False,
                 code: str = "effect-failed") -> None:  # fmt: skip
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.final = final
        self.code = code


def damaged(reason: str, remedy: str = REMEDY) -> DatastoreError:
    """A restore's end: what it is made from is not what was written."""
    return DatastoreError(f"the backup is damaged: {reason}", remedy, final=True, code="backup-damaged")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look: what the planner needs, and what is only told. Sizes in bytes."""

    sight: Sight
    root_enabled: bool = False
    used: int = 0
    size: int = 0
    facts: dict[str, str] = {}
    configured: Configured | None = None
    log: LogView | None = None


class LogSource(Protocol):
    """The log that follows a backup, piece by piece, up to the point that is restored."""

    names: tuple[str, ...]

    async def get(self, name: str) -> bytes | None:
        """A piece's data; None: it is not among them. Raises :class:`DatastoreError`."""
        ...


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy that is whole consists of. ``content``: the form of its data."""

    datastore: Source
    system_identifier: str
    start: Position
    stop: Position
    content: str = "tar"


class Copy(Protocol):
    """A backup that is being made; by a tool, it is on a leash."""

    async def read(self, size: int, into: bytearray, /) -> bytes | memoryview:
        """The next ``size`` bytes, fewer at the end, none after it. Raises :class:`DatastoreError`.

        ``into`` has room for them; whoever can, reads into it and returns a view of it.
        """
        ...

    async def look(self) -> tuple[Phase, int]:
        """What it does, and a number that changes whenever it has worked (even with no bytes to show)."""
        ...

    async def finish(self) -> Copied:
        """Once it has ended: whether it is whole. Raises :class:`DatastoreError`."""
        ...

    async def close(self) -> None:
        """End the tool and what it holds in the server. It may have ended."""
        ...


class Receiver(Protocol):
    """Data that is being restored, under a temporary name: a full backup, then its children."""

    async def begin(self, number: int) -> None:
        """What is written from now on belongs to this one of the chain, from 0; all of the one before was.

        Raises :class:`DatastoreError`.
        """
        ...

    async def write(self, data: bytes | memoryview) -> None:
        """``data`` is not looked at after that. Raises :class:`DatastoreError`."""
        ...

    async def unpacked(self) -> None:
        """All was written: whether it is all that was backed up. Raises :class:`DatastoreError`."""
        ...

    async def replay(self, log: LogSource, point: Point) -> None:
        """What :meth:`prove` has to come to: the log behind the backup, up to this point."""
        ...

    async def prove(self) -> None:
        """Whether a server comes up on it, with the right data at the right position."""
        ...

    async def publish(self) -> None:
        """From now on it is the instance's data."""
        ...

    async def close(self) -> None:
        """End what it started."""
        ...


@runtime_checkable
class Offers(Protocol):
    """A datastore that answers :data:`MoreRequest`, too."""

    async def more(self, request: MoreRequest, seconds: float) -> DatabaseAnswer: ...


class Datastore(Protocol):
    """One database on its volume. Every call ends within a deadline of its own and may be repeated."""

    async def look(self, want: DatabaseWant | None) -> Look: ...

    async def init(self, want: DatabaseWant) -> None: ...

    async def start(self, want: DatabaseWant) -> None: ...

    async def stop(self) -> None: ...

    async def apply(self, want: DatabaseWant) -> None: ...

    async def reconfigure(self, want: DatabaseWant) -> None: ...

    async def ask(self, request: DatabaseRequest, seconds: float) -> DatabaseAnswer: ...

    async def copy(self, nonce: str, parent: Content | None) -> Copy:
        """Begin a full backup; with a ``parent`` (which comes without its pieces) what has changed since.

        Raises :class:`DatastoreError`; final where no repetition can help, as when its log has gone.
        """
        ...

    async def receive(self, want: DatabaseWant, chain: tuple[Content, ...]) -> Receiver:
        """Begin a restore; ``chain`` begins with the full backup. The volume has to have room for all."""
        ...

    async def serve_log(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        """From now on its log is kept by this, a piece by its name at a time: whether it may be forgotten."""
        ...

    async def log_piece(self, name: str) -> tuple[Piece, bytes]:
        """A piece of the log that can change no more, without its digest. Raises :class:`DatastoreError`."""
        ...

    async def log_waiting(self) -> int:
        """MiB of the log that wait to be kept."""
        ...

    async def sweep(self, nonce: str | None) -> None:
        """Remove what other attempts than this left in the running server."""
        ...
