"""Opening the way to the host: a unix socket, or a virtio port, which is a character device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from unstuck.runtime.wire import Wire, connect


async def open_way(path: Path) -> tuple[Wire, bool]:
    """The way, and whether a predecessor's half frame may be in it. Raises OSError.

    A port can be opened by one process at a time; while nobody is at its other end it reads as ended.
    """
    if stat.S_ISCHR(path.stat().st_mode):  # noqa: ASYNC240 (devices and sockets only)
        return Wire(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)), True
    # By way of its folder: the path of a socket has 107 bytes at most.
    # Only to pass through: who the agent runs as may not list it.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return await connect(f"/proc/self/fd/{folder}/{path.name}"), False
    finally:
        os.close(folder)
