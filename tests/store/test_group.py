"""Writes that share a commit are transactions of their own all the same."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from unstuck.store.engine import Store, StoreUnavailable, Tx
from unstuck.store.schema.compute import flavor_access, keypairs


def add(tx: Tx, name: str) -> str:
    tx.execute(
        sa.insert(keypairs).values(
            user_id="u", name=name, type="ssh", public_key="k", fingerprint="f", created_wall=0.0
        )
    )
    return name


def add_and_fail(tx: Tx, name: str) -> None:
    add(tx, name)
    raise ValueError(name)


def add_against_the_schema(tx: Tx, name: str) -> None:
    add(tx, name)
    tx.execute(sa.insert(flavor_access).values(flavor_id="none", project_id="p"))


def add_twice(tx: Tx, name: str) -> None:
    add(tx, name)
    add(tx, name)


def count_and_add(tx: Tx, name: str) -> int:
    count = len(list(tx.execute(sa.select(keypairs.c.name))))
    add(tx, name)
    return count


def names(store: Store) -> list[str]:
    return store.read(lambda tx: list(tx.execute(sa.select(keypairs.c.name)).scalars()))


class Held:
    """The first write waits until the others have gathered behind it."""

    def __init__(self, store: Store) -> None:
        self._go = threading.Event()
        self.commits = 0
        event.listen(store.engine, "commit", self._count)
        self._store = store

    def _count(self, _conn: sa.Connection) -> None:
        self.commits += 1

    def wait(self, _tx: Tx) -> None:
        assert self._go.wait(20)

    def run(self, *works: tuple[Any, str]) -> list[Any]:
        """The answers or errors of works that were all waiting at once."""
        return asyncio.run(self._run(works))

    async def _run(self, works: tuple[tuple[Any, str], ...]) -> list[Any]:
        first = asyncio.ensure_future(self._store.run(self.wait))
        await asyncio.sleep(0)
        self.others = [asyncio.ensure_future(self._store.run(tx, name)) for tx, name in works]
        await asyncio.sleep(0)
        self._go.set()
        await first
        return await asyncio.gather(*self.others, return_exceptions=True)


@pytest.fixture
def held(store: Store) -> Held:
    return Held(store)


def test_writes_that_wait_together_share_one_commit(store: Store, held: Held) -> None:
    answers = held.run(*((add, f"k{number}") for number in range(20)))
    assert answers == [f"k{number}" for number in range(20)]
    assert held.commits == 2  # the one that was waited for, and one for all that gathered
    assert sorted(names(store)) == sorted(answers)


@pytest.mark.parametrize("failing", [add_and_fail, add_against_the_schema, add_twice])
def test_one_that_fails_takes_back_only_itself(store: Store, held: Held, failing: Any) -> None:
    first, second, third = held.run((add, "a"), (failing, "b"), (add, "c"))
    assert (first, third) == ("a", "c")
    assert isinstance(second, ValueError | sa.exc.IntegrityError)
    assert sorted(names(store)) == ["a", "c"]


def test_a_later_write_decides_on_the_earlier_ones_of_its_commit(store: Store, held: Held) -> None:
    assert held.run((count_and_add, "a"), (count_and_add, "b"), (count_and_add, "c")) == [0, 1, 2]


def test_nobody_has_an_answer_before_the_commit(tmp_path: Path, sqlite_template: Path) -> None:
    """Killed there, nothing was acknowledged and nothing is written."""
    path = tmp_path / "own.db"
    path.write_bytes(sqlite_template.read_bytes())
    seen: list[tuple[list[bool], list[str]]] = []

    def barrier(point: str) -> None:
        if point == "commit.add":
            seen.append(([work.done() for work in held.others], names(store)))

    store = Store(f"sqlite:///{path}", barrier=barrier)
    held = Held(store)
    assert held.run((add, "a"), (add, "b")) == ["a", "b"]
    assert seen == [([False, False], []), ([False, False], [])]
    store.close()


def test_a_commit_that_fails_is_told_to_all_and_not_tried_again(
    tmp_path: Path, sqlite_template: Path
) -> None:
    path = tmp_path / "own.db"
    path.write_bytes(sqlite_template.read_bytes())

    def barrier(point: str) -> None:
        if point == "commit.add":
            raise sa.exc.OperationalError("COMMIT", {}, Exception("disk I/O error"))

    store = Store(f"sqlite:///{path}", barrier=barrier)
    answers = Held(store).run((add, "a"), (add, "b"))
    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    assert names(store) == []
    store.close()
