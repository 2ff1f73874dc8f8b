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


class Unreachable(Exception):
    """No answer: whether the call had its effect is unknown. Every call may be repeated."""


class Incompatible(Unreachable):
    """The two speak different versions of the protocol. Guests run on; an upgrade ends it, so ask again."""


class Superseded(Exception):
    """A newer incarnation of this agent has registered: end, and never register again."""


class Refused(Exception):
    """The control plane does not know this grant any more: forget it, and harm nothing."""


class Behind(Unreachable):
    """The control plane has lost what this agent knows of it: register, and say what is here."""


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
