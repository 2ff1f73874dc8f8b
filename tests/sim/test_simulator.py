"""The simulator is itself tested: it repeats itself exactly, and it catches faults that we plant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from unstuck.core.agents import Register, Registered
from unstuck.core.server.data import Gone, Observation, Unclear, View, Want
from unstuck.core.server.host import Act, Decision, Do, plan_host
from unstuck.host import agent as agent_module
from unstuck.host.agent import Agent
from unstuck.sim.cli import Case, exhaustive_cases, main, parse_case, run_case
from unstuck.sim.engine import Fault
from unstuck.sim.runner import simulate
from unstuck.sim.scenarios import SCENARIOS
from unstuck.store import agents, rows, servers

Monkey = pytest.MonkeyPatch


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_ends_well_without_faults(scenario: str) -> None:
    assert simulate(scenario).violations == ()


def late_registration() -> Case:
    """Seed 812, made small: an agent's registration arrives once more, after its successor has come."""
    effects = simulate("stop_and_start").names
    registers = [number for number, (_, name) in enumerate(effects, 1) if name == "control.register"]
    dies = 1 + [name for _, name in effects].index("driver.fetch")
    faults = {registers[0]: Fault.REPEATED, registers[1]: Fault.REPEATED, dies: Fault.CRASH_AFTER}
    return Case("late-registration", "stop_and_start", None, dict(faults))


def test_a_late_registration_ends_no_living_agent() -> None:
    assert run_case(late_registration()).violations == ()


def test_the_guest_that_runs_unreported_is_adopted_untouched() -> None:
    """The mission's fault: the guest is started, and its agent dies before it says so."""
    plain = simulate("create")
    number = 1 + [name for _, name in plain.names].index("driver.start")
    for fault in ("crash-after", "crash-half", "freeze-replaced"):
        case = parse_case(f"create:{number}:{fault}")
        verdict = simulate(case.scenario, faults=case.faults, tracing=True)
        assert verdict.violations == ()
        starts = [line for line in verdict.trace if "driver.start" in line]
        assert len(starts) == (2 if fault == "freeze-replaced" else 1), "never a second guest"


TRACE = """
from unstuck.sim.cli import _quiet, random_case
from unstuck.sim.runner import simulate
_quiet()
case = random_case(42)
print("\\n".join(simulate(case.scenario, seed=case.seed, faults=case.faults, tracing=True).trace))
"""


def test_the_same_seed_gives_the_same_trace_in_any_process() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": hashseed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hashseed in ("0", "1")
    }
    assert len(traces) == 1
    assert traces.pop().count("\n") > 20


def test_replay_prints_a_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "create:3:crash-after"]) == 0
    shown = capsys.readouterr().out
    assert "crash-after" in shown
    assert "no violation" in shown


def test_a_schedule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such schedule"):
        parse_case("nonsense:1:crash-after")


# Planted faults: each of these changes would be a bug like one that real systems had. Nothing here
# checks the change itself; the simulator has to notice it.


def unknown_is_read_as_absent(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        if isinstance(view.guest, Unclear):
            view = msgspec.structs.replace(view, guest=Gone())
        return plan_host(want, view)

    patch.setattr(agent_module, "plan_host", plan)


def the_disk_is_not_recorded_before_the_start(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        return plan_host(msgspec.structs.replace(want, disk_recorded=True), view)

    patch.setattr(agent_module, "plan_host", plan)


def a_recorded_disk_that_is_missing_is_made_again(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        decision = plan_host(msgspec.structs.replace(want, disk_recorded=False), view)
        recorded = isinstance(decision, Act) and decision.do is Do.RECORD_DISK and want.disk_recorded
        return plan_host(want, view) if recorded else decision

    patch.setattr(agent_module, "plan_host", plan)
    from unstuck.sim.world import SimHost

    reboot = SimHost.reboot

    def reboot_without_mount(self: SimHost) -> None:
        reboot(self)
        for folder in self.folders.values():
            folder.disk = False

    patch.setattr(SimHost, "reboot", reboot_without_mount)


def the_next_look_is_left_out(patch: Monkey) -> None:
    patch.setattr(rows, "next_look", lambda _plan, _now: (True, None))


def registration_without_compare_and_swap(patch: Monkey) -> None:
    register = agents.register

    def always(tx: Any, host_id: str, ask: Register) -> Registered:
        asked = register(tx, host_id, msgspec.structs.replace(ask, after=-1))
        if asked.granted:
            return asked
        return register(tx, host_id, msgspec.structs.replace(ask, after=asked.incarnation))

    patch.setattr(agents, "register", always)


def a_lost_report_counts_as_sent(patch: Monkey) -> None:
    send = Agent._send

    async def forgetful(
        self: Agent, want: Want, observation: Observation, word: str, disk: str | None
    ) -> None:
        self._reported[want.server_id] = (want.fence, observation)
        await send(self, want, observation, word, disk)

    patch.setattr(Agent, "_send", forgetful)


def the_build_overtakes_the_delete(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        building = want.gone and not isinstance(view.guest, Gone | Unclear)
        return plan_host(msgspec.structs.replace(want, gone=False) if building else want, view)

    patch.setattr(agent_module, "plan_host", plan)


def the_address_is_freed_before_the_host_is_clean(patch: Monkey) -> None:
    finish = servers.finish_delete_locked

    def early(tx: Any, server: Any, *, tombstone: bool) -> None:
        finish(tx, server, tombstone=False)

    patch.setattr(servers, "finish_delete_locked", early)


def notifications_carry_the_work(patch: Monkey) -> None:
    """Nobody looks unless told: a lost wake-up is lost work."""
    patch.setattr(servers, "due_servers", lambda _tx, _limit: [])


PLANTED: list[tuple[Callable[[Monkey], None], str]] = [
    (unknown_is_read_as_absent, "delete_while_starting"),
    (the_disk_is_not_recorded_before_the_start, "create"),
    (a_recorded_disk_that_is_missing_is_made_again, "create"),
    (the_next_look_is_left_out, "host_dies_in_delete"),
    (registration_without_compare_and_swap, "late registration"),
    (a_lost_report_counts_as_sent, "create"),
    (the_build_overtakes_the_delete, "create_and_delete"),
    (the_address_is_freed_before_the_host_is_clean, "delete_on_a_dead_host"),
    (notifications_carry_the_work, "create"),
]


def _cases(where: str) -> Iterator[Case]:
    if where == "late registration":
        yield late_registration()
    else:
        yield Case(where, where, None, {})
        yield from exhaustive_cases([where])


def first_violation(cases: Iterable[Case]) -> tuple[str, tuple[str, ...]] | None:
    for case in cases:
        tried = run_case(case)
        if tried.violations:
            return tried.name, tried.violations
    return None


@pytest.mark.parametrize(("plant", "where"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_fault_is_caught(
    plant: Callable[[Monkey], None], where: str, monkeypatch: Monkey, record_property: Any
) -> None:
    cases = list(_cases(where))
    plant(monkeypatch)
    found = first_violation(cases)
    assert found is not None, f"nothing notices {plant.__name__}"
    record_property("caught by", f"{found[0]}: {found[1][0]}")
