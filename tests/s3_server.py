"""A real S3 server for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2

from unstuck.blobs.objects import Location

SCRIPT = Path(__file__).parents[1] / "scripts" / "s3-server"


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free at this moment."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            for more in range(1, count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            return port


def s3_is_built() -> bool:
    return subprocess.run([SCRIPT, "built"], check=False).returncode == 0


class S3Server:
    """OpenStack Swift with its s3api; its parts can be frozen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(5)
        command = [str(SCRIPT), "run", str(folder), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("S3 ready"), line
        self.url = f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str) -> Location:
        """A new bucket, through Swift's own API."""
        who = {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
        with httpx2.Client(trust_env=False, timeout=30.0) as client:
            entered = client.get(f"{self.url}/auth/v1.0", headers=who).headers
            made = client.put(
                f"{entered['x-storage-url']}/{name}", headers={"X-Auth-Token": entered["x-auth-token"]}
            )
        assert made.status_code in (201, 202), made.text
        return Location(f"s3://{name}/cloud one", self.url, access_key="test:tester", secret_key="testing")

    @contextlib.contextmanager
    def frozen(self, part: str) -> Iterator[None]:
        """Account, container, object or proxy accepts and never answers."""
        pid = int((self.folder / "run" / f"{part}.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
