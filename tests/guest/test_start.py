"""The agent is small: what it must not need, and that it starts without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NOT_NEEDED = ("obstore", "cryptography", "httpx", "httpx2", "sqlalchemy", "starlette", "argon2")
ROOT = Path(__file__).parents[2]


def imported(module: str) -> set[str]:
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    return set(done.stdout.split())


def test_an_agent_loads_nothing_that_only_the_cloud_needs() -> None:
    assert not imported("unstuck.guest.main") & set(NOT_NEEDED)


def test_process_1_is_the_standard_library_alone() -> None:
    ours = imported("unstuck.guest.init") - imported("sys")
    assert ours - set(sys.stdlib_module_names) == {"unstuck"}
