"""Having PID 1 start the datastore and its tools: the agent may not become another user itself."""

from __future__ import annotations

import array
import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from unstuck.guest.tools import Child, ToolFailed, leash
from unstuck.runtime.processes import ProcessId

INIT: Final = "UNSTUCK_INIT"
"""In the agent's environment: PID 1's socket."""
ANSWER: Final = 10.0
"""Seconds for PID 1's answer; it does nothing that takes long."""
_LEASH: Final = 3
"""The number that a leash's descriptor has in the tool."""


class InitTools:
    """See ``init.py``: a connection for each program, which tells its end."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self.user = user

    async def start(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None,
        stderr: int | None = None, kept: bool = False,
    ) -> Child:  # fmt: skip
        reading, writing = (-1, -1) if kept else os.pipe2(os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        descriptors = [nothing if given is None else given for given in (stdin, stdout, stderr)]
        if not kept:
            descriptors.append(reading)
        words = list(command) if kept else leash(_LEASH, command)
        try:
            line, told = await self._ask({"do": "start", "command": words, "kept": kept}, descriptors)
        except ToolFailed:
            if not kept:
                os.close(writing)
            raise
        finally:
            os.close(nothing)
            if not kept:
                os.close(reading)
        return _Asked(int(told["pid"]), line, writing)

    async def signal(self, process: ProcessId, number: signal.Signals) -> None:
        request = {"do": "signal", "pid": process.pid, "start": process.start, "number": int(number)}
        line, _ = await self._ask(request, [])
        line.close()

    async def _ask(
        self, request: dict[str, Any], descriptors: list[int]
    ) -> tuple[socket.socket, dict[str, Any]]:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            line.settimeout(ANSWER)
            line.connect(str(self._path))
            rights = array.array("i", descriptors)
            line.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            line.setblocking(False)
            told = await _answer(line)
        except (OSError, ValueError) as error:
            line.close()
            raise ToolFailed(f"PID 1 does not answer: {error}") from error
        if "error" in told:
            line.close()
            raise ToolFailed(f"PID 1 could not start it: {told['error']}")
        return line, told


async def _answer(line: socket.socket) -> dict[str, Any]:
    async with asyncio.timeout(ANSWER):
        data = await asyncio.get_running_loop().sock_recv(line, 4096)
    if not data:
        raise ConnectionError("it hung up")
    told: dict[str, Any] = json.loads(data)
    return told


class _Asked:
    def __init__(self, pid: int, line: socket.socket, leash_end: int) -> None:
        self.pid = pid
        self._leash = leash_end
        self._end = asyncio.ensure_future(self._listen(line))

    async def _listen(self, line: socket.socket) -> int:
        """Its exit code; 255 where PID 1 has gone with it."""
        try:
            data = await asyncio.get_running_loop().sock_recv(line, 4096)
            return int(json.loads(data)["code"]) if data else 255
        except (OSError, ValueError, KeyError):
            return 255
        finally:
            line.close()

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def cut(self) -> None:
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1
