"""Tokens of consoles: one use, a short time, one grant."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.store.play import Cloud, caller
from tests.store.test_barriers import overlap
from unstuck.core.errors import Conflict, NotFound
from unstuck.core.server.data import Fence
from unstuck.store import agents, asks, consoles, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.clock import clock
from unstuck.store.schema.compute import console_tokens, placements


@pytest.fixture
def cloud(any_store: Store) -> Cloud:
    return running(any_store)


def running(store: Store) -> Cloud:
    made = Cloud(store)
    made.host()
    made.active()
    return made


def make(cloud: Cloud, name: str = "t", server: str = "a") -> None:
    cloud.store.transact(consoles.make_token, server, "project", token_hash=name, user_id="user")


def take(cloud: Cloud, name: str = "t") -> consoles.Opened | None:
    return cloud.store.transact(consoles.take_token, name)


def later(cloud: Cloud, seconds: float) -> None:
    def forward(tx: Tx) -> None:
        tx.execute(sa.update(clock).values(lease=clock.c.lease + seconds))

    cloud.store.transact(forward)


def kept(cloud: Cloud) -> set[str]:
    return set(
        cloud.store.read(lambda tx: tx.execute(sa.select(console_tokens.c.token_hash)).scalars().all())
    )


def test_a_token_opens_its_server_once(cloud: Cloud) -> None:
    make(cloud)
    assert take(cloud, "other") is None
    assert take(cloud) == consoles.Opened("a", "h", "project", "user", Fence(1, 1))
    assert take(cloud) is None
    assert kept(cloud) == set()


def test_a_token_ends_by_the_stores_own_clock(cloud: Cloud) -> None:
    make(cloud, "in time")
    later(cloud, consoles.TOKEN_SECONDS - 5)
    assert take(cloud, "in time") is not None
    make(cloud, "late")
    later(cloud, consoles.TOKEN_SECONDS + 5)
    assert take(cloud, "late") is None


def test_tokens_that_nobody_used_are_swept(cloud: Cloud) -> None:
    make(cloud, "old")
    later(cloud, consoles.TOKEN_SECONDS + 5)
    make(cloud, "new")
    cloud.store.transact(asks.sweep_asks)
    assert kept(cloud) == {"new"}


def test_a_token_is_of_the_grant_it_was_made_for(cloud: Cloud) -> None:
    make(cloud)
    cloud.store.transact(lambda tx: tx.execute(sa.update(placements).values(epoch=placements.c.epoch + 1)))
    assert take(cloud) is None
    assert kept(cloud) == set()


def test_a_delete_that_was_accepted_closes_it(cloud: Cloud) -> None:
    make(cloud)
    cloud.store.transact(servers.delete_server, "a", caller())
    assert take(cloud) is None
    with pytest.raises(Conflict):
        make(cloud, "next")


def test_only_the_newest_are_kept(cloud: Cloud) -> None:
    for number in range(consoles.TOKENS_PER_SERVER + 3):
        make(cloud, f"t{number}")
        later(cloud, 1.0)
    assert kept(cloud) == {f"t{number}" for number in range(3, consoles.TOKENS_PER_SERVER + 3)}


def test_another_project_learns_nothing(cloud: Cloud) -> None:
    with pytest.raises(NotFound):
        cloud.store.transact(consoles.make_token, "a", "other", token_hash="t", user_id="user")
    with pytest.raises(NotFound):
        cloud.store.transact(consoles.ask_serial, "a", "other", ask_id="q", seconds=5.0)


def test_a_question_goes_to_the_host_of_the_grant_and_to_no_later_one(cloud: Cloud) -> None:
    make(cloud)
    opened = take(cloud)
    assert opened is not None
    assert cloud.store.transact(consoles.ask_stream, "q", opened, 15.0)
    incarnation = cloud.agents["h"].incarnation
    [asked] = cloud.store.read(agents.world, "h", incarnation, -1).asks
    assert (asked.kind, asked.server_id, asked.id) == ("serial", "a", "q")
    assert '"open":true' in asked.argument
    assert 10.0 < asked.seconds <= 15.0
    cloud.store.transact(servers.delete_server, "a", caller())
    assert not cloud.store.transact(consoles.ask_stream, "q2", opened, 15.0)


def test_of_two_uses_at_once_one_opens(postgres_store: Store) -> None:
    cloud = running(postgres_store)
    make(cloud)
    first, second = overlap(
        postgres_store, lambda tx: consoles.take_token(tx, "t"), lambda tx: consoles.take_token(tx, "t")
    )
    assert first is not None
    assert second is None
