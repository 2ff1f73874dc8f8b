"""Where backups go, on both databases: an instance's own, the project's, and nobody else's."""

from __future__ import annotations

import pytest

from tests.store.instance_play import Databases
from unstuck.core.errors import Invalid, NotFound
from unstuck.store import backup_strategies as strategies
from unstuck.store.backup_strategies import Strategy
from unstuck.store.engine import Store
from unstuck.store.instance_servers import list_managed, show_managed


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    made = Databases(any_store)
    made.create_db()
    return made


def test_a_strategy_is_written_replaced_and_dropped(cloud: Databases) -> None:
    store, project = cloud.store, "p"
    assert store.read(strategies.list_strategies, project, None) == []
    store.transact(strategies.set_strategy, project, None, "here")
    store.transact(strategies.set_strategy, project, None, "there")
    store.transact(strategies.set_strategy, project, "db", "elsewhere")
    both = [Strategy(project, None, "there"), Strategy(project, "db", "elsewhere")]
    assert store.read(strategies.list_strategies, project, None) == both
    assert store.read(strategies.list_strategies, project, "db") == both[1:]
    store.transact(strategies.drop_strategy, project, "db")
    assert store.read(strategies.list_strategies, project, None) == both[:1]
    with pytest.raises(NotFound):
        store.transact(strategies.drop_strategy, project, "db")


def test_only_for_what_is_there_and_ones_own(cloud: Databases) -> None:
    with pytest.raises(NotFound):
        cloud.store.transact(strategies.set_strategy, "p", "nothing", "here")
    with pytest.raises(Invalid):
        cloud.store.transact(strategies.set_strategy, "nobody", None, "here")


def test_operators_see_the_names_of_servers(cloud: Databases) -> None:
    found, names = cloud.store.read(list_managed, None, limit=10, marker=None, deleted=False)
    [item] = found.items
    assert names[item.server_id] == item.name
    shown, same = cloud.store.read(show_managed, item.id)
    assert (shown.items[0].id, same) == (item.id, names)
