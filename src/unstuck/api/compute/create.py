"""``POST /servers``: checks what can be checked without the store, and hands the rest to one transaction."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import secrets
from typing import Any, Final, Protocol

from msgspec import UNSET, UnsetType, field

from unstuck.api.compute.common import (
    BASE,
    as_bool,
    as_int,
    as_name,
    as_text,
    as_uuid,
    caller,
    gate,
    links,
    wake,
)
from unstuck.api.errors import bad_request, forbidden
from unstuck.api.routes import Body, Call, Reply
from unstuck.store.server_create import Asked, WantedNic, create_servers
from unstuck.store.server_search import ZONE

MAX_USER_DATA: Final = 65535
MAX_TAGS: Final = 50
MAX_NICS: Final = 16
MAX_SERVERS: Final = 100
_KEY = re.compile(r"[a-zA-Z0-9_:. -]{1,255}")
_TAG = re.compile(r"[^,/]{1,60}")
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class Nic(Body, frozen=True, kw_only=True):
    uuid: str | None = None
    fixed_ip: str | None = None
    port: str | None = None
    tag: str | UnsetType = UNSET


class Group(Body, frozen=True, kw_only=True):
    name: str


class Device(Body, frozen=True, kw_only=True):
    """A block device; only the root disk that every client sends is accepted."""

    source_type: str | None = None
    destination_type: str | None = None
    uuid: str | None = None
    boot_index: int | str | None = None
    delete_on_termination: bool | str | None = None
    volume_size: int | str | None = None
    device_name: str | None = None
    disk_bus: str | None = None
    device_type: str | None = None
    guest_format: str | None = None
    no_device: bool | str | None = None
    volume_type: str | None = None
    tag: str | UnsetType = UNSET


class NewServer(Body, frozen=True, kw_only=True):
    name: str
    flavor_ref: str | int = field(name="flavorRef")
    image_ref: str | None = field(name="imageRef", default=None)
    networks: list[Nic] | str | UnsetType = UNSET
    devices: list[Device] = field(name="block_device_mapping_v2", default_factory=list)
    old_devices: list[Any] = field(name="block_device_mapping", default_factory=list)
    key_name: str | None = None
    metadata: dict[str, str] = {}
    user_data: str | None = None
    config_drive: bool | str | None = None
    min_count: int | str | None = None
    max_count: int | str | None = None
    return_reservation_id: bool | str = False
    security_groups: list[Group] | None = None
    availability_zone: str | None = None
    admin_pass: str | None = field(name="adminPass", default=None)
    disk_config: str = field(name="OS-DCF:diskConfig", default="MANUAL")
    access_ipv4: str | None = field(name="accessIPv4", default=None)
    access_ipv6: str | None = field(name="accessIPv6", default=None)
    description: str | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    trusted_certificates: list[str] | UnsetType | None = field(
        name="trusted_image_certificates", default=UNSET
    )
    host: str | UnsetType = UNSET
    hypervisor_hostname: str | UnsetType = UNSET
    hostname: str | UnsetType = UNSET
    personality: list[Any] | UnsetType = UNSET


class CreateBody(Body, frozen=True, kw_only=True):
    server: NewServer
    hints: dict[str, Any] = field(name="os:scheduler_hints", default_factory=dict)
    old_hints: dict[str, Any] = field(name="OS-SCH-HNT:scheduler_hints", default_factory=dict)


async def create(call: Call) -> Reply:
    """``POST /servers``."""
    body: CreateBody = call.body
    new = body.server
    _refuse_what_is_not_there(call, body)
    reservation = f"r-{secrets.token_hex(4)}"
    asked = _asked(call, new, reservation)
    ids = [call.new_id() for _ in range(asked.most * (1 + len(asked.nics)))]
    made = await call.store.run(create_servers, asked, ids, caller(call), admin=call.is_admin)
    wake(call, None, control=True)
    if as_bool(new.return_reservation_id, "return_reservation_id"):
        return Reply({"reservation_id": reservation})
    server = {
        "id": made[0],
        "links": links(call, "servers", made[0]),
        "OS-DCF:diskConfig": asked.disk_config,
        "security_groups": [{"name": "default"}],
        "adminPass": new.admin_pass or secrets.token_urlsafe(9),
    }
    return Reply({"server": server}, headers={"location": call.url(f"{BASE}/servers/{made[0]}")})


def _refuse_what_is_not_there(call: Call, body: CreateBody) -> None:
    new = body.server
    gate(call, "description", new.description, (2, 19))
    gate(call, "tags", new.tags, (2, 52))
    gate(call, "trusted_image_certificates", new.trusted_certificates, (2, 63))
    gate(call, "host", new.host, (2, 74))
    gate(call, "hypervisor_hostname", new.hypervisor_hostname, (2, 74))
    gate(call, "hostname", new.hostname, (2, 90))
    gate(call, "personality", new.personality, (2, 1), (2, 56))
    if new.personality not in (UNSET, []):
        raise bad_request("personality: files cannot be injected here; use user_data instead.")
    if new.trusted_certificates not in (UNSET, None, []):
        raise bad_request("trusted_image_certificates: signed images are not verified here.")
    if new.old_devices:
        raise bad_request("block_device_mapping: volumes are not there; use imageRef.")
    hints = [*body.hints, *body.old_hints]
    if hints:
        raise bad_request(f"os:scheduler_hints: the hint {hints[0][:60]!r} is not supported.")
    for group in new.security_groups or []:
        if group.name != "default":
            raise bad_request(
                f"security_groups: Security group {group.name[:60]!r} not found for this project."
            )


def _asked(call: Call, new: NewServer, reservation: str) -> Asked:
    least, most = _counts(new)
    nics = _nics(call, new)
    hostname = _hostname(call, new.hostname)
    if most > 1 and (hostname or any(nic.address for nic in nics)):
        raise bad_request("max_count: hostname and fixed_ip can be given for a single server only.")
    zone, host = _zone(call, new)
    disk_config = as_disk_config(new.disk_config)
    return Asked(
        name=as_name(new.name, "name"),
        description=as_text(
            None if isinstance(new.description, UnsetType) else new.description, "description"
        ),
        image_id=_image(new),
        flavor_id=flavor_of(new.flavor_ref),
        key_name=None if new.key_name is None else as_name(new.key_name, "key_name"),
        metadata=check_metadata(new.metadata),
        tags=() if isinstance(new.tags, UnsetType) else check_tags(new.tags),
        zone=zone,
        host=host,
        config_drive=bool(new.config_drive) and as_bool(new.config_drive, "config_drive"),
        disk_config=disk_config,
        access_ipv4=as_address(new.access_ipv4, "accessIPv4", 4),
        access_ipv6=as_address(new.access_ipv6, "accessIPv6", 6),
        user_data=check_user_data(new.user_data),
        hostname=hostname,
        dotted_hostnames=call.version < (2, 90),
        nics=nics,
        least=least,
        most=most,
        reservation_id=reservation,
    )


def _counts(new: NewServer) -> tuple[int, int]:
    least = 1 if new.min_count is None else as_int(new.min_count, "min_count", least=1)
    most = least if new.max_count is None else as_int(new.max_count, "max_count", least=1)
    if least > most:
        raise bad_request("min_count must be <= max_count")
    if least > MAX_SERVERS:
        # More than any quota; said by the quota's own words, which clients know.
        raise forbidden(f"Quota exceeded for instances: Requested {least}, the limit is {MAX_SERVERS}")
    return least, min(most, MAX_SERVERS)


def _image(new: NewServer) -> str:
    """The image, also where it is named only as the root disk."""
    image = (new.image_ref or "").rstrip("/").rpartition("/")[2]
    for device in new.devices:
        root = device.source_type == "image" and device.destination_type == "local"
        if len(new.devices) != 1 or not root or str(device.boot_index) != "0" or device.volume_size:
            raise bad_request(
                "block_device_mapping_v2: only the root disk from an image is supported: one entry with "
                "source_type image, destination_type local, boot_index 0 and no volume_size."
            )
        if device.uuid is None or (image and device.uuid != image):
            raise bad_request("block_device_mapping_v2: its uuid must be the image of imageRef.")
        image = device.uuid
    if not image:
        raise bad_request("Invalid input for field imageRef: an image is required; volumes are not there.")
    return as_uuid(image, "imageRef")


def _nics(call: Call, new: NewServer) -> tuple[WantedNic, ...]:
    if isinstance(new.networks, str):
        gate(call, "networks", new.networks, (2, 37))
        if new.networks not in ("auto", "none"):
            raise bad_request("Invalid input for field networks: it is 'auto', 'none' or a list.")
        return () if new.networks == "none" else (WantedNic(),)
    if isinstance(new.networks, UnsetType) and call.version >= (2, 37):
        raise bad_request("Invalid input for field networks: 'networks' is a required property.")
    if isinstance(new.networks, UnsetType) or not new.networks:
        return (WantedNic(),)
    if len(new.networks) > MAX_NICS:
        raise bad_request(f"Invalid input for field networks: at most {MAX_NICS} are allowed.")
    return tuple(_nic(call, nic, f"networks[{index}]") for index, nic in enumerate(new.networks))


def _nic(call: Call, nic: Nic, where: str) -> WantedNic:
    tagged = (2, 32) <= call.version <= (2, 36) or call.version >= (2, 42)
    if nic.tag is not UNSET and not tagged:
        raise bad_request(f"Invalid input for field {where}.tag: it is not allowed in this microversion.")
    if nic.port is not None:
        raise bad_request(f"{where}.port: ports made beforehand are not there yet; give a network's uuid.")
    if nic.uuid is None:
        raise bad_request(f"Invalid input for field {where}.uuid: the network is required.")
    address = as_address(nic.fixed_ip, f"{where}.fixed_ip", 4) or None
    return WantedNic(as_uuid(nic.uuid, f"{where}.uuid"), address)


def as_address(value: str | None, name: str, version: int) -> str:
    """An address of this IP version, or an empty string for none."""
    if not value:
        return ""
    try:
        parsed = ipaddress.ip_address(value)
    except ValueError:
        parsed = None
    if parsed is None or parsed.version != version or "%" in value:
        raise bad_request(f"Invalid input for field {name}: {value[:60]!r} is not an IPv{version} address.")
    return str(parsed)


def flavor_of(reference: str | int) -> str:
    """The id of a flavor that is named by id or by link."""
    return str(reference).rstrip("/").rpartition("/")[2]


def as_disk_config(value: str) -> str:
    """Kept and shown; 400 for others."""
    if value not in ("AUTO", "MANUAL"):
        raise bad_request("Invalid input for field OS-DCF:diskConfig: it is AUTO or MANUAL.")
    return value


class Describing(Protocol):
    """What only describes a server, in the requests that may change it; unset: it stays."""

    @property
    def access_ipv4(self) -> str | UnsetType | None: ...

    @property
    def access_ipv6(self) -> str | UnsetType | None: ...

    @property
    def description(self) -> str | UnsetType | None: ...

    @property
    def disk_config(self) -> str | UnsetType: ...


def describing(asked: Describing) -> dict[str, Any]:
    """The columns that are to change, checked."""
    values: dict[str, Any] = {}
    if not isinstance(asked.access_ipv4, UnsetType):
        values["access_ipv4"] = as_address(asked.access_ipv4, "accessIPv4", 4)
    if not isinstance(asked.access_ipv6, UnsetType):
        values["access_ipv6"] = as_address(asked.access_ipv6, "accessIPv6", 6)
    if not isinstance(asked.description, UnsetType):
        values["description"] = as_text(asked.description, "description")
    if not isinstance(asked.disk_config, UnsetType):
        values["disk_config"] = as_disk_config(asked.disk_config)
    return values


def check_metadata(items: dict[str, str]) -> dict[str, str]:
    """Metadata of a server: 400 names the key. How many there may be is the project's quota."""
    for key, value in items.items():
        if not _KEY.fullmatch(key):
            raise bad_request(f"Invalid input for field metadata: {key[:60]!r} is not a valid key.")
        if len(value) > 255:
            raise bad_request(f"Invalid input for field metadata: the value of {key!r} is too long.")
    return items


