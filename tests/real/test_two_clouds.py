"""Two clouds as root on one machine: neither sees, uses or removes anything of the other's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pytest

from unstuck.cli import ranges
from unstuck.cli.errors import CliError
from unstuck.cli.reality import look
from unstuck.core.server.data import Fence, Flavor, Nic, Power, Spec, Thing, Want
from unstuck.host.driver import DriverError
from unstuck.host.networks.bridge import Bridges, tap_name
from unstuck.runtime.state import State, prepare

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("namespace")]
DEFAULT = str(uuid.UUID(int=7))
"""The default network has the same id in every cloud."""


def want(number: int, subnet: int = 0) -> Want:
    server_id = str(uuid.uuid4())
    nic = Nic(
        str(uuid.uuid4()), DEFAULT, f"52:54:00:00:{subnet:02x}:{number:02x}", f"10.77.{subnet}.{number}", 24,
        f"10.77.{subnet}.1",
    )  # fmt: skip
    spec = Spec("web", "web", "p", "nova", Flavor(1, 64, 1), (), (nic,))
    return Want(server_id, Fence(1, 1), "n", 1, 1, Power.ON, 1, False, 0.0, False, False, spec)


def sh(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def links() -> dict[str, str]:
    found = json.loads(sh("ip", "-j", "link", "show"))
    return {link["ifname"]: link.get("ifalias", "") for link in found if link["ifname"].startswith("un")}


def test_each_cloud_has_bridges_of_its_own_and_sweeps_only_those() -> None:
    async def scene() -> None:
        one, two = Bridges("host-1"), Bridges("host-2")
        first, second = want(10), want(10, subnet=1)
        await one.make(first)
        await two.make(second)
        assert len([name for name in links() if name.startswith("unb")]) == 2
        assert await one.servers() == {first.server_id}
        assert await two.servers() == {second.server_id}
        assert {link.server_id for link in await two.found_links()} == {None, second.server_id}
        assert len(await two.found_links()) == 2
        gone = msgspec.structs.replace(first, gone=True)
        assert await two.look(gone) == (Thing.ABSENT, "")
        await two.remove(gone)
        assert (await one.look(first))[0] is Thing.PRESENT
        assert len(await two.sweep(frozenset())) == 1  # no guest runs: tap, bridge
        assert (await one.look(first))[0] is Thing.PRESENT
        assert "table bridge unstuck" in sh("nft", "list", "tables")  # the other cloud still needs it
        assert await one.sweep(frozenset({first.server_id})) == []  # its guest runs
        assert (await one.look(first))[0] is Thing.PRESENT
        assert len(await one.sweep(frozenset())) == 1
        assert links() == {}
        assert sh("nft", "list", "tables") == ""

    asyncio.run(scene())


def test_a_range_that_is_in_use_is_refused_with_its_user() -> None:
    async def scene() -> None:
        await Bridges("host-1").make(want(10))
        before = links()
        with pytest.raises(
            DriverError, match=r"the range 10\.77\.0\.0/24 is in use on this host by unb"
        ) as told:
            await Bridges("host-2").make(want(11))
        assert "unstuck up --network" in told.value.remedy
        assert links() == before

    asyncio.run(scene())


def test_links_of_format_1_are_adopted_by_the_cloud_whose_guests_use_them() -> None:
    """Frozen: the names and aliases that the first version made; guests run on them."""
    running, fresh, stranger = want(10), want(11), want(12)
    tap, nic = tap_name(running.server_id, 0), running.spec.nics[0]
    bridge = "unb" + DEFAULT.replace("-", "")[:12]
    sh("ip", "link", "add", "name", bridge, "type", "bridge")
    sh("ip", "link", "set", bridge, "alias", f"unstuck network={DEFAULT}", "up")
    sh("ip", "addr", "add", "10.77.0.1/24", "dev", bridge)
    sh("ip", "tuntap", "add", "dev", tap, "mode", "tap")
    alias = f"unstuck server={running.server_id} port={nic.port_id} mac={nic.mac} ip={nic.address}"
    sh("ip", "link", "set", tap, "alias", alias, "master", bridge, "up")

    async def scene() -> None:
        mine = Bridges("host-1", knows=lambda server_id: server_id == running.server_id)
        other = Bridges("host-2")
        assert await other.servers() == frozenset()
        assert await other.sweep(frozenset()) == []
        with pytest.raises(DriverError, match="is in use on this host"):
            await other.make(stranger)
        assert await mine.servers() == {running.server_id}
        await mine.make(fresh)  # a new server joins the bridge that is there: its guests are one network
        assert links()[bridge] == f"unstuck host=host-1 network={DEFAULT}"
        assert [name for name in links() if name.startswith("unb")] == [bridge]
        assert links()[tap] == alias  # not touched under a running guest
        assert (await mine.look(fresh))[0] is Thing.PRESENT
        gone = msgspec.structs.replace(running, gone=True)
        assert (await mine.look(gone))[0] is Thing.PRESENT
        await mine.remove(gone)
        assert (await mine.look(gone))[0] is Thing.ABSENT
        assert await mine.sweep(frozenset()) == [bridge]
        assert links() == {}

    asyncio.run(scene())


def test_a_new_cloud_takes_a_range_that_nobody_uses_or_will_use(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    def cloud(name: str, given: str | None = None) -> tuple[State, str]:
        state = State(tmp_path / name)
        return state, prepare(state.root, network=ranges.choose(state, given, notes)).read().network

    first, range_1 = cloud("one")
    assert range_1 == "10.77.0.0/24"
    ranges.keep(first, notes)  # again and again
    sh("ip", "link", "add", "name", "else0", "type", "bridge")
    sh("ip", "addr", "add", "10.77.1.9/25", "dev", "else0")
    second, range_2 = cloud("two")  # .0 is the first one's, though it has no bridge yet; .1 is a link's
    assert range_2 == "10.77.2.0/24"
    with pytest.raises(CliError, match=r"in use by the cloud in .*/one: choose a free range"):
        cloud("three", "10.77.0.128/25")
    with pytest.raises(CliError, match="in use by the network link else0"):
        cloud("three", "10.77.1.0/28")
    assert cloud("three", "192.168.7.0/24")[1] == "192.168.7.0/24"
    first.file.unlink()  # removed: its range is free again
    first.root.rename(tmp_path / "away")
    assert cloud("four")[1] == "10.77.0.0/24"
    with pytest.raises(CliError, match=r"are those of .*/four too"):
        ranges.keep(prepare(tmp_path / "old", network="10.77.0.0/24"), notes)
    ranges.keep(second, notes)


def test_down_takes_its_own_links_away_and_doctor_sees_no_others(tmp_path: Path) -> None:
    state = prepare(tmp_path / "state", port=1, driver="qemu")
    host_id = json.loads((state.host / "host.json").read_bytes())["host_id"]
    mine, theirs = want(10), want(10, subnet=1)

    async def scene() -> None:
        await Bridges(host_id).make(mine)
        await Bridges("host-2").make(theirs)

    asyncio.run(scene())
    assert [tap.server_id for tap in look(state).taps or ()] == [mine.server_id]
    other = {name: alias for name, alias in links().items() if "host=host-2" in alias}
    assert len(other) == 2
    sh(sys.executable, "-m", "unstuck.cli.main", "down", "--state", str(state.root))
    assert links() == other
    assert look(state).taps == ()
