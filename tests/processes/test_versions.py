"""An agent and a control plane of different versions: N - 1 is served, others wait and are told why."""

from __future__ import annotations

from tests.processes.many import Many, Process
from unstuck.runtime.locks import holder


def of_version(number: int) -> str:
    """A process whose source says that it speaks this version; it waits less for an upgrade."""
    return (
        f"import unstuck.core.agents as agents; agents.PROTOCOL = {number}\n"
        "import unstuck.host.agent as agent; agent.INCOMPATIBLE = 0.2"
    )


def refusals(process: Process) -> list[str]:
    return [line["reason"] for line in process.lines() if "refuse" in line.get("event", "")]


def test_a_newer_agent_is_told_why_waits_and_goes_on_after_the_upgrade(many: Many) -> None:
    control = many.control()
    old = many.agent()
    server = many.create()
    many.until_active("web")
    before = many.marker(server).read_bytes(), many.marker(server).stat().st_mtime_ns

    newer = many.start("host", prelude=of_version(2))
    many.until("it has asked again", lambda: len(refusals(newer)) > 2)
    assert not old.lives
    assert newer.lives
    assert holder(many.state.host_lock) == newer.identity
    reason = refusals(newer)[0]
    assert "speaks version '2'" in reason
    assert "the control plane speaks 1: upgrade the control plane" in reason
    assert "guests run on" in reason
    assert refusals(control), "the operator of the control plane is told as well"
    assert many.incarnation() == 1
    assert many.statuses() == {"web": "ACTIVE"}
    assert (many.marker(server).read_bytes(), many.marker(server).stat().st_mtime_ns) == before

    control.kill()
    many.control(prelude=of_version(2))
    many.until("it registers", lambda: many.registered(newer))
    many.create("next")
    many.until_active("web", "next")
    assert (many.marker(server).read_bytes(), many.marker(server).stat().st_mtime_ns) == before


def test_a_control_plane_serves_the_version_before_its_own_and_no_older_one(many: Many) -> None:
    control = many.control(prelude=of_version(2))
    agent = many.agent(prelude=of_version(1))
    many.create()
    many.until_active("web")
    control.kill()
    many.control(prelude=of_version(3))
    many.until("it is refused", lambda: refusals(agent))
    assert "the control plane speaks 3 and 2: upgrade the agent" in refusals(agent)[0]
    assert agent.lives
    agent.kill()
    many.agent(prelude=of_version(2))
    many.create("next")
    many.until_active("web", "next")
