"""The store is set back under the simulated cloud, and its clock jumps; both are shown to be noticed."""

from __future__ import annotations

import itertools

import pytest

from tests.sim.schedules import fair, with_the_record
from unstuck.sim.runner import simulate
from unstuck.sim.setback import JUMP_SCENARIOS, JUMPS, SETBACK_SCENARIOS, Jump, Setback

Monkey = pytest.MonkeyPatch


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        "create",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("one_after_another", "delete_while_building")
        ),
    ],
)
def test_where_only_hosts_can_tell_nothing_is_given_twice_either(scenario: str) -> None:
    for case in itertools.islice(with_the_record(scenario), 0, None, 2):
        assert case.run().violations == (), str(case)


@pytest.mark.parametrize("scenario", SETBACK_SCENARIOS)
def test_a_store_that_is_set_back_loses_no_guest_disk_or_address_and_gives_none_twice(scenario: str) -> None:
    for case in fair(scenario, step=9):
        assert case.run().violations == (), str(case)


@pytest.mark.parametrize("seconds", JUMPS)
@pytest.mark.parametrize("scenario", JUMP_SCENARIOS)
def test_a_clock_that_jumps_fences_nobody(scenario: str, seconds: float) -> None:
    effects = 60 if scenario == "host_dies_in_delete" else simulate(scenario).effects
    for effect in range(1, effects + 1, 7):
        verdict = simulate(scenario, jump=Jump(effect, seconds))
        assert verdict.violations == (), f"{scenario}, {seconds} s at effect {effect}"
        assert verdict.incarnations == (1,) * len(verdict.incarnations) or scenario == "host_dies_in_delete"


DAY = 86_400.0


@pytest.mark.parametrize(
    ("effect", "seconds"),
    [(45, 3600.0), *(pytest.param(effect, DAY, marks=pytest.mark.slow) for effect in (12, 30, 45))],
)
def test_a_control_plane_that_is_asleep_fences_nobody(effect: int, seconds: float) -> None:
    """Everybody else goes on meanwhile."""
    verdict = simulate("create_and_delete", jump=Jump(effect, seconds, asleep=True))
    assert verdict.violations == ()
    assert verdict.incarnations == (1,)


def test_what_was_made_after_the_copy_is_shown_and_goes_on_running() -> None:
    commits = simulate("create").commits
    verdict = simulate("create", setback=Setback(0, commits), tracing=True)
    assert verdict.violations == ()
    assert [line for line in verdict.trace if "accepted: [('server-unknown', 'a')]" in line]
