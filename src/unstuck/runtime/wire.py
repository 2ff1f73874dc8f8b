"""Bytes to and from a descriptor that does not block: a connected socket, or a character device.

What asyncio's streams do, with fewer copies: what comes is read into one piece of memory that is used again
and again, what goes out is taken by the system from where it lies; only what does not fit waits, as it is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

READ: Final = 256 << 10
HIGH: Final = 256 << 10
"""Bytes that wait to be taken before whoever sends has to wait, until there are a quarter of it."""
_PARTS: Final = 64
"""Pieces for one call of the system; it takes up to 1024."""

ACCEPT_AGAIN: Final = 1.0
"""Seconds after which a connection is taken again, when there was no descriptor or memory for it."""
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED})

Data = bytes | bytearray | memoryview


class Wire:
    """One connection; it owns the descriptor. Made and used on the event loop."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._memory = memoryview(bytearray(READ))
        self._reader: asyncio.Future[None] | None = None
        self._queue: deque[memoryview] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self._error: OSError | None = None
        self._closing = False
        self._gone = self._loop.create_future()
        self.waiting = 0
        """Bytes that were written and that the system has not taken yet."""
        self._loop.add_reader(descriptor, self._readable)

    # --- reading

    async def read(self) -> memoryview:
        """What is there, or nothing at the end; it holds until the next call. Raises OSError."""
        while True:
            if self._error is not None:
                raise self._error
            if self._closing:
                return self._memory[:0]
            try:
                got = os.readv(self._descriptor, [self._memory])
            except BlockingIOError:
                self._reader = self._loop.create_future()
                try:
                    await self._reader
                finally:
                    self._reader = None
            else:
                await asyncio.sleep(0)  # whoever sends without end stops nobody else
                return self._memory[:got]

    def _readable(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # --- writing

    def write(self, *data: Data) -> None:
        """Send it, after what waits, from where it lies. Errors show at the next drain or read."""
        if self._closing:
            return
        self._queue.extend(memoryview(part) for part in data if part)
        if not self.waiting:
            self.waiting = sum(map(len, self._queue))
            self._send()
            if self.waiting:
                self._loop.add_writer(self._descriptor, self._send)
        else:
            self.waiting += sum(map(len, data))

    def _send(self) -> None:
        while self._queue:
            try:
                sent = os.writev(self._descriptor, list(islice(self._queue, _PARTS)))
            except BlockingIOError:
                break
            except OSError as error:
                self._end(error)
                return
            self.waiting -= sent
            while sent:
                first = self._queue.popleft()
                if len(first) > sent:
                    self._queue.appendleft(first[sent:])
                    break
                sent -= len(first)
        if not self._queue:
            self._loop.remove_writer(self._descriptor)
            if self._closing:
                self._end(None)
        if self.waiting <= HIGH // 4:
            self._wake_drainers()

    async def drain(self) -> None:
        """Wait while much waits. Raises OSError when the connection broke or was closed."""
        if self._error is None and not self._gone.done() and self.waiting > HIGH:
            drainer = self._loop.create_future()
            self._drainers.append(drainer)
            await drainer
        if self._error is not None:
            raise self._error
        if self._gone.done():
            raise ConnectionResetError("the connection was closed")

    def _wake_drainers(self) -> None:
        for drainer in self._drainers:
            if not drainer.done():
                drainer.set_result(None)
        self._drainers.clear()

    # --- the end

    @property
    def closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close it when all that was written is sent. What comes is not read any more."""
        if not self._closing:
            self._closing = True
            self._loop.remove_reader(self._descriptor)
            self._readable()
            if not self._queue:
                self._end(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._gone)

    def abort(self) -> None:
        """Cut it off."""
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        if self._gone.done():
            return
        self._closing, self._error = True, error
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
        self._queue.clear()
        self.waiting = 0
        self._gone.set_result(None)
        self._readable()
        self._wake_drainers()


async def connect(path: str) -> Wire:
    """To a unix socket. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(made, path)
        return Wire(made.detach())
    except BaseException:
        made.close()
        raise


async def serve(listening: socket.socket, accept: Callable[[Wire], None]) -> None:
    """Take connections, for ever. Raises OSError when the socket is none that listens (any more)."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    while True:
        try:
            made, _ = await loop.sock_accept(listening)
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            await asyncio.sleep(ACCEPT_AGAIN)
            continue
        accept(Wire(made.detach()))
