"""There is no console to look at, and every way to ask for one is told so in the compute API's own form."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import Site

SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


@pytest.fixture
def server(demo: Cloud, site: Site) -> str:
    made = demo.ask("POST", SERVERS, json=site.body())
    site.settle()
    return str(made.json()["server"]["id"])


def ask(cloud: Cloud, server_id: str, path: str, body: Any, version: str) -> tuple[int, str]:
    headers = {"openstack-api-version": f"compute {version}"}
    answer = cloud.ask("POST", f"{SERVERS}/{server_id}/{path}", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("application/json")
    [(_, said)] = answer.json().items()
    return answer.status_code, said["message"]


OLD = [
    ("os-getVNCConsole", "novnc"),
    ("os-getSPICEConsole", "spice-html5"),
    ("os-getRDPConsole", "rdp-html5"),
    ("os-getSerialConsole", "serial"),
]
NEW = [
    ("vnc", "novnc"),
    ("spice", "spice-html5"),
    ("rdp", "rdp-html5"),
    ("serial", "serial"),
    ("mks", "webmks"),
]


@pytest.mark.parametrize(("protocol", "kind"), NEW)
def test_a_console_url(demo: Cloud, server: str, protocol: str, kind: str) -> None:
    body = {"remote_console": {"protocol": protocol, "type": kind}}
    status, said = ask(demo, server, "remote-consoles", body, "2.96")
    assert status == 400
    assert f"Unavailable console type {kind}." in said
    assert "console log" in said


@pytest.mark.parametrize(("action", "kind"), OLD)
def test_the_actions_of_before_2_6(demo: Cloud, server: str, action: str, kind: str) -> None:
    status, said = ask(demo, server, "action", {action: {"type": kind}}, "2.1")
    assert (status, f"Unavailable console type {kind}." in said) == (400, True)
    status, said = ask(demo, server, "action", {action: {"type": kind}}, "2.6")
    assert status in (400, 404)
    assert "Unavailable" not in said


BAD = [
    ({}, "2.6", "remote_console"),
    ({"remote_console": {"protocol": "vnc"}}, "2.6", "type"),
    ({"remote_console": {"protocol": "tty", "type": "novnc"}}, "2.6", "protocol"),
    ({"remote_console": {"protocol": "vnc", "type": "x"}}, "2.6", "type"),
    ({"remote_console": {"protocol": "mks", "type": "webmks"}}, "2.7", "protocol"),
    ({"remote_console": {"protocol": "vnc", "type": "novnc", "why": 1}}, "2.6", "why"),
]


@pytest.mark.parametrize(("body", "version", "field"), BAD)
def test_bad_requests_name_the_field(demo: Cloud, server: str, body: Any, version: str, field: str) -> None:
    status, said = ask(demo, server, "remote-consoles", body, version)
    assert (status, field in said) == (400, True), said


def test_others_do_not_learn_that_a_server_is_there(admin: Cloud, demo: Cloud, site: Site) -> None:
    theirs = admin.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    body = {"remote_console": {"protocol": "vnc", "type": "novnc"}}
    assert ask(demo, theirs, "remote-consoles", body, "2.96")[0] == 404
    assert ask(demo, theirs, "action", {"os-getVNCConsole": {"type": "novnc"}}, "2.1")[0] == 404
