"""The control plane as a host agent sees it."""

from __future__ import annotations

from typing import Protocol

from unstuck.core.agents import (
    Answer,
    Claim,
    Heartbeat,
    Holdings,
    Register,
    Registered,
    Report,
    Terms,
    Told,
    World,
)
from unstuck.core.instance.wire import (
    AskGrant,
    AskLog,
    BeginPiece,
    BegunPiece,
    EndAttempt,
    EndPiece,
    GuestRegister,
    GuestRegistered,
    GuestReport,
    LogGrant,
    RenewAttempt,
    Renewed,
    RestoreGrant,
    TakeAttempt,
    Taken,
    Who,
)


class Unreachable(Exception):
    """No answer: whether the call had its effect is unknown. Every call may be repeated."""


class Incompatible(Unreachable):
    """The two speak different versions of the protocol. Guests run on; an upgrade ends it, so ask again."""


class Superseded(Exception):
    """A newer incarnation of this agent has registered: end, and never register again."""


class Refused(Exception):
    """The control plane does not know this grant any more: forget it, and harm nothing.

    ``kind``: the error's type in the agents' API."""

    def __init__(self, message: str = "", kind: str = "stale") -> None:
        super().__init__(message)
        self.kind = kind


class Behind(Unreachable):
    """The control plane has lost what this agent knows of it: register, and say what is here."""


class Declined(Exception):
    """The control plane refuses what a guest said, for good. The host itself has done nothing wrong."""


class Control(Protocol):
    """The agents' API, version 1. Each call raises :class:`Unreachable` or :class:`Superseded`."""

    idle: float
    """Seconds to wait after a world without news; 0 where the call itself waits."""

    async def register(self, ask: Register) -> Registered: ...

    async def heartbeat(self, beat: Heartbeat) -> Terms: ...

    async def tell(self, holdings: Holdings) -> Told: ...

    async def world(self, incarnation: int, since: int, history: str = "") -> World: ...

    async def claim(self, ask: Claim) -> None:
        """Raises :class:`Refused` too."""
        ...

    async def report(self, ask: Report) -> None:
        """Raises :class:`Refused` too."""
        ...

    async def answer(self, ask_id: str, answer: Answer) -> None: ...


class DatabaseControl(Protocol):
    """What is passed on for the guests. Each call raises :class:`Unreachable`, :class:`Superseded` (the
    host's agent is not the newest), :class:`Refused` (over, or not this server's) or :class:`Declined`."""

    async def guest_register(self, ask: GuestRegister) -> GuestRegistered: ...

    async def guest_report(self, ask: GuestReport) -> None: ...

    async def take(self, ask: TakeAttempt) -> Taken: ...

    async def renew(self, ask: RenewAttempt) -> Renewed: ...

    async def end(self, ask: EndAttempt) -> None: ...

    async def restore_grant(self, ask: AskGrant) -> RestoreGrant: ...

    async def begin_piece(self, ask: BeginPiece) -> BegunPiece: ...

    async def end_piece(self, ask: EndPiece) -> None: ...

    async def log_grant(self, ask: AskLog) -> LogGrant: ...

    async def put_object(self, who: Who, nonce: str, key: str, data: bytes) -> None:
        """Store an object of the attempt, as ``blobs.objects`` does: raises its errors as well."""
        ...

    async def get_object(self, who: Who, key: str) -> bytes | None:
        """An object of the backup that is restored; None if it is certainly not there. Raises BlobError."""
        ...

    async def answer(self, ask_id: str, answer: Answer) -> None: ...
