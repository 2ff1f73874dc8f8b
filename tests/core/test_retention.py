"""Retention: what each rule keeps, and what no policy and no clock can make it do."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstuck.core.backup.retention import DAY, DEFAULT, Item, Policy, decide

NOW = datetime.datetime(2026, 6, 15, 12, tzinfo=datetime.UTC).timestamp()
HOUR = 3600.0


def item(name: str, age: float, **more: Any) -> Item:
    """``age`` in days; it took an hour."""
    created = NOW - age * DAY
    return Item(**{"id": name, "created": created, "done": created + HOUR, "sound": True, **more})


def kept(items: list[Item], policy: Policy, now: float = NOW, **more: Any) -> set[str]:
    return {found.id for found in decide(items, policy, now, **more) if found.keep}


DAILY = [item(f"d{age}", age + 0.25) for age in range(40)]


def test_the_default_keeps_seven_days_and_what_they_begin_with() -> None:
    assert kept(DAILY, DEFAULT) == {f"d{age}" for age in range(8)}
    said = {found.id: found.why for found in decide(DAILY, DEFAULT, NOW)}
    assert said["d7"] == "the recovery window begins with it"
    assert said["d8"] == "no rule keeps it any more"


def test_a_window_begins_with_a_backup_that_had_ended_when_it_begins() -> None:
    slow = item("slow", 7.01, done=NOW - 6 * DAY)
    assert kept([item("new", 1), slow, item("before", 8), item("older", 9)], DEFAULT) == {"new", "before"}


def test_a_count_keeps_the_newest() -> None:
    assert kept(DAILY, Policy(count=3)) == {"d0", "d1", "d2"}


def test_days_weeks_and_months_keep_the_last_one_of_each() -> None:
    twice_a_day = [item(f"{age}-{part}", age + part / 4) for age in range(100) for part in (1, 2)]
    assert kept(twice_a_day, Policy(daily=3)) == {"0-1", "1-1", "2-1"}
    weeks = kept(twice_a_day, Policy(weekly=2))
    assert weeks == {"0-1", "1-1"}  # a Monday, and the Sunday before
    assert len(kept(twice_a_day, Policy(monthly=12))) == 4


def test_periods_are_those_of_the_time_zone() -> None:
    late = item("late", 0, created=datetime.datetime(2026, 6, 14, 23, tzinfo=datetime.UTC).timestamp())
    early = item("early", 0, created=late.created - 2 * HOUR)
    assert kept([late, early], Policy(daily=2)) == {"late"}
    assert kept([late, early], Policy(daily=2, timezone="Europe/Berlin")) == {"late", "early"}


def test_without_a_rule_all_stay() -> None:
    assert kept(DAILY, Policy()) == {found.id for found in DAILY}


def test_the_last_ones_stay_however_old() -> None:
    assert kept([item("one", 400), item("two", 500), item("three", 600)], Policy(days=1, minimum=2)) == {
        "one", "two"
    }  # fmt: skip


def test_what_is_damaged_does_not_count_and_goes_by_its_age() -> None:
    items = [item("bad", 1, sound=False), item("good", 30), item("old bad", 31, sound=False)]
    assert kept(items, Policy(count=1)) == {"bad", "good"}


def test_what_somebody_asked_for_or_pinned_stays() -> None:
    items = [
        item("new", 0),
        item("asked", 90, automatic=False),
        item("pinned", 91, pinned=True),
        item("old", 92),
    ]
    assert kept(items, Policy(count=1)) == {"new", "asked", "pinned"}
    assert kept(items, Policy(count=1, manual=True)) == {"new", "pinned"}


def test_parents_stay_for_their_children_also_for_those_that_run() -> None:
    items = [
        item("running", 0, done=None, sound=False, parent="two"), item("full", 1),
        item("two", 50, parent="one"), item("one", 51, parent="base"), item("base", 52), item("other", 53),
    ]  # fmt: skip
    assert kept(items, Policy(count=1)) == {"running", "full", "two", "one", "base"}


def test_after_the_instance_has_gone_only_the_window_counts() -> None:
    items = [item("new", 6), item("old", 8), item("asked", 900, automatic=False)]
    assert kept(items, Policy(days=7, minimum=5), gone=True) == {"new", "asked"}
    assert kept(items, Policy(count=5), gone=True) == {"new", "asked"}


@pytest.mark.parametrize("policy", [DEFAULT, Policy(count=2), Policy(daily=2), Policy(weekly=1, minimum=3)])
def test_a_clock_that_went_back_lets_nothing_go_that_is_newer(policy: Policy) -> None:
    assert kept(DAILY, policy, NOW - 20 * DAY) >= {f"d{age}" for age in range(20)}


@st.composite
def worlds(draw: st.DrawFn) -> list[Item]:
    """Chains among them; parents are older."""
    items: list[Item] = []
    for number in range(draw(st.integers(0, 14))):
        parent = draw(st.sampled_from([None, *(found.id for found in items)])) if items else None
        created = NOW - draw(st.floats(-5, 60)) * DAY
        if parent is not None:
            created = max(created, max(found.created for found in items if found.id == parent) + 1)
        ended = draw(st.integers(0, 9)) > 0
        items.append(
            Item(
                id=f"b{number}", created=created, done=created + HOUR if ended else None,
                sound=ended and draw(st.integers(0, 4)) > 0, automatic=draw(st.integers(0, 3)) > 0,
                pinned=draw(st.integers(0, 9)) == 0, parent=parent,
                held="it is read" if draw(st.integers(0, 9)) == 0 else "",
            )
        )  # fmt: skip
    return items


POLICIES = st.builds(
    Policy, days=st.none() | st.floats(0.1, 50), count=st.none() | st.integers(1, 6), daily=st.integers(0, 3),
    weekly=st.integers(0, 3), monthly=st.integers(0, 3), minimum=st.integers(1, 4), manual=st.booleans(),
    timezone=st.sampled_from(["UTC", "Asia/Kolkata"]),
)  # fmt: skip


@settings(deadline=None)
@given(worlds(), POLICIES, st.floats(-100, 400), st.booleans())
def test_whatever_the_policy_and_the_clock(
    items: list[Item], policy: Policy, ahead: float, gone: bool
) -> None:
    now = NOW + ahead * DAY
    decisions = decide(items, policy, now, gone=gone)
    assert {found.id for found in decisions} == {found.id for found in items}
    assert all(found.why for found in decisions)
    stays = {found.id for found in decisions if found.keep}
    by_id = {found.id: found for found in items}
    for name in stays:  # no chain is broken
        assert by_id[name].parent is None or by_id[name].parent in stays
    for found in items:
        untouchable = found.pinned or found.held or found.done is None or found.created > now
        if untouchable or not (found.automatic or policy.manual):
            assert found.id in stays
    subjects = [found for found in items if found.sound and (found.automatic or policy.manual)]
    if not gone:  # never below the minimum
        assert sum(found.id in stays for found in subjects) >= min(policy.minimum, len(subjects))
    if policy.days is not None:  # nothing within the window goes
        assert stays >= {found.id for found in subjects if found.created > now - policy.days * DAY}
    again = decide([by_id[name] for name in stays], policy, now, gone=gone)
    assert {found.id for found in again if found.keep} == stays


def test_policies_are_read_and_written_as_json() -> None:
    policy = Policy(days=3.5, weekly=4, timezone="Europe/Berlin")
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
