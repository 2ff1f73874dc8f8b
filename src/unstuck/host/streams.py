"""A console's stream from a host to the control plane where its user waits: one WebSocket, opened from here.

Which control plane that is, nobody has to know: the agent asks each of those it was told of, again and again
for as long as the user waits; one that does not hold the console says so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from unstuck.core.console import MESSAGE_MAX, PING
from unstuck.host.control import Unreachable
from unstuck.host.serials import ENDED, NoSerial, Typing, Viewer

CONNECT: Final = 4.0
BETWEEN: Final = 0.25
"""Seconds between two rounds through the control planes."""
_NORMAL: Final = 1000
_POLICY: Final = 1008
_log = logging.getLogger("unstuck.streams")


async def open_stream(
    bases: Callable[[], Sequence[str]], path: str, headers: dict[str, str], seconds: float
) -> ClientConnection:
    """A connection to whichever control plane waits for it. Raises :class:`Unreachable`."""
    said = "none of the control planes answers"
    try:
        async with asyncio.timeout(seconds):
            while True:
                for base in bases():
                    try:
                        return await connect(
                            f"ws{base.removeprefix('http')}{path}", additional_headers=headers,
                            open_timeout=CONNECT, close_timeout=2.0, ping_interval=PING, ping_timeout=PING,
                            max_size=MESSAGE_MAX, max_queue=4, compression=None, proxy=None, logger=_log,
                        )  # fmt: skip
                    except (OSError, InvalidHandshake, InvalidURI) as error:  # TimeoutError is an OSError
                        said = str(error) or type(error).__name__
                await asyncio.sleep(BETWEEN)
    except TimeoutError:
        raise Unreachable(said) from None


async def carry(stream: ClientConnection, viewer: Viewer, type_: Typing) -> None:
    """Pass on both ways until one end has gone; then the other one is told why."""
    tasks = [asyncio.ensure_future(_show(stream, viewer)), asyncio.ensure_future(_type(stream, type_))]
    code, reason = 1001, "the agent of the server's host ends; ask for a new URL"
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code, reason = next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(3.0):
                await stream.close(code, reason)


async def _show(stream: ClientConnection, viewer: Viewer) -> tuple[int, str]:
    with contextlib.suppress(ConnectionClosed):
        while data := await viewer.take():
            await stream.send(data)
        return _NORMAL, ENDED
    return _NORMAL, ""


async def _type(stream: ClientConnection, type_: Typing) -> tuple[int, str]:
    try:
        async for message in stream:
            await type_(message.encode() if isinstance(message, str) else message)
    except ConnectionClosed:
        return _NORMAL, ""
    except NoSerial as error:
        return _POLICY, str(error)
    except OSError:
        return _NORMAL, ENDED
    return _NORMAL, ""
