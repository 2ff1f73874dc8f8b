"""Networks as root: a bridge per network, a tap per port, and a packet filter.

Names are derived (law 3): a tap's from the server's id and the port's place, so that removal and listing
need no record. 15 characters cannot hold an id, so each link also carries in its alias what it is for;
a link of our name with another alias is somebody else's and is never touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
import shutil
from collections.abc import Iterable

import msgspec

from unstuck.core.server.data import Nic, Thing, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.process import run
from unstuck.host.networks import rules
from unstuck.host.networks.netlink import Link, read_link
from unstuck.host.networks.rules import BRIDGE, TAP, Source

DEADLINE = 10.0
NEEDS_ROOT = "networks need root"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Found(msgspec.Struct, frozen=True):
    """A link of ours, for doctor: of a network (a bridge), or of a server's port (a tap)."""

    name: str
    network_id: str | None
    server_id: str | None
    port_id: str | None
    master: str | None
    up: bool


def bridge_name(network_id: str) -> str:
    return BRIDGE + _digits(network_id, 12)


def tap_name(server_id: str, index: int) -> str:
    if index > 255:
        raise DriverError("a server can have 256 ports at most")
    return f"{TAP}{_digits(server_id, 10)}{index:02x}"


def tap_names(want: Want) -> tuple[str, ...]:
    return tuple(tap_name(want.server_id, index) for index in range(len(want.spec.nics)))


def _digits(identity: str, count: int) -> str:
    """The first hex digits of an id: readable, and random in a uuid. Aliases catch a collision."""
    plain = identity.replace("-", "").lower()
    if len(plain) != 32 or set(plain) - set("0123456789abcdef"):
        plain = hashlib.sha256(identity.encode()).hexdigest()
    return plain[:count]


def _bridge_alias(network_id: str) -> str:
    return f"unstuck network={network_id}"


def _tap_alias(server_id: str, nic: Nic) -> str:
    return f"unstuck server={server_id} port={nic.port_id} mac={nic.mac.lower()} ip={nic.address}"


def _check_ids(want: Want) -> None:
    """They become words of ip's input and of an alias."""
    for nic in want.spec.nics:
        if not (_ID.match(nic.port_id) and _ID.match(nic.network_id)):
            raise DriverError("a port's id cannot be part of a link's alias")


def _facts(link: Link) -> dict[str, str]:
    words = link.ifalias.split()
    return dict(word.split("=", 1) for word in words[1:] if "=" in word) if words[:1] == ["unstuck"] else {}


def _is_server(link: Link, server_id: str) -> bool:
    """By the alias; without one, somebody died between making the tap and saying what it is for."""
    if not link.ifalias:
        return link.ifname.startswith(TAP + _digits(server_id, 10))
    return link.ifname.startswith(TAP) and _facts(link).get("server") == server_id


async def _links() -> list[Link]:
    out = await run(["ip", "-j", "link", "show"], DEADLINE)
    try:
        return msgspec.json.decode(out or b"[]", type=list[Link])
    except msgspec.DecodeError as error:
        raise DriverError(f"ip's answer cannot be read: {error}") from None


