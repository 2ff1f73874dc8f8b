"""Accept servers: everything a create request names is looked up, counted and inserted in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.core.image import BootImage as Bootable
from unstuck.core.server.data import BootImage, Flavor, ImageRole, Nic, Spec
from unstuck.core.server.names import hostname_of
from unstuck.store import quotas
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow, get_flavor
from unstuck.store.images import image_for_boot
from unstuck.store.keypairs import find_keypair
from unstuck.store.networks import NoMoreAddresses, NoSuchNetwork, allot_port
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import hosts, servers
from unstuck.store.server_search import ZONE
from unstuck.store.servers import Caller, NewServer, insert_server
from unstuck.store.tx import in_turn

_SET_SPEC = Prepared(
    sa.update(servers).where(servers.c.id == sa.bindparam("server")).values(spec=sa.bindparam("made_of"))
)


class WantedNic(msgspec.Struct, frozen=True):
    """A port to make. ``network_id`` None is the default network."""

    network_id: str | None = None
    address: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A create request in the store's words. ``ids``: one per server at most, ports' ids after it."""

    name: str
    description: str | None
    image_id: str
    flavor_id: str
    key_name: str | None
    metadata: dict[str, str]
    tags: tuple[str, ...]
    zone: str | None
    host: str | None
    config_drive: bool
    disk_config: str
    access_ipv4: str
    access_ipv6: str
    user_data: str | None
    hostname: str | None
    dotted_hostnames: bool
    nics: tuple[WantedNic, ...]
    least: int
    most: int
    reservation_id: str


def _project(_asked: Asked, _ids: Sequence[str], caller: Caller, **_more: object) -> str:
    return f"project {caller.project_id}"


@in_turn(_project)
def create_servers(tx: Tx, asked: Asked, ids: Sequence[str], caller: Caller, *, admin: bool) -> list[str]:
    """Insert the servers with their ports; returns their ids. Nothing is there when it raises.

    ``ids`` are fresh: ``most`` for the servers, then as many for each of their ports.
    """
    flavor = flavor_for(tx, asked.flavor_id, None if admin else caller.project_id)
    images = images_for(tx, asked.image_id, flavor, caller.project_id, admin=admin)
    keys = keys_for(tx, asked.key_name, caller.user_id)
    _check_host(tx, asked.host)
    if asked.nics:
        _check_networks(tx, asked.host)
    count = quotas.grant(
        tx, caller.project_id, least=asked.least, most=asked.most, vcpus=flavor.vcpus, ram_mb=flavor.ram_mb
    )
    quotas.check_metadata_count(tx, caller.project_id, len(asked.metadata))
    spares = iter(ids[asked.most :])
    for index in range(count):
        spec = _spec(asked, ids[index], index, caller.project_id, flavor)
        spec = msgspec.structs.replace(spec, images=images, keys=keys)
        new = _new(asked, ids[index], index, flavor, spec)
        insert_server(tx, new, caller)
        nics = tuple(_nic(tx, nic, next(spares), new.id, caller.project_id) for nic in asked.nics)
        if nics:  # a port's row hangs from its server's, so the spec learns of them only now
            made_of = msgspec.json.encode(msgspec.structs.replace(spec, nics=nics)).decode()
            _SET_SPEC.run(tx, server=new.id, made_of=made_of)
    return list(ids[:count])


def _spec(asked: Asked, server_id: str, index: int, project_id: str, flavor: FlavorRow) -> Spec:
    name = asked.name if asked.most == 1 else f"{asked.name}-{index + 1}"
    return Spec(
        name=name,
        hostname=asked.hostname or hostname_of(name, server_id, dots=asked.dotted_hostnames),
        project_id=project_id,
        availability_zone=ZONE,
        flavor=Flavor(flavor.vcpus, flavor.ram_mb, flavor.disk_gb),
        images=(),
        metadata=asked.metadata,
        user_data=asked.user_data,
    )


def _new(asked: Asked, server_id: str, index: int, flavor: FlavorRow, spec: Spec) -> NewServer:
    return NewServer(
        id=server_id,
        name=spec.name,
        description=asked.description,
        image_id=asked.image_id,
        flavor_id=flavor.id,
        flavor=copy_of(flavor),
        key_name=asked.key_name,
        metadata=asked.metadata,
        tags=asked.tags,
        requested_zone=f"{asked.zone or ZONE}:{asked.host}" if asked.host else asked.zone,
        config_drive=asked.config_drive,
        disk_config=asked.disk_config,
        reservation_id=asked.reservation_id,
        launch_index=index,
        access_ipv4=asked.access_ipv4,
        access_ipv6=asked.access_ipv6,
        spec=spec,
    )


def copy_of(flavor: FlavorRow) -> dict[str, object]:
    """The flavor as the server keeps it, in the form that the compute API shows from 2.47 on."""
    return {
        "vcpus": flavor.vcpus,
        "ram": flavor.ram_mb,
        "disk": flavor.disk_gb,
        "ephemeral": flavor.ephemeral_gb,
        "swap": flavor.swap_mb,
        "original_name": flavor.name,
        "extra_specs": flavor.extra_specs,
    }


