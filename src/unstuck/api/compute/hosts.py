"""Hypervisors, services and availability zones: all of them are the hosts, seen from different sides."""

from __future__ import annotations

import re
import zlib
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from unstuck.api.compute.common import BASE, as_bool, as_text, page_limit
from unstuck.api.errors import bad_request, not_found
from unstuck.api.pages import cut, next_url
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.time import Now, iso_micros
from unstuck.store.host_lists import HostRow, Hosts, enable_host, list_hosts
from unstuck.store.host_loss import force_down, strike_off
from unstuck.store.server_search import ZONE

BINARY = "nova-compute"
"""The name under which clients look for what runs guests on a host."""


class ServiceBody(Body, frozen=True, kw_only=True):
    status: Literal["enabled", "disabled"] | UnsetType = UNSET
    disabled_reason: str | UnsetType = UNSET
    forced_down: bool | str | UnsetType = UNSET


class OldForceDown(Body, frozen=True, kw_only=True):
    host: str
    binary: str
    forced_down: bool | str


class OldServiceBody(Body, frozen=True, kw_only=True):
    host: str
    binary: str
    disabled_reason: str | None = None


def _number(key: str) -> int:
    """The id that a host has before 2.53, when ids were numbers: it stays the same while the host exists."""
    return zlib.crc32(key.encode()) & 0x7FFFFFFF


def _id(call: Call, host: HostRow) -> str | int:
    return host.id if call.version >= (2, 53) else _number(host.id)


def _cpu_info() -> dict[str, Any]:
    return {"arch": "x86_64", "model": "", "vendor": "", "features": [], "topology": {}}


def _brief(call: Call, host: HostRow, now: Now) -> dict[str, Any]:
    return {
        "id": _id(call, host),
        "hypervisor_hostname": host.hostname,
        "state": "up" if host.up(now) else "down",
        "status": "enabled" if host.enabled else "disabled",
    }


def _detail(call: Call, host: HostRow, now: Now) -> dict[str, Any]:
    facts = host.facts
    shown = _brief(call, host, now) | {
        "hypervisor_type": facts.driver if facts else "unknown",
        "hypervisor_version": _version_number(facts.driver_version if facts else ""),
        "host_ip": facts.address if facts else "127.0.0.1",
        "service": {"id": _id(call, host), "host": host.hostname, "disabled_reason": host.disabled_reason},
    }
    if call.version >= (2, 88):
        shown["uptime"] = None
        return shown
    shown |= _sizes([host])
    shown["cpu_info"] = _cpu_info() if call.version >= (2, 28) else "{}"
    return shown


def _sizes(hosts: list[HostRow]) -> dict[str, int]:
    """What hosts have and carry, summed up."""
    ram = sum(host.ram_mb for host in hosts)
    disk = sum(host.disk_gb for host in hosts)
    used_ram, used_disk = (
        sum(host.used_ram_mb for host in hosts),
        sum(host.used_disk_gb for host in hosts),
    )
    return {
        "vcpus": sum(host.vcpus for host in hosts),
        "vcpus_used": sum(host.used_vcpus for host in hosts),
        "memory_mb": ram,
        "memory_mb_used": used_ram,
        "free_ram_mb": ram - used_ram,
        "local_gb": disk,
        "local_gb_used": used_disk,
        "free_disk_gb": disk - used_disk,
        "disk_available_least": disk - used_disk,
        "running_vms": sum(len(host.guests) for host in hosts),
        "current_workload": 0,
    }


def _version_number(text: str) -> int:
    """``7.2.15`` as the compute API writes versions: 7002015."""
    parts = [int(part) for part in re.findall(r"\d{1,6}", text)[:3]] + [0, 0, 0]
    return parts[0] * 1_000_000 + parts[1] * 1000 + parts[2]


def _with_servers(call: Call, shown: dict[str, Any], host: HostRow) -> dict[str, Any]:
    wanted = call.query_params.get("with_servers")
    if call.version >= (2, 53) and wanted is not None and as_bool(wanted, "with_servers") and host.guests:
        shown["servers"] = [{"uuid": guest.id, "name": guest.name} for guest in host.guests]
    return shown


