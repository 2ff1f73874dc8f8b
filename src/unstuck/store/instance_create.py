"""Accept a database instance: its row, its server, its port, and what it counts, in one transaction."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Forbidden, Invalid, NotFound
from unstuck.core.image import BootImage as Bootable
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.want import Origin, WantedDatabase, WantedUser
from unstuck.core.server.data import Access, BootImage, Flavor, ImageRole, Nic, Spec
from unstuck.core.server.names import hostname_of
from unstuck.store import database_quotas, datastores, schedules
from unstuck.store.archive_moments import restorable
from unstuck.store.backup_chain import CannotBeRestored, chain_of
from unstuck.store.backup_rows import load_backup
from unstuck.store.configurations import configuration_for, hold_configuration
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow, get_flavor
from unstuck.store.images import image_for_boot
from unstuck.store.networks import NoMoreAddresses, NoSuchNetwork, allot_port, subnet_of
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import hosts, operations, servers
from unstuck.store.schema.database import backups, instances
from unstuck.store.schema.identity import projects
from unstuck.store.server_create import copy_of
from unstuck.store.server_search import ZONE
from unstuck.store.servers import Caller, NewServer, insert_server
from unstuck.store.tx import in_turn

SERVICE_NAME: Final = "unstuck-databases"
EVERYBODY: Final = "0.0.0.0/0"
BUILD_LIMIT: Final = 3600.0
"""Seconds after which a create counts as overdue; a restore takes its time."""


class AskedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A create request in the store's words. ``datastore``, ``version``: names or ids, None is the default.

    ``cidrs``: None where the request does not say who may come in.
    """

    name: str
    flavor_id: str
    volume_gb: int
    datastore: str | None = None
    version: str | None = None
    databases: tuple[WantedDatabase, ...] = ()
    users: tuple[WantedUser, ...] = ()
    backup_id: str | None = None
    accept_damage: bool = False
    """Also from a backup that is known to be damaged."""
    point_of: str | None = None
    at: float | None = None
    """A moment of this instance, wall time in seconds."""
    network_id: str | None = None
    address: str | None = None
    is_public: bool = False
    cidrs: tuple[str, ...] | None = None
    protected: bool = False
    configuration_id: str | None = None


class NewIds(msgspec.Struct, frozen=True):
    """Fresh ids; ``generation`` names the data. ``schedule``: of the daily backups that it begins with."""

    instance: str
    server: str
    port: str
    generation: str
    schedule: str | None = None


_INSERT = Prepared(sa.insert(instances))
_INSERT_OPERATION = Prepared(sa.insert(operations))
_SET_SPEC = Prepared(
    sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(spec=sa.bindparam("made_of"))
)
_LOCK_BACKUP = Prepared(
    sa.select(backups.c.id).where(backups.c.id == sa.bindparam("backup")).with_for_update()
)
_BACKUP = Prepared(sa.select(backups).where(backups.c.id == sa.bindparam("backup")))


def ensure_service_project(tx: Tx) -> None:
    """The project of instances' servers: one row with a fixed id, in which nobody has a role."""
    if tx.execute(sa.select(projects.c.id).where(projects.c.id == SERVICE_PROJECT)).first() is not None:
        return
    taken = tx.execute(sa.select(projects.c.id).where(projects.c.name == SERVICE_NAME)).first()
    tx.execute(
        sa.insert(projects).values(
            id=SERVICE_PROJECT,
            name=SERVICE_NAME if taken is None else f"{SERVICE_NAME}-{SERVICE_PROJECT[:8]}",
            description="Servers of database instances", enabled=False, extra="{}",
        )
    )  # fmt: skip


def _project(_asked: AskedInstance, _ids: NewIds, caller: Caller) -> str:
    return f"project {caller.project_id}"


