"""The public status of an instance, and its operating status: every cell."""

from __future__ import annotations

import pytest

from tests.core.instance_states import (
    ACTIVE,
    AWAY_HOST,
    BROKEN,
    BUILDING,
    FAILURE,
    FINAL,
    NEW,
    NOW,
    OFF,
    PASSING,
    SERVER,
    SILENT_HOST,
    UNPLACED,
    backup,
    but,
    pending,
    server,
    view,
)
from tests.core.test_instance_control import everything
from unstuck.core.instance.data import Instance, PendingKind
from unstuck.core.instance.status import status
from unstuck.core.instance.view import Configured, ServerState
from unstuck.core.server.data import Operation, OperationKind

REBOOT = Operation("o", OperationKind.REBOOT, 2, soft=True, since=1990.0, deadline=2100.0)

CELLS: list[tuple[str, Instance, tuple[str, str]]] = [
    ("no host yet", but(NEW, server=UNPLACED), ("BUILD", "")),
    ("its server is built", but(NEW, server=BUILDING), ("BUILD", "")),
    ("its guest has not come", NEW, ("BUILD", "")),
    ("its guest makes the data", but(NEW, guest=1, alive=True, seen=view(applied=False)), ("BUILD", "")),
    ("it can be used", ACTIVE, ("ACTIVE", "HEALTHY")),
    ("its database starts", but(ACTIVE, seen=view(server=ServerState.STARTING)), ("ACTIVE", "BUILD")),
    ("its database is down", but(ACTIVE, seen=view(server=ServerState.DOWN)), ("ACTIVE", "SHUTDOWN")),
    ("its database crashed", but(ACTIVE, seen=view(server=ServerState.CRASHED)), ("ACTIVE", "SHUTDOWN")),
    ("its database hangs", but(ACTIVE, seen=view(server=ServerState.UNCLEAR)), ("ACTIVE", "BLOCKED")),
    ("its agent is silent", but(ACTIVE, alive=False), ("ACTIVE", "ERROR")),
    ("its host is silent", but(ACTIVE, server=server(host=SILENT_HOST)), ("ACTIVE", "")),
    ("its host is away", but(ACTIVE, server=server(host=AWAY_HOST)), ("ACTIVE", "")),
    ("both are silent", but(ACTIVE, alive=False, server=server(host=AWAY_HOST)), ("ACTIVE", "")),
    ("a passing trouble", but(ACTIVE, seen=view(trouble=PASSING)), ("ACTIVE", "HEALTHY")),
    ("a final trouble of one that is up", but(ACTIVE, seen=view(trouble=FINAL)), ("ACTIVE", "HEALTHY")),
    ("a final trouble of one that is down",
     but(ACTIVE, seen=view(server=ServerState.DOWN, trouble=FINAL)), ("ERROR", "")),
    ("a recorded failure", but(NEW, failure=FAILURE), ("ERROR", "")),
    ("its server failed", but(NEW, server=server(UNPLACED, failure=FAILURE)), ("ERROR", "")),
    ("its server is broken", but(ACTIVE, server=BROKEN), ("ERROR", "")),
    ("a backup runs", but(ACTIVE, backup=backup()), ("BACKUP", "HEALTHY")),
    ("a backup that nobody has taken", but(ACTIVE, backup=backup(heard=None)), ("ACTIVE", "HEALTHY")),
    ("a backup whose agent went silent", but(ACTIVE, backup=backup(heard=NOW.lease - 30)),
     ("ACTIVE", "HEALTHY")),
    ("a backup that is being stopped", but(ACTIVE, backup=backup(cancelled=True)), ("BACKUP", "HEALTHY")),
    ("a backup of a broken server", but(ACTIVE, backup=backup(), server=BROKEN), ("ERROR", "")),
    ("a restart", but(ACTIVE, pending=pending(PendingKind.RESTART)), ("REBOOT", "")),
    ("a resize", but(ACTIVE, pending=pending(PendingKind.RESIZE)), ("RESIZE", "")),
    ("a larger volume", but(ACTIVE, pending=pending(PendingKind.RESIZE_VOLUME)), ("RESIZE", "")),
    ("a rebuild", but(ACTIVE, pending=pending(PendingKind.REBUILD)), ("BUILD", "")),
    ("a restart that waits for a backup", but(ACTIVE, pending=pending(), backup=backup()), ("REBOOT", "")),
    ("a restart that may mend what is broken",
     but(ACTIVE, pending=pending(applied=1990.0), seen=view(server=ServerState.DOWN, trouble=FINAL)),
     ("REBOOT", "")),
    ("its server was rebooted by an administrator", but(ACTIVE, server=server(operation=REBOOT)),
     ("REBOOT", "")),
    ("its server is off", but(ACTIVE, server=OFF), ("SHUTDOWN", "")),
    ("settings need a restart", but(ACTIVE, seen=view(configured=Configured(waiting=("shared_buffers",)))),
     ("RESTART_REQUIRED", "HEALTHY")),
    ("it is deleted", but(ACTIVE, deleted=True), ("SHUTDOWN", "")),
    ("it is deleted and failed", but(ACTIVE, deleted=True, failure=FAILURE), ("SHUTDOWN", "")),
    ("it is deleted, and a backup runs", but(ACTIVE, deleted=True, backup=backup()), ("SHUTDOWN", "")),
    ("its server is gone", but(ACTIVE, server=None, failure=FAILURE), ("ERROR", "")),
]  # fmt: skip


@pytest.mark.parametrize(("instance", "shown"), [row[1:] for row in CELLS], ids=[row[0] for row in CELLS])
def test_status(instance: Instance, shown: tuple[str, str]) -> None:
    found = status(instance, NOW)
    assert (found.status, found.operating_status) == shown
    assert (found.fault is not None) == (found.status == "ERROR")


KNOWN = {"BUILD", "ACTIVE", "BACKUP", "REBOOT", "RESIZE", "RESTART_REQUIRED", "SHUTDOWN", "ERROR"}
OPERATING = {"", "HEALTHY", "BUILD", "SHUTDOWN", "BLOCKED", "ERROR"}


def test_no_status_is_invented() -> None:
    for instance in everything():
        found = status(instance, NOW)
        assert found.status in KNOWN
        assert found.operating_status in OPERATING


def test_silence_of_a_host_changes_no_status() -> None:
    """Unknown is never a worse status (law 4)."""
    for instance in everything():
        if instance.server is None or instance.server.host is None or instance.server.host is AWAY_HOST:
            continue
        away = but(instance, server=server(instance.server, host=AWAY_HOST))
        assert status(away, NOW).status == status(instance, NOW).status


def test_healthy_means_heard_lately_and_up() -> None:
    for instance in everything():
        if status(instance, NOW).operating_status == "HEALTHY":
            assert instance.alive
            assert instance.seen is not None
            assert instance.seen.server is ServerState.UP
            assert instance.server is not None
            assert instance.server.host is not None
            assert NOW.lease - instance.server.host.seen < 30


def test_a_fault_says_what_helps() -> None:
    found = status(but(ACTIVE, server=BROKEN), NOW).fault
    assert found is not None
    assert (found.reason, found.remedy) == ("it is broken", "mend it")
    assert SERVER.failure is None