async def _listed(call: Call, view: Any) -> Reply:
    found = await call.store.run_read(list_hosts)
    rows, pattern = list(found.rows), call.query_params.get("hypervisor_hostname_pattern")
    if pattern is not None and call.version >= (2, 53):
        rows = [host for host in rows if pattern in host.hostname]
        if not rows:
            raise not_found(f"No hypervisor matching '{pattern[:60]}' could be found.")
    paged = call.version >= (2, 33) and pattern is None
    marker = call.query_params.get("marker") if paged else None
    page = cut(rows, page_limit(call) if paged else len(rows), marker, key=lambda row: str(_id(call, row)))
    if page is None:
        raise bad_request(f"marker [{marker}] not found")
    shown = [_with_servers(call, view(call, host, found.now), host) for host in page[0]]
    body: dict[str, Any] = {"hypervisors": shown}
    if page[1] and paged and shown:
        target = next_url(call.url(call.path()), call.query_params.multi_items(), str(shown[-1]["id"]))
        body["hypervisors_links"] = [{"rel": "next", "href": target}]
    return Reply(body)


async def list_hypervisors(call: Call) -> Reply:
    """``GET /os-hypervisors``."""
    return await _listed(call, _brief)


async def detail_hypervisors(call: Call) -> Reply:
    """``GET /os-hypervisors/detail``."""
    return await _listed(call, _detail)


async def _one(call: Call) -> tuple[HostRow, Now]:
    """A host by id, or (as clients try first) by name."""
    found, key = await call.store.run_read(list_hosts), call.params["id"]
    for host in found.rows:
        if key in (str(_id(call, host)), host.hostname):
            return host, found.now
    raise not_found(f"Hypervisor with ID '{key[:64]}' could not be found.")


async def show_hypervisor(call: Call) -> Reply:
    """``GET /os-hypervisors/{id}``."""
    host, now = await _one(call)
    return Reply({"hypervisor": _with_servers(call, _detail(call, host, now), host)})


async def hypervisor_uptime(call: Call) -> Reply:
    """``GET /os-hypervisors/{id}/uptime`` (before 2.88): how long the host has been known."""
    host, now = await _one(call)
    days, rest = divmod(int(now.wall - host.created_wall), 86400)
    text = f" up {days} days, {rest // 3600}:{rest % 3600 // 60:02d}"
    return Reply({"hypervisor": {**_brief(call, host, now), "uptime": text}})


async def hypervisor_servers(call: Call) -> Reply:
    """``GET /os-hypervisors/{name}/servers`` (before 2.53)."""
    found, name = await call.store.run_read(list_hosts), call.params["id"]
    rows = [host for host in found.rows if name in host.hostname]
    if not rows:
        raise not_found(f"No hypervisor matching '{name[:60]}' could be found.")
    shown = []
    for host in rows:
        entry = _brief(call, host, found.now)
        if host.guests:
            entry["servers"] = [{"uuid": guest.id, "name": guest.name} for guest in host.guests]
        shown.append(entry)
    return Reply({"hypervisors": shown})


async def search_hypervisors(call: Call) -> Reply:
    """``GET /os-hypervisors/{name}/search`` (before 2.53)."""
    found, name = await call.store.run_read(list_hosts), call.params["id"]
    shown = [_brief(call, host, found.now) for host in found.rows if name in host.hostname]
    if not shown:
        raise not_found(f"No hypervisor matching '{name[:60]}' could be found.")
    return Reply({"hypervisors": shown})


async def statistics(call: Call) -> Reply:
    """``GET /os-hypervisors/statistics`` (before 2.88)."""
    rows = [host for host in (await call.store.run_read(list_hosts)).rows if host.enabled]
    return Reply({"hypervisor_statistics": {"count": len(rows), **_sizes(rows)}})


def _service(call: Call, host: HostRow, now: Now) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": _id(call, host),
        "binary": BINARY,
        "host": host.hostname,
        "zone": ZONE,
        "status": "enabled" if host.enabled else "disabled",
        "state": "up" if host.up(now) else "down",
        "updated_at": iso_micros(host.seen_wall),
        "disabled_reason": host.disabled_reason,
    }
    if call.version >= (2, 11):
        shown["forced_down"] = host.forced_down
    return shown


