"""The ways from a guest to its host: a socket in a folder that may not be listed, a port that is a device."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import tty
from pathlib import Path
from typing import Any

import pytest

from unstuck.guest.stream import open_way

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_the_agent_passes_through_a_folder_that_it_may_not_list() -> None:
    with tempfile.TemporaryDirectory() as top, socket.socket(socket.AF_UNIX) as host:
        folder = Path(top) / "channel"
        folder.mkdir()
        folder.chmod(0o711)
        folder.parent.chmod(0o711)
        host.bind(str(folder / "agent.sock"))
        host.listen()
        (folder / "agent.sock").chmod(0o666)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                asyncio.run(open_way(folder / "agent.sock"))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_port_is_read_and_written_and_nothing_is_complained_of() -> None:
    complaints: list[dict[str, Any]] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        host, guest = os.openpty()
        tty.setraw(host)
        tty.setraw(guest)
        wire, dirty = await open_way(Path(os.ttyname(guest)))
        assert dirty
        os.write(host, b"hello\n")
        assert await asyncio.wait_for(wire.read(), 5.0) == b"hello\n"
        wire.write(b"answer\n")
        await wire.drain()
        assert await asyncio.to_thread(os.read, host, 100) == b"answer\n"
        wire.close()
        await asyncio.sleep(0)
        os.close(host)
        os.close(guest)

    asyncio.run(scene())
    assert complaints == []
