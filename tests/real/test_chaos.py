"""``unstuck chaos``, as anybody would run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unstuck.host import dbimage
from unstuck.host.dbkinds import KINDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.xdist_group("qemu"),
    pytest.mark.usefixtures("namespace", "built"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for networks and mounts"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
]


@pytest.fixture(scope="session")
def built(images: Callable[[str], Path]) -> list[str]:
    """The datastores whose images are here, of the code as it is now: MariaDB's after `make mariadb`."""
    images("postgresql")
    found = [name for name in KINDS if (dbimage.default_folder(name) / "manifest.json").exists()]
    return [name for name in found if images(name)]


def run(tmp_path: Path, minutes: float, seed: int, built: list[str]) -> dict[str, Any]:
    report = tmp_path / "chaos.html"
    words = ("chaos", "--minutes", str(minutes), "--seed", str(seed), "--report", str(report))
    done = subprocess.run(
        [sys.executable, "-m", "unstuck.cli.main", *words], capture_output=True, text=True, check=False,
        timeout=minutes * 60 + 2400, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout, done.stderr[-6000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"], f"{json.dumps(result, indent=1)}\n{done.stderr[-8000:]}"
    assert done.returncode == 0
    text = report.read_text()
    assert "Nothing was lost, nothing is stuck, nothing is left over." in text
    assert text.count("<tr>") > result["faults"]
    assert not result["not_driven"]
    driven = sorted(name.partition("-")[0] for name in result["acknowledged"])
    assert driven == sorted([*built, *built]), "two instances of each datastore"
    assert all(count > 0 for count in result["acknowledged"].values())
    restored = [claim for claim in result["held"] if claim.startswith("backups of ")]
    assert len(restored) == len(driven), "a backup of each was restored"
    return result


@pytest.mark.timeout(1800)
def test_a_minute_of_chaos(tmp_path: Path, built: list[str]) -> None:
    result = run(tmp_path, 1.0, 1, built)
    assert result["kills"] >= 5


@pytest.mark.timeout(3600)
def test_ten_minutes_of_chaos_with_a_hundred_kills(tmp_path: Path, built: list[str]) -> None:
    result = run(tmp_path, 10.0, 2, built)
    assert result["kills"] >= 100
    assert sum(result["backups"].values()) >= 1
