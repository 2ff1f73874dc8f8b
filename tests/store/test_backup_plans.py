"""What is asked of backups often costs the same beside a million that have ended: an index answers it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from unstuck.store import backup_work, backups
from unstuck.store.engine import Store, Tx


def statements(store: Store, ask: object, *args: object, **named: object) -> list[tuple[str, object]]:
    """The SQL that a store function runs on the table of backups."""
    found: list[tuple[str, object]] = []

    def note(_conn, _cursor, statement, parameters, *_):  # type: ignore[no-untyped-def]
        found.append((statement, parameters))

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        store.read(ask, *args, **named)  # type: ignore[arg-type]
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)
    return [item for item in found if "FROM backups" in item[0]]


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"project_id": "p"}, "ix_backups_project"),
        ({"project_id": "p", "instance_id": "i"}, "ix_backups_instance"),
        ({"project_id": None}, "ix_backups_all"),
    ],
)
def test_a_page_is_read_from_an_index_in_its_order(
    store: Store, filters: dict[str, str | None], index: str
) -> None:
    (sql, parameters), *_ = statements(store, backups.list_backups, limit=20, **filters)

    def plan(tx: Tx) -> str:
        rows = tx.conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return "; ".join(str(row[3]) for row in rows)

    said = store.read(plan)
    assert index in said or (index == "ix_backups_instance" and "ix_backups_" in said)
    assert "TEMP B-TREE" not in said, said


def test_what_is_due_is_found_among_the_unsettled_ones_alone(store: Store) -> None:
    compiled = backup_work._DUE._statement.compile(dialect=store.engine.dialect)

    def plan(tx: Tx) -> str:
        values = tuple(0 for _ in compiled.positiontup or ())
        rows = tx.conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.string}", values)
        return "; ".join(str(row[3]) for row in rows)

    said = store.read(plan)
    assert "ix_backups_due" in said
    assert "TEMP B-TREE" not in said, said
