"""Blocking work beside the loop: bounded in time and number, and one lane does not wait for another."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from unstuck.runtime.lanes import LaneFull, Lanes, TookTooLong


def test_what_it_returns_and_what_it_raises_comes_back() -> None:
    async def play() -> None:
        lanes = Lanes()
        assert await lanes.run("a", 5.0, lambda: 7) == 7

        def fails() -> None:
            raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            await lanes.run("a", 5.0, fails)
        assert not lanes.full("a")

    asyncio.run(play())


def test_what_hangs_is_given_up_in_time_and_keeps_its_place_until_it_comes_back() -> None:
    async def play() -> None:
        lanes, released = Lanes(most=2), threading.Event()
        for _ in range(2):
            with pytest.raises(TookTooLong):
                await lanes.run("hangs", 0.05, released.wait)
        began = time.monotonic()
        with pytest.raises(LaneFull):
            await lanes.run("hangs", 60.0, released.wait)
        assert await lanes.run("other", 5.0, lambda: "done") == "done"
        assert time.monotonic() - began < 5.0
        released.set()
        async with asyncio.timeout(10.0):
            while lanes.full("hangs"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await lanes.run("hangs", 5.0, lambda: "back") == "back"

    asyncio.run(play())


def test_the_end_of_the_loop_does_not_wait_for_what_hangs() -> None:
    released = threading.Event()

    async def play() -> None:
        with pytest.raises(TookTooLong):
            await Lanes().run("a", 0.05, released.wait)

    began = time.monotonic()
    asyncio.run(play())
    assert time.monotonic() - began < 5.0
    released.set()
