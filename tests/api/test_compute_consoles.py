"""The address of a console: its shapes, and every reason why there is none, in the compute API's own form."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_fakes import FakeHost
from tests.compute_site import Site

from unstuck.api.compute import consoles
from unstuck.api.console import digest
from unstuck.store.schema.compute import asks, console_tokens

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
    ("spice", "spice-html5"),
    ("spice", "spice-direct"),
    ("rdp", "rdp-html5"),
    ("mks", "webmks"),
    ("vnc", "xvpvnc"),
    ("vnc", "serial"),
    ("serial", "novnc"),
]
SERIAL = {"remote_console": {"protocol": "serial", "type": "serial"}}
NOVNC = {"remote_console": {"protocol": "vnc", "type": "novnc"}}


@pytest.fixture
def awake(demo: Cloud, site: Site, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """Its host answers at once."""
    notifier = demo.app.app.notifier
    before = notifier.wake

    def wake(key: str) -> None:
        before(key)
        if key.startswith("host:"):
            site.host.wants()

    monkeypatch.setattr(notifier, "wake", wake)
    return site.host


def tokens(cloud: Cloud) -> list[Any]:
    return list(cloud.store.read(lambda tx: tx.execute(sa.select(console_tokens)).all()))


@pytest.mark.parametrize(("protocol", "kind"), NEW)
def test_what_there_is_not(demo: Cloud, server: str, protocol: str, kind: str) -> None:
    body = {"remote_console": {"protocol": protocol, "type": kind}}
    status, said = ask(demo, server, "remote-consoles", body, "2.96")
    assert status == 400
    assert f"Unavailable console type {kind}." in said
    assert "serial console" in said


@pytest.mark.parametrize(
    ("body", "scheme"), [(SERIAL, "ws://cloud:81/console?token="), (NOVNC, "http://cloud:81/console?token=")]
)
def test_an_address_holds_a_secret_that_is_stored_as_its_digest_only(
    demo: Cloud, server: str, awake: FakeHost, body: Any, scheme: str
) -> None:
    url = remote(demo, server, body)
    assert url.startswith(scheme)
    token = url.removeprefix(scheme)
    assert len(token) >= 40
    [row] = tokens(demo)
    assert row.token_hash == digest(token)
    assert (row.server_id, row.project_id) == (server, awake_project(demo))
    assert token not in str(row)
    assert remote(demo, server, body) != url


def remote(cloud: Cloud, server_id: str, body: Any) -> str:
    headers = {"openstack-api-version": "compute 2.96"}
    answer = cloud.ask("POST", f"{SERVERS}/{server_id}/remote-consoles", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    asked = body["remote_console"]
    found = answer.json()["remote_console"]
    assert found.keys() == {"protocol", "type", "url"}
    assert (found["protocol"], found["type"]) == (asked["protocol"], asked["type"])
    return str(found["url"])


def awake_project(cloud: Cloud) -> str:
    return str(cloud.get("/identity/v3/auth/projects").json()["projects"][0]["id"])


@pytest.mark.parametrize(("action", "kind"), OLD)
def test_the_actions_of_before_2_6(demo: Cloud, server: str, awake: FakeHost, action: str, kind: str) -> None:
    headers = {"openstack-api-version": "compute 2.1"}
    body = {action: {"type": kind}}
    answer = demo.ask("POST", f"{SERVERS}/{server}/action", json=body, headers=headers)
    if kind in ("novnc", "serial"):
        assert answer.status_code == 200
        found = answer.json()["console"]
        assert found["type"] == kind
        assert found["url"].startswith("ws://" if kind == "serial" else "http://")
    else:
        assert answer.status_code == 400
        assert f"Unavailable console type {kind}." in answer.json()["badRequest"]["message"]
    status, said = ask(demo, server, "action", {action: {"type": kind}}, "2.6")
    assert status in (400, 404)
    assert "Unavailable" not in said


def test_a_reason_of_the_host_is_handed_on(demo: Cloud, server: str, awake: FakeHost) -> None:
    awake.serial = '{"serial": false, "reason": "its guest was started by a former version"}'
    status, said = ask(demo, server, "remote-consoles", SERIAL, "2.96")
    assert (status, "started by a former version" in said) == (409, True), said
    awake.serial = "line 1\nline 2\n"  # as the agent before this one answers whatever it is asked
    status, said = ask(demo, server, "remote-consoles", SERIAL, "2.96")
    assert (status, "has to be upgraded" in said) == (409, True), said
    assert tokens(demo) == []


def test_a_silent_host_is_named_and_nothing_is_left_open(
    demo: Cloud, server: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "SECONDS", 0.2)
    status, said = ask(demo, server, "remote-consoles", NOVNC, "2.96")
    assert (status, "host-1 did not answer" in said) == (409, True), said
    assert demo.store.read(lambda tx: tx.execute(sa.select(asks)).all()) == []
    assert tokens(demo) == []


def test_a_server_without_a_host_has_none(demo: Cloud, site: Site) -> None:
    made = demo.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    status, said = ask(demo, made, "remote-consoles", SERIAL, "2.96")
    assert (status, "is not ready" in said) == (409, True), said


def test_the_page_runs_nothing_but_itself(cloud: Cloud) -> None:
    answer = cloud.get("/console?token=whatever")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    [script] = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    expected = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{expected}';" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self' ws://cloud:81 wss://cloud:81;" in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "http://" not in answer.text  # nothing from elsewhere
    assert "https://" not in answer.text
    assert cloud.ask("POST", "/console").status_code == 405


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
