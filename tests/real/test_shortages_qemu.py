"""QEMU that has no memory, ends at once or is killed again and again: tried within a budget, then told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec
import pytest

from tests.real.driving import settle
from tests.real.test_qemu_driver import Stage, images, staged
from unstuck.core.server.data import BootImage, Flavor, Gone, Running, Thing, Want
from unstuck.core.server.host import START_BUDGET, Act, Do, Hold, plan_host
from unstuck.host.driver import DriverError
from unstuck.host.drivers.qemu import QemuDriver

__all__ = ["images"]

pytestmark = [pytest.mark.xdist_group("qemu"), pytest.mark.timeout(180)]


async def starts_until_told(driver: QemuDriver, want: Want, stage: Stage, *, kill: bool) -> tuple[Hold, int]:
    """Do what the planner says until it will not try again; how it puts that, and the starts until then."""
    starts = 0
    while True:
        view = await driver.look(want)
        decision = plan_host(want, view)
        match decision:
            case Act(Do.START):
                starts += 1
                assert starts <= START_BUDGET, "it is tried for ever"
                with contextlib.suppress(DriverError):  # its words are what the next look reports
                    await driver.start(want)
            case Hold(_, _, trouble) if trouble is not None and trouble.final:
                return decision, starts
            case _ if kill and isinstance(view.guest, Running):
                os.kill(stage.pid(want), signal.SIGKILL)  # an outsider, or the kernel out of memory
                await asyncio.sleep(0.05)
            case _:
                await asyncio.sleep(0.05)


def test_a_guest_that_gets_no_memory_is_tried_within_the_budget_and_then_says_so(
    tmp_path: Path, images: tuple[BootImage, ...]
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, images) as stage:
            driver, small = stage.driver(), stage.want()
            # Everything but the start by the book; then it is to have more memory than the machine.
            await driver.fetch(small)
            await driver.make_disk(small)
            flavor = Flavor(1, 64 << 20, 1)
            want = msgspec.structs.replace(
                small, disk_recorded=True, spec=msgspec.structs.replace(small.spec, flavor=flavor)
            )
            told, starts = await starts_until_told(driver, want, stage, kill=False)
            assert starts == START_BUDGET
            assert told.trouble is not None
            assert told.trouble.code == "guest-keeps-failing"
            assert "Cannot allocate memory" in told.trouble.reason
            assert told.trouble.remedy
            view = await driver.look(want)
            assert isinstance(view.guest, Gone)
            assert view.disk is Thing.PRESENT, "nothing is lost by it"
            # A start that its user asks for is another edge, with a budget of its own.
            again = msgspec.structs.replace(want, edge=want.edge + 1, spec=small.spec)
            await driver.start(again)
            assert (await driver.look(again)).guest == Running(again.edge)

    asyncio.run(scene())


def test_a_guest_that_an_outsider_kills_is_started_again_within_the_budget_and_then_left(
    tmp_path: Path, images: tuple[BootImage, ...]
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, images) as stage:
            driver, want = stage.driver(), stage.want()
            await settle(driver, want)
            recorded = msgspec.structs.replace(want, disk_recorded=True)
            told, starts = await starts_until_told(driver, recorded, stage, kill=True)
            assert starts == START_BUDGET - 1, "the first start was that of the build"
            assert told.trouble is not None
            assert f"started {START_BUDGET} times in ten minutes" in told.trouble.reason
            assert "reboot it hard" in told.trouble.remedy

    asyncio.run(scene())
