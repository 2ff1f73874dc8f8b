"""Agents frozen or superseded at work: their helpers end, a guest never does, and it can be asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.many import Many, free_port
from tests.real.fault_cloud import FaultCloud, namespace
from tests.real.test_faults import cloud as cloud
from tests.real.test_faults import remove
from tests.real.test_faults import template as template
from tests.tiny_image import fake_tiny
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.qmp import Monitors
from unstuck.runtime.processes import start_time
from unstuck.runtime.state import prepare

pytestmark = [
    pytest.mark.root,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network namespace"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]

HANGS = "#!/bin/sh\necho $$ > {mark}\nexec sleep 600\n"


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Many]:
    """A cloud with the QEMU driver and an image that no guest needs to boot from."""
    with namespace():
        state = prepare(tmp_path / "state", port=free_port(), driver="qemu")
        made = Many(state.root, driver="qemu", prepared=state)
        try:
            made.control()
            made.upload(fake_tiny(tmp_path / "tiny"))
            yield made
        finally:
            made.close()


def test_a_superseded_agent_ends_its_helpers_and_itself(qemu: Many, tmp_path: Path) -> None:
    """`qemu-img` hangs; nobody may be left who still writes to the host's files."""
    mark = tmp_path / "helper"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "qemu-img").write_text(HANGS.format(mark=mark))
    (tmp_path / "bin" / "qemu-img").chmod(0o755)
    agent = qemu.agent(PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    server = qemu.create()
    qemu.until("the helper hangs", lambda: mark.exists() and mark.read_text().strip())
    helper = int(mark.read_text())
    assert start_time(helper) is not None
    assert qemu.supersede() == 2
    assert agent.code(30.0) == 75
    qemu.until("the helper has ended", lambda: start_time(helper) is None, seconds=10.0)
    assert qemu.incarnation() == 2
    assert not list((qemu.state.host / "servers" / server).glob("disk-*.qcow2"))


@pytest.mark.slow
def test_a_frozen_agent_blocks_no_way_to_its_guest(cloud: FaultCloud) -> None:
    """It holds the first monitor of each guest, which serves one client; the second one is for others."""
    cloud.start("host")
    server = cloud.create()
    cloud.until_status(server, "ACTIVE")
    before = cloud.one(server)
    frozen = cloud.child("host")
    cloud.signal(frozen.pid, signal.SIGSTOP)

    async def ask() -> str:
        monitors = Monitors(2.0, lambda *_: None, rescue=True)
        try:
            answers = await monitors.ask(
                server, ServerFolder(cloud.state.host, server).sockets, "query-status"
            )
            return str(answers[0]["status"])
        finally:
            await monitors.close()

    assert asyncio.run(ask()) == "running"
    cloud.agree()  # which asks it too
    began = time.monotonic()
    cloud.start("host")
    assert frozen.wait(10.0) == -signal.SIGKILL
    cloud.act(server, **{"os-stop": None})
    cloud.until_status(server, "SHUTOFF")
    cloud.act(server, **{"os-start": None})
    cloud.until_status(server, "ACTIVE")
    cloud.note(f"taken over, stopped and started in {time.monotonic() - began:.1f} s")
    assert cloud.one(server) != before
    cloud.agree()
    remove(cloud, server)
