"""The store is set back under the simulated cloud, and its clock jumps; both are shown to be noticed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from unstuck.core.generation import Relation
from unstuck.sim.runner import Verdict, simulate
from unstuck.sim.setback import JUMP_SCENARIOS, JUMPS, SETBACK_SCENARIOS, Jump, Setback, setbacks
from unstuck.store import adoption, agents, disputes, generation, holdings, networks, servers

Monkey = pytest.MonkeyPatch


class Case(msgspec.Struct, frozen=True):
    scenario: str
    hosts: int
    setback: Setback
    seed: int | None = None

    def run(self) -> Verdict:
        return simulate(self.scenario, hosts=self.hosts, setback=self.setback, seed=self.seed)


def fair(scenario: str, step: int = 1) -> Iterator[Case]:
    """Every ``step``-th schedule; `unstuck sim exhaustive` runs all of them."""
    one, two = simulate(scenario).commits, simulate(scenario, hosts=2).commits
    for number, (hosts, plan) in enumerate(setbacks(one, two)):
        if number % step == 0:
            yield Case(scenario, hosts, plan)


def in_any_order(scenario: str) -> Iterator[Case]:
    """Two hosts of which one is silent after the copy was put back; other orders of the same by seed."""
    for seed in range(12):
        commits = simulate(scenario, seed=seed, hosts=2).commits
        for copy in range(1, commits, 3):
            yield Case(scenario, 2, Setback(copy, commits, silent=40.0), seed)


def with_the_record(scenario: str) -> Iterator[Case]:
    """Copy and record are put back at every commit, and no user waits for hosts; by seed, too."""
    for silent in (0.0, 40.0):
        for hosts in (1, 2):
            commits = simulate(scenario, hosts=hosts).commits
            for copy in range(commits):
                for hasty in (False, True):
                    plan = Setback(copy, commits, record=False, silent=silent, hasty=hasty)
                    yield Case(scenario, hosts, plan)
    for seed in range(6):
        commits = simulate(scenario, seed=seed, hosts=2).commits
        for copy in range(1, commits, 3):
            yield Case(scenario, 2, Setback(copy, commits, record=False, hasty=copy % 2 == 0), seed)


@pytest.mark.parametrize("scenario", ["create", "one_after_another", "delete_while_building"])
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


# Planted faults: nothing here checks the change itself, the simulator has to notice it.


def the_generation_is_not_compared(patch: Monkey) -> None:
    patch.setattr(generation, "relation", lambda _store, _heard: Relation.FITS)
    patch.setattr(agents, "relation", lambda _store, _heard: Relation.FITS)
    patch.setattr(holdings, "_evidence", lambda *_: None)


def addresses_in_use_are_not_held_back(patch: Monkey) -> None:
    """As on a database that was put back while it ran: the session is no other one, only the record tells."""
    nobody_waits_for_what_hosts_say(patch)
    patch.setattr(networks, "may_allot", lambda _tx: None)


def what_a_silent_host_may_hold_is_placed_again(patch: Monkey) -> None:
    patch.setattr(servers, "may_place", lambda _tx, _created: True)


def nobody_waits_for_what_hosts_say(patch: Monkey) -> None:
    patch.setattr(generation, "awaited", lambda _tx: None)
    patch.setattr(servers, "has_told", lambda _tx, _host: True)


def a_newcomer_keeps_an_address_in_use(patch: Monkey) -> None:
    patch.setattr(adoption, "give_way", lambda *_: False)


def what_nobody_was_seen_to_have_is_gone_at_once_when_deleted(patch: Monkey) -> None:
    place = servers.place

    def placed(tx: Any, *args: str) -> bool:
        with patch.context() as inner:
            inner.setattr(servers, "may_place", generation.may_place)
            return place(tx, *args)

    patch.setattr(servers, "may_place", lambda _tx, _created: True)
    patch.setattr(servers, "place", placed)


def a_lost_start_is_not_adopted(patch: Monkey) -> None:
    patch.setattr(holdings, "_adopt_edge", lambda *_: None)


def the_addresses_of_adopted_servers_are_free(patch: Monkey) -> None:
    patch.setattr(adoption, "_take_address", lambda *_: None)


def what_the_store_had_lost_is_deleted_when_accepted(patch: Monkey) -> None:
    settle = disputes._settle

    def harsh(tx: Any, row: Any, owner: str, caller: Any, *, given_up: bool) -> None:
        settle(tx, row, owner, caller, given_up=True)

    patch.setattr(disputes, "_settle", harsh)


def what_the_store_had_lost_is_not_adopted(patch: Monkey) -> None:
    patch.setattr(holdings, "adopt_unknown", lambda *_: None)


PLANTED: list[tuple[Callable[[Monkey], None], Callable[[str], Iterator[Case]], str]] = [
    (the_generation_is_not_compared, fair, "stop_and_start"),
    (addresses_in_use_are_not_held_back, in_any_order, "create"),
    (what_a_silent_host_may_hold_is_placed_again, in_any_order, "create"),
    (nobody_waits_for_what_hosts_say, with_the_record, "create"),
    (nobody_waits_for_what_hosts_say, with_the_record, "one_after_another"),
    (a_newcomer_keeps_an_address_in_use, with_the_record, "one_after_another"),
    (what_nobody_was_seen_to_have_is_gone_at_once_when_deleted, with_the_record, "create"),
    (a_lost_start_is_not_adopted, fair, "stop_and_start"),
    (the_addresses_of_adopted_servers_are_free, fair, "one_after_another"),
    (what_the_store_had_lost_is_deleted_when_accepted, fair, "one_after_another"),
    (what_the_store_had_lost_is_not_adopted, fair, "one_after_another"),
]


@pytest.mark.parametrize(
    ("plant", "cases", "scenario"),
    PLANTED,
    ids=[f"{plant.__name__}-{scenario}" for plant, _, scenario in PLANTED],
)
def test_a_planted_fault_is_caught(
    plant: Callable[[Monkey], None],
    cases: Callable[[str], Iterator[Case]],
    scenario: str,
    monkeypatch: Monkey,
    record_property: Any,
) -> None:
    found = list(cases(scenario))
    plant(monkeypatch)
    for case in found:
        violations = case.run().violations
        if violations:
            record_property("caught by", f"{case}: {violations[0]}")
            return
    pytest.fail(f"nothing notices {plant.__name__}")
