"""Asking the host, and what a refusal means for this process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from unstuck.core.instance.guestwire import Refused, Request, Response
from unstuck.guest.control import Away, GuestControl

T = TypeVar("T")
P = ParamSpec("P")

PROTOCOL_PAUSE = 15.0
"""Seconds until an agent whose protocol was refused asks again: somebody is upgrading."""


class Superseded(Exception):
    """A newer process of this agent has come: this one ends, and does nothing any more."""


class OtherVersion(Away):
    """The host speaks another version of the protocol, for now. A hello has to be said again."""


async def ask(control: GuestControl, request: Request, blob: bytes = b"") -> tuple[Response, bytes]:
    """The answer. Raises :class:`Superseded`, and what the channel raises."""
    answer, back = await control.ask(request, blob)
    if isinstance(answer, Refused):
        if answer.code == "superseded":
            raise Superseded(answer.reason)
        if answer.code == "protocol":
            raise OtherVersion(f"the host speaks another version: {answer.reason}")
    return answer, back


class Threads(Protocol):
    """Runs what only computes beside the loop: ``asyncio.to_thread``, in production."""

    def __call__(
        self, work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
