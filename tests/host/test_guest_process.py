"""Who is alive: the inherited lock, /proc, and kills that hit nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_wants import SERVER

from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.drivers.process import (
    Process,
    identify,
    kill,
    lock_held,
    lock_holders,
    pidfile_holder,
    run,
    spawn,
    strays,
    take_lock,
)

OTHER = "99999999-2222-4333-8444-555555555555"


class Stand:
    """Processes that look like guests of one folder."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder = folder
        self.pids: list[int] = []

    def guest(self, server: str = SERVER, edge: int = 4) -> int:
        lock = take_lock(self.folder.lock)
        assert lock is not None
        code = "import signal; signal.pause()"
        argv = [sys.executable, "-S", "-c", code, f"guest={server}.{edge},process=x"]
        pid = spawn(argv, self.folder.path, self.folder.output, lock)
        os.close(lock)
        self.pids.append(pid)
        while not Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b",process=x\0"):
            time.sleep(0.001)  # between fork and exec it is still us
        return pid

    def end(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    folder = ServerFolder(tmp_path, SERVER)
    folder.ensure()
    made = Stand(folder)
    yield made
    made.end()


def test_the_lock_is_held_exactly_while_the_child_lives(stand: Stand) -> None:
    lock = stand.folder.lock
    assert not lock_held(lock)
    stand.guest()
    assert lock_held(lock)
    assert take_lock(lock, patience=0.02) is None
    stand.end()
    assert not lock_held(lock)


def test_a_lock_file_that_was_replaced_is_not_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take_lock(path)
    assert first is not None
    path.unlink()
    second = take_lock(path)
    assert second is not None
    assert os.fstat(second).st_ino == path.stat().st_ino
    os.close(first)
    os.close(second)


def test_a_process_is_ours_by_name_and_folder_and_a_zombie_is_none(stand: Stand, tmp_path: Path) -> None:
    pid = stand.guest()
    found = identify(pid, SERVER, stand.folder.path)
    assert found is not None
    assert (found.edge, found.stopped) == (4, False)
    assert found.age < 10
    assert identify(pid, OTHER, stand.folder.path) is None
    assert identify(pid, SERVER, tmp_path) is None
    assert identify(os.getpid(), SERVER, stand.folder.path) is None
    os.kill(pid, 9)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.002)
    assert identify(pid, SERVER, stand.folder.path) is None


def test_a_child_before_its_pidfile_is_found_by_the_lock_it_holds(stand: Stand) -> None:
    pid = stand.guest()
    assert pid in [p.pid for p in lock_holders(stand.folder.lock, SERVER, stand.folder.path)]
    assert lock_holders(stand.folder.lock, OTHER, stand.folder.path) == []


def test_a_guest_whose_folder_was_removed_is_not_overlooked(stand: Stand) -> None:
    pid = stand.guest()
    stand.folder.remove()
    assert not stand.folder.path.exists()
    assert [p.pid for p in strays(SERVER, stand.folder.path)] == [pid]


def test_a_kill_hits_only_who_is_certainly_ours(stand: Stand) -> None:
    pid = stand.guest(server=OTHER)
    kill(Process(pid, 4, 0.0, False), SERVER, stand.folder.path)
    time.sleep(0.05)
    assert lock_held(stand.folder.lock)
    kill(Process(pid, 4, 0.0, False), OTHER, stand.folder.path)
    assert os.waitpid(pid, 0)[1] == 9


def test_the_pidfiles_holder_is_who_locks_it(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    assert pidfile_holder(pidfile) is None
    pidfile.write_text("1\n")
    assert pidfile_holder(pidfile) is None
    code = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,2); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(pidfile)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert pidfile_holder(pidfile) == holder.pid


def test_a_helper_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    script = f"sleep 60 & echo $! > {note}; wait"
    began = time.monotonic()
    with pytest.raises(DriverError, match="did not end"):
        asyncio.run(run(["/bin/sh", "-c", script], deadline=0.3))
    assert time.monotonic() - began < 5
    child = int(note.read_text())
    stat = Path(f"/proc/{child}/stat")
    for _ in range(200):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.01)
    raise AssertionError("the helper's child lives")


def test_a_helper_that_fails_says_why() -> None:
    with pytest.raises(DriverError, match="failed: no such thing"):
        asyncio.run(run(["/bin/sh", "-c", "echo no such thing >&2; exit 3"], deadline=5))
    with pytest.raises(DriverError, match="not installed"):
        asyncio.run(run(["unstuck-no-such-program"], deadline=5))
    assert asyncio.run(run(["/bin/cat"], deadline=5, stdin=b"x")) == b"x"
