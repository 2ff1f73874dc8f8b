"""The simulator bites: every planted fault is caught, and by the invariant that is named for it.

Nothing here checks the change itself; the simulator has to notice it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.sim.planted import PLANTED, Planted
from tests.sim.planted_databases import a_store_that_loses_pieces
from unstuck.sim.campaign import run_case
from unstuck.sim.cases import Case
from unstuck.sim.runner import simulate


def first_violation(cases: Iterable[Case], by: str) -> tuple[str, str] | None:
    """The first case that the invariant objects to, and its words. Others may object to other cases."""
    for case in cases:
        tried = run_case(case)
        for violation in tried.violations:
            if by in violation:
                return tried.name, violation
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_planted_fault_is_caught_by_name(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    cases = list(planted.cases(planted.where))
    planted.plant(monkeypatch)
    found = first_violation(cases, planted.by)
    assert found is not None, f"nothing notices {planted.name} as {planted.by!r}"
    record_property("caught", f"{planted.name}: {found[1]} [{found[0]}]")


def test_there_are_enough_of_them_and_none_is_planted_twice() -> None:
    assert len({planted.name for planted in PLANTED}) == len(PLANTED) >= 25


def test_a_store_that_loses_what_it_was_given_makes_no_backup_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The product notices by itself: no invariant has to."""
    a_store_that_loses_pieces(monkeypatch)
    assert simulate("backup").violations == ("backup b is FAILED (pieces are missing or of another length: "
                                             "00000001.zst.age), expected COMPLETED",)  # fmt: skip
