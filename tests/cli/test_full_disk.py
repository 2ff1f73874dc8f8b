"""A full disk under everything: nothing that runs ends of it, and all goes on when there is room again."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_up_and_down import Cli, until

from unstuck.cli import doctor, supervisor
from unstuck.cli.cloud import connect
from unstuck.cli.status import sentence
from unstuck.cli.supervisor import Supervisor
from unstuck.runtime.processes import end
from unstuck.runtime.state import State, prepare

PAGE = 4096


class Disk:
    """A small file system, filled to its last byte and emptied again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ballast = place / "ballast"

    def fill(self, *logs: Path) -> None:
        """Also the logs' own last pages: they have been written for a while."""
        for log in logs:
            with log.open("ab") as file:
                file.write(b" " * (-log.stat().st_size % PAGE))
        with self.ballast.open("wb", buffering=0) as file:
            while shutil.disk_usage(self.place).free:
                file.write(b"x" * PAGE)

    def empty(self) -> None:
        self.ballast.unlink()


@pytest.fixture
def disk(small_disk: Callable[[int], Path]) -> Disk:
    return Disk(small_disk(384 << 20))


@pytest.fixture
def on_disk(disk: Disk, tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path, disk.place / "state")
    yield made
    made.clean_up()


@pytest.mark.slow
def test_clock_and_supervisor_outlive_a_full_disk(on_disk: Cli, disk: Disk) -> None:
    """The clock's loop and the supervisor both ended at the log line that was to say what they lacked."""
    cli = on_disk
    cli.up()
    first = cli.holders()
    assert first["host"] is not None
    with connect(cli.state) as cloud:

        def clock_age() -> float:
            return float(cloud.get("/unstuck/v1/status")["clock_age"])

        disk.fill(*cli.state.logs.iterdir())
        until(lambda: clock_age() > 3.0)
        refused = cloud.client.post("/identity/v3/projects", json={"project": {"name": "p"}})
        assert refused.status_code == 503
        assert refused.json()["error"]["message"].startswith("The database does not answer")
        end(first["host"], signal.SIGKILL, 10.0)
        until(lambda: not Path(f"/proc/{first['host'].pid}").exists())  # the supervisor has reaped it
        disk.empty()
        until(lambda: clock_age() < 2.0)
    until(lambda: cli.holders()["host"] not in (None, first["host"]))
    assert cli.holders()["supervisor"] == first["supervisor"]
    assert cli.holders()["control"] == first["control"]
    until(lambda: json.loads(cli.run("status", "-o", "json"))["hosts"][0]["state"] == "up")
    checks = json.loads(cli.run("doctor", "-o", "json", code=1))["checks"]
    faults = [check["name"] for check in checks if check["level"] == "fault"]
    assert faults == ["disk space"]  # of 64 MiB there is never a GiB free
    told = cli.run("logs", "control")
    assert "store is available again" in told
    assert "of the log could not be written and are lost: No space left" in told


def quiet(disk: Disk) -> tuple[State, Supervisor]:
    state = prepare(disk.place / "state", driver="instant")
    made = Supervisor(state, "instant")
    made.acquire()
    return state, made


def test_a_supervisor_without_room_still_starts_backs_off_and_ends(disk: Disk) -> None:
    state, made = quiet(disk)
    role = made._roles[1]
    role.command = ["/bin/sh", "-c", f"exit {min(supervisor.HOPELESS)}"]
    state.logs.joinpath("host.log").write_bytes(b"x" * PAGE)
    disk.fill()
    for failures in (1, 2):
        role.next_start = 0.0
        made._tend_safely(role)
        assert role.popen is not None
        role.popen.wait(30)
        made._tend_safely(role)
        assert (role.process, role.failures) == (None, failures)
        assert role.next_start > time.monotonic()
    made._end_all()


def test_what_is_wrong_with_one_process_is_not_wrong_with_the_other(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = quiet(disk)
    tended: list[str] = []

    def tend(self: Supervisor, role: supervisor.Role) -> None:
        tended.append(role.name)
        if role.name == "control":
            raise OSError(24, "Too many open files")
        self.stop()

    def end_role(self: Supervisor, role: supervisor.Role) -> None:
        tended.append(f"end {role.name}")
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Supervisor, "_tend", tend)
    monkeypatch.setattr(Supervisor, "_end", end_role)
    made.run()
    assert tended == ["control", "host", "end host", "end control"]
    assert made._roles[0].failures == 1


def test_a_log_that_cannot_be_opened_costs_the_log_only(disk: Disk) -> None:
    state, made = quiet(disk)
    state.logs.rename(disk.place / "away")
    role = made._roles[1]
    role.command = ["/bin/true"]
    made._tend_safely(role)
    assert role.popen is not None
    assert role.popen.wait(30) == 0


def test_a_clock_that_stands_still_is_a_fault_that_doctor_and_status_show() -> None:
    assert doctor._clock(1.0, 42).level == "ok"
    check = doctor._clock(100.0, 42)
    assert (check.level, "kill 42" in check.remedy) == ("fault", True)
    hosts = [{"state": "up"}]
    assert "all as they should be" in sentence([], hosts, clock_age=1.0)
    told = sentence([], hosts, clock_age=100.0)
    assert "clock has stood still for 100 s" in told
    assert "as they should be" not in told