async def list_services(call: Call) -> Reply:
    """``GET /os-services``."""
    found, params = await call.store.run_read(list_hosts), call.query_params
    rows = [host for host in found.rows if params.get("host") in (None, host.hostname)]
    if params.get("binary") not in (None, BINARY):
        rows = []
    return Reply({"services": [_service(call, host, found.now) for host in rows]})


async def update_service(call: Call) -> Reply:
    """``PUT /os-services/{id}`` (from 2.53)."""
    asked: ServiceBody = call.body
    reason = (
        None if isinstance(asked.disabled_reason, UnsetType) else as_text(asked.disabled_reason, "reason")
    )
    if reason is not None and asked.status != "disabled":
        raise bad_request("disabled_reason: it goes with status 'disabled' only.")
    if not isinstance(asked.forced_down, UnsetType):
        down = as_bool(asked.forced_down, "forced_down")
        await _force_down(call, (await _one(call))[0], down=down)
    if isinstance(asked.status, UnsetType):
        host, now = await _one(call)
        return Reply({"service": _service(call, host, now)})
    made = await _set(call, call.params["id"], asked.status, reason)
    return Reply({"service": _service(call, made.rows[0], made.now)})


async def _force_down(call: Call, host: HostRow, *, down: bool) -> None:
    """Declared lost by somebody who knows: what never had a disk there is placed anew at once."""
    await call.store.run(force_down, host.id, down=down)
    call.app.notifier.wake("control")
    call.app.notifier.wake(f"host:{host.id}")


async def delete_service(call: Call) -> Reply:
    """``DELETE /os-services/{id}``: strikes the host off; 409 unless it was declared lost before."""
    host, _ = await _one(call)
    await call.store.run(strike_off, host.id)
    call.app.notifier.wake("control")
    call.app.notifier.wake(f"host:{host.id}")
    return Reply(status=204)


async def old_force_down(call: Call) -> Reply:
    """``PUT /os-services/force-down`` (2.11 to 2.52)."""
    asked: OldForceDown = call.body
    for host in (await call.store.run_read(list_hosts)).rows:
        if host.hostname == asked.host and asked.binary == BINARY:
            down = as_bool(asked.forced_down, "forced_down")
            await _force_down(call, host, down=down)
            shown = {"host": asked.host, "binary": asked.binary, "forced_down": down}
            return Reply({"service": shown})
    raise not_found(f"Could not find service {asked.binary[:60]} on host {asked.host[:60]}.")


async def _set(call: Call, host_id: str, status: str, reason: str | None) -> Hosts:
    made = await call.store.run(enable_host, host_id, enabled=status == "enabled", reason=reason)
    call.app.notifier.wake("control")
    return made


async def _old_update(call: Call, status: str) -> Reply:
    asked: OldServiceBody = call.body
    for host in (await call.store.run_read(list_hosts)).rows:
        if host.hostname == asked.host and asked.binary == BINARY:
            await _set(call, host.id, status, asked.disabled_reason)
            shown = {"host": asked.host, "binary": asked.binary, "status": status}
            if asked.disabled_reason is not None:
                shown["disabled_reason"] = asked.disabled_reason
            return Reply({"service": shown})
    raise not_found(f"Could not find service {asked.binary[:60]} on host {asked.host[:60]}.")


async def enable(call: Call) -> Reply:
    """``PUT /os-services/enable`` (before 2.53)."""
    return await _old_update(call, "enabled")


async def disable(call: Call) -> Reply:
    """``PUT /os-services/disable`` and ``disable-log-reason`` (before 2.53)."""
    return await _old_update(call, "disabled")


def _zone_of(rows: tuple[HostRow, ...]) -> dict[str, Any]:
    available = any(host.enabled for host in rows)
    return {"zoneName": ZONE, "zoneState": {"available": available}, "hosts": None}


