"""Waiting between tries: for ever, and never without end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstuck.core.time import backoff

FAILURES = st.integers(min_value=-(10**9), max_value=10**9)
SECONDS = st.floats(min_value=0.001, max_value=3600.0)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (1025, 60.0), (10**9, 60.0)]
)
def test_a_wait_doubles_up_to_its_most_however_long_it_has_failed(failures: int, seconds: float) -> None:
    assert backoff(failures, 1.0, 60.0) == seconds


@given(failures=FAILURES, first=SECONDS, most=SECONDS, key=st.text(st.characters(), max_size=40))
def test_a_wait_is_never_longer_than_its_most_nor_much_shorter_than_asked(
    failures: int, first: float, most: float, key: str
) -> None:
    plain = backoff(failures, first, most)
    assert min(first, most) <= plain <= most
    assert plain * 0.75 <= backoff(failures, first, most, key=key) <= plain
    assert backoff(failures + 1, first, most) >= plain


def test_those_who_failed_together_do_not_come_back_together() -> None:
    waits = sorted(backoff(9, 1.0, 60.0, key=f"server {number}") for number in range(100))
    assert all(45.0 <= wait <= 60.0 for wait in waits)
    assert sum(wait > 52.5 for wait in waits) in range(30, 71)
    one = [backoff(failures, 1.0, 60.0, key="one") for failures in range(10, 20)]
    assert len(set(one)) == 10
