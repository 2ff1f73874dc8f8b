"""The control plane over HTTP, as the agent and its image cache need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from unstuck.core.agents import (
    PROTOCOL,
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
from unstuck.core.server.data import BootImage, Want
from unstuck.host.control import Behind, Incompatible, Refused, Superseded, Unreachable
from unstuck.host.drivers.captures import DeliveryError
from unstuck.host.images import FetchError
from unstuck.host.serials import Typing, Viewer

T = TypeVar("T")

WAIT: Final = 20.0
"""Seconds that a long poll may take at the other end."""
DEADLINE: Final = 15.0
SLACK: Final = 10.0
_TIMEOUT: Final = httpx2.Timeout(10.0, connect=3.0)
_PER_READ: Final = 30.0
_SETTLING: Final = 300.0
"""Seconds that the control plane may take to make an image durable and look into it."""
_BLOCK: Final = 1 << 20
_AGAIN: Final = frozenset({408, 425, 429})


class Rejected(Exception):
    """The control plane will not talk to this agent, and asking again cannot help."""


class Problem(msgspec.Struct, frozen=True):
    """What the agents' API says of an error."""

    type: str = ""
    message: str = ""


class Failed(Exception):
    """An answer other than success."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message or f"HTTP {status}")
        self.status = status
        self.problem = problem


class _Wrapped(msgspec.Struct, frozen=True):
    error: Problem = Problem()


class HttpControl:
    """Implements :class:`unstuck.host.control.Control` and :class:`unstuck.host.images.ImageSource`.

    ``url`` may name several equal control planes, with commas between them: when one does not answer, the
    next call goes to the next. Every call has a total deadline. Whatever leaves open whether a call had its
    effect is :class:`Unreachable`: every call may be repeated.
    """

    idle = 0.0

    def __init__(
        self,
        url: str,
        host_id: str,
        secret: str,
        *,
        wait: float = WAIT,
        deadline: float = DEADLINE,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_registered: Callable[[Registered], None] = lambda _: None,
    ) -> None:
        self._wait = wait
        self._incarnation = 0
        self._deadline = deadline
        self._on_registered = on_registered
        self._bases = [f"{one.strip().rstrip('/')}/agents/v1/hosts/{host_id}/" for one in url.split(",")]
        self._client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {secret}", "unstuck-protocol": str(PROTOCOL)},
            timeout=_TIMEOUT,
            transport=transport,
            trust_env=False,  # a proxy of somebody's shell is no way to the control plane
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=20.0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    # --- Control

    async def register(self, ask: Register) -> Registered:
        answer = await self._ask("POST", "register", Registered, ask)
        if answer.granted:
            self._incarnation = answer.incarnation
            self._on_registered(answer)
        return answer

    async def heartbeat(self, beat: Heartbeat) -> Terms:
        return await self._ask("POST", "heartbeat", Terms, beat)

    async def tell(self, holdings: Holdings) -> Told:
        return await self._ask("POST", "holdings", Told, holdings)

    async def world(self, incarnation: int, since: int, history: str = "") -> World:
        path = f"world?incarnation={incarnation}&since={since}&history={history}&wait={self._wait:g}"
        return await self._ask("GET", path, World, seconds=self._wait + SLACK)

    async def claim(self, ask: Claim) -> None:
        await self._send("POST", "claims", ask)

    async def report(self, ask: Report) -> None:
        await self._send("POST", "reports", ask)

    async def answer(self, ask_id: str, answer: Answer) -> None:
        await self._send("POST", f"answers/{ask_id}", answer)

    async def _ask(
        self, method: str, path: str, kind: type[T], body: Any = None, seconds: float | None = None
    ) -> T:
        answer = await self._send(method, path, body, seconds)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise Rejected(f"the control plane's answer to {path} cannot be read: {error}") from error

    async def _send(
        self, method: str, path: str, body: Any = None, seconds: float | None = None
    ) -> httpx2.Response:
        try:
            return await self.request(
                method, path, None if body is None else msgspec.json.encode(body), seconds
            )
        except Failed as failed:
            raise translate(failed) from None

    async def request(
        self, method: str, path: str, content: bytes | None, seconds: float | None = None
    ) -> httpx2.Response:
        """One request with a total deadline. Raises :class:`Failed` and :class:`Unreachable`."""
        timeout = httpx2.Timeout(seconds or 10.0, connect=3.0)
        base = self._bases[0]
        try:
            async with asyncio.timeout(seconds or self._deadline):
                answer = await self._client.request(method, base + path, content=content, timeout=timeout)
        except TimeoutError:
            self._turn_from(base)
            raise Unreachable(f"no answer to {path.partition('?')[0]} in time") from None
        except httpx2.TransportError as error:
            self._turn_from(base)
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if not answer.is_success:
            if answer.status_code >= 500:
                self._turn_from(base)
            raise Failed(answer.status_code, _problem(answer))
        return answer

    def _turn_from(self, base: str) -> None:
        """The next control plane, unless another call has turned already."""
        if self._bases[0] == base:
            self._bases.append(self._bases.pop(0))

    # --- consoles

    async def carry(self, ask_id: str, seconds: float, viewer: Viewer, type_: Typing) -> None:
        """One viewer's stream to whichever control plane waits for it. Raises :class:`Unreachable`."""
        from unstuck.host import streams  # needed by consoles only

        headers = {name: self._client.headers[name] for name in ("authorization", "unstuck-protocol")}
        path = f"consoles/{ask_id}?incarnation={self._incarnation}"
        stream = await streams.open_stream(lambda: tuple(self._bases), path, headers, seconds)
        await streams.carry(stream, viewer, type_)

    # --- ImageSource

    async def open(self, image: BootImage) -> AsyncIterator[bytes]:
        """The image's bytes; the cache checks digest and size."""
        base = self._bases[0]
        try:
            async with self._client.stream(
                "GET", f"{base}images/{image.id}", timeout=httpx2.Timeout(_PER_READ, connect=3.0)
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise FetchError(_problem(answer).message or "no answer", final=answer.status_code == 404)
                if answer.headers.get("unstuck-sha512", image.sha512) != image.sha512:
                    raise FetchError("the image has other data now than when it was chosen", final=True)
                async for chunk in answer.aiter_raw():
                    yield chunk
        except httpx2.TransportError as error:
            self._turn_from(base)
            raise FetchError(f"the control plane does not deliver: {error or type(error).__name__}") from None

    # --- ImageSink

    async def deliver(self, want: Want, path: Path, sha512: str) -> None:
        """An image of a disk; the other end checks its digest."""
        base, fence = self._bases[0], want.fence
        size = (await asyncio.to_thread(path.stat)).st_size
        url = (
            f"{base}servers/{want.server_id}/images/{want.capture}?incarnation={self._incarnation}"
            f"&generation={fence.generation}&epoch={fence.epoch}"
        )
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(size),
            "unstuck-sha512": sha512,
        }
        timeout = httpx2.Timeout(_PER_READ, connect=3.0, read=_SETTLING)
        try:
            answer = await self._client.put(url, content=_blocks(path), headers=headers, timeout=timeout)
        except httpx2.TransportError as error:
            self._turn_from(base)
            raise DeliveryError(
                f"the control plane does not take it: {error or type(error).__name__}"
            ) from None
        if answer.is_success:
            return
        if answer.status_code >= 500:
            self._turn_from(base)
        raise DeliveryError(
            _problem(answer).message or f"HTTP {answer.status_code}", final=answer.status_code == 410
        )


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block


def _problem(answer: httpx2.Response) -> Problem:
    try:
        return msgspec.json.decode(answer.content, type=_Wrapped).error
    except msgspec.DecodeError:
        return Problem(message=f"HTTP {answer.status_code}")


def translate(failed: Failed) -> Exception:
    """What an answer other than success means to the agent."""
    status, problem = failed.status, failed.problem
    if status >= 500 or status in _AGAIN:
        return Unreachable(f"HTTP {status}: {problem.message}")
    if status == 409 and problem.type == "superseded":
        return Superseded(problem.message)
    if status == 412:
        return Behind(problem.message)
    if status == 400 and problem.type == "protocol":
        return Incompatible(problem.message)
    if status == 410:
        return Refused(problem.message, problem.type or "stale")
    return Rejected(str(failed))
