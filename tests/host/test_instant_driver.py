"""The instant driver keeps a driver's promises: driven by the real planner from nothing to gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from driver_wants import NIC, SERVER, make_spec, make_want

from unstuck.core.server.data import Gone, Off, Power, Running, Step, Thing, Unclear, Want
from unstuck.core.server.host import Act, Do, Rest, plan_host
from unstuck.host.driver import Driver, DriverError
from unstuck.host.drivers.folder import write_identity
from unstuck.host.drivers.instant import InstantDriver


async def settle(driver: Driver, want: Want) -> Step:
    for _ in range(30):
        decision = plan_host(want, await driver.look(want))
        if isinstance(decision, Rest):
            return decision.step
        assert isinstance(decision, Act), decision
        if decision.do is Do.RECORD_DISK:
            want = msgspec.structs.replace(want, disk_recorded=True)
        else:
            await getattr(driver, decision.do.value)(want)
    raise AssertionError("it does not settle")


@pytest.mark.parametrize("nics", [(), (NIC,)])
def test_a_server_lives_and_goes_over_any_number_of_agents(tmp_path: Path, nics: tuple[object, ...]) -> None:
    async def scene() -> None:
        write_identity(tmp_path, "h")
        want = make_want(spec=make_spec(nics=nics))
        assert await settle(InstantDriver(tmp_path, "h"), want) is Step.AT_REST
        driver = InstantDriver(tmp_path, "h")  # another agent
        recorded = msgspec.structs.replace(want, disk_recorded=True)
        assert (await driver.look(recorded)).guest == Running(7)
        assert await driver.found() == {SERVER}
        assert "start 7" in await driver.console(SERVER, 5)
        await driver.power_down(recorded)
        assert (await driver.look(recorded)).guest == Off(7)
        off = msgspec.structs.replace(recorded, power=Power.OFF)
        assert await settle(driver, off) is Step.AT_REST
        assert (await driver.look(off)).guest == Gone()
        assert (await driver.look(off)).disk is Thing.PRESENT
        assert await settle(driver, msgspec.structs.replace(off, gone=True)) is Step.REMOVED
        assert await driver.found() == frozenset()

    asyncio.run(scene())


def test_a_folder_that_is_not_ours_is_unknown_and_stays_untouched(tmp_path: Path) -> None:
    async def scene() -> None:
        driver = InstantDriver(tmp_path, "h")
        view = await driver.look(make_want())
        assert isinstance(view.guest, Unclear)
        assert {view.disk, view.nics, view.folder} == {Thing.UNKNOWN}
        with pytest.raises(DriverError):
            await driver.make_disk(make_want())

    asyncio.run(scene())
    assert list(tmp_path.iterdir()) == []
