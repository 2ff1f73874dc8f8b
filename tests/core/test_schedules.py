"""Schedules: when ticks are, also where local time jumps, and what becomes of those that nobody saw."""

from __future__ import annotations

import datetime
import itertools
import zoneinfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unstuck.core.backup.cron import BadCron, check, last_tick, next_tick, ticks
from unstuck.core.backup.schedule import (
    COUNTED,
    GRACE,
    Missed,
    PassOver,
    Replan,
    Run,
    Schedule,
    Wait,
    due,
    first_tick,
)
from unstuck.core.time import Now

BERLIN = "Europe/Berlin"
DAY = 86400.0


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    local = datetime.datetime.fromisoformat(text)
    return local.replace(tzinfo=zoneinfo.ZoneInfo(zone), fold=fold).timestamp()


def first(cron: str, zone: str, after: float, count: int = 1) -> list[float]:
    return list(itertools.islice(ticks(cron, zone, after), count))


# --- when ticks are


def test_a_local_time_that_does_not_exist_ticks_when_the_clock_is_put_forward() -> None:
    gap = at("2026-03-29T03:00", BERLIN)
    found = first("30 2 * * *", BERLIN, at("2026-03-28T12:00", BERLIN), 2)
    assert found == [gap, at("2026-03-30T02:30", BERLIN)]


def test_several_ticks_in_the_gap_are_one() -> None:
    gap = at("2026-03-29T03:00", BERLIN)
    found = first("*/20 * * * *", BERLIN, gap - 1500, 4)
    assert found == [gap - 1200, gap, gap + 1200, gap + 2400]


def test_a_local_time_that_comes_twice_ticks_the_first_time_only() -> None:
    found = first("30 2 * * *", BERLIN, at("2026-10-24T12:00", BERLIN), 2)
    assert found == [at("2026-10-25T02:30", BERLIN, fold=0), at("2026-10-26T02:30", BERLIN)]
    again = at("2026-10-25T02:10", BERLIN, fold=1)
    assert next_tick("30 2 * * *", BERLIN, again) == at("2026-10-26T02:30", BERLIN)


def test_what_ticks_every_quarter_is_silent_in_the_second_of_two_equal_hours() -> None:
    found = first("*/15 * * * *", BERLIN, at("2026-10-25T02:40", BERLIN, fold=0), 2)
    assert found == [at("2026-10-25T02:45", BERLIN, fold=0), at("2026-10-25T03:00", BERLIN)]


ZONES = [BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC", "America/Santiago"]
CRONS = ["30 2 * * *", "*/20 * * * *", "0 0 * * *", "15 1-3 * * 6,0", "0 12 1 * *", "59 23 L * *"]
INSTANTS = st.floats(at("2026-01-01"), at("2027-12-31"), allow_nan=False)


@settings(deadline=None)
@given(st.sampled_from(CRONS), st.sampled_from(ZONES), INSTANTS)
def test_ticks_rise_and_the_last_one_is_the_one_before_the_next(cron: str, zone: str, now: float) -> None:
    one, two, three = first(cron, zone, now, 3)
    assert now < one < two < three
    assert last_tick(cron, zone, one) == one
    assert last_tick(cron, zone, two - 0.5) == one
    before = last_tick(cron, zone, now)
    assert before is not None
    assert before <= now
    assert next_tick(cron, zone, before) == one


@settings(deadline=None)
@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), INSTANTS)
def test_a_daily_tick_comes_once_on_each_local_day(zone: str, hour: int, minute: int, now: float) -> None:
    found = first(f"{minute} {hour} * * *", zone, now, 8)
    days = [datetime.datetime.fromtimestamp(tick, zoneinfo.ZoneInfo(zone)).date() for tick in found]
    assert [day - days[0] for day in days] == [datetime.timedelta(n) for n in range(8)]


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        ("0 2 * *", "UTC", "cron"), ("0 0 2 * * *", "UTC", "cron"), ("61 * * * *", "UTC", "cron"),
        ("", "UTC", "cron"), ("@daily", "UTC", "cron"), ("0 0 30 2 *", "UTC", "cron"),
        ("* " * 200, "UTC", "cron"), ("0 2 * * x", "UTC", "cron"), ("0 2 * * *", "Mars/Base", "timezone"),
        ("0 2 * * *", "../../etc/passwd", "timezone"), ("0 2 * * *", "", "timezone"),
        ("*/0 * * * *", "UTC", "cron"), ("0 2 * * *", "\x00", "timezone"),
        ("1-,2 * * * *", "UTC", "cron"), ("٣ * * * *", "UTC", "cron"), ("0 0 31 6 1#5,L", "UTC", "cron"),
    ],
)  # fmt: skip
def test_what_says_nothing_is_refused_with_its_field(cron: str, zone: str, field: str) -> None:
    with pytest.raises(BadCron) as refused:
        check(cron, zone, 0.0)
    assert refused.value.field == field


