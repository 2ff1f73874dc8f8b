"""The production port: barriers, pauses that lose no wake-up, and how a process ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import EXIT_BUG, AsyncPort, at_once


class Ended(Exception):
    """Ends a process on purpose."""


def make(tmp_path: Path, spec: str = "") -> tuple[AsyncPort, list[str]]:
    done: list[str] = []
    barriers = Barriers(spec, tmp_path, stop=lambda: done.append("stopped"))
    return AsyncPort(barriers, {Ended: 75}), done


async def effects(port: AsyncPort, done: list[str], *names: str) -> None:
    for name in names:

        async def work(word: str = name) -> None:
            done.append(word)

        await port.effect(name, work)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("b", ["a", "stopped", "b", "b", "b"]),
        ("b+", ["a", "b", "stopped", "b", "b"]),
        ("b#3", ["a", "b", "b", "stopped", "b"]),
        ("b+#2", ["a", "b", "b", "stopped", "b"]),
        ("c", ["a", "b", "b", "b"]),
        ("", ["a", "b", "b", "b"]),
    ],
)
def test_barriers(tmp_path: Path, spec: str, expected: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    port, done = make(tmp_path, spec)
    asyncio.run(effects(port, done, "a", "b", "b", "b"))
    assert done == expected
    marker = tmp_path / f"stopped-{os.getpid()}"
    point = spec.partition("#")[0]
    if "stopped" in expected:
        assert marker.read_text() == f"{point}\n"
        assert capfd.readouterr().err == f"stopped at {point}\n"
    else:
        assert not marker.exists()


def test_a_barrier_stops_the_process(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from unstuck.runtime.barriers import Barriers; import sys;"
        f"Barriers.from_environment(Path({str(tmp_path)!r})).check('x'); print('went on')"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "UNSTUCK_STOP_AT": "x"}, stdout=subprocess.PIPE
    )
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert (tmp_path / f"stopped-{child.pid}").read_text() == "x\n"
    child.send_signal(18)
    assert child.communicate()[0] == b"went on\n"


def test_an_effect_that_fails_has_no_behind(tmp_path: Path) -> None:
    port, done = make(tmp_path, "a+")

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(port.effect("a", fail))
    assert done == []


def test_a_wake_before_the_pause_counts(tmp_path: Path) -> None:
    port, _ = make(tmp_path)

    async def main() -> None:
        port.wake("k")
        async with asyncio.timeout(5):
            await port.pause(3600, "k")

    asyncio.run(main())


def test_a_wake_counts_once_and_only_for_its_key(tmp_path: Path) -> None:
    port, _ = make(tmp_path)

    async def main() -> None:
        port.wake("k")
        port.wake("k")
        await port.pause(3600, "k")
        waiting = [asyncio.ensure_future(port.pause(3600, key)) for key in ("k", "k", "other")]
        await asyncio.sleep(0)
        port.wake("k")
        await asyncio.wait_for(asyncio.gather(*waiting[:2]), 5)
        assert not waiting[2].done()
        waiting[2].cancel()

    asyncio.run(main())


def test_a_wake_while_the_woken_has_not_run_yet_is_kept(tmp_path: Path) -> None:
    port, _ = make(tmp_path)

    async def main() -> None:
        waiting = asyncio.ensure_future(port.pause(3600, "k"))
        await asyncio.sleep(0)
        port.wake("k")
        port.wake("k")
        await waiting
        await asyncio.wait_for(port.pause(3600, "k"), 5)

    asyncio.run(main())


def test_wakes_that_nobody_hears_take_no_room(tmp_path: Path) -> None:
    port, _ = make(tmp_path)
    for number in range(30_000):
        port.wake(str(number))
    assert len(port._woken) <= 10_000


@pytest.mark.parametrize(("error", "code"), [(Ended("replaced"), 75), (ValueError("bug"), EXIT_BUG)])
def test_a_task_that_ends_badly_ends_the_process(tmp_path: Path, error: Exception, code: int) -> None:
    port, _ = make(tmp_path)
    cleaned: list[str] = []

    async def fail() -> None:
        raise error

    async def helper() -> None:
        try:
            await port.pause(3600, "never")
        finally:
            cleaned.append("helper")

    async def spawner() -> None:
        await asyncio.sleep(0)
        port.spawn("fail", fail())

    assert asyncio.run(port.run({"helper": helper(), "spawner": spawner()})) == code
    assert cleaned == ["helper"]


def test_a_task_that_ends_well_ends_nothing(tmp_path: Path) -> None:
    port, _ = make(tmp_path)

    async def short() -> None:
        return

    async def later() -> None:
        await port.pause(0.01, "later")
        port.end(0)

    assert asyncio.run(port.run({"short": short(), "later": later()})) == 0


def test_works_at_once_all_end_before_one_of_them_is_heard_to_have_failed() -> None:
    ended: list[str] = []

    async def work(name: str, rounds: int, error: Exception | None = None) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)
        ended.append(name)
        if error is not None:
            raise error

    with pytest.raises(ValueError, match="first"):
        asyncio.run(at_once([work("a", 1, ValueError("first")), work("b", 5), work("c", 3)]))
    assert ended == ["a", "c", "b"]
