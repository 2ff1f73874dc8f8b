"""A real driver driven to where it is wanted, as an agent does it, without a store."""

from __future__ import annotations

import asyncio
import time

import msgspec

from unstuck.core.server.data import Guest, Step, Want
from unstuck.core.server.host import Act, Do, Rest, plan_host
from unstuck.host.driver import Driver


async def settle(driver: Driver, want: Want) -> Step:
    """What an agent does, without the store."""
    for _ in range(80):
        decision = plan_host(want, await driver.look(want))
        if isinstance(decision, Rest):
            return decision.step
        if isinstance(decision, Act) and decision.do is Do.RECORD_DISK:
            want = msgspec.structs.replace(want, disk_recorded=True)
        elif isinstance(decision, Act):
            await getattr(driver, decision.do.value)(want)
            await asyncio.sleep(min(decision.then, 0.1))
        else:
            await asyncio.sleep(0.05)
    raise AssertionError(f"it does not settle: {decision}")


async def until(driver: Driver, want: Want, wanted: type[Guest], seconds: float = 30.0) -> Guest:
    """Until the driver sees the guest so."""
    end = time.monotonic() + seconds
    while True:
        guest = (await driver.look(want)).guest
        if isinstance(guest, wanted):
            return guest
        assert time.monotonic() < end, guest
        await asyncio.sleep(0.03)
