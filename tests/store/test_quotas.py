"""Quotas on both databases, and what two requests at the limit do at once."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from tests.compute_site import bootable
from tests.store.play import caller
from tests.store.test_barriers import overlap
from unstuck.core.errors import Conflict, Forbidden, Invalid
from unstuck.store import flavors, identity, keypairs, networks, quotas
from unstuck.store.engine import Store, Tx
from unstuck.store.identity import Project, User
from unstuck.store.keypairs import Keypair
from unstuck.store.schema.compute import servers
from unstuck.store.server_create import Asked, create_servers


def furnish(store: Store) -> str:
    """A project ``p`` with a user ``u`` in a new cloud; returns an image's id."""
    store.transact(identity.create_project, Project(id="p", name="p"))
    store.transact(identity.create_project, Project(id="q", name="q"))
    store.transact(identity.create_user, User(id="u", name="u"))
    store.transact(flavors.ensure_default_flavors)
    store.transact(networks.ensure_default_network, project_id="p", cidr="10.7.0.0/16")
    return store.transact(bootable)


def asked(image: str, **more: object) -> Asked:
    plain = Asked(
        name="web", description=None, image_id=image, flavor_id="1", key_name=None, metadata={}, tags=(),
        zone=None, host=None, config_drive=False, disk_config="MANUAL", access_ipv4="", access_ipv6="",
        user_data=None, hostname=None, dotted_hostnames=True, nics=(), least=1, most=1, reservation_id="r-1",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **more)


def create(tx: Tx, image: str, *ids: str, **more: object) -> list[str]:
    wanted = asked(image, most=len(ids), **more)
    who = msgspec.structs.replace(caller(), project_id="p", user_id="u")
    return create_servers(tx, wanted, ids, who, admin=False)


def count(store: Store) -> int:
    return store.read(lambda tx: tx.execute(sa.select(sa.func.count()).select_from(servers)).scalar_one())


def test_limits_come_from_the_project_then_the_class_then_the_cloud(any_store: Store) -> None:
    furnish(any_store)
    assert any_store.read(quotas.limits, "p") == quotas.DEFAULTS
    any_store.transact(quotas.set_default_limits, {"cores": 7, "ram": 1024})
    any_store.transact(quotas.set_default_limits, {"cores": 8})
    any_store.transact(quotas.set_limits, "p", {"cores": 5}, force=False)
    found = any_store.read(quotas.limits, "p")
    assert (found["cores"], found["ram"], found["instances"]) == (5, 1024, 100)
    assert any_store.read(quotas.limits, "q")["cores"] == 8
    any_store.transact(quotas.drop_limits, "p")
    assert any_store.read(quotas.limits, "p")["cores"] == 8
    with pytest.raises(Invalid, match="nobody"):
        any_store.transact(quotas.set_limits, "nobody", {"cores": 5}, force=True)


def test_the_limits_of_a_project_end_with_it(any_store: Store) -> None:
    furnish(any_store)
    any_store.transact(quotas.set_limits, "q", {"cores": 5}, force=False)
    any_store.transact(identity.delete_project, "q")
    assert any_store.read(quotas.limits, "q") == quotas.DEFAULTS


def test_a_create_beyond_a_limit_leaves_nothing(any_store: Store) -> None:
    image = furnish(any_store)
    any_store.transact(quotas.set_limits, "p", {"instances": 2, "metadata_items": 1}, force=False)
    with pytest.raises(Forbidden, match=r"Quota exceeded for instances.*of 2 instances"):
        any_store.transact(create, image, "a", "b", "c", least=3)
    with pytest.raises(Forbidden, match="metadata items exceeds 1"):
        any_store.transact(create, image, "a", metadata={"x": "1", "y": "2"})
    assert count(any_store) == 0
    assert any_store.transact(create, image, "a", "b", "c") == ["a", "b"], "as many as fit"
    with pytest.raises(Invalid, match="Quota limit 1 for instances"):
        any_store.transact(quotas.set_limits, "p", {"instances": 1}, force=False)
    any_store.transact(quotas.set_limits, "p", {"instances": 1}, force=True)
    any_store.transact(quotas.set_limits, "p", {"instances": -1, "cores": -1, "ram": -1}, force=False)
    assert any_store.transact(create, image, "d") == ["d"], "-1 is no limit"


