"""Making rows from what a host holds: a server that the store had lost is there again, as it is."""

from __future__ import annotations

import ipaddress

import msgspec
import sqlalchemy as sa

from unstuck.core.agents import Holding
from unstuck.core.generation import Dispute
from unstuck.core.server.data import Gone, ImageRole, Nic, Observation, Spec, Step, Thing, Unclear
from unstuck.store import readable
from unstuck.store.clock import generation
from unstuck.store.prepared import Prepared
from unstuck.store.readdress import give_way
from unstuck.store.rows import bump_world, judge, set_room
from unstuck.store.schema.compute import flavors, placements, servers
from unstuck.store.schema.network import networks, ports, subnets
from unstuck.store.tx import Tx

NOBODY = "recovered"
"""The user, flavor or image of an adopted server where they are not known any more."""

_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)
_SERVER = Prepared(sa.insert(servers))
_PLACEMENT = Prepared(sa.insert(placements))
_SET_EPOCH = Prepared(
    sa.update(servers)
    .where(servers.c.id == sa.bindparam("server"))
    .values(
        epoch=sa.bindparam("number"),
        disk_id=sa.func.coalesce(servers.c.disk_id, sa.bindparam("disk", type_=sa.String)),
    )
)
_EPOCH = Prepared(sa.select(servers.c.epoch, servers.c.spec).where(servers.c.id == sa.bindparam("server")))
_LOCK_NETWORK = Prepared(
    sa.update(networks).where(networks.c.id == sa.bindparam("network")).values(version=networks.c.version + 1)
)
_SUBNET = Prepared(sa.select(subnets.c.id).where(subnets.c.network_id == sa.bindparam("network")))
_TAKEN = Prepared(
    sa.select(ports).where(
        ports.c.network_id == sa.bindparam("network"),
        sa.or_(ports.c.address == sa.bindparam("ip"), ports.c.mac == sa.bindparam("mac")),
    )
)
_PORT = Prepared(sa.insert(ports))


def adopt_unknown(tx: Tx, host_id: str, item: Holding) -> None:
    """A server that was made after the copy: its row is made from what its host has of it.

    It is in dispute until an operator has settled it: it runs on, its room and addresses are taken, and
    it can be used, but a delete is held. Without a record of what it is made of it stays unknown.
    """
    if item.fence is None or item.spec is None:
        return
    spec, now = item.spec, tx.now
    on = item.guest is not Thing.ABSENT
    number = max(item.intent, item.edge, 1)
    # Without a disk nobody can tell a build that had just begun from a removal that had nearly ended: no
    # disk is made, because the server may have had one (law 3).
    kind = Dispute.UNKNOWN if item.disk is not Thing.ABSENT else Dispute.MISSING
    system = (ImageRole.DISK, ImageRole.ROOT)
    image = next((image.id for image in spec.images if image.role in system), NOBODY)
    flavor_id, flavor = _flavor(tx, spec)
    _SERVER.run(
        tx,
        id=item.server_id, project_id=spec.project_id, user_id=NOBODY, name=spec.name, description=None,
        image_id=image, flavor_id=flavor_id, flavor=msgspec.json.encode(flavor).decode(),
        key_name=next(iter(spec.keys), None), user_data=spec.user_data,
        meta=msgspec.json.encode(spec.metadata).decode(), tags="[]", requested_zone=None, config_drive=True,
        disk_config="MANUAL", reservation_id=f"r-{item.server_id[:8]}", launch_index=0, access_ipv4="",
        access_ipv6="", spec=msgspec.json.encode(spec).decode(), created=now.lease, created_wall=now.wall,
        updated_wall=now.wall, power="on" if on else "off", intent=number, edge=max(item.edge, 1), mark=0,
        replaced="[]",
        edge_soft=False, deleted=False, epoch=0, world_version=0, seen=_seen(item, number),
        seen_at=now.lease, seen_incarnation=0, seen_sequence=0,
        launched_wall=now.wall if item.edge else None, disputed=kind.value, removed=False,
        settled=False, next_look=now.lease,
    )  # fmt: skip
    grant_again(tx, host_id, item.server_id, item, recorded=True)
    for nic in spec.nics:
        _take_address(tx, item.server_id, spec.project_id, nic)
    bump_world(tx, host_id, item.server_id)
    judge(tx, item.server_id)


