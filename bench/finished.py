"""What backups cost beside many that have ended: a POST, lists, one of them, and a round of the sweeper."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import sqlalchemy as sa
from tests.backup_world import add_instance

from bench.databases import Database
from bench.figure import Figure, figure, spread, times
from bench.line import Line
from bench.site import Site, kill_hard, new_site
from unstuck.cli.cloud import connect
from unstuck.core.backup.control import Settled, plan_backup
from unstuck.store import backup_work, clock, servers
from unstuck.store.backup_rows import load_backup, write_backup
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.database import backups as rows
from unstuck.store.schema.database import datastore_versions, datastores, instances

FEW = 1_000
MANY = int(os.environ.get("UNSTUCK_BENCH_BACKUPS", "1000000"))
FLAT = 1.5
"""The most that a thousand times as many may cost; measuring alone differs by a fifth."""
ROUNDS = 200
WARM = 20
AWAY = 1e6
"""Seconds until anybody looks at the instance, which has no server."""


def finished(database: Database) -> Iterator[Figure]:
    """The same calls beside a thousand and beside a million finished backups of one project, turn about."""
    with _cloud(database, FEW) as few, _cloud(database, MANY) as many:
        found = asyncio.run(_turn_about(few, many))
        for cloud in (few, many):
            kill_hard(cloud.control)
        found["sweep"] = _sweeps(few.url, many.url)
    yield times(f"{database.name}: POST /backups beside {FEW} finished ones", found["POST /backups"][0])
    for name, (before, after) in found.items():
        low, high = median(before) * 1000, median(after) * 1000
        note = f"{low:.2f} ms, then {high:.2f} ms ({spread(after)}); fastest {min(after) / min(before):.2f}"
        yield figure(f"{database.name}: {name}, {MANY} over {FEW} backups", high / low, "x", FLAT, note)


@dataclass
class Full:
    """A control plane beside so many finished backups of one instance."""

    url: str
    site: Site
    line: Line
    base: str
    instance: str
    control: Any


@contextlib.contextmanager
def _cloud(database: Database, count: int) -> Iterator[Full]:
    with database.fresh() as url, new_site("instant", url) as site:
        control = site.control()
        with connect(site.state) as cloud, contextlib.closing(Store(url)) as store:
            instance = store.transact(_instance, cloud.project_id)
            base = f"/database/v1.0/{cloud.project_id}"
            # Those that schedules made count apart, and must not be what makes each POST slower.
            quota = {"quotas": {"automatic_backups": count + 10, "backups": 1000}}
            cloud.ask("PUT", f"{base}/mgmt/quotas/{cloud.project_id}", json=quota)
            order = {"backup": {"name": "first", "instance": instance}}
            first = cloud.ask("POST", f"{base}/backups", json=order).json()["backup"]["id"]
            cloud.ask("POST", f"{base}/backups/{first}/action", json={"cancel": {}})
            store.transact(_settle, first)
            _clone(store, first, count - 1)
            headers = {"x-auth-token": cloud.client.headers["x-auth-token"]}
            line = Line(int(cloud.url.rpartition(":")[2]), headers)
            yield Full(url, site, line, base, instance, control)


def _instance(tx: Tx, project_id: str) -> str:
    datastore = tx.execute(sa.select(datastores.c.id)).scalars().first()
    version = {"id": "pg-15", "name": "bench", "manager": "postgresql", "version": "15", "active": True}
    tx.execute(sa.insert(datastore_versions).values(datastore_id=datastore, **version))
    made = add_instance(tx, "no-server", project_id=project_id)
    new = f"00000000-0000-4000-8000-{tx.now.wall:012.0f}"
    later = {"id": new, "next_look": instances.c.next_look + AWAY}
    tx.execute(sa.update(instances).where(instances.c.id == made).values(later))
    return new


def _settle(tx: Tx, backup_id: str) -> None:
    """As it is once nothing of it is left to be collected."""
    held = load_backup(tx, backup_id, lock=True)
    assert held is not None
    facts = msgspec.structs.replace(held.backup, litter=False)
    assert isinstance(plan_backup(facts, tx.now.lease), Settled)
    write_backup(tx, held, facts)


def _clone(store: Store, backup_id: str, count: int) -> None:
    """``count`` copies with ids in no order, a second apart from each other."""
    number = sa.select(sa.literal(1).label("i")).cte("numbers", recursive=True)
    number = number.union_all(sa.select(number.c.i + 1).where(number.c.i < count))
    i = number.c.i
    if store.engine.dialect.name == "sqlite":
        mixed: Any = sa.func.lower(sa.func.hex(sa.func.randomblob(16)))
    else:
        mixed = sa.func.md5(sa.cast(i, sa.Text))
    changed = {"id": mixed, "created_wall": rows.c.created_wall - i, "created": rows.c.created - i,
               "made_by": sa.literal("schedule:bench")}  # fmt: skip
    columns = [changed.get(column.name, column) for column in rows.c]
    wanted = sa.select(*columns).select_from(rows.join(number, sa.true())).where(rows.c.id == backup_id)
    store.transact(
        lambda tx: tx.execute(sa.insert(rows).from_select([column.name for column in rows.c], wanted))
    )
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("ANALYZE")


Call = Callable[[], Awaitable[float]]
Pair = tuple[list[float], list[float]]


async def _turn_about(few: Full, many: Full) -> dict[str, Pair]:
    """Seconds of each call in both clouds: one here, one there, so that both meet the same load."""
    calls = _calls(few), _calls(many)
    found: dict[str, Pair] = {}
    for name in calls[0]:
        found[name] = ([], [])
        for turn in range(WARM + ROUNDS):
            for seconds, there in zip(found[name], calls, strict=True):
                took = await there[name]()
                if turn >= WARM:
                    seconds.append(took)
    return found


def _calls(cloud: Full) -> dict[str, Call]:
    line, base = cloud.line, cloud.base
    number = itertools.count(1)

    async def get(path: str) -> float:
        began = time.monotonic()
        await line.ask("GET", f"{base}{path}")
        return time.monotonic() - began

    async def post() -> float:
        """Cancelled at once, or the next one would be refused; that is not part of the time."""
        order = {"backup": {"name": f"b{next(number)}", "instance": cloud.instance}}
        began = time.monotonic()
        answer = await line.ask("POST", f"{base}/backups", order)
        took = time.monotonic() - began
        made = msgspec.json.decode(answer)["backup"]["id"]
        await line.ask("POST", f"{base}/backups/{made}/action", {"cancel": {}})
        return took

    return {
        "GET /backups?limit=20": lambda: get("/backups?limit=20"),
        "GET /instances/ID/backups?limit=20": lambda: get(f"/instances/{cloud.instance}/backups?limit=20"),
        "POST /backups": post,
    }


def _sweeps(*urls: str) -> Pair:
    """A round of the backups' loop with nothing to do, without a control plane beside it."""
    found: Pair = ([], [])
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(Store(url))) for url in urls]
        for store in stores:
            store.transact(_put_off)
        for turn in range(WARM + ROUNDS):
            for seconds, store in zip(found, stores, strict=True):
                began = time.monotonic()
                store.transact(clock.tick, lease_seconds=servers.LEASE)
                assert store.read(backup_work.due_backups, 100) == []
                if turn >= WARM:
                    seconds.append(time.monotonic() - began)
    return found


def _put_off(tx: Tx) -> None:
    """What was cancelled last may not be settled yet."""
    later = {"next_look": rows.c.next_look + 3600.0}
    tx.execute(sa.update(rows).where(sa.not_(rows.c.settled)).values(later))


if __name__ == "__main__":
    from bench.databases import both
    from bench.figure import row

    with both() as databases:
        for one in databases:
            for item in finished(one):
                print(row(item), flush=True)