@settings(deadline=None)
@given(st.text(alphabet="0123456789*/,-L#W MONJAN", max_size=40))
def test_any_other_text_ticks_or_is_refused(text: str) -> None:
    try:
        check(text, "UTC", at("2026-01-01"))
    except BadCron:
        return
    assert next_tick(text, "UTC", at("2026-01-01")) is not None


# --- what is due

NOON = at("2026-06-01T12:00")
HOURLY = Schedule(cron="0 * * * *", timezone="UTC", missed=Missed.ONCE, planned=NOON)


def now(wall: float, lease: float = 0.0) -> Now:
    return Now(wall=wall, lease=lease)


def test_nothing_is_due_before_the_planned_tick() -> None:
    assert due(HOURLY, now(NOON - 1)) == Wait()


def test_a_tick_is_run_at_its_time() -> None:
    assert due(HOURLY, now(NOON + 1)) == Run(NOON, missed=0, late=1.0)


def test_of_the_missed_ticks_the_last_one_is_run_and_the_others_are_counted() -> None:
    assert due(HOURLY, now(NOON + 3 * 3600 + 1800)) == Run(NOON + 3 * 3600, missed=3, late=1800.0)


def test_a_schedule_may_pass_over_what_it_missed_but_not_what_is_being_looked_at() -> None:
    schedule = msgspec.structs.replace(HOURLY, missed=Missed.SKIP)
    assert due(schedule, now(NOON + GRACE)) == Run(NOON, missed=0, late=GRACE)
    passed = due(schedule, now(NOON + 3600 + 1800))
    assert isinstance(passed, PassOver)
    assert (passed.planned, passed.missed) == (NOON + 3600, 1)


def test_a_jump_forward_by_ten_years_is_one_run() -> None:
    schedule = msgspec.structs.replace(HOURLY, cron="* * * * *")
    run = due(schedule, now(NOON + 10 * 365 * DAY + 5))
    assert run == Run(NOON + 10 * 365 * DAY, missed=COUNTED, late=5.0)


def test_after_a_jump_back_the_next_tick_is_the_next_by_the_clock() -> None:
    assert due(HOURLY, now(NOON - 30 * DAY - 1)) == Replan(NOON - 30 * DAY)


def test_a_schedule_starts_by_the_time_that_does_not_jump() -> None:
    schedule = msgspec.structs.replace(HOURLY, planned=NOON + 24 * 3600, starts=DAY - 100)
    assert due(schedule, now(NOON, lease=0.0)) == Wait()
    assert first_tick(schedule, now(NOON, lease=DAY)) == NOON + 3600


@settings(deadline=None)
@given(
    st.sampled_from(CRONS), st.sampled_from(ZONES), st.sampled_from(Missed),
    st.lists(st.floats(-40 * DAY, 40 * DAY), max_size=12),
)  # fmt: skip
def test_whatever_the_clock_does_no_two_runs_have_one_name_unless_it_went_back(
    cron: str, zone: str, missed: Missed, jumps: list[float]
) -> None:
    wall = NOON
    planned = next_tick(cron, zone, wall)
    assert planned is not None
    schedule = Schedule(cron=cron, timezone=zone, missed=missed, planned=planned)
    highest, ran = wall, set[float]()
    for jump in jumps:
        wall = max(wall + jump, DAY)
        found = due(schedule, now(wall))
        if isinstance(found, Run):
            assert found.planned <= wall
            assert found.planned not in ran or found.planned < highest
            ran.add(found.planned)
        highest = max(highest, wall)
        following = first_tick(schedule, now(wall))
        assert following is not None
        assert following > wall
        assert not isinstance(found, Replan) or found.planned == following
        if not isinstance(found, Wait):
            schedule = msgspec.structs.replace(schedule, planned=following)
        assert schedule.planned - wall <= max(following - wall, 0.0)