def _seen(item: Holding, number: int) -> str:
    """What is known of it before its host has looked at it again."""
    guest = Gone() if item.guest is Thing.ABSENT else Unclear("it was just adopted, and not looked at yet")
    return msgspec.json.encode(Observation(number, guest, item.disk, Step.WAITING)).decode()


def grant_again(tx: Tx, host_id: str, server_id: str, item: Holding, *, recorded: bool) -> None:
    """Give the server to the host that has it, under the name that its disk has there, above every epoch.

    ``recorded``: the disk was made, so that its absence is a fault from now on.
    """
    assert item.fence is not None
    row = _EPOCH.first(tx, server=server_id)
    assert row is not None
    flavor = msgspec.json.decode(row.spec, type=Spec).flavor
    epoch = max(row.epoch, item.fence.epoch) + 1
    name = f"{server_id}.{item.fence.generation}.{item.fence.epoch}.{item.nonce}"
    _PLACEMENT.run(
        tx, server_id=server_id, generation=generation(tx)[0], epoch=epoch, host_id=host_id,
        nonce=item.nonce, state="live", vcpus=flavor.vcpus, ram_mb=flavor.ram_mb, disk_gb=flavor.disk_gb,
        granted=tx.now.lease,
    )  # fmt: skip
    _SET_EPOCH.run(tx, server=server_id, number=epoch, disk=name if recorded else None)


def adopt_size(tx: Tx, server_id: str, there: Spec) -> None:
    """The store has lost a resize, or its end: the flavor that its host started it with counts."""
    row = tx.execute(sa.select(servers.c.spec).where(servers.c.id == server_id)).one()
    known = readable.read(_spec, row.spec, None)
    if known is None or known.flavor == there.flavor:
        return
    flavor_id, flavor = _flavor(tx, there)
    tx.execute(
        sa.update(servers)
        .where(servers.c.id == server_id)
        .values(
            flavor_id=flavor_id,
            flavor=msgspec.json.encode(flavor).decode(),
            spec=msgspec.json.encode(msgspec.structs.replace(known, flavor=there.flavor)).decode(),
            before=None,
        )
    )
    set_room(tx, server_id, there.flavor)


def _flavor(tx: Tx, spec: Spec) -> tuple[str, dict[str, object]]:
    """The flavor with these sizes, or one of that name that nobody can choose."""
    size = spec.flavor
    found = tx.execute(
        sa.select(flavors.c.id, flavors.c.name)
        .where(
            flavors.c.vcpus == size.vcpus, flavors.c.ram_mb == size.ram_mb, flavors.c.disk_gb == size.disk_gb
        )
        .order_by(flavors.c.id)
    ).first()
    shown: dict[str, object] = {
        "vcpus": size.vcpus, "ram": size.ram_mb, "disk": size.disk_gb, "ephemeral": 0, "swap": 0,
        "original_name": NOBODY if found is None else found.name, "extra_specs": {},
    }  # fmt: skip
    return (NOBODY if found is None else found.id), shown


def _take_address(tx: Tx, server_id: str, project_id: str, nic: Nic) -> None:
    """The address is in use on the host, so whoever was to have it and has not been placed yet gives way.

    Where its network is gone, or another host was given a server with it, nothing is taken.
    """
    if _LOCK_NETWORK.run(tx, network=nic.network_id) != 1:
        return
    subnet = _SUBNET.scalar(tx, network=nic.network_id)
    if subnet is None:
        return
    taken = _TAKEN.all(tx, network=nic.network_id, ip=nic.address, mac=nic.mac)
    if any(port.mac == nic.mac or not give_way(tx, port) for port in taken):
        return
    _PORT.run(
        tx, id=nic.port_id, network_id=nic.network_id, subnet_id=subnet, project_id=project_id,
        server_id=server_id, mac=nic.mac, address=nic.address, created_wall=tx.now.wall,
        number=int(ipaddress.ip_address(nic.address)), asked=False,
    )  # fmt: skip