@in_turn(_project)
def create_instance(tx: Tx, asked: AskedInstance, ids: NewIds, caller: Caller) -> str:
    """Insert the instance with its server and port; returns its id. Nothing is there when it raises."""
    flavor = flavor_for(tx, asked.flavor_id, caller)
    database_quotas.grant(tx, caller.project_id, instances=1, volumes=asked.volume_gb, ram=flavor.ram_mb)
    # The project first, then the configuration, then the backup: in that order everywhere.
    if asked.configuration_id is not None:
        hold_configuration(tx, asked.configuration_id)
    point = None
    if asked.point_of is not None and asked.at is not None:
        found = restorable(tx, asked.point_of, asked.at, None if caller.admin else caller.project_id)
        point, asked = found.point, msgspec.structs.replace(asked, backup_id=found.base.backup_id)
    origin, chosen = _origin(tx, asked, caller)
    origin = msgspec.structs.replace(origin, point=point)
    if asked.configuration_id is not None:
        configuration_for(
            tx, asked.configuration_id, caller.project_id, chosen.version.id, flavor.ram_mb, None
        )
    images, image_id = images_for_version(tx, chosen.version)
    check_memory(tx, flavor, image_id)
    ensure_service_project(tx)
    check_hosts(tx)
    size = Flavor(flavor.vcpus, flavor.ram_mb, asked.volume_gb)
    spec = Spec(
        name=asked.name, hostname=hostname_of(asked.name, ids.server, dots=False),
        project_id=SERVICE_PROJECT, availability_zone=ZONE, flavor=size, images=images, data=True,
    )  # fmt: skip
    owner = msgspec.structs.replace(caller, project_id=SERVICE_PROJECT)
    insert_server(tx, _server(asked, ids, flavor, image_id, spec), owner)
    nic = _port(tx, asked, ids, caller)
    port = datastores.MANAGERS[chosen.version.manager]
    access = access_of(tx, nic, port, is_public=asked.is_public, cidrs=asked.cidrs)
    made_of = msgspec.structs.replace(spec, nics=(nic,), access=access)
    _SET_SPEC.run(tx, server=ids.server, made_of=msgspec.json.encode(made_of).decode())
    _insert(tx, asked, ids, caller, origin, chosen.version, flavor, port)
    if ids.schedule is not None:
        schedules.insert_schedule(
            tx, schedules.daily(ids.schedule, ids.instance), caller.project_id,
            starts=tx.now.lease + schedules.DELAY,
        )  # fmt: skip
    open_operation(tx, ids.instance, "create", caller, BUILD_LIMIT)
    return ids.instance


def flavor_for(tx: Tx, flavor_id: str, caller: Caller) -> FlavorRow:
    """A flavor that the caller may use; its disk does not count, an instance has a volume."""
    try:
        return get_flavor(tx, flavor_id, None if caller.admin else caller.project_id)
    except NotFound as error:
        raise Invalid(f"flavorRef: {error.message}") from None


def _origin(tx: Tx, asked: AskedInstance, caller: Caller) -> tuple[Origin, datastores.Chosen]:
    """Where the data comes from, and the version that it needs."""
    if asked.backup_id is None:
        chosen = datastores.choose(tx, asked.datastore, asked.version)
        return Origin(asked.databases, asked.users), chosen
    # Held until the end: a delete that comes now sees its reader, or this sees the delete.
    _LOCK_BACKUP.first(tx, backup=asked.backup_id)
    backup = _BACKUP.first(tx, backup=asked.backup_id)
    if backup is None or backup.deleted or (backup.project_id != caller.project_id and not caller.admin):
        raise NotFound(f"Backup {asked.backup_id} cannot be found.")
    if backup.ended not in ("COMPLETED", "RESTORED"):
        state = "it has failed" if backup.ended else "it is not finished"
        raise Conflict(f"restorePoint.backupRef: backup {asked.backup_id} cannot be restored: {state}.")
    if backup.damaged is not None and not asked.accept_damage:
        raise Conflict(
            f"restorePoint.backupRef: backup {asked.backup_id} cannot be restored: it is damaged "
            f"({backup.damaged}). To try it all the same: restorePoint.accept_damage."
        )
    size = _size_of_chain(tx, asked.backup_id)
    if size > asked.volume_gb << 30:
        raise Forbidden(
            f"volume.size: {asked.volume_gb} GiB is too small for backup {asked.backup_id}, which holds "
            f"{size} bytes ({-(-size >> 30)} GiB)."
        )
    chosen = datastores.get_version(tx, backup.datastore_version_id, inactive=True)
    wrong = asked.datastore is not None and asked.datastore not in (
        chosen.datastore.id,
        chosen.datastore.name,
    )
    if wrong:
        raise Invalid(f"datastore.type: backup {asked.backup_id} is of {chosen.datastore.name}.")
    if asked.version is not None:
        wanted = datastores.choose(tx, chosen.datastore.id, asked.version)
        if not datastores.same_line(wanted.version, chosen.version):
            raise Invalid(
                f"datastore.version: backup {asked.backup_id} is of version {chosen.version.version}, and "
                "can be restored into one of the same major version only."
            )
        chosen = wanted
    return Origin(asked.databases, asked.users, asked.backup_id), chosen


