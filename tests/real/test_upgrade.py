"""A guest that version 1 started, with exactly its command line, under the agent of a later version.

The later version would start it otherwise; it adopts it as it is, and the guest takes every order.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import thaw
from tests.processes.many import Many, free_port
from tests.real.fault_cloud import namespace
from unstuck.cli import guests, tiny
from unstuck.cli.cloud import COMPUTE
from unstuck.host.drivers.folder import ServerFolder
from unstuck.runtime.processes import start_time
from unstuck.runtime.state import State
from unstuck.store.engine import Store

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("qemu"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a tap"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]

LATER = """
import unstuck.host.drivers.guests as guests
before = guests.qemu_command
guests.qemu_command = lambda *words: [*before(*words), "-device", "virtio-balloon-pci"]
"""
"""A version with another command line."""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Many]:
    image = tiny.built(State(tmp_path / "state"))
    if image is None:
        pytest.skip("the tiny image is not built: make setup")
    with namespace():
        state = thaw.state_folder(tmp_path / "state", port=free_port(), driver="qemu")
        made = Many(tmp_path / "state", driver="qemu", prepared=state)
        try:
            for server, said in thaw.guests()["guests"].items():
                for word in said["argv"]:
                    if "ifname=" in word:
                        name = word.partition("ifname=")[2].partition(",")[0]
                        subprocess.run(["ip", "tuntap", "add", name, "mode", "tap"], check=True)
                thaw.start_guest(state, server, image)
            yield made
        finally:
            made.close()
            for guest in guests.running(state):
                os.kill(guest.pid, signal.SIGKILL)


def running(many: Many) -> dict[str, tuple[int, int | None]]:
    return {guest.server_id: (guest.pid, start_time(guest.pid)) for guest in guests.running(many.state)}


def test_guests_of_version_1_keep_their_process_and_take_orders(left: Many) -> None:
    before = running(left)
    assert before.keys() == thaw.guests()["guests"].keys()
    for server in before:
        said = Path(f"/proc/{before[server][0]}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        assert said == thaw.guests()["guests"][server]["argv"]
    left.control()
    left.agent(prelude=LATER)

    def reported() -> bool:
        store = Store(left.state.store_url)
        try:
            with store.engine.connect() as connection:
                seen = connection.exec_driver_sql("SELECT seen_incarnation, seen FROM servers").all()
        finally:
            store.close()
        return all(by == 2 and '"running"' in text.lower() for by, text in seen)

    left.until("the later agent has seen both run", reported)
    assert left.statuses() == {"alone": "ACTIVE", "web": "ACTIVE"}
    assert running(left) == before
    for server in before:
        starts = ServerFolder(left.state.host, server).starts()
        assert starts is not None
        assert len(starts.times) == 1, "a start more was counted"

    alone = next(key for key, said in thaw.guests()["guests"].items() if said["name"] == "alone")
    with left.admin() as cloud:
        path = f"/compute/v2.1/servers/{alone}"
        cloud.ask("POST", f"{path}/action", json={"reboot": {"type": "HARD"}}, headers=COMPUTE)
        left.until("it is another process", lambda: running(left).get(alone, before[alone]) != before[alone])
        left.until_active("alone", "web")
        # Started by the later version, and so with what is new in it: differences wait for a restart.
        argv = Path(f"/proc/{running(left)[alone][0]}/cmdline").read_bytes()
        assert b"virtio-balloon-pci" in argv
        for server in before:
            cloud.ask("DELETE", f"/compute/v2.1/servers/{server}", headers=COMPUTE)
    left.until("both are gone", lambda: not running(left) and left.statuses() == {})
    assert list((left.state.host / "servers").iterdir()) == []
