"""Consoles with two control planes: whichever has the user, the agent finds its way there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.processes.many import Many, create
from tests.processes.test_control_planes import Replicas
from tests.processes.test_control_planes import replicas as replicas
from tests.tiny_image import fake_tiny
from unstuck.cli import tiny
from unstuck.cli.cloud import COMPUTE

SERIAL = {"remote_console": {"protocol": "serial", "type": "serial"}}


FLOOD = b"".join(b"%015d\n" % number for number in range(1 << 20)) + b"END"
"""16 MiB: more than all buffers on the way to a client hold together."""


@contextlib.contextmanager
def serial_port(folder: Path) -> Iterator[None]:
    """A guest's port, which says everything back in capitals; to ``flood`` it writes without end."""
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}/serial.sock"  # a unix path has 107 bytes at most
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                if ended.is_set():
                    return
                while data := connection.recv(4096):
                    connection.sendall(FLOOD if data == b"flood" else data.upper())

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as last:
                last.connect(path)
            thread.join(10.0)
            os.close(descriptor)


def answers(console: ClientConnection, word: str) -> None:
    console.send(word.encode())
    seen = b""
    while word.upper().encode() not in seen:
        message = console.recv(timeout=30.0)
        assert isinstance(message, bytes)
        seen += message


def url_of(replicas: Replicas, side: int, server: str) -> str:
    with replicas.admin(side) as cloud:
        path = f"/compute/v2.1/servers/{server}/remote-consoles"
        return str(cloud.ask("POST", path, json=SERIAL, headers=COMPUTE).json()["remote_console"]["url"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_console_at_either_replica_and_an_address_of_one_at_the_other(
    replicas: Replicas, tmp_path: Path
) -> None:
    replicas.both()
    replicas.agent()
    with replicas.admin(0) as cloud:
        tiny.upload(cloud, fake_tiny(tmp_path / "tiny"))
        server = create(cloud, "web")
    replicas.until_active(0, {"web"})
    ports = [str(side.port) for side in replicas.sides]
    folder = replicas.many.state.host / "servers" / server
    with serial_port(folder), contextlib.ExitStack() as stack:
        opened = stack.enter_context
        consoles = [opened(connect(url_of(replicas, side, server), proxy=None)) for side in range(2)]
        other = url_of(replicas, 0, server)
        assert ports[0] in other
        consoles.append(opened(connect(other.replace(ports[0], ports[1]), proxy=None)))
        for number, console in enumerate(consoles):
            answers(console, f"word{number}")
        replicas.processes[0].kill()
        with pytest.raises(ConnectionClosed):
            answers(consoles[0], "nobody")
        for console in consoles[1:]:
            answers(console, "still")


def test_who_does_not_read_holds_neither_the_guest_nor_others(many: Many) -> None:
    many.control()
    many.agent()
    server = many.create()
    many.until_active("web")

    def url() -> str:
        with many.admin() as cloud:
            path = f"/compute/v2.1/servers/{server}/remote-consoles"
            answer = cloud.ask("POST", path, json=SERIAL, headers=COMPUTE)
            return str(answer.json()["remote_console"]["url"])

    with (
        serial_port(many.state.host / "servers" / server),
        connect(url(), proxy=None, ping_interval=None, max_queue=1) as deaf,
        connect(url(), proxy=None) as other,
    ):
        answers(deaf, "here")
        answers(other, "here")
        other.send(b"flood")
        seen = b""
        while not seen.endswith(b"END"):  # all of it was taken from the port
            message = other.recv(timeout=30.0)
            assert isinstance(message, bytes)
            seen = (seen + message)[-64:]
        answers(other, "still")
        # By now the deaf one has lost what did not fit, and is told so when it reads at last.
        told = b""
        while b"STILL" not in told:
            message = deaf.recv(timeout=30.0)
            assert isinstance(message, bytes)
            told += message
        assert b"bytes were written faster than they were read]" in told
        assert len(told) < len(FLOOD)
