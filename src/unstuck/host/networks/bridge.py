"""Networks as root: a bridge per network, a tap per port, and a packet filter.

Names are derived (law 3): a tap's from the server's id and the port's place, a bridge's from the host's id
and the network's, so that removal and listing need no record. 15 characters cannot hold an id, so each link
also carries in its alias what it is for, and whose: several clouds may be on one machine. A link of our name
with another alias is somebody else's and is never touched. Links without an owner in the alias are those of
format 1; ones that this host's servers use are adopted as they are, because guests run on them.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable

import msgspec

from unstuck.core.server.data import Access, Machine, Nic, Thing, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.process import run
from unstuck.host.networks import netns, rules
from unstuck.host.networks.inuse import check_range
from unstuck.host.networks.netlink import Link, read_link
from unstuck.host.networks.rules import BRIDGE, TAP, Source

DEADLINE = 10.0
NEEDS_ROOT = "networks need root"
NEEDS_ROOT_REMEDY = "start Unstuck as root on the host; a server without a network needs none (--no-network)"
_LOST = re.compile(r" access=\S+")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Found(msgspec.Struct, frozen=True):
    """A link of ours, for doctor: of a network (a bridge), or of a server's port (a tap)."""

    name: str
    network_id: str | None
    server_id: str | None
    port_id: str | None
    master: str | None
    up: bool


def bridge_name(host_id: str, network_id: str) -> str:
    """The default network has one id in every cloud; its bridge has another name in each."""
    return BRIDGE + hashlib.sha256(f"{host_id}/{network_id}".encode()).hexdigest()[:12]


def old_bridge_name(network_id: str) -> str:
    """What format 1 called it."""
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


def _bridge_alias(host_id: str, network_id: str) -> str:
    return f"unstuck host={host_id} network={network_id}"


def _tap_alias(host_id: str, server_id: str, nic: Nic, access: Access | None) -> str:
    """Also which access rules are applied: so a look needs not ask the packet filter."""
    what = f"server={server_id} port={nic.port_id} mac={nic.mac.lower()} ip={nic.address}"
    return f"unstuck host={host_id} {what}" + ("" if access is None else f" access={rules.digest(access)}")


def _check_ids(want: Want) -> None:
    """They become words of ip's input and of an alias."""
    for nic in want.spec.nics:
        if not (_ID.match(nic.port_id) and _ID.match(nic.network_id)):
            raise DriverError("a port's id cannot be part of a link's alias")


def _facts(link: Link) -> dict[str, str]:
    words = link.ifalias.split()
    return dict(word.split("=", 1) for word in words[1:] if "=" in word) if words[:1] == ["unstuck"] else {}


def unfit(root: bool | None = None) -> str:
    """Why this machine cannot make networks, with the remedy; empty where it can."""
    if not (os.geteuid() == 0 if root is None else root):
        return f"{NEEDS_ROOT}: {NEEDS_ROOT_REMEDY}"
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install iproute2 nftables"
    return ""


async def _links() -> list[Link]:
    out = await run(["ip", "-j", "link", "show"], DEADLINE)
    try:
        return msgspec.json.decode(out or b"[]", type=list[Link])
    except msgspec.DecodeError as error:
        raise DriverError(f"ip's answer cannot be read: {error}") from None


