"""What a service manager hears of us, and that guests do not inherit the way to it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.runtime.service import Service


def listener(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(str(path))
    made.settimeout(10.0)
    return made


def test_the_manager_is_told_and_the_environment_is_clean(tmp_path: Path) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }  # fmt: skip
    with listener(tmp_path / "s") as manager:
        service = Service(environment)
        assert environment == {"PATH": "/bin"}
        assert service.watchdog == 3.0
        service.say("READY=1", "STATUS=x")
        assert manager.recv(100) == b"READY=1\nSTATUS=x"


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}],
)
def test_without_a_manager_or_for_another_process_nothing_happens(environment: dict[str, str]) -> None:
    service = Service(environment)
    assert service.watchdog == 0.0
    service.say("READY=1")


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    Service({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).say("READY=1")
    Service({"NOTIFY_SOCKET": "@nobody"}).say("READY=1")


def test_the_watchdog_hears_of_us_again_and_again(tmp_path: Path) -> None:
    with listener(tmp_path / "s") as manager:
        manager.setblocking(False)
        service = Service({"NOTIFY_SOCKET": str(tmp_path / "s"), "WATCHDOG_USEC": "30000"})

        async def main() -> None:
            port = AsyncPort(Barriers("", tmp_path))
            heard = 0

            async def hear() -> None:
                nonlocal heard
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(20):
                    while heard < 3:
                        heard += await loop.sock_recv(manager, 100) == b"WATCHDOG=1"
                port.end(0)

            assert await port.run({"watchdog": service.watch(port), "hear": hear()}) == 0
            assert heard == 3

        asyncio.run(main())
