"""What an operator asks about an instance's agent, and who has had root."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.core.instance.requests import AgentProcess, Describe, Failed, Ok
from unstuck.core.instance.view import ServerState
from unstuck.guest.describe import describe
from unstuck.store.engine import Store

SAID = AgentProcess(
    version="1.2.3", threads=4, fd_size=64, vm_size=9000, vm_peak=9500, vm_rss=800, vm_hwm=900,
    mem_total=262144, cpus=2,
)  # fmt: skip


@pytest.fixture
def site(cloud: Cloud, store: Store) -> DatabaseSite:
    made = DatabaseSite(store)
    made.host.wake = cloud.app.app.notifier.wake
    made.host.answerer = lambda _want, request: Ok(agent=SAID) if isinstance(request, Describe) else Ok()
    return made


@pytest.fixture
def one(site: DatabaseSite, demo: Cloud) -> str:
    key = Trove(demo, "demo").post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    return str(key)


def test_its_agent_answers_for_itself_whatever_the_database_does(
    operator: Trove, site: DatabaseSite, one: str
) -> None:
    path = f"/mgmt/instances/{one}"
    site.host.sees = {"server": ServerState.CRASHED}
    site.settle(2)
    with site.running():
        assert operator.get(f"{path}/diagnostics") == {
            "diagnostics": {
                "version": "1.2.3", "threads": 4, "fdSize": 64, "vmSize": 9000, "vmPeak": 9500, "vmRss": 800,
                "vmHwm": 900,
            }
        }  # fmt: skip
        assert operator.get(f"{path}/hwinfo") == {"hwinfo": {"mem_total": 256, "num_cpus": 2}}
        pinged = operator.ask("GET", f"{path}/rpc_ping")
        assert (pinged.status_code, pinged.content) == (204, b"")


def test_an_agent_of_before_answers_a_ping_and_says_that_it_knows_no_more(
    operator: Trove, site: DatabaseSite, one: str
) -> None:
    site.host.answerer = lambda _want, _request: Failed("invalid", "Invalid value 'describe'")
    path = f"/mgmt/instances/{one}"
    with site.running():
        assert operator.ask("GET", f"{path}/rpc_ping").status_code == 204
        said = operator.refused("GET", f"{path}/diagnostics", 422, "unprocessableEntity")
    assert "rebuild the instance" in said


def test_one_whose_agent_is_silent_is_refused_at_once(operator: Trove, site: DatabaseSite, one: str) -> None:
    site.host.silent.update(site.host.guests)
    site.settle(2)
    for what in ("diagnostics", "hwinfo", "rpc_ping"):
        said = operator.refused("GET", f"/mgmt/instances/{one}/{what}", 409, "conflict")
        assert "its agent is silent" in said


def test_root_has_a_history(operator: Trove, demo: Cloud, site: DatabaseSite, one: str) -> None:
    path = f"/mgmt/instances/{one}/root"
    assert operator.get(path) == {"root_history": {"id": one, "enabled": "Never", "user": "Nobody"}}
    with site.running():
        trove = Trove(demo, "demo")
        assert trove.ask("POST", f"/instances/{one}/root").status_code == 200
        found: Any = operator.get(path)["root_history"]
        assert trove.ask("DELETE", f"/instances/{one}/root").status_code == 204
        assert operator.get(path)["root_history"] == found
    assert found["enabled"].startswith("20")
    assert len(found["user"]) >= 32


def test_they_are_an_operators_and_about_instances_that_are_there(
    operator: Trove, demo: Cloud, one: str
) -> None:
    for what in ("diagnostics", "hwinfo", "rpc_ping", "root"):
        operator.missing("GET", f"/mgmt/instances/{uuid.uuid4()}/{what}")
        assert Trove(demo, "demo").ask("GET", f"/mgmt/instances/{one}/{what}").status_code == 403
    for action, body in (("stop", {}), ("migrate", {"host": "other"}), ("migrate", {}), ("update", {})):
        said = operator.bad("POST", f"/mgmt/instances/{one}/action", json={action: body})
        assert f"{action} is not offered" in said


def test_an_agent_describes_its_own_process_within_its_containers_limits(tmp_path: Path) -> None:
    found = describe(cgroup=tmp_path)
    assert found.threads >= 1
    assert 0 < found.vm_rss <= found.vm_hwm
    assert found.vm_size <= found.vm_peak
    (tmp_path / "memory.max").write_text(f"{256 << 20}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    limited = describe(cgroup=tmp_path)
    assert (limited.mem_total, limited.cpus) == (262144, 1)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert (describe(cgroup=tmp_path).mem_total, describe(cgroup=tmp_path).cpus) == (
        found.mem_total, found.cpus
    )  # fmt: skip
