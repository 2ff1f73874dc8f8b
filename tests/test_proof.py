"""docs/faults.md says what the tests say, and every point is proved or has its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import proof


def test_the_page_of_faults_is_what_the_tests_say() -> None:
    path = Path(__file__).parents[1] / proof.PAGE
    assert path.read_text() == proof.page(), "python -m tests.proof"


def test_the_page_of_guarantees_lists_every_planted_fault() -> None:
    path = Path(__file__).parents[1] / proof.GUARANTEES
    assert path.read_text() == proof.planted(path.read_text()), "python -m tests.proof"


@pytest.mark.parametrize("point", [point for known in proof.KNOWN for point in known])
def test_every_point_has_a_test_or_a_reason_why_it_cannot_happen(point: str) -> None:
    proof.load()
    tests = [one for one in proof.PROOFS if one.point == point]
    assert bool(tests) != (point in proof.ELSEWHERE)


def test_a_claim_about_an_unknown_point_is_refused() -> None:
    with pytest.raises(ValueError, match="P99"):
        proof.proves("P99", ends="well")
