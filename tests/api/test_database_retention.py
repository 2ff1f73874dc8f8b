"""``/instances/{id}/retention`` and the action ``pin``: shapes and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from database_setup import Trove
from test_database_backups import NOBODY, instance, site, start

__all__ = ["instance", "site"]
DEFAULT = {
    "days": 7.0, "count": None, "daily": 0, "weekly": 0, "monthly": 0, "minimum": 1, "timezone": "UTC",
    "manual": False,
}  # fmt: skip


def put(trove: Trove, instance: str, policy: Any, query: str = "") -> dict[str, Any]:
    answer = trove.ask("PUT", f"/instances/{instance}/retention{query}", json={"retention": policy})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["retention"]
    return found


def test_a_policy_is_shown_tried_set_and_taken_back(trove: Trove, instance: str) -> None:
    path = f"/instances/{instance}/retention"
    backup = start(trove, instance)["id"]
    shown = trove.get(path)["retention"]
    assert (shown["policy"], shown["default"], shown["removed"]) == (DEFAULT, True, [])
    [said] = shown["backups"]
    assert (said["id"], said["keep"], said["why"]) == (backup, True, "it has not ended")
    tried = put(trove, instance, {"count": 3, "timezone": "Europe/Berlin"}, "?dry_run=true")
    assert tried["policy"]["count"] == 3
    assert trove.get(path)["retention"]["default"]
    made = put(trove, instance, {"count": 3, "minimum": 2})
    assert made["policy"] == DEFAULT | {"days": None, "count": 3, "minimum": 2}
    assert not made["default"]
    assert made["next_seconds"] <= 60
    assert put(trove, instance, None)["policy"] == DEFAULT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("days", 0), ("days", -1), ("days", "7"), ("count", 0), ("count", 10**9), ("daily", -1),
        ("minimum", 0), ("weekly", 1.5), ("timezone", "Mars/Base"), ("timezone", "x" * 100),
        ("manual", "yes"), ("forever", True),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_field(trove: Trove, instance: str, field: str, value: Any) -> None:
    path = f"/instances/{instance}/retention"
    for query in ("", "?dry_run=1"):
        assert field in trove.bad("PUT", path + query, json={"retention": {field: value}})
    assert trove.get(path)["retention"]["default"]


def test_what_is_not_there_is_not_found(trove: Trove, instance: str) -> None:
    trove.missing("GET", f"/instances/{NOBODY}/retention")
    trove.missing("PUT", f"/instances/{NOBODY}/retention", json={"retention": {"count": 1}})
    trove.missing("GET", "/instances/nothing/retention")
    assert "dry_run" in trove.bad(
        "PUT", f"/instances/{instance}/retention?dry_run=perhaps", json={"retention": None}
    )


def test_a_backup_is_pinned_and_unpinned(trove: Trove, instance: str) -> None:
    made = start(trove, instance)
    path = f"/backups/{made['id']}/action"
    assert made["unstuck"]["pinned"] is False
    for body, pinned in (
        ({"pinned": True}, True),
        (False, False),
        (True, True),
        ({"pinned": False}, False),
        (None, True),
    ):
        shown = trove.post(path, {"pin": body})["backup"]
        assert shown["unstuck"]["pinned"] is pinned
    assert "pinned" in trove.bad("POST", path, json={"pin": {"pinned": "yes"}})
    trove.missing("POST", f"/backups/{NOBODY}/action", json={"pin": True})
