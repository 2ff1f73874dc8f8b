"""The units under systemd itself, with a real guest: whatever happens to them, the guest runs on.

It runs where systemd is process 1: on such a machine by itself, elsewhere through `scripts/in-systemd`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.many import Many
from unstuck.cli import guests, tiny
from unstuck.runtime.processes import start_time
from unstuck.runtime.state import State

ONE = Path("/proc/1/comm").read_text().strip()
UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
RUN = Path("/run/systemd/system")
CONTROL, HOST = "unstuck-control.service", "unstuck-host.service"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("qemu"),
    pytest.mark.skipif(
        ONE != "systemd", reason=f"process 1 is {ONE}, not systemd: scripts/in-systemd ROOT runs it in one"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start units"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
    pytest.mark.skipif(Path("/etc/systemd/system", HOST).exists(), reason="Unstuck is installed here"),
]


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() + done.stderr.strip()


class Units(Many):
    """The two units as they are in the repository, with drop-ins for where this checkout lies."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, driver="qemu")
        python = f"{sys.executable} -m unstuck.cli.main"
        self._install(CONTROL, f"{python} serve --state {root} --take-over", f"ReadWritePaths={root}")
        self._install(HOST, f"{python} host --state {root}", "WatchdogSec=6")
        systemctl("daemon-reload")

    def _install(self, name: str, command: str, *more: str) -> None:
        shutil.copy(UNITS / name, RUN / name)
        folder = RUN / f"{name}.d"
        folder.mkdir(exist_ok=True)
        # Where this checkout and its state are; a watchdog that does not make the test wait for a minute.
        lines = ["[Service]", "ExecStart=", f"ExecStart={command}", "StateDirectory=", *more]
        (folder / "test.conf").write_text("\n".join(lines) + "\n")

    def main_pid(self, name: str) -> int:
        """Of an active unit; 0 while it is on its way."""
        if systemctl("is-active", name) != "active":
            return 0
        return int(systemctl("show", "-P", "MainPID", name))

    def until_active_unit(self, name: str, other_than: int = 0) -> int:
        return self.until(
            f"{name} is active again",
            lambda: pid if (pid := self.main_pid(name)) not in (0, other_than) else None,
            lambda: systemctl("status", "--no-pager", name),
        )

    def guest(self, server: str) -> tuple[int, int]:
        """Pid and start time of the one QEMU process."""
        found = [one.pid for one in guests.running(self.state) if one.server_id == server]
        assert len(found) == 1, found
        began = start_time(found[0])
        assert began is not None
        return found[0], began

    def close(self) -> None:
        for name in (HOST, CONTROL):
            systemctl("stop", name)
        for one in guests.running(self.state):
            os.kill(one.pid, signal.SIGKILL)
        for name in (HOST, CONTROL):
            systemctl("reset-failed", name)
            shutil.rmtree(RUN / f"{name}.d", ignore_errors=True)
            (RUN / name).unlink(missing_ok=True)
        systemctl("daemon-reload")
        super().close()


@pytest.fixture
def units() -> Iterator[Units]:
    # Not below /tmp: PrivateTmp would hide it from the control plane.
    root = Path(f"/var/lib/unstuck-test-{os.getpid()}")
    image = tiny.built(State(root))
    if image is None:
        pytest.skip("the tiny image is not built: make setup")
    made = Units(root)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(root)


def kill(name: str, number: signal.Signals) -> Callable[[Units], None]:
    def do(units: Units) -> None:
        os.kill(units.main_pid(name), number)

    return do


def stop_and_start(units: Units) -> None:
    systemctl("stop", HOST)
    assert systemctl("is-active", HOST) == "inactive"
    systemctl("start", HOST)


def test_whatever_happens_to_the_units_the_guest_runs_on(units: Units) -> None:
    # Type=notify: these come back when both have said that they are ready.
    assert systemctl("start", CONTROL) == ""
    assert systemctl("start", HOST) == ""
    image = tiny.built(units.state)
    assert image is not None
    units.upload(image)
    server = units.create()
    units.until_active("web")
    guest = units.guest(server)
    assert HOST in Path(f"/proc/{guest[0]}/cgroup").read_text()
    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{guest[0]}/environ").read_bytes()

    events: dict[str, tuple[str, Callable[[Units], object]]] = {
        "the agent is restarted, as an upgrade does": (HOST, lambda _: systemctl("restart", HOST)),
        "the agent is stopped and started": (HOST, stop_and_start),
        "the agent is killed": (HOST, kill(HOST, signal.SIGKILL)),
        "the agent aborts": (HOST, kill(HOST, signal.SIGABRT)),
        "the agent is frozen, and the watchdog replaces it": (HOST, kill(HOST, signal.SIGSTOP)),
        "the control plane is restarted": (CONTROL, lambda _: systemctl("restart", CONTROL)),
        "the control plane is killed": (CONTROL, kill(CONTROL, signal.SIGKILL)),
    }
    for what, (name, do) in events.items():
        before = units.main_pid(name)
        began = time.monotonic()
        do(units)
        units.until_active_unit(name, other_than=before)
        print(f"{what}: active again after {time.monotonic() - began:.1f} s")
        assert units.guest(server) == guest, what
    for _ in range(8):  # more often than systemd's own limit of 5 in 10 s
        before = units.until_active_unit(HOST)
        kill(HOST, signal.SIGKILL)(units)
        units.until_active_unit(HOST, other_than=before)
    assert units.guest(server) == guest
    units.create("next")
    units.until_active("web", "next")  # and the agent is of use
    assert units.guest(server) == guest
    systemctl("stop", CONTROL, HOST)
    assert units.guest(server) == guest