class Bridges:
    """Real networks of one host. Without root it can look, and says why it cannot do more.

    ``knows``: whether a server is one of this host's, for links of format 1, which do not say so.
    """

    def __init__(
        self, host_id: str, *, root: bool | None = None, knows: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._host_id = host_id
        self._root = os.geteuid() == 0 if root is None else root
        self._knows = knows
        self._lock = asyncio.Lock()

    def _is_server(self, link: Link, server_id: str) -> bool:
        """By the alias; without one, somebody died between making the tap and saying what it is for."""
        if not link.ifalias:
            return link.ifname.startswith(TAP + _digits(server_id, 10))
        facts = _facts(link)
        # A server's id is its own in all the world: whoever wants it may take a tap that names no host.
        mine = facts.get("host", self._host_id) == self._host_id
        return mine and link.ifname.startswith(TAP) and facts.get("server") == server_id

    def _is_mine(self, link: Link) -> bool:
        """A link of this host's, for listing and sweeping; one of format 1 only by its server."""
        facts = _facts(link)
        if "host" in facts:
            return facts["host"] == self._host_id
        return self._knows(facts.get("server", ""))

    def _is_bridge(self, link: Link | None, network_id: str) -> bool:
        return link is not None and link.ifalias == _bridge_alias(self._host_id, network_id)

    def _bridge(self, network_id: str, links: dict[str, Link]) -> str:
        """The name of a network's bridge: of the one that is there, else of the one to make."""
        name, old = bridge_name(self._host_id, network_id), old_bridge_name(network_id)
        if name in links or old not in links:
            return name
        if self._is_bridge(links[old], network_id):
            return old
        if links[old].ifalias != f"unstuck network={network_id}":
            return name
        ports = [link for link in links.values() if link.master == old]
        return old if all(self._knows(_facts(link).get("server", "")) for link in ports) else name

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
        if want.spec.machine is Machine.CONTAINER and not netns.is_there(want.server_id):
            return Thing.ABSENT, ""
        for nic, link in zip(want.spec.nics, seen, strict=True):
            if link is not None and not self._is_server(link, want.server_id):
                return Thing.UNKNOWN, f"link {link.ifname} belongs to something else"
            if link is None or not link.up or not await self._on_bridge(link, nic):
                return Thing.ABSENT, ""
            if link.ifalias != _tap_alias(self._host_id, want.server_id, nic, want.spec.access):
                return Thing.ABSENT, ""
        return Thing.PRESENT, ""

    async def _on_bridge(self, link: Link, nic: Nic) -> bool:
        if link.master == bridge_name(self._host_id, nic.network_id):
            return True
        old = old_bridge_name(nic.network_id)
        return link.master == old and self._is_bridge(await asyncio.to_thread(read_link, old), nic.network_id)

    async def _look_gone(self, want: Want) -> tuple[Thing, str]:
        mine = any(self._is_server(link, want.server_id) for link in await self._all())
        mine = mine or (want.spec.machine is Machine.CONTAINER and netns.is_named(want.server_id))
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
            bridges = {self._bridge(nic.network_id, links): nic for nic in want.spec.nics}
            for name, nic in bridges.items():
                await self._make_bridge(name, nic, links.get(name))
            await self._apply(bridges, sources, names, want.spec.access)
            if want.spec.machine is Machine.CONTAINER:
                await self._make_netns(want, links)
            for index, (nic, name) in enumerate(zip(want.spec.nics, names, strict=True)):
                seen, master = links.get(name), self._bridge(nic.network_id, links)
                if seen is None:
                    await _make_link(want, name, index, nic)
                elif not self._is_server(seen, want.server_id):
                    raise DriverError(f"link {name} belongs to something else")
                if want.spec.machine is Machine.CONTAINER:
                    await netns.configure(want.server_id, index, nic)
                await self._join(name, want, nic, master)

    async def remove(self, want: Want) -> None:
        """Remove the server's taps and what they may send as. The bridges stay: others may be coming."""
        self._need_root()
        async with self._lock:
            await _remove_taps([link for link in await _links() if self._is_server(link, want.server_id)])
            if want.spec.machine is Machine.CONTAINER:
                await netns.remove(want.server_id)

    async def guard(self) -> bool:
        """Put the filter back if somebody flushed it (``systemctl restart nftables`` does); True if so.

        For the agent's heartbeat: until then the host would be open to its guests. The two tables are one
        for all clouds on a machine, so whoever is first puts everybody's entries back.
        """
        if not self._root:
            return False
        async with self._lock:
            ours = [link for link in await _links() if link.ifname.startswith((BRIDGE, TAP)) and _facts(link)]
            if not ours or await _filter_is_there():
                return False
            taps = [(link.ifname, _facts(link)) for link in ours if link.ifname.startswith(TAP)]
            sources = [rules.source(name, facts.get("mac", ""), facts.get("ip", "")) for name, facts in taps]
            bridges = [link.ifname for link in ours if link.ifname.startswith(BRIDGE)]
            # Whose access rules were lost is closed until they are known again: its agent sees it.
            closed = [name for name, facts in taps if "access" in facts]
            await self._apply(bridges, sources, closed, rules.NOBODY if closed else None)
            await _batch(
                f"link set dev {link.ifname} alias '{_LOST.sub(' access=lost', link.ifalias)}'"
                for link in ours
                if link.ifname in closed
            )
            return True

    async def found_links(self) -> list[Found]:
        """All links of this host's cloud, for doctor; another cloud's are none of our business."""
        links = [link for link in await self._all() if link.ifname.startswith((BRIDGE, TAP))]
        return [_found(link) for link in links if self._is_mine(link) or not _facts(link)]

    async def servers(self) -> frozenset[str]:
        """The ids of all servers that have a tap here."""
        return frozenset(link.server_id for link in await self.found_links() if link.server_id is not None)

    async def sweep(self, running: frozenset[str]) -> list[str]:
        """Remove our taps but those of guests that run, our bridges that nothing uses any more, and with the
        last one the filter. Returns the bridges' names.

        For ``unstuck down``: only there it is certain that nobody is about to use one.
        """
        self._need_root()
        async with self._lock:
            taps = [link for link in await _links() if link.ifname.startswith(TAP) and self._is_mine(link)]
            await _remove_taps([tap for tap in taps if _facts(tap).get("server") not in running])
            for name in {_facts(tap).get("server", "") for tap in taps} - running:
                await netns.remove(name)
            links = await _links()
            used = {link.master for link in links}
            ours = (link.ifname for link in links if link.ifname.startswith(BRIDGE) and self._is_mine(link))
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

    async def _make_bridge(self, name: str, nic: Nic, seen: Link | None) -> None:
        """The bridge, and the network's gateway on it. Its MAC is fixed: else it changes with its ports, and
        every guest's idea of the gateway with it."""
        alias = _bridge_alias(self._host_id, nic.network_id)
        gateway = None if nic.gateway is None else ipaddress.ip_interface(f"{nic.gateway}/{nic.prefix}")
        lines = []
        if seen is None:
            if gateway is not None:
                await check_range(name, gateway)
            mac = "02:" + hashlib.sha256(f"{self._host_id}/{nic.network_id}".encode()).digest()[:5].hex(":")
            kind = "type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
            lines.append(f"link add name {name} address {mac} mtu {nic.mtu} {kind}")
        elif seen.ifalias not in ("", alias, f"unstuck network={nic.network_id}"):
            raise DriverError(f"link {name} belongs to something else")
        lines += [
            f"link set dev {name} alias '{alias}'",
            f"link set dev {name} addrgenmode none",
            f"link set dev {name} up",
        ]
        if gateway is not None:
            lines.append(f"addr replace {gateway} dev {name}")
        await _batch(lines)

    async def _make_netns(self, want: Want, links: dict[str, Link]) -> None:
        """Where the name was lost, the pairs lead nowhere that could be found again: they are made anew."""
        if netns.is_there(want.server_id):
            return
        for name in tap_names(want):
            if name in links and self._is_server(links[name], want.server_id):
                await _batch([f"link del dev {name}"])
                del links[name]
        await netns.ensure(want.server_id)

    async def _join(self, name: str, want: Want, nic: Nic, bridge: str) -> None:
        alias = _tap_alias(self._host_id, want.server_id, nic, want.spec.access)
        await _batch(
            [
                f"link set dev {name} alias '{alias}'",
                f"link set dev {name} mtu {nic.mtu} addrgenmode none",
                f"link set dev {name} master {bridge}",
                f"link set dev {name} up",
            ]
        )

    async def _apply(
        self, bridges: Iterable[str], sources: list[Source], taps: Collection[str], access: Access | None
    ) -> None:
        """``access`` is that of all ``taps``."""
        stale = [entry for entry in await _sources() if entry.tap in taps and entry not in sources]
        script = rules.ensure_script(bridges, sources, stale)
        for tap in taps:
            script += rules.forget_access_script(tap) if access is None else rules.access_script(tap, access)
        await _nft(script)

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


async def _make_link(want: Want, name: str, index: int, nic: Nic) -> None:
    """What the guest's end is: a tap that QEMU opens, or one half of a pair, the other in its namespace."""
    if want.spec.machine is Machine.CONTAINER:
        await _batch([netns.pair_line(name, want.server_id, index, nic)])
    else:
        await _batch([f"tuntap add dev {name} mode tap"])


async def _remove_taps(links: list[Link]) -> None:
    """The taps last: while one is there, a removal that was cut short is seen and repeated."""
    names = [link.ifname for link in links]
    script = rules.remove_script([entry for entry in await _sources() if entry.tap in names])
    if any("access" in _facts(link) for link in links) and await _filter_is_there():
        script += "".join(rules.forget_access_script(name) for name in names)
    if script:
        await _nft(script)
    if names:
        await _batch(f"link del dev {name}" for name in names)
