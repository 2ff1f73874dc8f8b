"""Servers as the compute API shows them: exactly the keys that each microversion has, no more."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final

import msgspec

from unstuck.api.compute.common import bookmark, links
from unstuck.api.microversions import Version
from unstuck.api.routes import Call
from unstuck.core.server.data import ImageRole
from unstuck.core.server.status import Status, status
from unstuck.core.time import Now, iso_micros, iso_seconds
from unstuck.store.server_lists import Address, ServerItem
from unstuck.store.server_search import zone_of

_PROGRESS: Final = frozenset({"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"})
LONG_UPDATE: Final[Version] = (2, 75)
"""From here on, updating a server answers with all keys, as showing it does."""


@functools.lru_cache(1024)
def host_id_of(item_project: str, host: str | None) -> str:
    """The host's name as users may see it: the same for one project, different between projects."""
    return "" if host is None else hashlib.sha224((item_project + host).encode()).hexdigest()


def addresses_view(addresses: tuple[Address, ...]) -> dict[str, list[dict[str, Any]]]:
    """Addresses by network, with the extension keys that servers show."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for item in addresses:
        shown.setdefault(item.network, []).append(
            {
                "addr": item.address,
                "version": 4,
                "OS-EXT-IPS:type": "fixed",
                "OS-EXT-IPS-MAC:mac_addr": item.mac,
            }
        )
    return shown


def brief_view(call: Call, item: ServerItem) -> dict[str, Any]:
    """What the brief list shows."""
    return {"id": item.id, "name": item.name, "links": links(call, "servers", item.id)}


def show_view(call: Call, item: ServerItem, now: Now) -> dict[str, Any]:
    """``GET /servers/{id}``."""
    shown = detail_view(call, item, now)
    if call.version >= (2, 71):
        shown["server_groups"] = []
    return shown


def detail_view(call: Call, item: ServerItem, now: Now) -> dict[str, Any]:
    """One entry of ``GET /servers/detail``."""
    state = status(item.facts, now)
    shown = _short(call, item, state)
    _extend(shown, item, state)
    if call.is_admin:
        _add_attributes(shown, call.version, item)
    elif call.version >= (2, 90):
        shown["OS-EXT-SRV-ATTR:hostname"] = item.spec.hostname
    if call.version >= (2, 16):
        # Nova shows it to administrators only; that a host is silent is the owner's business too.
        shown["host_status"] = state.host_status
    return shown


def update_view(call: Call, item: ServerItem, now: Now) -> dict[str, Any]:
    """The answer to ``PUT /servers/{id}``: short before 2.75."""
    if call.version >= LONG_UPDATE:
        return show_view(call, item, now)
    shown = _short(call, item, status(item.facts, now))
    if call.version >= (2, 71):
        shown["server_groups"] = []
    return shown


def _short(call: Call, item: ServerItem, state: Status) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "status": state.status,
        "tenant_id": item.project_id,
        "user_id": item.user_id,
        "metadata": msgspec.Raw(item.meta.encode()),
        "hostId": host_id_of(item.project_id, item.host),
        "image": {"id": item.image_id, "links": bookmark(call, "images", item.image_id)},
        "flavor": _flavor(call, item),
        "created": iso_seconds(item.created_wall),
        "updated": iso_seconds(item.updated_wall),
        "addresses": addresses_view(item.addresses),
        "accessIPv4": item.access_ipv4,
        "accessIPv6": item.access_ipv6,
        "links": links(call, "servers", item.id),
        "OS-DCF:diskConfig": item.disk_config,
    }
    if state.status in _PROGRESS:
        shown["progress"] = 0
    if state.fault is not None and state.status == "ERROR":
        shown["fault"] = _fault(item, state.fault)
    _add_by_version(shown, call.version, item)
    return shown


def _add_by_version(shown: dict[str, Any], version: Version, item: ServerItem) -> None:
    if version >= (2, 9):
        shown["locked"] = item.facts.locked is not None
    if version >= (2, 19):
        shown["description"] = item.description
    if version >= (2, 26):
        shown["tags"] = item.tags
    if version >= (2, 63):
        shown["trusted_image_certificates"] = None
    if version >= (2, 73):
        shown["locked_reason"] = item.facts.locked.reason if item.facts.locked else None
    if version >= (2, 96):
        shown["pinned_availability_zone"] = (item.requested_zone or "").partition(":")[0] or None


def _flavor(call: Call, item: ServerItem) -> Any:
    if call.version >= (2, 47):
        return msgspec.Raw(item.flavor.encode())
    return {"id": item.flavor_id, "links": bookmark(call, "flavors", item.flavor_id)}


def _fault(item: ServerItem, fault: tuple[str, str, float | None]) -> dict[str, Any]:
    reason, remedy, since = fault
    message = f"{reason}. What helps: {remedy}." if remedy else f"{reason}."
    return {"code": 500, "created": iso_seconds(since or item.updated_wall), "message": message}


def _extend(shown: dict[str, Any], item: ServerItem, state: Status) -> None:
    launched, removed = item.facts.launched_wall, item.removed_wall
    shown |= {
        "key_name": item.key_name,
        "config_drive": "True" if item.config_drive else "",
        "security_groups": [{"name": "default"}] if item.addresses else [],
        "os-extended-volumes:volumes_attached": [],
        "OS-EXT-AZ:availability_zone": zone_of(item),
        "OS-EXT-STS:vm_state": state.vm_state,
        "OS-EXT-STS:task_state": state.task_state,
        "OS-EXT-STS:power_state": int(state.power_state),
        "OS-SRV-USG:launched_at": None if launched is None else iso_micros(launched),
        "OS-SRV-USG:terminated_at": None if removed is None else iso_micros(removed),
    }


def _add_attributes(shown: dict[str, Any], version: Version, item: ServerItem) -> None:
    shown |= {
        "OS-EXT-SRV-ATTR:host": item.host,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": item.host,
        "OS-EXT-SRV-ATTR:instance_name": f"unstuck-{item.id}",
    }
    if version >= (2, 3):
        shown |= {
            "OS-EXT-SRV-ATTR:hostname": item.spec.hostname,
            "OS-EXT-SRV-ATTR:kernel_id": item.spec.image(ImageRole.KERNEL),
            "OS-EXT-SRV-ATTR:ramdisk_id": item.spec.image(ImageRole.RAMDISK),
            "OS-EXT-SRV-ATTR:launch_index": item.launch_index,
            "OS-EXT-SRV-ATTR:reservation_id": item.reservation_id,
            "OS-EXT-SRV-ATTR:root_device_name": "/dev/vda",
            "OS-EXT-SRV-ATTR:user_data": item.spec.user_data,
        }