def _size_of_chain(tx: Tx, backup_id: str) -> int:
    """Bytes of the backup and of all that have to be restored before it."""
    found = load_backup(tx, backup_id)
    assert found is not None
    try:
        return sum(row.size or 0 for row in chain_of(tx, found))
    except CannotBeRestored as error:
        raise Conflict(f"restorePoint.backupRef: {error.message}") from None


def images_for_version(tx: Tx, version: datastores.Version) -> tuple[tuple[BootImage, ...], str]:
    """The system tree of a datastore's version, with the kernel that machines boot it with."""
    if version.image_id is None:
        raise Conflict(f"Datastore version {version.name} has no image yet; an administrator registers one.")
    return images_of(tx, version.image_id, "datastore.version"), version.image_id


def images_of(tx: Tx, image_id: str, field: str) -> tuple[BootImage, ...]:
    """What boots from an image of role root, each part fixed by its digest."""
    root = _image(tx, image_id, field)
    found = [_boot(root, ImageRole.ROOT)]
    for role, part in ((ImageRole.KERNEL, root.kernel_id), (ImageRole.RAMDISK, root.ramdisk_id)):
        if part:
            found.append(_boot(_image(tx, part, f"{field}: {role.value}_id"), role))
    return tuple(found)


def check_memory(tx: Tx, flavor: FlavorRow, image_id: str) -> None:
    """A flavor in which the datastore could never start is refused now."""
    try:
        least = image_for_boot(tx, image_id, None, admin=True).min_ram
    except NotFound:
        return
    if flavor.ram_mb < least:
        raise Invalid(
            f"flavorRef: flavor {flavor.name} has {flavor.ram_mb} MiB of memory, the datastore needs {least}."
        )


def _image(tx: Tx, image_id: str, field: str) -> Bootable:
    try:
        image = image_for_boot(tx, image_id, None, admin=True)
    except NotFound:
        raise Invalid(f"{field}: its image {image_id} could not be found.") from None
    if image.status != "active":
        raise Invalid(f"{field}: its image {image_id} is not active.")
    return image


def _boot(image: Bootable, role: ImageRole) -> BootImage:
    return BootImage(image.id, role, image.sha512, image.size, image.disk_format or "raw")


def check_hosts(tx: Tx) -> None:
    """An instance that no host could ever connect is refused now, not left waiting."""
    query = sa.select(hosts.c.hostname, hosts.c.no_networks).where(hosts.c.enabled)
    found: Sequence[Any] = tx.execute(query.order_by(hosts.c.hostname)).all()
    if found and all(host.no_networks for host in found):
        raise Conflict(f"No host can connect an instance now ({found[0].hostname}: {found[0].no_networks}).")


def _server(asked: AskedInstance, ids: NewIds, flavor: FlavorRow, image_id: str, spec: Spec) -> NewServer:
    return NewServer(
        id=ids.server, name=asked.name, description=f"database instance {ids.instance}",
        image_id=image_id, flavor_id=flavor.id,
        flavor=copy_of(msgspec.structs.replace(flavor, disk_gb=asked.volume_gb)),
        key_name=None, metadata={}, tags=(), requested_zone=None, config_drive=False,
        disk_config="MANUAL", reservation_id=f"r-{ids.server[:8]}", launch_index=0,
        access_ipv4="", access_ipv6="", spec=spec,
    )  # fmt: skip


