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
    pytest.mark.timeout(600),
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


def last_words(many: Many) -> str:
    return "".join(path.read_text() for path in many.state.host.glob("servers/*/qemu.out"))


@pytest.mark.slow
def test_guests_of_version_1_keep_their_process_and_take_orders(left: Many) -> None:
    said = thaw.guests()["guests"]
    left.until("both run", lambda: running(left).keys() == said.keys(), lambda: last_words(left))
    before = running(left)
    for server in before:
        argv = Path(f"/proc/{before[server][0]}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        assert argv == said[server]["argv"]
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

    alone = next(key for key, one in said.items() if one["name"] == "alone")
    with left.admin() as cloud:
        path = f"/compute/v2.1/servers/{alone}"
        # Version 1 gave a guest's serial port a file, and no way in.
        log = cloud.ask("POST", f"{path}/action", json={"os-getConsoleOutput": {}}, headers=COMPUTE)
        assert log.json()["output"] == (left.state.host / "servers" / alone / "console.log").read_text()
        wanted = {"remote_console": {"protocol": "serial", "type": "serial"}}
        answer = cloud.client.post(f"{path}/remote-consoles", json=wanted, headers=COMPUTE)
        assert answer.status_code == 409
        assert "started by a former version" in answer.json()["conflictingRequest"]["message"]
        assert "reboot --hard" in answer.json()["conflictingRequest"]["message"]
        cloud.ask("POST", f"{path}/action", json={"os-stop": None}, headers=COMPUTE)
        left.until("it is off", lambda: left.statuses() == {"alone": "SHUTOFF", "web": "ACTIVE"})
        assert running(left).keys() == before.keys() - {alone}
        # Nothing is started here: the image that version 1 had is not recorded, only its name.
        for server in before:
            cloud.ask("DELETE", f"/compute/v2.1/servers/{server}", headers=COMPUTE)
    left.until("both are gone", lambda: not running(left) and left.statuses() == {})
    assert list((left.state.host / "servers").iterdir()) == []
