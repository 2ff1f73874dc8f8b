"""What the demonstration says when a claim does not hold, without a cloud; with one it is `make demo`."""

from __future__ import annotations

import pytest

from unstuck.cli import demo
from unstuck.cli.demo_world import Failed, wait_for


def test_a_claim_that_does_not_hold_ends_it_with_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    tell = demo.Teller()
    tell.check("the sky is blue", True)
    with pytest.raises(Failed, match=r"nothing is left \(found: \['a tap'\]\)"):
        tell.check("nothing is left", False, ["a tap"])
    assert tell.checks == 1
    assert "ok: the sky is blue" in capsys.readouterr().out


def test_waiting_has_an_end_and_names_what_did_not_come() -> None:
    assert wait_for("it comes", 0.0, lambda: 7) == 7
    with pytest.raises(Failed, match="it comes: not within 0 s"):
        wait_for("it comes", 0.0, lambda: None)
