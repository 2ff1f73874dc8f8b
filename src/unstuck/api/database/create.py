"""``POST /instances``: checks what can be checked without the store; one transaction does the rest."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, UnsetType, field

from unstuck.api.database.common import (
    cidrs_of,
    invalid,
    number,
    object_id,
    refuse_given,
    text_of,
)
from unstuck.api.database.databases import NewDatabase, wanted_databases
from unstuck.api.database.users import NewUser, wanted_users
from unstuck.api.errors import bad_request
from unstuck.api.routes import Body
from unstuck.core.instance.naming import Naming
from unstuck.core.time import moment_of
from unstuck.store.instance_create import AskedInstance
from unstuck.store.server_search import ZONE

VOLUME_MAX_GB: Final = 65536
VOLUME_TYPE: Final = "default"
"""The one type of volumes there is."""


class Volume(Body, frozen=True, kw_only=True):
    size: int | str
    type: str | None = None


class Datastore(Body, frozen=True, kw_only=True):
    """``type`` and ``version`` are names or ids."""

    type: str | None = None
    version: str | None = None
    version_number: str | None = None


class Nic(Body, frozen=True, kw_only=True):
    network_id: str | None = None
    net_id: str | None = field(name="net-id", default=None)
    subnet_id: str | None = None
    ip_address: str | None = None
    port_id: str | None = field(name="port-id", default=None)
    v4_fixed_ip: str | None = field(name="v4-fixed-ip", default=None)


class RestorePoint(Body, frozen=True, kw_only=True):
    """A backup, and ours: whether also from one that is damaged; or a moment of an instance."""

    backup_ref: str | None = field(name="backupRef", default=None)
    accept_damage: bool = False
    instance: str | None = None
    time: str | None = None


class Access(Body, frozen=True, kw_only=True):
    is_public: bool | UnsetType = UNSET
    allowed_cidrs: list[str] | UnsetType | None = UNSET


class NewInstance(Body, frozen=True, kw_only=True):
    name: str
    flavor_ref: str | int | None = field(name="flavorRef", default=None)
    volume: Volume | None = None
    databases: list[NewDatabase] = []
    users: list[NewUser] = []
    restore_point: RestorePoint | None = field(name="restorePoint", default=None)
    datastore: Datastore | None = None
    nics: list[Nic] | None = None
    access: Access | None = None
    availability_zone: str | None = None
    region_name: str | None = None
    replica_of: Any = None
    slave_of: Any = None
    replica_count: Any = None
    configuration: str | None = None
    modules: Any = None
    locality: Any = None


class CreateBody(Body, frozen=True, kw_only=True):
    instance: NewInstance


def wanted(new: NewInstance, *, region: str, naming: Naming) -> AskedInstance:
    """What is asked for; 400 names the field."""
    _refuse_what_is_not_there(new, region)
    if new.flavor_ref in (None, ""):
        invalid("flavorRef", "a flavor is required.")
    if new.volume is None:
        invalid("volume", "a volume with its size in GiB is required.")
    users = wanted_users(new.users, "users", naming)
    databases = wanted_databases(new.databases, "databases", naming)
    network_id, address = _nic(new.nics)
    access = new.access or Access()
    datastore, version = named_datastore(new)
    backup_id, point_of, at = _restore_point(new.restore_point)
    return AskedInstance(
        name=text_of(new.name, "name"),
        flavor_id=flavor_id_of(new.flavor_ref),
        volume_gb=volume_size(new.volume),
        datastore=datastore,
        version=version,
        databases=databases,
        users=users,
        backup_id=backup_id,
        accept_damage=new.restore_point is not None and new.restore_point.accept_damage,
        point_of=point_of,
        at=at,
        network_id=network_id,
        address=address,
        is_public=access.is_public is True,
        cidrs=access_cidrs(access),
        configuration_id=configuration_id_of(new.configuration),
    )


def named_datastore(new: NewInstance) -> tuple[str | None, str | None]:
    """Its datastore and version, by name or id; None where the request does not say."""
    store = new.datastore or Datastore()
    return _word(store.type, "datastore.type"), _word(store.version, "datastore.version")


def flavor_id_of(ref: str | int | None) -> str:
    """A flavor's id; some clients send its address."""
    found = str(ref).rstrip("/").rpartition("/")[2]
    if not 0 < len(found) <= 255:
        invalid("flavorRef", "it is not a flavor's id.")
    return found


def configuration_id_of(text: str | None) -> str | None:
    """A configuration group's id, from what a request names; an empty one is none."""
    return None if text in (None, "") else object_id(str(text), "Configuration")


def volume_size(volume: Volume) -> int:
    """GiB."""
    if volume.type not in (None, "", VOLUME_TYPE):
        invalid("volume.type", f"there is no volume type {volume.type[:60]!r}; there is: {VOLUME_TYPE}.")
    return number(volume.size, "volume.size", least=1, most=VOLUME_MAX_GB)


def access_cidrs(access: Access) -> tuple[str, ...] | None:
    """Who may come in; None where the request does not say."""
    if isinstance(access.allowed_cidrs, UnsetType) or access.allowed_cidrs is None:
        return None
    return cidrs_of(access.allowed_cidrs, "access.allowed_cidrs")


def _restore_point(point: RestorePoint | None) -> tuple[str | None, str | None, float | None]:
    """A backup's id; or an instance's id and a moment, in seconds."""
    if point is None:
        return None, None, None
    if point.backup_ref is not None:
        if point.instance is not None or point.time is not None:
            invalid("restorePoint", "it names a backup (backupRef), or an instance and a time.")
        return point.backup_ref, None, None
    if point.instance is None or point.time is None:
        invalid("restorePoint", "it names a backup (backupRef), or an instance and a time.")
    return None, object_id(point.instance, "Instance"), moment(point.time)


def moment(text: str) -> float:
    """Wall time in seconds of an ISO 8601 time; without a zone it is UTC."""
    try:
        return moment_of(text.strip())
    except ValueError:
        invalid("restorePoint.time", f"{text[:60]!r} is not a time like 2026-11-30T12:00:00Z.")


def _word(text: str | None, where: str) -> str | None:
    if text in (None, ""):
        return None
    return text_of(text, where)


def _nic(nics: list[Nic] | None) -> tuple[str | None, str | None]:
    """Network and address of the one port that an instance has."""
    if not nics:
        return None, None
    if len(nics) > 1:
        invalid("nics", "an instance has one network.")
    nic = nics[0]
    if nic.port_id not in (None, ""):
        invalid("nics[0].port-id", "an instance's port is made for it; name a network.")
    if nic.subnet_id not in (None, ""):
        invalid("nics[0].subnet_id", "a network has one subnet here; name the network.")
    address = nic.ip_address or nic.v4_fixed_ip or None
    return nic.network_id or nic.net_id or None, address


def _refuse_what_is_not_there(new: NewInstance, region: str) -> None:
    refuse_given(new.replica_of, "replica_of", "replicas are not offered by this cloud.")
    refuse_given(new.slave_of, "slave_of", "replicas are not offered by this cloud.")
    refuse_given(new.replica_count, "replica_count", "replicas are not offered by this cloud.")
    refuse_given(new.modules, "modules", "modules are not offered by this cloud.")
    refuse_given(new.locality, "locality", "it is for replicas, which are not offered by this cloud.")
    if new.region_name not in (None, "", region):
        raise bad_request(f"region_name: there is no region {new.region_name[:60]!r}; this is {region}.")
    if new.availability_zone not in (None, "", ZONE):
        raise bad_request(
            f"availability_zone: there is no zone {new.availability_zone[:60]!r}; there is: {ZONE}."
        )
