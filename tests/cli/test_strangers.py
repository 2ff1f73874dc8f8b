"""Strangers against a real control plane: few descriptors, many connections, a header without end."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from pathlib import Path

import httpx2
from test_up_and_down import Cli, cli  # noqa: F401 (cli is a fixture)

from unstuck.cli.cloud import connect


def test_idle_connections_beyond_the_limit_of_files_stop_nobody(cli: Cli) -> None:  # noqa: F811
    """200 of them at a limit of 128 files: nobody else could connect, and the agent lost its lease."""
    cli.up()
    control = cli.holders()["control"]
    assert control is not None
    with connect(cli.state) as cloud, contextlib.ExitStack() as stack:
        _, hard = resource.prlimit(control.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(control.pid, resource.RLIMIT_NOFILE, (128, hard))
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", cli.port), timeout=10))
        assert cloud.get("/unstuck/v1/status")["hosts"][0]["up"]  # over the connection that is known
        url = f"http://127.0.0.1:{cli.port}/healthz"
        assert httpx2.get(url, timeout=10, trust_env=False).status_code == 200
        assert len(list(Path(f"/proc/{control.pid}/fd").iterdir())) < 110
        made = cloud.ask("POST", "/identity/v3/projects", json={"project": {"name": "p"}})
        assert made.status_code == 201
        assert cloud.get("/unstuck/v1/status")["hosts"][0]["silent_seconds"] < 15
    assert cli.holders()["control"] == control
    assert json.loads(cli.run("status", "-o", "json"))["hosts"][0]["state"] == "up"


def test_a_header_without_end_costs_nothing(cli: Cli) -> None:  # noqa: F811
    cli.up()
    control = cli.holders()["control"]
    assert control is not None

    def memory() -> int:
        fields = Path(f"/proc/{control.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    before = memory()
    with httpx2.Client(base_url=f"http://127.0.0.1:{cli.port}", timeout=10, trust_env=False) as client:
        slowest = 0.0
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", cli.port), timeout=10) as stranger:
                stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ")
                sent = 0
                with contextlib.suppress(ConnectionError):
                    while sent < 20:
                        stranger.sendall(b"a" * (1 << 20))
                        sent += 1
                assert sent < 20  # cut off
                began = time.monotonic()
                assert client.get("/healthz").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
    assert slowest < 5.0  # it was over 70 s; here it is a few milliseconds, on a machine at rest
    assert memory() - before < 32 << 20
    print(f"slowest answer {slowest * 1000:.0f} ms, memory +{(memory() - before) >> 20} MiB")