def _port(tx: Tx, asked: AskedInstance, ids: NewIds, caller: Caller) -> Nic:
    """On the tenant's network, and in the project of the server: it is no port that the tenant could take."""
    try:
        return allot_port(
            tx, port_id=ids.port, server_id=ids.server, project_id=SERVICE_PROJECT,
            for_project=caller.project_id, network_id=asked.network_id, address=asked.address,
        )  # fmt: skip
    except NoSuchNetwork:
        if asked.network_id is None:
            raise Invalid("nics: there is no network that every project may use; name one.") from None
        raise Invalid(f"nics: Network {asked.network_id} could not be found.") from None
    except NoMoreAddresses as error:
        raise Invalid(f"nics: {error}") from None


def access_of(tx: Tx, nic: Nic, port: int, *, is_public: bool, cidrs: tuple[str, ...] | None) -> Access:
    """Who may come in: those who are named; everybody, if it is public; else its own network and its host,
    whose address on the network's bridge is the gateway's."""
    if cidrs:
        return Access((port,), cidrs)
    if is_public:
        return Access((port,), (EVERYBODY,))
    subnet = subnet_of(tx, nic.network_id)
    own = ipaddress.ip_network(subnet.cidr)
    found = [str(own)]
    if nic.gateway is not None and ipaddress.ip_address(nic.gateway) not in own:
        found.append(f"{nic.gateway}/32")
    return Access((port,), tuple(found))


def _insert(
    tx: Tx, asked: AskedInstance, ids: NewIds, caller: Caller, origin: Origin, version: datastores.Version,
    flavor: FlavorRow, port: int,
) -> None:  # fmt: skip
    now = tx.now
    _INSERT.run(
        tx, id=ids.instance, project_id=caller.project_id, user_id=caller.user_id, name=asked.name,
        server_id=ids.server, datastore_version_id=version.id, flavor_id=flavor.id, ram_mb=flavor.ram_mb,
        volume_gb=asked.volume_gb, port=port, is_public=asked.is_public,
        allowed_cidrs=msgspec.json.encode(asked.cidrs or ()).decode(),
        created=now.lease, created_wall=now.wall, updated_wall=now.wall,
        origin=msgspec.json.encode(origin).decode(), generation=ids.generation, restart=0, settings="{}",
        configuration_id=asked.configuration_id,
        protected=asked.protected, deleted=False, restores=asked.backup_id, data_recorded=False, alive=False,
        seen_at=now.lease, seen_incarnation=0, seen_sequence=0, guest=0, guest_former="[]",
        hello_incarnation=0, hello_sequence=0, removed=False, settled=False, next_look=now.lease,
    )  # fmt: skip


def open_operation(tx: Tx, instance_id: str, kind: str, caller: Caller, limit: float) -> None:
    """Write down what was asked; it stays open until the facts say that it is over."""
    _operation(tx, instance_id, kind, caller, state="open", deadline=tx.now.lease + limit)


def note_operation(tx: Tx, instance_id: str, kind: str, caller: Caller) -> None:
    """Write down what was asked and is over with this very transaction."""
    _operation(tx, instance_id, kind, caller, state="done", finished_wall=tx.now.wall)


def _operation(tx: Tx, instance_id: str, kind: str, caller: Caller, **values: Any) -> None:
    _INSERT_OPERATION.run(
        tx, id=f"{instance_id}.{kind}.{caller.request_id}", resource_kind="instance",
        resource_id=instance_id, kind=kind, edge=0, soft=False, reason="", request_id=caller.request_id,
        user_id=caller.user_id, project_id=caller.project_id, host=None, since=tx.now.lease,
        started_wall=tx.now.wall, **values,
    )  # fmt: skip
