"""The action ``verify`` and ``/backups/{id}/verifications``: shapes and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from database_setup import Trove
from test_database_backups import NOBODY, instance, site, start

from unstuck.store.engine import Store
from unstuck.store.schema.database import backups

__all__ = ["instance", "site"]
WORDS = {
    "id", "backup_id", "made_by", "query", "database", "created", "finished", "result", "reason", "detail",
    "instance_id", "removed", "seconds", "version_id",
}  # fmt: skip


@pytest.fixture
def complete(trove: Trove, instance: str, store: Store) -> str:
    """A backup that counts as complete."""
    key = str(start(trove, instance)["id"])
    facts = sa.func.replace(backups.c.facts, '"ended":null', '"ended":{"ending":"COMPLETED","reason":""}')
    values = {"facts": facts, "ended": "COMPLETED", "prefix": "p", "digest": "d", "size": 1}
    store.transact(lambda tx: tx.execute(sa.update(backups).values(values)))
    return key


def test_a_verification_is_asked_for_and_shown(trove: Trove, complete: str) -> None:
    path = f"/backups/{complete}"
    assert trove.get(path)["backup"]["unstuck"]["verified"] is None
    trove.post(f"{path}/action", {"verify": {"query": "select true", "database": "shop"}})
    [shown] = trove.get(f"{path}/verifications")["verifications"]
    assert set(shown) == WORDS
    assert (shown["query"], shown["result"], shown["removed"]) == ("select true", None, False)
    again = trove.refused("POST", f"{path}/action", 409, "conflict", json={"verify": {}})
    assert shown["id"] in again
    trove.missing("GET", f"/instances/{shown['instance_id']}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "x" * 5000}, "query"), ({"query": 5}, "query"), ({"database": "a" * 64}, "database"),
        ({"database": " "}, "database"), ({"force": True}, "force"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_field(
    trove: Trove, complete: str, body: dict[str, Any], field: str
) -> None:
    assert field in trove.bad("POST", f"/backups/{complete}/action", json={"verify": body})
    assert trove.get(f"/backups/{complete}/verifications")["verifications"] == []


def test_only_a_complete_backup_that_is_there_can_be_verified(trove: Trove, instance: str) -> None:
    key = start(trove, instance)["id"]
    trove.refused("POST", f"/backups/{key}/action", 409, "conflict", json={"verify": {}})
    trove.missing("POST", f"/backups/{NOBODY}/action", json={"verify": {}})
    trove.missing("GET", f"/backups/{NOBODY}/verifications")