def check_tags(tags: list[str]) -> tuple[str, ...]:
    """Tags of a server, each once and in order."""
    for tag in tags:
        check_tag(tag)
    unique = tuple(sorted(set(tags)))
    if len(unique) > MAX_TAGS:
        raise bad_request(f"Invalid input for field tags: at most {MAX_TAGS} are allowed.")
    return unique


def check_tag(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise bad_request(
            f"Invalid input for field tags: {tag[:70]!r} must be 1 to 60 characters without , and /."
        )
    return tag


def check_hostname(call: Call, value: str) -> str:
    """A host name that a user chose (from 2.90; from 2.94 it may be a fully qualified one)."""
    qualified = call.version >= (2, 94)
    labels = value.split(".")
    wrong = len(value) > 255 or not all(0 < len(label) < 64 for label in labels)
    if wrong or not _HOSTNAME.fullmatch(value) or (len(labels) > 1 and not qualified):
        raise bad_request(f"Invalid input for field hostname: {value[:70]!r} is not a host name.")
    return value


def _hostname(call: Call, value: str | UnsetType) -> str | None:
    return None if isinstance(value, UnsetType) else check_hostname(call, value)


def check_user_data(value: str | None) -> str | None:
    if value is None:
        return None
    if len(value) > MAX_USER_DATA:
        raise bad_request(f"Invalid input for field user_data: it is longer than {MAX_USER_DATA} characters.")
    try:
        base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("Invalid input for field user_data: User data needs to be valid base 64.") from None
    return value


def _zone(call: Call, new: NewServer) -> tuple[str | None, str | None]:
    """(zone, host); only administrators choose a host."""
    zone, _, host = (new.availability_zone or "").partition(":")
    host = host.partition(":")[0]
    chosen = {value for value in (new.host, new.hypervisor_hostname, host or UNSET) if value is not UNSET}
    if len(chosen) > 1:
        raise bad_request("host: availability_zone, host and hypervisor_hostname name different hosts.")
    if chosen and not call.is_admin:
        raise forbidden("Policy does not allow this request: only an administrator chooses a host.")
    if zone and zone != ZONE:
        raise bad_request("availability_zone: The requested availability zone is not available")
    return zone or None, str(next(iter(chosen))) if chosen else None
