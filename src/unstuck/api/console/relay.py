"""Passing bytes between the two ends of a console, within limits, until one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, Protocol

from unstuck.api.sockets import FAILED, GOING_AWAY, POLICY, BadMessage, Gone

IDLE: Final = 1800.0
"""Seconds in which neither end says anything; then a console is closed."""
LONGEST: Final = 12 * 3600.0
UNREAD: Final = 30.0
"""Seconds for which one end may not read what it is sent."""
NORMAL: Final = 1000


class End(Protocol):
    """One end of a console."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> None: ...


class Ended(NamedTuple):
    """Why a console ended, to be said to whoever is still there."""

    code: int
    reason: str


class _Traffic:
    def __init__(self) -> None:
        self.last = asyncio.get_running_loop().time()


async def relay(
    user: End, host: End, ending: asyncio.Event, *, idle: float = IDLE, longest: float = LONGEST,
    unread: float = UNREAD,
) -> Ended:  # fmt: skip
    """Returns when either end has gone, or a limit is reached. Each end reads no faster than the other takes
    it: what waits is one message each way, besides what the kernel holds."""
    traffic = _Traffic()
    works: list[Coroutine[Any, Any, Ended]] = [
        _from_user(user, host, traffic, unread),
        _from_host(host, user, traffic, unread),
        _quiet(traffic, idle),
        _end(ending),
    ]
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return Ended(NORMAL, f"a console is open for {longest / 3600:g} hours at most")
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _from_user(user: End, host: End, traffic: _Traffic, unread: float) -> Ended:
    try:
        while True:
            data = await user.receive()
            traffic.last = asyncio.get_running_loop().time()
            try:
                if data:
                    async with asyncio.timeout(unread):
                        await host.send(data)
            except TimeoutError:
                return Ended(POLICY, "the guest takes no input")
            except Gone as gone:
                return _host_gone(gone)
    except BadMessage as error:
        return Ended(POLICY, str(error))
    except Gone:
        return Ended(NORMAL, "the user has left")


async def _from_host(host: End, user: End, traffic: _Traffic, unread: float) -> Ended:
    try:
        while True:
            data = await host.receive()
            traffic.last = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(unread):
                    await user.send(data)
            except TimeoutError:
                return Ended(POLICY, f"what the guest wrote was not read for {unread:g} seconds")
            except Gone:
                return Ended(NORMAL, "the user has left")
    except Gone as gone:
        return _host_gone(gone)


def _host_gone(gone: Gone) -> Ended:
    if gone.reason and gone.code in (NORMAL, POLICY, FAILED):
        return Ended(gone.code, gone.reason)
    return Ended(FAILED, "the agent of the server's host went away; ask for a new URL")


async def _quiet(traffic: _Traffic, idle: float) -> Ended:
    clock = asyncio.get_running_loop().time
    while (left := traffic.last + idle - clock()) > 0:  # noqa: ASYNC110 (time is what is waited for)
        await asyncio.sleep(left)
    return Ended(NORMAL, f"nothing was said for {idle / 60:g} minutes")


async def _end(ending: asyncio.Event) -> Ended:
    await ending.wait()
    return Ended(GOING_AWAY, "the control plane ends; ask for a new URL")
