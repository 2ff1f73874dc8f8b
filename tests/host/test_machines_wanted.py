"""What an operator wants databases to run in on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.host import main


@pytest.mark.parametrize(("said", "refuses"), [("off", True), ("no", True), ("", False), ("on", False)])
def test_an_operator_may_refuse_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, refuses: bool
) -> None:
    monkeypatch.setenv(main.CONTAINERS, said)
    why = main.not_wanted()
    assert bool(why) is refuses
    found = main.facts(tmp_path, "machine", "qemu", "tcg", "1", no_containers=why)
    assert found.machines == (("vm",) if refuses else ("vm", "container"))
    assert ("UNSTUCK_CONTAINERS" in found.no_containers) is refuses
