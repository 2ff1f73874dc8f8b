"""The host as a guest agent sees it: one call, answered through the channel."""

from __future__ import annotations

from typing import Protocol

from unstuck.core.instance.guestwire import Request, Response


class Away(Exception):
    """No answer: nobody is at the other end, or not in time. Whether it had its effect is unknown, and every
    request may be repeated as it is. A channel connects again by itself: ask again after a pause."""


class GuestControl(Protocol):
    """The guests' protocol (``core/instance/guestwire.py``).

    The agent's first request is :class:`Hello`. The channel keeps it and says it again by itself after
    each new connection; when that is refused (a newer process of the agent has come, or another version is
    spoken), every request is answered with that :class:`Refused`, and the agent ends.
    """

    async def ask(self, request: Request, blob: bytes = b"") -> tuple[Response, bytes]:
        """The answer, and its blob (of :class:`Fetch` only). Raises :class:`Away`.

        Several may be under way at once, as a long :class:`Look` beside a :class:`Store`. A blob waits
        until the host has room for it: with a slow blob store this call takes as long as that, and there
        should be few of them. Cancelling it is harmless.
        """
        ...

    def forget(self, nonce: str) -> None:
        """An attempt has ended: what is asked for it now (:class:`Store`, :class:`Finish`) is not waited for
        any more, and raises :class:`Away` at once. Whether it still has its effect is unknown."""
        ...
