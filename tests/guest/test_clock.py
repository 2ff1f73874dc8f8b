"""The guest's clock cannot matter: its agent measures durations only.

A container has no clock of its own to be wrong: the kernel has namespaces for monotone clocks, none for the
time of day. So an agent's process is given another time of day itself, and no module of the guest may ask
for it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import unstuck.guest
from tests.guest.guest import Guest, anna, folder
from tests.proof import proves
from unstuck.blobs.objects import FolderObjects
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
HOUR = 3600
TIME_OF_DAY = {
    "time": {"time", "time_ns", "gmtime", "localtime", "ctime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def asked_for(path: Path) -> list[str]:
    """Where a module asks for the time of day."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in TIME_OF_DAY.get(node.value.id, ()):
                found.append(f"{path.name}:{node.lineno}")
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {alias.name for alias in node.names}
            found += [f"{path.name}:{node.lineno}"] * bool(names & TIME_OF_DAY["time"])
    return found


def test_no_module_of_the_guest_asks_for_the_time_of_day() -> None:
    top = Path(unstuck.guest.__file__).parent
    modules = sorted(top.rglob("*.py"))
    assert len(modules) > 20
    assert [place for path in modules for place in asked_for(path)] == []


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, -1])
@proves("B9", ends="COMPLETED: only durations are used; a container has no clock of its own to be wrong")
def test_an_agent_whose_time_of_day_is_an_hour_off_makes_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "real, real_ns = time.time, time.time_ns\n"
        f"time.time = lambda: real() + {hours * HOUR}\n"
        f"time.time_ns = lambda: real_ns() + {hours * HOUR} * 10**9\n"
        f"open({str(tmp_path / 'shifted')!r}, 'a').close()\n"
    )
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(unstuck.guest.__file__).parents[2]}")
    with folder() as root:
        guest = Guest(root, FolderObjects(tmp_path / "objects"))
        (tmp_path / "objects").mkdir()
        guest.host.wants(guest.want(origin=SHOP))
        guest.start()
        try:
            guest.ready()
            assert (tmp_path / "shifted").exists()
            guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
            assert guest.back_up("shifted").size > 1 << 20
        finally:
            guest.end()
