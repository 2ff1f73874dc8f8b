"""The database is away: each API says 503 in its own format, with Retry-After, and works again afterwards."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_cloud import ADMIN_HASH, DEMO_HASH, Cloud, app_over, by_password, in_project
from tests.compute_site import Site
from tests.postgres import Postgres

from unstuck.api.app import SERVICES
from unstuck.api.context import Settings
from unstuck.store import identity
from unstuck.store.engine import Store


@pytest.fixture
def cloud(postgres_store: Store, settings: Settings) -> Iterator[Cloud]:
    postgres_store.transact(
        identity.bootstrap, admin_password_hash=ADMIN_HASH, demo_password_hash=DEMO_HASH,
        token_key=b"k" * 32, ids=lambda: uuid.uuid4().hex,
    )  # fmt: skip
    app = app_over(postgres_store, settings, [*SERVICES, "unstuck.api.agents"])
    with asyncio.Runner() as loop:
        yield Cloud(app, postgres_store, loop)


FORMATS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("GET", "/compute/v2.1/servers/detail", lambda body: body["serviceUnavailable"]["code"]),
    ("POST", "/compute/v2.1/servers", lambda body: body["serviceUnavailable"]["code"]),
    ("GET", "/identity/v3/projects", lambda body: body["error"]["code"]),
    ("GET", "/image/v2/images", lambda body: int(body["code"].split()[0])),
    ("GET", "/networking/v2.0/ports", lambda body: body["NeutronError"] and 503),
    ("GET", "/unstuck/v1/status", lambda body: body["error"]["code"]),
]


def test_every_api_says_so_in_its_own_format_and_goes_on_when_it_is_back(
    cloud: Cloud, postgres_server: Postgres
) -> None:
    site = Site(cloud.store)
    demo = cloud.login("demo", "demo-secret", "demo")
    postgres_server.stop(signal.SIGQUIT)
    try:
        for method, path, code in FORMATS:
            began = time.monotonic()
            answer = demo.ask(method, path, json=site.body() if method == "POST" else None)
            assert answer.status_code == 503, (path, answer.text)
            assert answer.headers["retry-after"] == "5"
            assert code(answer.json()) == 503
            assert "database does not answer" in answer.text
            assert time.monotonic() - began < 5.0
        login = cloud.auth(by_password("demo", "demo-secret"), in_project("demo"))
        assert (login.status_code, login.headers["retry-after"]) == (503, "5")
        agent = demo.get(
            f"/agents/v1/hosts/{site.host.id}/world",
            headers={"authorization": "Bearer x", "unstuck-protocol": "1"},
        )
        assert agent.status_code == 503  # which an agent takes for: ask again
    finally:
        postgres_server.start()
    for _, path, _ in FORMATS[:1]:
        assert demo.get(path).status_code == 200
    assert demo.ask("POST", "/compute/v2.1/servers", json=site.body()).status_code == 202
    site.host.tell()
    site.settle()
    assert [item["status"] for item in demo.get("/compute/v2.1/servers/detail").json()["servers"]] == [
        "ACTIVE"
    ]
