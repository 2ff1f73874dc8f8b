"""Upgrades on both databases: another version of the same line, and back to the former one where it fails."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.compute_site import add_image
from tests.store.instance_play import Databases
from unstuck.core.errors import Conflict, Invalid
from unstuck.core.instance.view import ServerState
from unstuck.store import configurations, datastores, instances
from unstuck.store.engine import Store, Tx
from unstuck.store.instance_configuration import set_configuration
from unstuck.store.instance_lists import requests_of
from unstuck.store.schema.database import instances as table


@pytest.fixture
def cloud(any_store: Store) -> Databases:
    found = Databases(any_store)

    def more(tx: Tx) -> None:
        for name, version in (("15-new", "15.16"), ("17", "17.2")):
            datastores.register_version(
                tx, version_id=f"v{name}", datastore_id="unused", datastore="postgresql", name=name,
                manager="postgresql", version=version, image_id=add_image(tx, f"root-{name}"), active=True,
                default=False,
            )  # fmt: skip

    any_store.transact(more)
    return found


def version(cloud: Databases) -> str:
    return cloud.store.read(lambda tx: str(tx.execute(sa.select(table.c.datastore_version_id)).scalar_one()))


def image(cloud: Databases) -> str:
    return cloud.wants()["server-db"].spec.images[0].id


def upgrade(cloud: Databases, to: str = "15-new") -> None:
    cloud.act(instances.upgrade_instance, "db", to)


def result(cloud: Databases) -> tuple[str, str]:
    last = cloud.store.read(requests_of, "db")
    [found] = [item for item in last if item.kind == "upgrade"]
    return found.state, found.reason


def test_an_upgrade_gives_another_system_and_version_and_keeps_the_volume(cloud: Databases) -> None:
    cloud.active_db()
    before = image(cloud)
    upgrade(cloud)
    assert (version(cloud), image(cloud)) == ("v15", before)
    assert cloud.steps() == ["Apply"]
    assert (version(cloud), image(cloud) != before) == ("v15-new", True)
    assert cloud.shown() == ("UPGRADE", "")
    want = cloud.db_want()
    assert want is not None
    assert (want.version, want.data_recorded, want.generation) == ("15.16", True, "generation-db")
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.settled()
    assert result(cloud) == ("done", "")


def test_an_upgrade_whose_guest_gives_up_goes_back_and_says_why(cloud: Databases) -> None:
    cloud.active_db()
    before = image(cloud)
    upgrade(cloud)
    cloud.steps()
    cloud.again()
    cloud.see(cloud.view(server=ServerState.DOWN, trouble=cloud.trouble("server-keeps-failing")))
    assert cloud.steps() == ["GoBack"]
    assert (version(cloud), image(cloud)) == ("v15", before)
    assert cloud.shown() == ("UPGRADE", "")
    cloud.again()
    cloud.see(cloud.view())
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.settled()
    state, reason = result(cloud)
    assert (state, "it does not work" in reason) == ("failed", True)
    assert cloud.instance().pending is None


def test_an_upgrade_that_nobody_makes_goes_back_at_its_deadline_and_ends_at_the_next(
    cloud: Databases,
) -> None:
    cloud.active_db()
    upgrade(cloud)
    cloud.steps()
    cloud.pass_time(961.0)
    assert cloud.steps() == ["GoBack"]
    assert version(cloud) == "v15"
    cloud.pass_time(901.0)
    cloud.steps()
    assert cloud.instance().pending is None
    state, reason = result(cloud)
    assert (state, "former version did not come up either" in reason) == ("failed", True)


def test_an_upgrade_of_which_nobody_was_told_changes_nothing(cloud: Databases) -> None:
    cloud.active_db()
    upgrade(cloud)
    cloud.pass_time(961.0)
    assert cloud.step() == "Apply"  # it is too late for that
    assert (version(cloud), cloud.shown()[0]) == ("v15", "ACTIVE")
    assert result(cloud)[0] == "failed"


@pytest.mark.parametrize(
    ("to", "word"), [("15", "already"), ("17", "unstuck db export"), ("9", "no version")]
)
def test_what_cannot_be_upgraded_to_is_refused(cloud: Databases, to: str, word: str) -> None:
    cloud.active_db()
    with pytest.raises(Invalid, match=word):
        upgrade(cloud, to)
    assert cloud.instance().pending is None


def test_one_request_at_a_time(cloud: Databases) -> None:
    cloud.active_db()
    upgrade(cloud)
    for call in (lambda: upgrade(cloud), lambda: cloud.act(instances.restart_instance, "db")):
        with pytest.raises(Conflict):
            call()


def test_versions_that_an_upgrade_needs_are_not_deleted(cloud: Databases) -> None:
    cloud.active_db()
    upgrade(cloud)
    with pytest.raises(Conflict):
        cloud.store.transact(datastores.delete_version, "v15-new")
    cloud.steps()
    with pytest.raises(Conflict):
        cloud.store.transact(datastores.delete_version, "v15")


def test_its_configuration_group_stays(cloud: Databases) -> None:
    cloud.active_db()
    cloud.store.transact(
        configurations.create_configuration, "g", "p", name="g", description=None, values={"jit": False},
        datastore=None, version="15",
    )  # fmt: skip
    cloud.act(set_configuration, "db", "g")
    upgrade(cloud)
    cloud.steps()
    want = cloud.db_want()
    assert want is not None
    assert want.parameters == {"jit": "off"}
    cloud.again()
    cloud.see(cloud.view())
    with pytest.raises(Conflict, match="configuration groups"):
        cloud.store.transact(datastores.delete_version, "v15")


def test_what_the_former_guest_saw_says_nothing_of_the_new_one(cloud: Databases) -> None:
    """The simulator found it: the new process's hello, with its predecessor's view, made an upgrade done."""
    cloud.active_db()
    upgrade(cloud)
    cloud.steps()
    cloud.again()
    cloud.see(None)
    assert cloud.instance().pending is not None
    cloud.see(cloud.view(server=ServerState.DOWN, trouble=cloud.trouble()))
    assert cloud.steps() == ["GoBack"]