async def list_zones(call: Call) -> Reply:
    """``GET /os-availability-zone``."""
    found = await call.store.run_read(list_hosts)
    return Reply({"availabilityZoneInfo": [_zone_of(found.rows)]})


async def detail_zones(call: Call) -> Reply:
    """``GET /os-availability-zone/detail``."""
    found = await call.store.run_read(list_hosts)
    zone = _zone_of(found.rows)
    zone["hosts"] = {
        host.hostname: {
            BINARY: {
                "available": host.up(found.now),
                "active": host.enabled,
                "updated_at": iso_micros(host.seen_wall),
            }
        }
        for host in found.rows
    }
    return Reply({"availabilityZoneInfo": [zone]})


async def list_old_hosts(call: Call) -> Reply:
    """``GET /os-hosts`` (before 2.43)."""
    found, zone = await call.store.run_read(list_hosts), call.query_params.get("zone")
    rows = found.rows if zone in (None, "", ZONE) else ()
    shown = [{"host_name": host.hostname, "service": "compute", "zone": ZONE} for host in rows]
    return Reply({"hosts": shown})


async def show_old_host(call: Call) -> Reply:
    """``GET /os-hosts/{host}`` (before 2.43): what it has, and what its servers take."""
    for host in (await call.store.run_read(list_hosts)).rows:
        if host.hostname == call.params["host"]:
            sums = _sizes([host])
            lines = (
                ("(total)", sums["vcpus"], sums["memory_mb"], sums["local_gb"]),
                ("(used_now)", sums["vcpus_used"], sums["memory_mb_used"], sums["local_gb_used"]),
            )
            shown = [
                {"resource": {"host": host.hostname, "project": what, "cpu": cpu, "memory_mb": ram,
                              "disk_gb": disk}}
                for what, cpu, ram, disk in lines
            ]  # fmt: skip
            return Reply({"host": shown})
    raise not_found(f"Compute host {call.params['host'][:60]} could not be found.")


_HYPER = f"{BASE}/os-hypervisors"
_SERVICES = f"{BASE}/os-services"

ROUTES: list[Route] = [
    route("GET", _HYPER, list_hypervisors, "admin"),
    route("GET", f"{_HYPER}/detail", detail_hypervisors, "admin"),
    route("GET", f"{_HYPER}/statistics", statistics, "admin", max_version=(2, 87)),
    route("GET", f"{_HYPER}/{{id}}", show_hypervisor, "admin"),
    route("GET", f"{_HYPER}/{{id}}/uptime", hypervisor_uptime, "admin", max_version=(2, 87)),
    route("GET", f"{_HYPER}/{{id}}/servers", hypervisor_servers, "admin", max_version=(2, 52)),
    route("GET", f"{_HYPER}/{{id}}/search", search_hypervisors, "admin", max_version=(2, 52)),
    route("GET", _SERVICES, list_services, "admin"),
    route("PUT", f"{_SERVICES}/enable", enable, "admin", body=OldServiceBody, max_version=(2, 52)),
    route("PUT", f"{_SERVICES}/disable", disable, "admin", body=OldServiceBody, max_version=(2, 52)),
    route(
        "PUT", f"{_SERVICES}/disable-log-reason", disable, "admin", body=OldServiceBody, max_version=(2, 52)
    ),
    route(
        "PUT",
        f"{_SERVICES}/force-down",
        old_force_down,
        "admin",
        body=OldForceDown,
        min_version=(2, 11),
        max_version=(2, 52),
    ),
    route("DELETE", f"{_SERVICES}/{{id}}", delete_service, "admin", status=204),
    route("PUT", f"{_SERVICES}/{{id}}", update_service, "admin", body=ServiceBody, min_version=(2, 53)),
    route("GET", f"{BASE}/os-availability-zone", list_zones, "reader"),
    route("GET", f"{BASE}/os-availability-zone/detail", detail_zones, "admin"),
    route("GET", f"{BASE}/os-hosts", list_old_hosts, "admin", max_version=(2, 42)),
    route("GET", f"{BASE}/os-hosts/{{host}}", show_old_host, "admin", max_version=(2, 42)),
]