def flavor_for(tx: Tx, flavor_id: str, project_id: str | None) -> FlavorRow:
    """A flavor that a server can be made of, and that the project (``None``: anybody) may use."""
    try:
        flavor = get_flavor(tx, flavor_id, project_id)
    except NotFound as error:
        raise Invalid(f"flavorRef: {error.message}") from None
    if flavor.ephemeral_gb or flavor.swap_mb:
        raise Invalid(f"Flavor {flavor_id} has an ephemeral or swap disk; those are not there yet.")
    return flavor


def _image(tx: Tx, image_id: str, project_id: str, *, admin: bool, field: str) -> Bootable:
    try:
        image = image_for_boot(tx, image_id, project_id, admin=admin)
    except NotFound:
        raise Invalid(f"{field}: Image {image_id} could not be found.") from None
    if image.status != "active":
        raise Invalid(f"{field}: Image {image_id} is not active.")
    return image


def images_for(
    tx: Tx, image_id: str, flavor: FlavorRow | Flavor, project_id: str, *, admin: bool
) -> tuple[BootImage, ...]:
    """The disk image with the kernel (and ramdisk) that it names, each fixed by its digest."""
    image = _image(tx, image_id, project_id, admin=admin, field="imageRef")
    if image.disk_format not in ("raw", "qcow2"):
        raise Invalid(f"imageRef: a server cannot be booted from the disk format {image.disk_format!r}.")
    if not image.kernel_id:
        raise Invalid(
            f"imageRef: image {image_id} has no kernel_id, and firmware boot is not there yet: "
            "set the image's properties kernel_id and ramdisk_id."
        )
    _check_size(image, flavor)
    found = [_boot_image(image, ImageRole.DISK)]
    for role, part in ((ImageRole.KERNEL, image.kernel_id), (ImageRole.RAMDISK, image.ramdisk_id)):
        if part:
            field = f"imageRef: {role.value}_id"
            found.append(_boot_image(_image(tx, part, project_id, admin=admin, field=field), role))
    return tuple(found)


def _boot_image(image: Bootable, role: ImageRole) -> BootImage:
    return BootImage(image.id, role, image.sha512, image.size, image.disk_format or "raw")


def _check_size(image: Bootable, flavor: FlavorRow | Flavor) -> None:
    if flavor.ram_mb < image.min_ram:
        raise Invalid(
            f"Flavor's memory is too small for requested image: {flavor.ram_mb} MiB, "
            f"the image needs {image.min_ram}."
        )
    if flavor.disk_gb == 0:  # the disk becomes as large as the image
        return
    if flavor.disk_gb < image.min_disk:
        raise Invalid(
            "The size of the flavor's disk is smaller than the minimum size specified in image metadata: "
            f"{flavor.disk_gb} GiB, the minimum is {image.min_disk}."
        )
    if image.virtual_size > flavor.disk_gb << 30:
        raise Invalid(
            f"Flavor's disk is too small for requested image: {flavor.disk_gb << 30} bytes, "
            f"the image is {image.virtual_size}."
        )


def keys_for(tx: Tx, name: str | None, user_id: str) -> dict[str, str]:
    if name is None:
        return {}
    found = find_keypair(tx, user_id, name)
    if found is None:
        raise Invalid(f"key_name: Invalid key_name provided: there is no key pair {name!r}.")
    return {found.name: found.public_key}


def _check_host(tx: Tx, hostname: str | None) -> None:
    if hostname is None:
        return
    if tx.execute(sa.select(hosts.c.id).where(hosts.c.hostname == hostname)).first() is None:
        raise Invalid(f"Compute host {hostname} could not be found.")


def _check_networks(tx: Tx, hostname: str | None) -> None:
    """A server that no host could ever connect is refused now, not left waiting.

    A host that has not registered yet may well be able to; with no host at all, one may come.
    """
    query = sa.select(hosts.c.hostname, hosts.c.no_networks).where(hosts.c.enabled)
    if hostname is not None:
        query = query.where(hosts.c.hostname == hostname)
    found = tx.execute(query.order_by(hosts.c.hostname)).all()
    if found and all(host.no_networks for host in found):
        raise Conflict(
            f"networks: no host can connect a server now ({found[0].hostname}: {found[0].no_networks}); "
            "a server without a network can be created: --no-network, or 'networks': 'none'."
        )


def _nic(tx: Tx, wanted: WantedNic, port_id: str, server_id: str, project_id: str) -> Nic:
    try:
        return allot_port(
            tx,
            port_id=port_id,
            server_id=server_id,
            project_id=project_id,
            network_id=wanted.network_id,
            address=wanted.address,
        )
    except NoSuchNetwork:
        if wanted.network_id is None:
            raise Invalid("networks: there is no network that every project may use.") from None
        raise Invalid(f"networks: Network {wanted.network_id} could not be found.") from None
    except NoMoreAddresses as error:
        raise Invalid(f"networks: {error}") from None
