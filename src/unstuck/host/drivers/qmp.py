"""A small QMP client: every call has a deadline, and no answer means unknown, nothing else.

A socket serves one client at a time; another one connects but gets no greeting until the first leaves,
even when the first is frozen. So each guest has two sockets, and the greeting is under the deadline too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

_LIMIT = 1 << 20


class QmpError(Exception):
    """QEMU refused a command, or its monitor is not to be had."""


class QmpSilence(QmpError):
    """No answer within the deadline: nothing can be said."""


class Qmp:
    """One connection to one monitor. ``on_event`` gets each event's name, and "EOF" at the end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self.alive = True

    @classmethod
    async def connect(
        cls, path: Path, deadline: float, on_event: Callable[[str], None] = lambda _: None
    ) -> Qmp:
        """Connect by way of the folder's descriptor: a unix path is limited to 107 bytes."""
        try:
            async with asyncio.timeout(deadline):
                folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
                try:
                    short = f"/proc/self/fd/{folder}/{path.name}"
                    reader, writer = await asyncio.open_unix_connection(short, limit=_LIMIT)
                finally:
                    os.close(folder)
                return await cls._greet(reader, writer, on_event)
        except TimeoutError:
            raise QmpSilence("no greeting from the monitor") from None
        except OSError as error:
            raise QmpError(f"no monitor: {error.strerror or error}") from error

    @classmethod
    async def _greet(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_event: Callable[[str], None]
    ) -> Qmp:
        self = cls(reader, writer, on_event)
        try:
            if b"QMP" not in await reader.readline():
                raise QmpError("the monitor hung up")
            self._task = asyncio.create_task(self._read())
            await self.execute("qmp_capabilities", deadline=60.0)
        except BaseException:
            await self.close()
            raise
        return self

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError, msgspec.DecodeError):
            while line := await self._reader.readline():
                message = msgspec.json.decode(line, type=dict[str, Any])
                if "event" in message:
                    self._on_event(str(message["event"]))
                elif (waiter := self._pending.pop(message.get("id", 0), None)) and not waiter.done():
                    waiter.set_result(message)
        self._fail()
        self._on_event("EOF")

    def _fail(self) -> None:
        self.alive = False
        for waiter in self._pending.values():
            if not waiter.done():
                waiter.set_exception(QmpError("the monitor hung up"))
        self._pending.clear()
        self._writer.close()

    async def execute(self, command: str, deadline: float, fd: int | None = None, **arguments: Any) -> Any:
        """One command and its answer; ``fd`` goes along as a descriptor."""
        if not self.alive:
            raise QmpError("the monitor hung up")
        number = next(self._ids)
        waiter = self._pending[number] = asyncio.get_running_loop().create_future()
        message = {"execute": command, "arguments": arguments, "id": number}
        self._send(msgspec.json.encode(message) + b"\n", fd)
        try:
            async with asyncio.timeout(deadline):
                answer = await waiter
        except TimeoutError:
            raise QmpSilence(f"no answer to {command} within {deadline:g} s") from None
        finally:
            self._pending.pop(number, None)
        if "error" in answer:
            raise QmpError(str(answer["error"].get("desc", answer["error"])))
        return answer.get("return")

    def _send(self, line: bytes, fd: int | None) -> None:
        if fd is None:
            self._writer.write(line)
            return
        with self._writer.get_extra_info("socket").dup() as raw:
            socket.send_fds(raw, [line], [fd])  # nothing waits before it: every command waits for its answer

    async def close(self) -> None:
        """Leave the socket to the next client."""
        self._on_event = lambda _: None
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._fail()


class Monitors:
    """At most one kept connection per guest, for wake-ups and cheap looks. Correctness never rests on it."""

    def __init__(
        self, deadline: float, on_event: Callable[[str, str], None], *, rescue: bool = False
    ) -> None:
        self._deadline = deadline
        self._step = -1 if rescue else 1
        self._on_event = on_event
        self._kept: dict[str, Qmp] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ask(self, server_id: str, sockets: tuple[Path, ...], *commands: str) -> list[Any]:
        """The answers to some queries, over the kept connection or a new one.

        Main socket first; a rescuer begins with the second, where nobody makes it wait for a greeting.
        """
        async with self._locks.setdefault(server_id, asyncio.Lock()):
            problem = QmpError("no monitor")
            for way in (None, *sockets[:: self._step]):
                try:
                    monitor = await self._monitor(server_id, way)
                    if monitor is not None:
                        calls = (monitor.execute(c, self._deadline) for c in commands)
                        return list(await asyncio.gather(*calls))
                except QmpError as error:
                    problem = error
                    await self._drop(server_id)
                    if way is None and isinstance(error, QmpSilence):
                        break  # it had us as its client and is silent: the other socket would be too
            raise problem

    async def work(
        self, server_id: str, sockets: tuple[Path, ...], job: Callable[[Qmp], Awaitable[None]]
    ) -> None:
        """Several commands that have to come over one connection, with nobody else's between them."""
        async with self._locks.setdefault(server_id, asyncio.Lock()):
            problem = QmpError("no monitor")
            for way in (None, *sockets[:: self._step]):
                try:
                    monitor = await self._monitor(server_id, way)
                except QmpError as error:
                    problem = error
                    continue
                if monitor is not None and monitor.alive:
                    await job(monitor)
                    return
            raise problem

    async def _monitor(self, server_id: str, path: Path | None) -> Qmp | None:
        if path is None:
            return self._kept.get(server_id)
        monitor = await Qmp.connect(path, self._deadline, lambda name: self._on_event(server_id, name))
        self._kept[server_id] = monitor
        return monitor

    async def _drop(self, server_id: str) -> None:
        if (monitor := self._kept.pop(server_id, None)) is not None:
            await monitor.close()

    async def forget(self, server_id: str) -> None:
        """The guest is gone: nothing of it is kept."""
        await self._drop(server_id)
        lock = self._locks.get(server_id)
        if lock is not None and not lock.locked():
            del self._locks[server_id]

    async def close(self) -> None:
        for server_id in list(self._kept):
            await self._drop(server_id)