class Bridges:
    """Real networks of one host. Without root it can look, and says why it cannot do more."""

    def __init__(self, root: bool | None = None) -> None:
        self._root = os.geteuid() == 0 if root is None else root
        self._lock = asyncio.Lock()

    async def look(self, want: Want) -> tuple[Thing, str]:
        """All ports there, up and on their bridge: present. Raises DriverError or OSError for unknown."""
        if want.gone:
            return await self._look_gone(want)
        if not want.spec.nics:
            return Thing.PRESENT, ""
        if not self._root:
            return Thing.UNKNOWN, NEEDS_ROOT
        names = tap_names(want)
        seen = await asyncio.to_thread(lambda: [read_link(name) for name in names])
        for nic, link in zip(want.spec.nics, seen, strict=True):
            if link is not None and not _is_server(link, want.server_id):
                return Thing.UNKNOWN, f"link {link.ifname} belongs to something else"
            if link is None or not link.up or link.master != bridge_name(nic.network_id):
                return Thing.ABSENT, ""
            if link.ifalias != _tap_alias(want.server_id, nic):
                return Thing.ABSENT, ""
        return Thing.PRESENT, ""

    async def _look_gone(self, want: Want) -> tuple[Thing, str]:
        mine = [link for link in await self._all() if _is_server(link, want.server_id)]
        if mine and not self._root:
            return Thing.UNKNOWN, NEEDS_ROOT
        return (Thing.PRESENT if mine else Thing.ABSENT), ""

    async def make(self, want: Want) -> None:
        """Bridges, filter, taps, in this order: no tap is ever up without its rules."""
        self._need_root()
        _check_ids(want)
        names = tap_names(want)
        sources = [
            rules.source(name, nic.mac, nic.address) for nic, name in zip(want.spec.nics, names, strict=True)
        ]
        async with self._lock:
            links = {link.ifname: link for link in await _links()}
            bridges = {bridge_name(nic.network_id): nic for nic in want.spec.nics}
            for name, nic in bridges.items():
                await _make_bridge(name, nic, links.get(name))
            await self._apply(bridges, sources, names)
            for nic, name in zip(want.spec.nics, names, strict=True):
                await _make_tap(name, want.server_id, nic, links.get(name))

    async def remove(self, want: Want) -> None:
        """Remove the server's taps and what they may send as. The bridges stay: others may be coming."""
        self._need_root()
        async with self._lock:
            mine = [link.ifname for link in await _links() if _is_server(link, want.server_id)]
            # The taps last: while one is there, a removal that was cut short is seen and repeated.
            stale = [entry for entry in await _sources() if entry.tap in mine]
            if stale:
                await _nft(rules.remove_script(stale))
            if mine:
                await _batch(f"link del dev {name}" for name in mine)

    async def guard(self) -> bool:
        """Put the filter back if somebody flushed it (``systemctl restart nftables`` does); True if so.

        For the agent's heartbeat: until then the host would be open to its guests.
        """
        if not self._root:
            return False
        async with self._lock:
            ours = [link for link in await _links() if link.ifname.startswith((BRIDGE, TAP)) and _facts(link)]
            if not ours or await _filter_is_there():
                return False
            taps = [(link.ifname, _facts(link)) for link in ours if link.ifname.startswith(TAP)]
            sources = [rules.source(name, facts.get("mac", ""), facts.get("ip", "")) for name, facts in taps]
            await self._apply([link.ifname for link in ours if link.ifname.startswith(BRIDGE)], sources, ())
            return True

    async def found_links(self) -> list[Found]:
        """All links of ours on this host, for doctor."""
        links = [link for link in await self._all() if link.ifname.startswith((BRIDGE, TAP))]
        return [_found(link) for link in links]

    async def servers(self) -> frozenset[str]:
        """The ids of all servers that have a tap here."""
        return frozenset(link.server_id for link in await self.found_links() if link.server_id is not None)

    async def sweep_bridges(self) -> list[str]:
        """Remove our bridges that nothing uses any more, and with the last one the filter.

        For ``unstuck down`` and doctor: only they know that nobody is about to use one.
        """
        self._need_root()
        async with self._lock:
            links = await _links()
            used = {link.master for link in links}
            ours = (link.ifname for link in links if link.ifname.startswith(BRIDGE) and _facts(link))
            names = [name for name in ours if name not in used]
            left = [
                link for link in links if link.ifname.startswith((BRIDGE, TAP)) and link.ifname not in names
            ]
            if names:
                await _batch(f"link del dev {name}" for name in names)
            if not left:
                await _nft(rules.DELETE)
            elif names and await _filter_is_there():
                await _nft(rules.forget_script(names))
            return names

    async def _apply(self, bridges: Iterable[str], sources: list[Source], taps: tuple[str, ...]) -> None:
        stale = [entry for entry in await _sources() if entry.tap in taps and entry not in sources]
        await _nft(rules.ensure_script(bridges, sources, stale))

    async def _all(self) -> list[Link]:
        """All links; without root and without iproute2 nobody can have made one of ours."""
        if not self._root and shutil.which("ip") is None:
            return []
        return await _links()

    def _need_root(self) -> None:
        if not self._root:
            raise DriverError(NEEDS_ROOT)


def _found(link: Link) -> Found:
    facts = _facts(link)
    server, port = facts.get("server"), facts.get("port")
    return Found(link.ifname, facts.get("network"), server, port, link.master, link.up)


async def _filter_is_there() -> bool:
    """Whether both tables stand; their content is only ever changed by whole transactions of ours."""
    out = await run(["nft", "list", "tables"], DEADLINE)
    return {b"table inet unstuck", b"table bridge unstuck"} <= set(out.splitlines())


async def _sources() -> list[Source]:
    if not await _filter_is_there():
        return []
    listing = await run(["nft", "-j", "list", "set", "bridge", "unstuck", "sources"], DEADLINE)
    return rules.parse_sources(listing)


async def _nft(script: str) -> None:
    """One transaction: all of it or nothing."""
    await run(["nft", "-f", "-"], DEADLINE, script.encode())


async def _batch(lines: Iterable[str]) -> None:
    await run(["ip", "-batch", "-"], DEADLINE, "".join(f"{line}\n" for line in lines).encode())


async def _make_bridge(name: str, nic: Nic, seen: Link | None) -> None:
    """The bridge, and the network's gateway on it. Its MAC is fixed: else it changes with its ports, and
    every guest's idea of the gateway with it."""
    alias = _bridge_alias(nic.network_id)
    lines = []
    if seen is None:
        mac = "02:" + hashlib.sha256(nic.network_id.encode()).digest()[:5].hex(":")
        kind = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        lines.append(f"link add name {name} address {mac} mtu {nic.mtu} {kind}")
    elif seen.ifalias not in ("", alias):
        raise DriverError(f"link {name} belongs to something else")
    lines += [
        f"link set dev {name} alias '{alias}'",
        f"link set dev {name} addrgenmode none",
        f"link set dev {name} up",
    ]
    if nic.gateway is not None:
        gateway = ipaddress.ip_interface(f"{nic.gateway}/{nic.prefix}")
        lines.append(f"addr replace {gateway} dev {name}")
    await _batch(lines)


async def _make_tap(name: str, server_id: str, nic: Nic, seen: Link | None) -> None:
    if seen is None:
        await _batch([f"tuntap add dev {name} mode tap"])
    elif not _is_server(seen, server_id):
        raise DriverError(f"link {name} belongs to something else")
    await _batch(
        [
            f"link set dev {name} alias '{_tap_alias(server_id, nic)}'",
            f"link set dev {name} mtu {nic.mtu} addrgenmode none",
            f"link set dev {name} master {bridge_name(nic.network_id)}",
            f"link set dev {name} up",
        ]
    )
