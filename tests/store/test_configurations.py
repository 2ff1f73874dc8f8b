"""Configuration groups: what instances get of them, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.store.instance_play import Databases, caller
from tests.store.test_barriers import overlap
from unstuck.core.errors import Invalid, NotFound, TooLarge
from unstuck.store import configurations as groups
from unstuck.store import instances
from unstuck.store.configurations import Configuration, Unfit
from unstuck.store.engine import Store
from unstuck.store.instance_configuration import defaults_for, set_configuration
from unstuck.store.instances import NewIds
from unstuck.store.schema.database import configurations as table


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    return Databases(any_store)


def make(cloud: Databases, name: str = "g", project: str = "p", **values: Any) -> Configuration:
    return cloud.store.transact(
        groups.create_configuration, name, project, name=name, description=None,
        values=values or {"work_mem": "4MB"}, datastore=None, version=None,
    )  # fmt: skip


def wanted(cloud: Databases, name: str = "db") -> dict[str, str]:
    want = cloud.db_want(name)
    assert want is not None
    return want.parameters


def change(cloud: Databases, *, replace: bool = False, **values: Any) -> tuple[list[str], list[str]]:
    return cloud.store.transact(groups.change_configuration, "g", "p", values=values, replace=replace)


def get(cloud: Databases) -> Configuration:
    return cloud.store.read(groups.get_configuration, "g", "p")


def test_an_attached_group_is_what_the_guest_gets_and_a_detached_one_is_not(cloud: Databases) -> None:
    cloud.active_db()
    make(cloud, work_mem="4MB", jit=False)
    assert wanted(cloud) == {}
    assert cloud.act(set_configuration, "db", "g") == "h"
    assert wanted(cloud) == {"work_mem": "4096kB", "jit": "off"}
    assert cloud.act(set_configuration, "db", "g") is None
    assert get(cloud).instances == 1
    assert cloud.act(set_configuration, "db", None) == "h"
    assert wanted(cloud) == {}
    assert get(cloud).instances == 0


def test_a_changed_group_reaches_all_of_its_instances_and_no_others(cloud: Databases) -> None:
    make(cloud)
    for name in ("a", "b", "c"):
        cloud.active_db(name, configuration_id=None if name == "c" else "g")
    assert change(cloud, jit=True) == (["a", "b"], ["h"])
    assert wanted(cloud, "a") == wanted(cloud, "b") == {"work_mem": "4096kB", "jit": "on"}
    assert wanted(cloud, "c") == {}
    assert change(cloud, replace=True, jit=False)[0] == ["a", "b"]
    assert wanted(cloud, "a") == {"jit": "off"}
    assert get(cloud).values == {"jit": False}
    found, more = cloud.store.read(groups.attached_to, "g", "p", limit=1, marker=None)
    assert ([item.id for item in found], more) == (["a"], True)


def test_what_cannot_be_set_is_refused_by_name_and_changes_nothing(cloud: Databases) -> None:
    cloud.active_db()
    make(cloud)
    cloud.act(set_configuration, "db", "g")
    for bad in ({"archive_command": "x"}, {"work_mem": "lots"}, {"shared_buffers": "400MB"}):
        [name] = bad
        with pytest.raises(Unfit, match=name):
            change(cloud, **bad)
    with pytest.raises(Unfit, match="fsync"):
        make(cloud, "h", fsync=False)
    assert wanted(cloud) == {"work_mem": "4096kB"}
    make(cloud, "large", shared_buffers="1GB")
    with pytest.raises(Unfit, match="shared_buffers"):
        cloud.act(set_configuration, "db", "large")
    with pytest.raises(Unfit, match="shared_buffers"):
        cloud.create_db("other", configuration_id="large")


def test_a_flavor_too_small_for_the_group_is_refused(cloud: Databases) -> None:
    make(cloud, shared_buffers="1GB")
    cloud.active_db(flavor_id="4", configuration_id="g")
    with pytest.raises(Unfit, match="shared_buffers"):
        cloud.act(instances.resize_instance, "db", "3")
    assert cloud.instance().pending is None


def test_a_group_is_deleted_only_when_no_instance_has_it(cloud: Databases) -> None:
    make(cloud)
    cloud.active_db(configuration_id="g")
    with pytest.raises(Invalid, match="attached to 1"):
        cloud.store.transact(groups.delete_configuration, "g", "p")
    cloud.act(instances.delete_instance)
    cloud.store.transact(groups.delete_configuration, "g", "p")
    with pytest.raises(NotFound):
        get(cloud)
    cloud.act(instances.undelete_instance)
    assert wanted(cloud) == {}


def test_groups_are_a_project_s_own_and_of_one_version(cloud: Databases) -> None:
    make(cloud, "theirs", project="q")
    cloud.active_db()
    for call in (
        lambda: cloud.act(set_configuration, "db", "theirs"),
        lambda: cloud.store.read(groups.get_configuration, "theirs", "p"),
        lambda: cloud.store.transact(groups.delete_configuration, "theirs", "p"),
        lambda: cloud.create_db("other", configuration_id="theirs"),
        lambda: cloud.act(set_configuration, "db", "nobody"),
    ):
        with pytest.raises(NotFound):
            call()
    found, more = cloud.store.read(groups.list_configurations, "p", limit=10, marker=None)
    assert (found, more) == ([], False)


def test_a_project_has_so_many_groups_and_no_more(cloud: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST", 2)
    make(cloud, "a")
    make(cloud, "b")
    with pytest.raises(TooLarge):
        make(cloud, "c")


def test_a_group_that_cannot_be_read_spoils_nothing_but_itself(cloud: Databases) -> None:
    make(cloud)
    cloud.active_db(configuration_id="g")
    cloud.store.transact(lambda tx: tx.execute(sa.update(table).values(parameters="{")))
    assert wanted(cloud) == {}
    assert get(cloud).values == {}
    change(cloud, replace=True, jit=True)
    assert wanted(cloud) == {"jit": "on"}


def test_the_defaults_follow_from_memory_and_volume(cloud: Databases) -> None:
    cloud.active_db()
    assert cloud.store.read(defaults_for, "db", "p") == ("postgresql", 512, 1)
    with pytest.raises(NotFound):
        cloud.store.read(defaults_for, "db", "q")


def test_a_group_deleted_while_it_is_attached_is_either_attached_or_gone(postgres_store: Store) -> None:
    cloud = Databases(postgres_store)
    cloud.active_db()
    make(cloud)
    first, second = overlap(
        cloud.store,
        lambda tx: set_configuration(tx, "db", "p", "g", caller()),
        lambda tx: groups.delete_configuration(tx, "g", "p"),
    )
    assert first == "h"
    assert isinstance(second, Invalid)
    cloud.act(set_configuration, "db", None)
    first, second = overlap(
        cloud.store,
        lambda tx: groups.delete_configuration(tx, "g", "p"),
        lambda tx: set_configuration(tx, "db", "p", "g", caller()),
    )
    assert first is None
    assert isinstance(second, NotFound)


def test_a_group_deleted_while_an_instance_is_made_with_it_is_either_there_or_refused(
    postgres_store: Store,
) -> None:
    cloud = Databases(postgres_store)
    make(cloud)
    ids = NewIds("a", "server-a", "port-a", "generation-a")
    first, second = overlap(
        cloud.store,
        lambda tx: groups.delete_configuration(tx, "g", "p"),
        lambda tx: instances.create_instance(tx, cloud.ask("a", configuration_id="g"), ids, caller()),
    )
    assert first is None
    assert isinstance(second, NotFound)


def test_an_instance_that_gets_a_group_while_that_changes_gets_the_change(postgres_store: Store) -> None:
    cloud = Databases(postgres_store)
    cloud.active_db()
    make(cloud)
    first, second = overlap(
        cloud.store,
        lambda tx: set_configuration(tx, "db", "p", "g", caller()),
        lambda tx: groups.change_configuration(tx, "g", "p", values={"jit": True}, replace=False),
    )
    assert (first, second) == ("h", (["db"], ["h"]))
    assert wanted(cloud) == {"work_mem": "4096kB", "jit": "on"}
