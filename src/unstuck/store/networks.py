"""Networks, subnets, ports: an address is allotted in the transaction that needs it."""

from __future__ import annotations

import hashlib
import ipaddress
import uuid
from typing import Any

import sqlalchemy as sa

from unstuck.core.server.data import Nic
from unstuck.store.engine import Tx
from unstuck.store.generation import may_allot
from unstuck.store.prepared import Prepared
from unstuck.store.schema.network import networks, ports, subnets

DEFAULT_NAME = "private"
_SPACE = uuid.UUID("6f1c3f0e-7a55-4a0e-9d8a-6d5f2b3f9a10")


_LOCK = Prepared(
    sa.update(networks)
    .where(
        networks.c.id == sa.bindparam("network"),
        sa.or_(networks.c.shared, networks.c.project_id == sa.bindparam("project")),
    )
    .values(version=networks.c.version + 1)
)
_DEFAULT = Prepared(
    sa.select(networks.c.id).where(networks.c.shared).order_by(networks.c.created_wall).limit(1)
)
_SUBNET = Prepared(sa.select(subnets).where(subnets.c.network_id == sa.bindparam("network")))
_TAKEN = Prepared(
    sa.select(ports.c.id).where(
        ports.c.network_id == sa.bindparam("network"), ports.c.number == sa.bindparam("wanted")
    )
)
_next = ports.alias("next")
_GAP = Prepared(
    sa.select(ports.c.number + 1)
    .where(
        ports.c.network_id == sa.bindparam("network"),
        ports.c.number >= sa.bindparam("start"),
        ~sa.exists().where(
            _next.c.network_id == sa.bindparam("network"), _next.c.number == ports.c.number + 1
        ),
    )
    .order_by(ports.c.number)
    .limit(1)
)
_CURSOR = Prepared(
    sa.update(subnets).where(subnets.c.id == sa.bindparam("subnet")).values(cursor=sa.bindparam("after"))
)
_INSERT_PORT = Prepared(sa.insert(ports))


class NoMoreAddresses(Exception):
    """The network has no free address (400 or 409 in the API's words)."""


class NoSuchNetwork(Exception):
    """There is no such network for this project."""


def ensure_default_network(tx: Tx, *, project_id: str, cidr: str) -> str:
    """The one shared network that every cloud begins with; its id is the same wherever it is made."""
    network_id = str(uuid.uuid5(_SPACE, "network"))
    if tx.execute(sa.select(networks.c.id).where(networks.c.id == network_id)).first() is not None:
        return network_id
    net = ipaddress.IPv4Network(cidr)
    wall = tx.now.wall
    tx.execute(
        sa.insert(networks).values(
            id=network_id, name=DEFAULT_NAME, project_id=project_id, shared=True, mtu=1500, created_wall=wall,
            version=0,
        )
    )  # fmt: skip
    tx.execute(
        sa.insert(subnets).values(
            id=str(uuid.uuid5(_SPACE, "subnet")),
            network_id=network_id,
            name=f"{DEFAULT_NAME}-v4",
            project_id=project_id,
            cidr=str(net),
            gateway=str(net[1]),
            first=str(first_of(net)),
            last=str(net[-2]),
            cursor=0,
            created_wall=wall,
        )
    )
    return network_id


def first_of(net: ipaddress.IPv4Network) -> ipaddress.IPv4Address:
    """The first address for servers: a small network has none to spare behind its gateway."""
    return net[10] if net.num_addresses > 32 else net[2]


def default_network(tx: Tx) -> str | None:
    """The id of the network that ``auto`` means."""
    network_id: str | None = _DEFAULT.scalar(tx)
    return network_id


def mac_of(port_id: str) -> str:
    """A port's hardware address, locally administered, derived from its id."""
    digest = hashlib.sha256(port_id.encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x52, 0x54, *digest[:4]))


def allot_port(
    tx: Tx,
    *,
    port_id: str,
    server_id: str,
    project_id: str,
    network_id: str | None,
    address: str | None = None,
    for_project: str | None = None,
) -> Nic:
    """A port with a free address (or just ``address``) on the network; ``None`` is the default one.

    ``for_project``: whose networks may be used, where the port belongs to another project.
    Raises :class:`NoSuchNetwork` and :class:`NoMoreAddresses`. The server's row must be inserted first.
    """
    may_allot(tx)
    network_id = network_id or default_network(tx)
    if network_id is None or _LOCK.run(tx, network=network_id, project=for_project or project_id) != 1:
        raise NoSuchNetwork(f"Network {network_id} could not be found.")
    subnet = subnet_of(tx, network_id)
    assert subnet is not None
    number = free_number(tx, subnet) if address is None else _asked_number(tx, subnet, address)
    chosen = text_of(number)
    mac = mac_of(port_id)
    _INSERT_PORT.run(
        tx,
        id=port_id,
        network_id=network_id,
        subnet_id=subnet.id,
        project_id=project_id,
        server_id=server_id,
        mac=mac,
        address=chosen,
        number=number,
        asked=address is not None,
        created_wall=tx.now.wall,
    )
    prefix = ipaddress.ip_network(subnet.cidr).prefixlen
    return Nic(port_id, network_id, mac, chosen, prefix, subnet.gateway)


def _asked_number(tx: Tx, subnet: Any, address: str) -> int:
    first, last = _range(subnet)
    number = int(ipaddress.ip_address(address))
    taken = _TAKEN.first(tx, network=subnet.network_id, wanted=number) is not None
    if taken or not first <= number <= last:
        raise NoMoreAddresses(f"Fixed IP address {address} is already in use or outside the pool.")
    return number


def subnet_of(tx: Tx, network_id: str) -> Any:
    """The row of a network's one subnet, or None."""
    return _SUBNET.first(tx, network=network_id)


def text_of(number: int) -> str:
    """An address as people write it."""
    return str(ipaddress.ip_address(number))


def free_number(tx: Tx, subnet: Any) -> int:
    """The next free address from the cursor on, and once round. The caller holds the network's row.

    It costs the same however many are in use: what the search has passed it does not pass again before it
    has been all round. So an address is used again late, too, when neighbours have forgotten who had it.
    """
    first, last = _range(subnet)
    for start in (max(subnet.cursor, first), first):
        number = start
        if start > last:
            continue
        if _TAKEN.first(tx, network=subnet.network_id, wanted=start) is not None:
            number = int(_GAP.scalar(tx, network=subnet.network_id, start=start))
        if number <= last:
            _CURSOR.run(tx, subnet=subnet.id, after=number + 1)
            return number
    raise NoMoreAddresses(f"No more IP addresses available on network {subnet.network_id}.")


def _range(subnet: Any) -> tuple[int, int]:
    return int(ipaddress.ip_address(subnet.first)), int(ipaddress.ip_address(subnet.last))
