"""``unstuck console``: a server's serial console in this terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from unstuck.cli import cloud as clouds
from unstuck.cli.errors import CliError
from unstuck.cli.explain import find_server
from unstuck.cli.words import plain
from unstuck.core.console import MESSAGE_MAX, PING

LEAVE: Final = b"\x1d"
"""Ctrl-], as with telnet and virsh."""
WAITING_MAX: Final = 64
"""Pieces of typing that wait for a guest; what is typed beyond is dropped, as a serial port does."""


def console(server: str, *, state: Path | None = None) -> None:
    """Attach this terminal to a server's serial console. Ctrl-] leaves it; the server does not notice.

    Parameters
    ----------
    server
        The server's id or name.
    state
        The state folder.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError(
            "A console needs a terminal; for programs: `openstack console url show --serial SERVER`, "
            "a WebSocket."
        )
    found = clouds.state_of(state)
    with clouds.connect(found) as cloud:
        server_id = find_server(cloud, server)
        body = {"remote_console": {"protocol": "serial", "type": "serial"}}
        path = f"/compute/v2.1/servers/{server_id}/remote-consoles"
        asked = cloud.ask("POST", path, json=body, headers=clouds.COMPUTE).json()
    url = str(asked["remote_console"]["url"])
    sys.stderr.write(f"Console of {plain(server)}. Enter may wake it; Ctrl-] leaves.\n")
    with raw(sys.stdin.fileno()):
        reason = asyncio.run(attach(url, sys.stdin.fileno(), sys.stdout.fileno()))
    sys.stderr.write(f"\nConsole closed: {plain(reason)}.\n")


@contextlib.contextmanager
def raw(terminal: int) -> Iterator[None]:
    """Every key goes to the guest, Ctrl-C too; afterwards the terminal is what it was."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


async def attach(url: str, keys: int, screen: int) -> str:
    """Pass on both ways until the key to leave, or the end of the other side; returns why it ended.

    Raises :class:`CliError` where the address opens nothing."""
    try:
        socket = await connect(
            url, subprotocols=None, max_size=MESSAGE_MAX, ping_interval=PING, ping_timeout=PING,
            compression=None, proxy=None, open_timeout=10.0, close_timeout=2.0,
        )  # fmt: skip
    except (OSError, InvalidHandshake) as error:
        raise CliError(f"The console cannot be opened: {error or type(error).__name__}.") from None
    typed: asyncio.Queue[bytes] = asyncio.Queue(WAITING_MAX)
    loop = asyncio.get_running_loop()

    def key() -> None:
        try:
            data = os.read(keys, 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            loop.remove_reader(keys)
            data = LEAVE
        with contextlib.suppress(asyncio.QueueFull):
            typed.put_nowait(data)
            return
        if LEAVE in data:  # always heard
            typed.get_nowait()
            typed.put_nowait(LEAVE)

    loop.add_reader(keys, key)
    tasks = [asyncio.ensure_future(_type(socket, typed)), asyncio.ensure_future(_show(socket, screen))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        loop.remove_reader(keys)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close()


async def _type(socket: ClientConnection, typed: asyncio.Queue[bytes]) -> str:
    try:
        while True:
            before, leave, _ = (await typed.get()).partition(LEAVE)
            if before:
                await socket.send(before)
            if leave:
                return "left by Ctrl-]"
    except ConnectionClosed as closed:
        return _why(closed)


async def _show(socket: ClientConnection, screen: int) -> str:
    try:
        while True:
            message = await socket.recv()
            data = message.encode() if isinstance(message, str) else message
            await asyncio.to_thread(_write, screen, data)
    except ConnectionClosed as closed:
        return _why(closed)


def _write(screen: int, data: bytes) -> None:
    """All of it. Nothing is made harmless here: the terminal is the guest's, as at any serial port."""
    view = memoryview(data)
    while view:
        view = view[os.write(screen, view) :]


def _why(closed: ConnectionClosed) -> str:
    return (closed.rcvd.reason if closed.rcvd is not None else "") or "the connection was lost"
