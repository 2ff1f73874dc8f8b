"""Whether a range of addresses is free on this machine."""

from __future__ import annotations

import ipaddress

import msgspec

from unstuck.host.driver import DriverError
from unstuck.host.drivers.process import run

_DEADLINE = 10.0


class _Address(msgspec.Struct):
    local: str = ""
    prefixlen: int = 32


class _Interface(msgspec.Struct):
    ifname: str = ""
    addr_info: list[_Address] = []


async def check_range(name: str, gateway: ipaddress.IPv4Interface | ipaddress.IPv6Interface) -> None:
    """Two links with one range: the kernel would send a guest's packets to either. Raises DriverError."""
    out = await run(["ip", "-j", "-4", "addr", "show"], _DEADLINE)
    try:
        found = msgspec.json.decode(out or b"[]", type=list[_Interface])
    except msgspec.DecodeError as error:
        raise DriverError(f"ip's answer cannot be read: {error}") from None
    for link in found:
        for entry in link.addr_info:
            there = ipaddress.ip_interface(f"{entry.local}/{entry.prefixlen}").network
            if link.ifname != name and there.overlaps(gateway.network):
                raise DriverError(
                    f"the range {gateway.network} is in use on this host by {link.ifname} already",
                    remedy=f"remove {link.ifname}, or make the cloud anew with another range: "
                    "unstuck up --network CIDR",
                )
