"""``unstuck status``: one sentence on top, then servers, databases and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from unstuck.cli.cloud import CLOCK_STANDS, COMPUTE, Cloud, connect, show_json, state_of
from unstuck.cli.words import counted, plain

LAG = 300.0
"""Seconds for which a part of a log may wait before that is said."""


def status(
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: Path | None = None,
) -> None:
    """Say how the cloud is, in one sentence; then its servers, database instances and hosts.

    Parameters
    ----------
    output
        text or json.
    state
        The state folder.
    """
    with connect(state_of(state)) as cloud:
        servers, databases, hosts = _servers(cloud), _databases(cloud), _hosts(cloud)
        told = cloud.get("/unstuck/v1/status")
        url = cloud.url
    tombstones, clock_age = int(told["tombstones"]), float(told["clock_age"])
    protection: dict[str, Any] = told.get("protection") or {}
    summary = sentence(
        servers, hosts, tombstones, clock_age=clock_age, databases=databases, protection=protection
    )
    if output == "json":
        answer = {"summary": summary, "url": url, "clock_age": clock_age, "servers": servers, "hosts": hosts}
        answer["protection"] = protection
        show_json({**answer, "databases": databases, "tombstones": tombstones})
        return
    print(f"{summary} {url}")
    _tables(servers, databases, hosts)


def _servers(cloud: Cloud) -> list[dict[str, Any]]:
    found = cloud.get("/compute/v2.1/servers/detail", params={"all_tenants": "1"}, headers=COMPUTE)["servers"]
    return [
        {
            "id": server["id"],
            "name": server["name"],
            "status": server["status"],
            "task": server.get("OS-EXT-STS:task_state"),
            "addresses": sorted(
                address["addr"] for network in server["addresses"].values() for address in network
            ),
            "host": server.get("OS-EXT-SRV-ATTR:host"),
            "updated": server["updated"],
        }
        for server in found
    ]


def _databases(cloud: Cloud) -> list[dict[str, Any]]:
    """All instances, with those in the trash: their servers are there, powered off."""
    found: list[dict[str, Any]] = []
    for deleted in ("false", "true"):
        path = f"/database/v1.0/{cloud.project_id}/mgmt/instances"
        found += cloud.get(path, params={"deleted": deleted})["instances"]
    return [
        {
            "id": item["id"],
            "name": item["name"],
            "status": item["status"],
            "operating_status": item["operating_status"],
            "trash_until": item["unstuck"]["trash_until"],
            "server_id": item["server"]["id"],
        }
        for item in found
    ]


def _hosts(cloud: Cloud) -> list[dict[str, Any]]:
    found = cloud.get("/compute/v2.1/os-hypervisors/detail", headers=COMPUTE)["hypervisors"]
    keep = ("id", "hypervisor_hostname", "state", "status", "hypervisor_type", "host_ip")
    return [{key: host.get(key) for key in keep} for host in found]


def sentence(
    servers: list[dict[str, Any]], hosts: list[dict[str, Any]], tombstones: int = 0, *,
    clock_age: float = 0.0, databases: Sequence[dict[str, Any]] = (),
    protection: Mapping[str, Any] = {},
) -> str:  # fmt: skip
    """What somebody wants to know who has no time."""
    moving = [server for server in servers if server["status"] == "BUILD" or server["task"]]
    failed = [server for server in servers if server["status"] == "ERROR"]
    away = [host for host in hosts if host["state"] != "up"]
    if not hosts:
        return "No host has registered yet: nothing can run."
    alive = [item for item in databases if not item["trash_until"]]
    broken = [item for item in alive if item["status"] == "ERROR"]
    sick = [item for item in alive if item not in broken and item["operating_status"] != "HEALTHY"]
    inside = f" ({len(alive)} of them for databases)" if alive else ""
    parts = [f"{counted(len(servers), 'server')}{inside} on {counted(len(hosts), 'host')}"]
    if moving:
        parts.append(f"{len(moving)} on the way to what was asked for")
    if failed:
        parts.append(f"{len(failed)} failed (unstuck explain server NAME says why)")
    if broken:
        parts.append(f"{counted(len(broken), 'database')} failed (unstuck explain instance NAME says why)")
    if sick:
        parts.append(f"{counted(len(sick), 'database')} not healthy (unstuck explain instance NAME says why)")
    if (damaged := int(protection.get("damaged", 0))) > 0:
        parts.append(f"{counted(damaged, 'backup')} damaged (unstuck explain instance NAME says which)")
    if (lag := float(protection.get("lag_seconds", 0.0))) > LAG:
        parts.append(f"the log of a database waits since {lag:.0f} s to be kept")
    if away:
        parts.append(f"{counted(len(away), 'host')} {'is' if len(away) == 1 else 'are'} away")
    if tombstones:
        one = tombstones == 1
        kept, whose, them = ("holds", "its", "it") if one else ("hold", "their", "them")
        gone = counted(tombstones, "deleted server")
        parts.append(f"{gone} still {kept} room and address until {whose} host was seen without {them}")
    if clock_age > CLOCK_STANDS:
        parts.append(f"the control plane's clock has stood still for {clock_age:.0f} s (see unstuck doctor)")
    if len(parts) == 1:
        parts.append("all as they should be")
    return ", ".join(parts) + "."


def _tables(
    servers: list[dict[str, Any]], databases: list[dict[str, Any]], hosts: list[dict[str, Any]]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()

    def cells(*values: object) -> list[Text]:
        # Not strings: rich reads [brackets] in those as markup, and a name may have any.
        return [Text(plain("" if value is None else value)) for value in values]

    if servers:
        table = Table("name", "status", "task", "addresses", "host", "id", box=None, pad_edge=False)
        for item in servers:
            row = [item["name"], item["status"], item["task"], " ".join(item["addresses"])]
            table.add_row(*cells(*row, item["host"], item["id"]))
        console.print(table)
    if databases:
        table = Table("database", "status", "health", "id", box=None, pad_edge=False)
        for item in databases:
            health = "in the trash" if item["trash_until"] else item["operating_status"]
            table.add_row(*cells(item["name"], item["status"], health, item["id"]))
        console.print(table)
    table = Table("host", "state", "service", "driver", "id", box=None, pad_edge=False)
    for host in hosts:
        row = [host["hypervisor_hostname"], host["state"], host["status"], host["hypervisor_type"]]
        table.add_row(*cells(*row, host["id"]))
    console.print(table)
