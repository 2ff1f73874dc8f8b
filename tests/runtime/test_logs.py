"""Logs where nothing can be written: the process goes on, ends when it should, and says what was lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck.runtime.logs import Lines

PROCESS = """
import asyncio, sys
from pathlib import Path
import structlog
from unstuck.runtime import logs
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort

logs.set_up("test")
log = structlog.get_logger()
port = AsyncPort(Barriers("", Path("/nowhere")))

async def says():
    log.warning("store unavailable", broken="\\udcff")
    print("went on", flush=True)
    raise ValueError("a bug")

async def stays():
    await asyncio.Event().wait()

async def main():
    async with asyncio.timeout(20):
        return await port.run({"says": says(), "stays": stays()})

raise SystemExit(asyncio.run(main()))
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_full_log_ends_no_task_and_hides_the_end_of_none(form: str) -> None:
    """The log call of the clock's loop raised, and so did the one that was to say that the loop had ended."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, stderr=full, timeout=60, check=False,
            env={**os.environ, "UNSTUCK_LOG": form},
        )  # fmt: skip
    assert done.stdout == b"went on\n"
    assert done.returncode == 70


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_was_lost_is_told_as_soon_as_there_is_room(form: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    where = os.open("/dev/full", os.O_WRONLY)
    lines = Lines(where, form)
    lines.info("a")
    lines.error("b")
    room = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(room, where)
    lines.info("c")
    lines.info("d")
    os.close(room)
    os.close(where)
    first, told, last = path.read_text().splitlines()
    assert (first, last) == ("c", "d")
    assert "2 lines of the log" in told
    assert "No space left" in told
    if form == "json":
        assert json.loads(told)["lost"] == 2


def test_half_a_line_spoils_no_other(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(64 * 1024)
    where = os.open(disk / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lines = Lines(where, "json")
    (disk / "fill").write_bytes(b"x" * (48 * 1024))
    lines.info("y" * (1 << 20))
    lines.info("z")
    (disk / "fill").unlink()
    lines.info("whole")
    os.close(where)
    half, whole, told = (disk / "log").read_text().splitlines()
    assert set(half) == {"y"}
    assert whole == "whole"
    assert json.loads(told)["lost"] == 2
