"""The tests' own tools: what keeps two tests with real guests from running at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(6))
def test_nothing(number, worker_id):
    print("ran in", worker_id)
"""


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    """With pytest 9.2 and pytest-xdist 3.8 they did not, and nothing said so."""
    (tmp_path / "test_it.py").write_text(TESTS)
    words = ["-n", "2", "--dist", "loadgroup", "-c", "/dev/null", "-p", "no:cacheprovider", "-rP"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "test_it.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    workers = {line for line in done.stdout.splitlines() if line.startswith("ran in")}
    assert len(workers) == 1, done.stdout