def test_the_last_server_of_a_quota_goes_to_one_of_two(postgres_store: Store) -> None:
    image = furnish(postgres_store)
    postgres_store.transact(quotas.set_limits, "p", {"instances": 1}, force=False)
    first, second = overlap(
        postgres_store, lambda tx: create(tx, image, "a"), lambda tx: create(tx, image, "b")
    )
    assert first == ["a"]
    assert isinstance(second, Forbidden)
    assert count(postgres_store) == 1


def test_a_limit_that_is_lowered_at_the_same_moment_counts_the_server_before(postgres_store: Store) -> None:
    image = furnish(postgres_store)
    first, second = overlap(
        postgres_store,
        lambda tx: create(tx, image, "a"),
        lambda tx: quotas.set_limits(tx, "p", {"instances": 0}, force=False),
    )
    assert first == ["a"]
    assert isinstance(second, Invalid)


def test_a_create_at_the_same_moment_obeys_the_limit_before(postgres_store: Store) -> None:
    image = furnish(postgres_store)
    _, second = overlap(
        postgres_store,
        lambda tx: quotas.set_limits(tx, "p", {"instances": 0}, force=False),
        lambda tx: create(tx, image, "a"),
    )
    assert isinstance(second, Forbidden)
    assert count(postgres_store) == 0


def test_the_last_key_pair_of_a_quota_goes_to_one_of_two(postgres_store: Store) -> None:
    furnish(postgres_store)
    postgres_store.transact(quotas.set_limits, "p", {"key_pairs": 1}, force=False)

    def add(tx: Tx, name: str) -> Keypair:
        return keypairs.add_keypair(tx, Keypair("u", name, "ssh", "ssh-ed25519 A", "f"), "p")

    first, second = overlap(postgres_store, lambda tx: add(tx, "a"), lambda tx: add(tx, "b"))
    assert first.name == "a"
    assert isinstance(second, Forbidden)


def test_a_project_that_owns_something_is_not_deleted(any_store: Store) -> None:
    """It was, and left servers that nobody could reach, and that ran on."""
    image = furnish(any_store)
    any_store.transact(create, image, "a")
    any_store.transact(create, image, "b")
    with pytest.raises(Conflict, match=r"Project p \(p\) still owns 2 servers, 3 images, 1 network: delete"):
        any_store.transact(identity.delete_project, "p")
    assert any_store.read(identity.get_project, "p").name == "p"
    any_store.transact(identity.delete_project, "q")
    with pytest.raises(Forbidden, match="not there any more"):
        any_store.transact(quotas.grant, "q", least=1, most=1, vcpus=1, ram_mb=1)


def test_a_user_may_always_be_deleted_and_the_servers_stay_the_projects(any_store: Store) -> None:
    image = furnish(any_store)
    any_store.transact(create, image, "a")
    any_store.transact(identity.delete_user, "u")
    assert count(any_store) == 1


@pytest.mark.parametrize("order", ["create first", "delete first"])
def test_a_project_is_not_deleted_under_a_create(postgres_store: Store, order: str) -> None:
    image = furnish(postgres_store)

    def make(tx: Tx) -> list[str]:
        who = msgspec.structs.replace(caller(), project_id="q", user_id="u")
        return create_servers(tx, asked(image), ("a",), who, admin=False)

    def remove(tx: Tx) -> None:
        identity.delete_project(tx, "q")

    if order == "create first":
        made, removed = overlap(postgres_store, make, remove)
        assert made == ["a"]
        assert isinstance(removed, Conflict)
        assert count(postgres_store) == 1
    else:
        removed, made = overlap(postgres_store, remove, make)
        assert removed is None
        assert isinstance(made, Forbidden)
        assert count(postgres_store) == 0
