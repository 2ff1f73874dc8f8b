"""Opening the way to the host: a unix socket, or a virtio port, which is a character device."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path


async def open_way(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
    """The stream, and whether a predecessor's half frame may be in it. Raises OSError.

    A port can be opened by one process at a time; while nobody is at its other end it reads as ended.
    """
    if not stat.S_ISCHR(path.stat().st_mode):  # noqa: ASYNC240 (devices and sockets only)
        # By way of its folder: the path of a socket has 107 bytes at most.
        # Only to pass through: who the agent runs as may not list it.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        return reader, writer, False
    loop = asyncio.get_running_loop()
    port = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    back = os.dup(port)
    reader = asyncio.StreamReader()
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(port, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: _Closing(reader, reading), os.fdopen(back, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop), True


class _Closing(asyncio.StreamReaderProtocol):
    """Closes the reading half together with the writing one."""

    def __init__(self, reader: asyncio.StreamReader, reading: asyncio.ReadTransport) -> None:
        super().__init__(reader)
        self._reading = reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The reader has its transport already: that of the reading half."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading.close()
        super().connection_lost(exc)
