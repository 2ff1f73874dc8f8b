"""Locks that name their holder: a take-over kills exactly that process, whatever pids have become."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from unstuck.runtime.locks import FileLock, Held, holder
from unstuck.runtime.processes import ProcessId, end_for_sure, lives, myself

HOLD = """
import sys, time
from pathlib import Path
from unstuck.runtime.locks import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(600)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def finish(child: subprocess.Popen[str]) -> int:
    child.kill()
    code = child.wait(10)
    assert child.stdout is not None
    child.stdout.close()
    return code


def test_a_second_one_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(path)
    found = holder(path)
    assert found is not None
    assert found.pid == child.pid
    with pytest.raises(Held, match=f"process {child.pid} holds"):
        FileLock(path).acquire()
    finish(child)


def test_a_take_over_kills_even_a_frozen_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = hold(path)
    child.send_signal(signal.SIGSTOP)
    lock = FileLock(path)
    lock.acquire(take_over=True)
    assert finish(child) == -signal.SIGKILL
    assert holder(path) == myself()
    lock.release()
    assert holder(path) is None


def test_the_name_of_a_dead_holder_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    # Its pid, but another start time: the pid has come round again.
    path.write_bytes(msgspec.json.encode(ProcessId(bystander.pid, 1, myself().boot_id)))
    lock = FileLock(path)
    lock.acquire(take_over=True)
    assert bystander.poll() is None
    lock.release()
    bystander.kill()
    bystander.wait(10)


def test_children_do_not_inherit_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    lock.acquire()
    code = "import time; print('there', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], close_fds=False, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "there\n"
    lock.release()
    found = holder(path)
    finish(child)
    assert found is None


def test_ending_is_by_identity(tmp_path: Path) -> None:
    me = myself()
    other = ProcessId(os.getpid(), me.start + 1, me.boot_id)
    assert lives(me)
    assert not lives(other)
    assert end_for_sure(other, 0.1)  # nothing to end: this process did not get a signal
