"""The packet filter of a host's networks as nftables text: pure, idempotent, applied in one transaction.

Two tables. ``inet unstuck``: a guest reaches nothing of the host but an echo, and only its own bridge.
``bridge unstuck``: a guest sends only with the MAC and address of its port. What is not listed is
dropped, so that a lost entry silences one guest rather than opening the host.

A guest with access rules has a chain of its own for what is on its way to it, from other guests and from the
host alike. It needs no connection tracking: what goes to a served port is judged packet by packet, so that
who is not let in any more is cut off at once; else only answers to what the guest itself began pass.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable

import msgspec

from unstuck.core.server.data import Access
from unstuck.host.driver import DriverError

BRIDGE = "unb"
TAP = "unt"
"""Prefixes of our links; not ``usb``, which is what Linux calls real network cards on USB."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")


class Source(msgspec.Struct, frozen=True):
    """What a tap may send as."""

    tap: str
    mac: str
    address: str


def checked_mac(mac: str) -> str:
    if not _MAC.match(mac.lower()):
        raise DriverError(f"not a MAC address: {mac[:32]!r}")
    return mac.lower()


def source(tap: str, mac: str, address: str) -> Source:
    """Checked, because it becomes part of a program that nft runs."""
    try:
        return Source(tap, checked_mac(mac), str(ipaddress.IPv4Address(address)))
    except ipaddress.AddressValueError:
        raise DriverError(f"not an IPv4 address: {address[:64]!r}") from None


# Bridged frames pass the inet hooks too where br_netfilter is loaded (a container engine loads it), hence
# the pairs: from a bridge to itself.
_TABLES = f"""
add table inet unstuck
add set inet unstuck pairs {{ type ifname . ifname; }}
add chain inet unstuck input {{ type filter hook input priority filter - 5; policy accept; }}
add chain inet unstuck forward {{ type filter hook forward priority filter - 5; policy accept; }}
flush chain inet unstuck input
flush chain inet unstuck forward
add rule inet unstuck input iifname "{BRIDGE}*" ct state established,related accept
add rule inet unstuck input iifname "{BRIDGE}*" icmp type echo-request accept
add rule inet unstuck input iifname "{BRIDGE}*" drop
add rule inet unstuck forward iifname . oifname @pairs accept
add rule inet unstuck forward iifname "{BRIDGE}*" drop
add rule inet unstuck forward oifname "{BRIDGE}*" drop
add table bridge unstuck
add set bridge unstuck sources {{ type ifname . ether_addr . ipv4_addr; }}
add chain bridge unstuck prerouting {{ type filter hook prerouting priority dstnat; policy accept; }}
flush chain bridge unstuck prerouting
add rule bridge unstuck prerouting iifname . ether saddr . ip saddr @sources accept
add rule bridge unstuck prerouting ether type arp iifname . ether saddr . arp saddr ip @sources \
    iifname . arp saddr ether . arp saddr ip @sources accept
add rule bridge unstuck prerouting iifname "{TAP}*" drop
add map bridge unstuck guarded {{ type ifname : verdict; }}
add chain bridge unstuck postrouting {{ type filter hook postrouting priority filter; policy accept; }}
flush chain bridge unstuck postrouting
add rule bridge unstuck postrouting oifname vmap @guarded
"""


DELETE = """
add table inet unstuck
delete table inet unstuck
add table bridge unstuck
delete table bridge unstuck
"""
"""Both tables, whether they are there or not."""


def ensure_script(bridges: Iterable[str], sources: Iterable[Source], stale: Iterable[Source] = ()) -> str:
    """Tables, chains and rules as they should be, and these entries; others stay unless ``stale``."""
    lines = [_TABLES]
    lines += [f'add element inet unstuck pairs {{ "{bridge}" . "{bridge}" }}' for bridge in bridges]
    lines += [f"delete element bridge unstuck sources {{ {_element(s)} }}" for s in stale]
    lines += [f"add element bridge unstuck sources {{ {_element(s)} }}" for s in sources]
    return "\n".join(lines) + "\n"


NOBODY = Access((), ())
"""Nobody may open a connection."""


def digest(access: Access) -> str:
    """Short, the same for the same rules: what a link's alias says is applied."""
    ports, cidrs = _checked(access)
    return hashlib.sha256(f"{ports} {cidrs}".encode()).hexdigest()[:12]


def _checked(access: Access) -> tuple[list[int], list[str]]:
    """In order, without what is in another; checked, because it becomes part of a program."""
    try:
        networks = [ipaddress.IPv4Network(cidr, strict=False) for cidr in access.cidrs]
    except ValueError:
        raise DriverError("an access rule names what is not an IPv4 network") from None
    ports = sorted(set(access.ports))
    if any(not 0 < port < 65536 for port in ports):
        raise DriverError("an access rule names what is not a TCP port")
    return ports, [str(network) for network in ipaddress.collapse_addresses(networks)]


def access_script(tap: str, access: Access) -> str:
    """Who may open connections to the guest behind a tap, in place of what was said before."""
    chain = f"bridge unstuck {_chain(tap)}"
    ports, cidrs = _checked(access)
    rules = ["ether type arp accept"]
    if ports:
        served = f"tcp dport {{ {', '.join(map(str, ports))} }}"
        if cidrs:
            rules.append(f"{served} ip saddr {{ {', '.join(cidrs)} }} accept")
        rules.append(f"{served} drop")
    rules += [
        "tcp flags & (syn|ack) != syn accept",
        "icmp type { echo-reply, destination-unreachable, time-exceeded } accept",
        "drop",
    ]
    lines = [f"add chain {chain}", f"flush chain {chain}", *(f"add rule {chain} {rule}" for rule in rules)]
    lines.append(f'add element bridge unstuck guarded {{ "{tap}" : jump {_chain(tap)} }}')
    return "\n".join(lines) + "\n"


def forget_access_script(tap: str) -> str:
    """Adding first makes the deletion succeed in any case."""
    chain = f"bridge unstuck {_chain(tap)}"
    entry = f'bridge unstuck guarded {{ "{tap}" : jump {_chain(tap)} }}'
    lines = [f"add chain {chain}", f"add element {entry}"]
    lines += [f"delete element {entry}", f"flush chain {chain}", f"delete chain {chain}"]
    return "\n".join(lines) + "\n"


def _chain(tap: str) -> str:
    return f"to-{tap}"


def remove_script(sources: Iterable[Source]) -> str:
    return "".join(f"delete element bridge unstuck sources {{ {_element(s)} }}\n" for s in sources)


def forget_script(bridges: Iterable[str]) -> str:
    """For bridges that are removed; adding first makes the deletion succeed in any case."""
    lines = []
    for bridge in bridges:
        pair = f'inet unstuck pairs {{ "{bridge}" . "{bridge}" }}'
        lines += [f"add element {pair}", f"delete element {pair}"]
    return "\n".join(lines) + "\n"


def _element(entry: Source) -> str:
    return f'"{entry.tap}" . {entry.mac} . {entry.address}'


class _Set(msgspec.Struct):
    elem: list[dict[str, list[str]]] = []


class _Item(msgspec.Struct):
    set: _Set | None = None


class _Listing(msgspec.Struct):
    nftables: list[_Item]


def parse_sources(text: bytes) -> list[Source]:
    """The entries of ``nft -j list set bridge unstuck sources``."""
    try:
        listing = msgspec.json.decode(text, type=_Listing)
    except msgspec.DecodeError as error:
        raise DriverError(f"nft's answer cannot be read: {error}") from None
    return [Source(*e["concat"]) for item in listing.nftables if item.set is not None for e in item.set.elem]
