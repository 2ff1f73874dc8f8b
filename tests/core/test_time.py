"""Waiting between tries: for ever, and never without end."""

from __future__ import annotations

import pytest

from unstuck.core.time import backoff


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (1025, 60.0), (10**9, 60.0)]
)
def test_a_wait_doubles_up_to_its_most_however_long_it_has_failed(failures: int, seconds: float) -> None:
    assert backoff(failures, 1.0, 60.0) == seconds
