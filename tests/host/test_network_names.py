"""Names and packet filter of a host's networks."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from driver_wants import NIC, SERVER, make_spec, make_want

from unstuck.core.server.data import BootImage, Thing, View
from unstuck.host.driver import DriverError
from unstuck.host.drivers.folder import write_identity
from unstuck.host.drivers.qemu import QemuDriver
from unstuck.host.networks import rules
from unstuck.host.networks.bridge import Bridges, bridge_name, tap_name, tap_names, unfit
from unstuck.host.networks.netlink import parse_link, read_link


def test_names_fit_a_link_and_follow_from_the_ids() -> None:
    assert bridge_name("host", NIC.network_id) == bridge_name("host", NIC.network_id)
    assert len(bridge_name("host", NIC.network_id)) == 15
    assert tap_name(SERVER, 0) == "unt111111112200"
    assert len(tap_name(SERVER, 255)) == 15
    # The default network has the same id in every cloud.
    assert bridge_name("host", NIC.network_id) != bridge_name("another host", NIC.network_id)
    assert tap_names(make_want(spec=make_spec(nics=(NIC, NIC)))) == ("unt111111112200", "unt111111112201")
    with pytest.raises(DriverError):
        tap_name(SERVER, 256)


def test_our_prefixes_are_not_those_of_real_network_cards() -> None:
    for card in ("usb0", "eth0", "enp1s0", "wlan0", "tun0", "tap0", "br0", "veth1"):
        assert not card.startswith((rules.BRIDGE, rules.TAP))


@pytest.mark.parametrize(
    ("mac", "address"), [("52:54:00:aa:bb", "10.0.0.1"), ("52:54:00:aa:bb:cc", "10.0.0.1 }")]
)
def test_nothing_but_addresses_becomes_part_of_the_filter(mac: str, address: str) -> None:
    with pytest.raises(DriverError):
        rules.source("unt0", mac, address)


def test_the_script_can_be_applied_again_and_leaves_other_guests_alone() -> None:
    script = rules.ensure_script(["unb1"], [rules.source("unt1", NIC.mac, NIC.address)])
    assert "flush set" not in script
    assert "flush ruleset" not in script
    assert f'add element bridge unstuck sources {{ "unt1" . {NIC.mac} . 10.7.0.5 }}' in script


def test_the_kernel_is_asked_for_one_link_and_says_which_there_is_none_of() -> None:
    loopback = read_link("lo")
    assert loopback is not None
    assert (loopback.ifname, loopback.master, loopback.ifalias) == ("lo", None, "")
    assert loopback.mtu > 0
    assert read_link("unstuck-nothing") is None


def test_an_answer_that_is_neither_a_link_nor_no_link_is_unknown() -> None:
    refused = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.EPERM)
    with pytest.raises(PermissionError):
        parse_link(refused)
    with pytest.raises(OSError, match="type 3"):
        parse_link(struct.pack("=IHHII", 16, 3, 0, 1, 0))


def test_entries_are_read_back() -> None:
    text = b"""{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "bridge", "handle": 3,
      "name": "sources", "elem": [{"concat": ["unt1", "52:54:00:11:11:11", "10.0.0.1"]}]}}]}"""
    assert rules.parse_sources(text) == [rules.Source("unt1", "52:54:00:11:11:11", "10.0.0.1")]


def test_without_root_ports_are_unknown_and_a_server_without_ports_runs() -> None:
    bridges = Bridges("host", root=False)
    assert asyncio.run(bridges.look(make_want())) == (Thing.PRESENT, "")
    with_port = make_want(spec=make_spec(nics=(NIC,)))
    assert asyncio.run(bridges.look(with_port)) == (Thing.UNKNOWN, "networks need root")
    with pytest.raises(DriverError, match="need root"):
        asyncio.run(bridges.make(with_port))
    assert "networks need root: start Unstuck as root" in unfit(root=False)


def test_a_driver_without_root_tells_reason_and_remedy_of_a_port(tmp_path: Path) -> None:
    """The reason was seen and thrown away."""

    async def look() -> View:
        write_identity(tmp_path, "host")
        driver = QemuDriver(tmp_path, "host", "tcg", NoImages(), networks=Bridges("host", root=False))
        try:
            return await driver.look(make_want(spec=make_spec(nics=(NIC,))))
        finally:
            await driver.close()

    view = asyncio.run(look())
    assert view.nics is Thing.UNKNOWN
    assert view.reason == "networks need root"
    assert view.remedy.startswith("start Unstuck as root on the host")


class NoImages:
    async def open(self, image: BootImage) -> AsyncIterator[bytes]:
        raise AssertionError(f"nobody fetches {image.id}")
        yield b""
