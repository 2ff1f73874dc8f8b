"""Every crash point of a build, in the simulator: the product's own loops, cut off at just that effect.

``violations`` holds everything that must be true (``sim/invariants.py``): the server is what its user asked
for last, one guest, untouched where it ran, nothing left over. What was shown on the way is checked too.
"""

from __future__ import annotations

import pytest

from tests.proof import proves
from unstuck.core.server.status import status
from unstuck.sim.engine import Fault
from unstuck.sim.runner import FaultPlan, Run, simulate
from unstuck.store.engine import Tx
from unstuck.store.rows import load_server

BEFORE_AND_AFTER = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


class Seen(Run):
    """A run that remembers every status it ever showed for a server."""

    def __init__(self, scenario: str, faults: FaultPlan) -> None:
        super().__init__(scenario, seed=None, faults=faults, tracing=False)
        self.shown: list[str] = []

    def _after_step(self) -> None:
        super()._after_step()
        now = self.store.read(_shown, "a")
        if now is not None and self.shown[-1:] != [now]:
            self.shown.append(now)


def _shown(tx: Tx, server_id: str) -> str | None:
    loaded = load_server(tx, server_id)
    return None if loaded is None else status(loaded.server, tx.now).status


def number(scenario: str, effect: str, occurrence: int = 1) -> int:
    """The number of the effect of this name, in a run without faults."""
    found = [n for n, (_, name) in enumerate(simulate(scenario).names, 1) if name == effect]
    return found[occurrence - 1]


def cut(scenario: str, effect: str, fault: Fault, occurrence: int = 1) -> list[str]:
    """Run it with one fault there; nothing may be violated. Returns the statuses it showed."""
    run = Seen(scenario, {number(scenario, effect, occurrence): fault})
    verdict = run.run()
    assert verdict.violations == ()
    assert "ERROR" not in run.shown
    return run.shown


@proves("P2", "P3", "P20", ends="ACTIVE, or gone where it was deleted: the row is the work item")
@pytest.mark.parametrize("scenario", ["create", "create_and_delete", "stop_and_start"])
def test_p02_p03_p20_with_every_notification_lost_it_all_happens_anyway(scenario: str) -> None:
    run = Run(scenario, seed=None, faults={}, tracing=False)
    run.lose_wakes = True
    assert run.run().violations == ()


@proves("P4", "P7", ends="ACTIVE")
@pytest.mark.parametrize("fault", BEFORE_AND_AFTER)
def test_p04_p07_the_control_plane_dies_at_the_choice_of_the_host(fault: Fault) -> None:
    assert cut("create", "store.place", fault) == ["BUILD", "ACTIVE"]


@proves("P8", ends="ACTIVE")
@pytest.mark.parametrize("fault", [*BEFORE_AND_AFTER, Fault.FREEZE_REPLACED])
def test_p08_the_agent_dies_before_it_begins(fault: Fault) -> None:
    assert cut("create", "driver.look", fault) == ["BUILD", "ACTIVE"]


@proves("P9", ends="ACTIVE")
@pytest.mark.parametrize("fault", [*BEFORE_AND_AFTER, Fault.ANSWER_LOST, Fault.REPEATED])
def test_p09_the_agent_dies_at_its_claim(fault: Fault) -> None:
    assert cut("create", "control.claim", fault) == ["BUILD", "ACTIVE"]


@proves("P10", "P13", ends="ACTIVE")
@pytest.mark.parametrize("fault", BEFORE_AND_AFTER)
def test_p10_p13_the_agent_dies_at_the_making_of_ports(fault: Fault) -> None:
    assert cut("create", "driver.make_nics", fault) == ["BUILD", "ACTIVE"]


@proves("P12", ends="ACTIVE")
@pytest.mark.parametrize("fault", [*BEFORE_AND_AFTER, Fault.CRASH_HALF])
@pytest.mark.parametrize("effect", ["driver.fetch", "driver.make_disk"])
def test_p12_the_agent_dies_at_image_or_disk(effect: str, fault: Fault) -> None:
    if effect == "driver.fetch" and fault is Fault.CRASH_HALF:
        fault = Fault.FREEZE_REPLACED  # a fetch is in its agent's memory: half of it is gone with the agent
    assert cut("create", effect, fault) == ["BUILD", "ACTIVE"]


@proves("P15", ends="ACTIVE, the guest untouched")
@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.CRASH_HALF, Fault.FREEZE_REPLACED])
def test_p15_the_agent_dies_when_the_guest_runs_and_nobody_knows(fault: Fault) -> None:
    assert cut("create", "driver.start", fault) == ["BUILD", "ACTIVE"]


@proves("P16", ends="ACTIVE: the report is made again, and nothing is undone")
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ANSWER_LOST, Fault.CRASH_BEFORE, Fault.REPEATED])
def test_p16_the_last_report_fails(fault: Fault) -> None:
    assert cut("create", "control.report.running", fault) == ["BUILD", "ACTIVE"]


@proves("P17", ends="ACTIVE")
def test_p17_the_agent_dies_after_the_last_report() -> None:
    assert cut("create", "control.report.running", Fault.CRASH_AFTER) == ["BUILD", "ACTIVE"]


@proves("P19", ends="gone after the restart")
@pytest.mark.parametrize("fault", [*BEFORE_AND_AFTER, Fault.FREEZE_REPLACED, Fault.HOST_REBOOT])
@pytest.mark.parametrize("scenario", ["delete_while_building", "delete_while_starting", "delete_at_once"])
def test_p19_deleted_during_its_build_and_every_agent_dies_at_each_step(scenario: str, fault: Fault) -> None:
    for effect, (process, _) in enumerate(simulate(scenario).names, 1):
        if process == "agent":
            assert simulate(scenario, faults={effect: fault}).violations == ()


@proves("P22", ends="BUILD, then ACTIVE: nothing else is ever shown")
@pytest.mark.parametrize("fault", BEFORE_AND_AFTER)
def test_p22_the_agent_starts_while_its_order_waits(fault: Fault) -> None:
    registered = number("create", "control.register", 2)
    run = Seen("create", {registered: fault})
    assert run.run().violations == ()
    assert run.shown == ["BUILD", "ACTIVE"]


@proves(
    "P23", ends="deleted at once; the host cleans up if it ever returns, and the address is held until then"
)
@pytest.mark.parametrize("scenario", ["delete_on_a_dead_host", "host_dies_in_delete"])
def test_p23_the_host_does_not_come_back_and_its_user_deletes(scenario: str) -> None:
    assert simulate(scenario).violations == ()
