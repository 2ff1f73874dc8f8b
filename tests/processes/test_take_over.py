"""Agents that are frozen, replaced, thawed, doubled or copied: one acts, and the others are told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.processes.many import Many, Process
from unstuck.runtime.locks import holder
from unstuck.runtime.state import HostFile, State


def state_of(path: Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mtime_ns


def test_a_frozen_agent_that_was_replaced_finds_itself_dead_and_not_acting(many: Many) -> None:
    many.control()
    first = many.agent()
    server = many.create()
    many.until_active("web")
    before = state_of(many.marker(server))
    first.signal(signal.SIGSTOP)
    second = many.agent()
    assert first.code(10.0) == -signal.SIGKILL  # before the second one had the lock; there is nothing to thaw
    assert holder(many.state.host_lock) == second.identity
    many.until("the second one has looked", lambda: many.incarnation() == 2)
    many.create("next")
    many.until_active("web", "next")
    assert state_of(many.marker(server)) == before


@pytest.mark.parametrize("count", [2, 4])
def test_of_agents_started_in_the_same_instant_one_is_left(many: Many, count: int) -> None:
    many.control()
    server = ""
    for _ in range(2):
        agents = [many.start("host") for _ in range(count)]

        def one_left(agents: list[Process] = agents) -> Process | None:
            left = [agent for agent in agents if agent.lives]
            return left[0] if len(left) == 1 and many.registered(left[0]) else None

        left = many.until("one is left, and registered", one_left)
        assert holder(many.state.host_lock) == left.identity
        assert {agent.code() for agent in agents if agent is not left} == {-signal.SIGKILL}
        if not server:
            server = many.create()
            many.until_active("web")
            before = state_of(many.marker(server))
        many.until_active("web")
        assert state_of(many.marker(server)) == before


def test_who_was_superseded_is_told_and_ends_and_never_registers_again(many: Many) -> None:
    many.control()
    agent = many.agent()
    server = many.create()
    many.until_active("web")
    before = state_of(many.marker(server))
    assert many.incarnation() == 1
    assert many.supersede() == 2
    assert agent.code(30.0) == 75
    ends = [line for line in agent.lines() if "superseded" in line.get("reason", "")]
    assert ends, agent.said
    assert many.incarnation() == 2, "it did not come back"
    assert state_of(many.marker(server)) == before
    many.agent()  # whoever is started next follows on, and adopts
    assert many.incarnation() == 3
    many.until_active("web")
    assert state_of(many.marker(server)) == before


def test_a_frozen_agent_that_was_superseded_elsewhere_ends_when_it_thaws(many: Many) -> None:
    """Nobody could kill it (its machine was away): its first call tells it, before any effect."""
    many.control()
    agent = many.agent()
    many.create()
    many.until_active("web")
    agent.signal(signal.SIGSTOP)
    assert many.supersede() == 2
    waiting = many.create("waiting")  # it is this host's to build, and not this agent's
    agent.signal(signal.SIGCONT)
    assert agent.code(30.0) == 75
    assert not many.marker(waiting).exists()
    many.agent()
    many.until_active("web", "waiting")


@pytest.mark.slow
def test_a_folder_copied_on_the_same_machine_is_refused_while_the_agent_lives(
    many: Many, tmp_path: Path
) -> None:
    many.control()
    agent = many.agent()
    many.create()
    many.until_active("web")
    shutil.copytree(many.state.root, tmp_path / "copy")
    clone = many.start("host", state=State(tmp_path / "copy"))
    assert clone.code(30.0) == 78
    assert f"process {agent.pid} on this machine runs the agent of this very host" in clone.said
    assert "`unstuck up --state FOLDER`" in clone.said
    assert agent.lives
    assert many.incarnation() == 1


@pytest.mark.slow
def test_a_folder_copied_on_the_same_machine_is_refused_while_its_guests_run_elsewhere(
    many: Many, tmp_path: Path
) -> None:
    """Its agent would see the copied disk and no guest, and start each server a second time."""
    server = "11111111-2222-4333-8444-555555555555"
    folder = many.state.host / "servers" / server
    folder.mkdir(parents=True)
    guest = subprocess.Popen(
        ["/bin/sh", "-c", "read forever", "sh", "-name", f"guest={server}.1"], cwd=folder,
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        many.control()
        shutil.copytree(many.state.root, tmp_path / "copy")
        clone = many.start("host", state=State(tmp_path / "copy"))
        assert clone.code(30.0) == 78
        assert f"process {guest.pid} in {folder}" in clone.said
        assert many.incarnation() == 0
        many.agent()  # the folder they run in is the right one
        folder.rename(folder.with_name("99999999-2222-4333-8444-555555555555"))
    finally:
        guest.kill()
        guest.communicate(timeout=10)
    assert many.incarnation() == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give one process another machine id")
def test_a_folder_copied_to_another_machine_is_refused_with_reason_and_remedy(
    many: Many, tmp_path: Path
) -> None:
    many.control()
    agent = many.agent()
    many.create()
    many.until_active("web")
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    shutil.copytree(many.state.root, tmp_path / "copy")
    copy = State(tmp_path / "copy")
    wrap = (
        "unshare", "--mount", "--net", "--", "sh", "-c",
        f'mount --bind {tmp_path / "machine-id"} /etc/machine-id && exec "$@"', "sh",
    )  # fmt: skip
    clone = many.start("host", state=copy, wrap=wrap)
    assert clone.code(30.0) == 78
    assert "belongs to another machine" in clone.said
    assert "machine_id into host.json" in clone.said

    # Whoever follows the remedy although the first machine lives: the control plane knows its machine.
    known = msgspec.json.decode((copy.host / "host.json").read_bytes(), type=HostFile)
    edited = msgspec.structs.replace(known, machine_id="0123456789abcdef0123456789abcdef")
    (copy.host / "host.json").write_bytes(msgspec.json.encode(edited))
    wrap = (*wrap[:2], *wrap[3:])  # with a way to the control plane
    agent.kill()
    clone = many.start("host", state=copy, wrap=wrap)
    assert clone.code(30.0) == 77
    assert "let the host join anew" in clone.said
    assert many.incarnation() == 1
