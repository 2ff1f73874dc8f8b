"""A host reboots, with its state folder mounted, not mounted, and mounted later; descriptors run out.

Real processes, real mounts; guests are files. The boot's id is the one thing that cannot be had for real.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.processes.many import Many, Process
from unstuck.cli.cloud import COMPUTE

REBOOTED = "import unstuck.host.drivers.folder as f; f.boot_id = lambda: 'another boot'"
"""What the next agent sees after a reboot: another id of the boot. No guest survives one."""


@pytest.fixture
def mounted(many: Many) -> Iterator[Many]:
    """The host's folder is a file system of its own."""
    if os.environ.get("UNSTUCK_NETNS") != "1" or os.geteuid() != 0:
        pytest.skip("a file system can only be mounted as root in a namespace (scripts/in-netns)")
    disk = many.state.root / "host-disk"
    many.state.host.rename(disk)
    many.state.host.mkdir(mode=0o700)
    mount(many)
    yield many
    while unmount(many):
        pass


def mount(many: Many) -> None:
    disk = many.state.root / "host-disk"
    subprocess.run(["mount", "--bind", str(disk), str(many.state.host)], check=True)


def unmount(many: Many) -> bool:
    """False: nothing is mounted there. (``is_mount`` does not see a bind mount of the same disk.)"""
    done = subprocess.run(["umount", "-l", str(many.state.host)], check=False, capture_output=True)
    return done.returncode == 0


def edges(many: Many, server_id: str) -> int:
    return int(json.loads(many.marker(server_id).read_bytes())["edge"])


def boot_of(many: Many, server_id: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads(many.marker(server_id).read_bytes())["boot_id"])
    return ""


def explained(many: Many, server_id: str) -> dict[str, object]:
    with many.admin() as cloud:
        found: dict[str, object] = cloud.get(f"/unstuck/v1/explain/server/{server_id}")
        return found


def test_after_a_reboot_what_should_run_is_started_again_and_the_rest_is_not(mounted: Many) -> None:
    mounted.control()
    agent = mounted.agent()
    on, off = mounted.create("on"), mounted.create("off")
    mounted.until_active("on", "off")
    with mounted.admin() as cloud:
        cloud.ask("POST", f"/compute/v2.1/servers/{off}/action", json={"os-stop": None}, headers=COMPUTE)
    mounted.until("off is SHUTOFF", lambda: mounted.statuses().get("off") == "SHUTOFF")
    disks = {path: path.stat().st_ino for path in mounted.state.host.glob("servers/*/disk-*")}
    agent.kill()
    mounted.agent(prelude=REBOOTED)
    mounted.until("it is started again", lambda: boot_of(mounted, on) == "another boot")
    mounted.until_active("on")
    assert mounted.statuses() == {"on": "ACTIVE", "off": "SHUTOFF"}
    assert not mounted.marker(off).exists()
    assert edges(mounted, on) == 1, "the user asked for nothing new"
    assert {path: path.stat().st_ino for path in mounted.state.host.glob("servers/*/disk-*")} == disks


def test_a_reboot_without_the_state_folder_makes_nothing_and_destroys_nothing(mounted: Many) -> None:
    """The agent says what is missing and ends; mounted later, its next start goes on by itself."""
    mounted.control()
    agent = mounted.agent()
    on = mounted.create("on")
    mounted.until_active("on")
    agent.kill()
    assert unmount(mounted)
    refused = mounted.start("host", prelude=REBOOTED)
    assert refused.code() == 78
    assert "is the state folder's file system mounted?" in refused.said
    left = [path.name for path in mounted.state.host.rglob("*") if path.name != "lock"]
    assert left == [], "nothing is made in the folder below the mount"
    assert mounted.statuses() == {"on": "ACTIVE"}, "nobody has seen anything else"
    mount(mounted)
    mounted.agent(prelude=REBOOTED)
    mounted.until("it is started again", lambda: boot_of(mounted, on) == "another boot")
    mounted.until_active("on")


@pytest.mark.slow
def test_a_state_folder_that_goes_away_under_the_agent_makes_all_unknown_until_it_is_back(
    mounted: Many,
) -> None:
    mounted.control()
    mounted.agent()
    on, gone = mounted.create("on"), mounted.create("gone")
    mounted.until_active("on", "gone")
    assert unmount(mounted)
    with mounted.admin() as cloud:
        cloud.ask("DELETE", f"/compute/v2.1/servers/{gone}", headers=COMPUTE)

    def told() -> bool:
        conditions = json.dumps(explained(mounted, on)["conditions"])
        return "mounted" in conditions and "guest-unknown" in conditions

    mounted.until("it is told", told, lambda: str(explained(mounted, on)), seconds=30.0)
    assert mounted.statuses()["on"] == "ACTIVE", "unknown is no worse status"
    assert not (mounted.state.host / "servers").exists(), "nothing is made below the mount"
    assert (mounted.state.root / "host-disk" / "servers" / gone).exists(), "nothing is destroyed"
    mount(mounted)
    mounted.until("the delete goes on", lambda: "gone" not in mounted.statuses(), seconds=30.0)
    mounted.until("it is clean", lambda: not (mounted.state.host / "servers" / gone).exists())
    mounted.until("all is known", lambda: explained(mounted, on)["conditions"] == [], seconds=30.0)


def limit(process: Process, number: int) -> None:
    """The soft limit of a process that runs: below what it has open, it gets nothing more."""
    subprocess.run(["prlimit", f"--pid={process.pid}", f"--nofile={number}:"], check=True)


@pytest.mark.slow
def test_a_control_plane_without_descriptors_waits_and_goes_on(many: Many) -> None:
    control = many.control()
    many.agent()
    many.create("before")
    many.until_active("before")
    port = many.state.read().port
    limit(control, 10)
    for _ in range(5):
        with contextlib.suppress(httpx2.TransportError):
            answer = httpx2.get(f"http://127.0.0.1:{port}/identity/v3", timeout=1.0, trust_env=False)
            assert answer.status_code in (200, 503)
    assert control.lives, control.said[-2000:]
    limit(control, 1024)
    many.until("it answers again", lambda: many.answers(control, port))
    many.create("after")
    many.until_active("before", "after")


@pytest.mark.slow
def test_an_agent_without_descriptors_says_so_and_goes_on_when_it_has_some(many: Many) -> None:
    many.control()
    agent = many.agent()
    limit(agent, descriptors(agent))
    made = many.create("web")
    time.sleep(3.0)  # it tries, and cannot
    assert agent.lives, agent.said[-2000:]
    assert many.statuses() == {"web": "BUILD"}
    limit(agent, 1024)
    many.until_active("web")
    assert explained(many, made)["conditions"] == []


def descriptors(process: Process) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
