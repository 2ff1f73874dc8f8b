"""Whatever is sent to the database API: an answer below 500, in its own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.api.database import ROUTES, guest
from unstuck.blobs import keyring
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores
from unstuck.store.engine import Store

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 1.5e308, "", "x", "\u0000", "\ud800", "x" * 5000, "ä\u202e",
    [], [None], {}, {"": ""}, DEEP,
]  # fmt: skip
KINDS = {
    "badRequest", "forbidden", "itemNotFound", "badMethod", "conflict", "overLimit", "unprocessableEntity",
}  # fmt: skip
IDS = [
    "shop",
    "..",
    "%2e%2e",
    "a%2fb",
    "%00",
    "%ff",
    "@",
    "%",
    "0" * 300,
    "9d0b9f57-3c3c-4d2f-8d38-0d5a3c1f2b11",
    "ä",
]


@pytest.fixture
def site(cloud: Cloud, store: Store, tmp_path: Path) -> DatabaseSite:
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery.json")
    stores = Stores(tmp_path / "objects", tmp_path / "backup-stores.json")
    cloud.app.app.extra["backups"] = BackupSite(stores, keyring.load(tmp_path / "keys"))
    return DatabaseSite(store)


@pytest.fixture
def operator(site: DatabaseSite, admin: Cloud, monkeypatch: pytest.MonkeyPatch) -> Trove:
    monkeypatch.setattr(guest.Budget.__init__, "__defaults__", (0.01,))
    return Trove(admin, "admin")


def junk(names: list[str]) -> list[bytes]:
    """Bodies of every shape, among them those with the words that the API knows."""
    import json

    found = [b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff", b"{" * 3000, b'{"a":1,"a":2}']
    for value in VALUES:
        for name in names:
            found.append(json.dumps({name: value}).encode())
            found.append(json.dumps({name: {"name": value, "size": value}}).encode())
    return found


WORDS = {
    "instances": ["instance"], "backups": ["backup"], "backup_strategies": ["backup_strategy"],
    "action": ["restart", "resize", "reset_status", "protect", "cancel", "retry", "rebuild"],
    "databases": ["databases"], "users": ["users", "user"], "root": ["password"],
    "datastore-versions": ["version", "active"], "{asked}": ["quotas"],
}  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_junk_is_answered_in_the_apis_form(operator: Trove, site: DatabaseSite, method: str) -> None:
    made = operator.post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    sent = 0
    seen = set()
    for entry in ROUTES:
        if entry.method != method or entry.path in seen:
            continue
        seen.add(entry.path)
        path = entry.path.partition("/{project_id}")[2]
        places = [part for part in path.split("/") if part.startswith("{")]
        last = path.rpartition("/")[2]
        bodies = junk(WORDS.get(last, ["instance"])) if method in ("POST", "PUT", "PATCH") else [b""]
        targets = [path]
        for place in places:
            targets = [target.replace(place, key, 1) for target in targets for key in [made, *IDS]][:40]
        for index, target in enumerate(targets):
            for body in bodies if index == 0 else bodies[:1]:
                check(operator.ask(method, target, content=body), method, target, body)
                sent += 1
        for query in (
            "limit=x",
            "limit=-1",
            "marker=%00",
            "marker=x",
            "deleted=maybe",
            "all_projects=2",
            "x=%ff",
        ):
            check(operator.ask(method, f"{targets[0]}?{query}", content=b"{}"), method, query, b"{}")
            sent += 1
    assert sent > 100


def check(answer: Any, method: str, target: str, body: bytes) -> None:
    where = f"{method} {target} {body[:200]!r}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code < 500, where
    if answer.status_code >= 400:
        [(kind, said)] = answer.json().items()
        assert said["code"] == answer.status_code, where
        assert said["message"], where
        assert kind in KINDS, where
