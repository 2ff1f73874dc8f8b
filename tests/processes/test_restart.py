"""An ordinary restart of the control plane: hosts say anew what they hold, and users hardly see it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.processes.many import Many

SECONDS = 15.0
"""Three heartbeats; measured is about a tenth (docs/design/generation.md)."""


@pytest.mark.slow
def test_a_create_right_after_a_restart_is_taken_and_done_within_seconds(
    many: Many, record_property: Any
) -> None:
    control = many.control()
    many.agent()
    many.create("before")
    many.until_active("before")
    for turn in range(4):
        control.kill()
        control = many.control()
        began = time.monotonic()
        many.create(f"after-{turn}")  # a refusal would raise
        many.until_active("before", f"after-{turn}")
        took = time.monotonic() - began
        began = time.monotonic()
        many.create(f"later-{turn}")
        many.until_active(f"later-{turn}")
        record_property(f"turn {turn}", f"{took:.2f} s, later {time.monotonic() - began:.2f} s")
        assert took < SECONDS
