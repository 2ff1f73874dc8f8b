"""Sharing an image while something else happens to it, with two connections at once on PostgreSQL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.store.test_barriers import overlap
from unstuck.core.errors import Forbidden, NotFound, TooLarge
from unstuck.core.image import Image, Member
from unstuck.store import identity, image_members, images
from unstuck.store.engine import Store, Tx
from unstuck.store.identity import Project

OWNER: dict[str, Any] = {"project_id": "p", "admin": False}


def make(store: Store) -> None:
    store.transact(identity.create_project, Project(id="p", name="p"))
    store.transact(images.create_image, Image(id="i", project_id="p", created=0.0, updated=0.0), most=10)


def share(tx: Tx, member: str) -> Member:
    return image_members.add_member(tx, "i", member, **OWNER)


def hide(tx: Tx) -> object:
    return images.update_image(
        tx, "i", lambda image: msgspec.structs.replace(image, visibility="private"), **OWNER
    )


def test_the_last_place_among_the_members_goes_to_one_of_two(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(postgres_store)
    monkeypatch.setattr(image_members, "MAX_MEMBERS", 1)
    first, second = overlap(postgres_store, lambda tx: share(tx, "a"), lambda tx: share(tx, "b"))
    assert first.member_id == "a"
    assert isinstance(second, TooLarge)


def test_an_image_that_turns_private_at_the_same_moment_gets_no_member(postgres_store: Store) -> None:
    make(postgres_store)
    _, second = overlap(postgres_store, hide, lambda tx: share(tx, "a"))
    assert isinstance(second, Forbidden)


def test_an_image_that_is_deleted_at_the_same_moment_gets_no_member(postgres_store: Store) -> None:
    make(postgres_store)
    _, second = overlap(
        postgres_store, lambda tx: images.delete_image(tx, "i", **OWNER), lambda tx: share(tx, "a")
    )
    assert isinstance(second, NotFound)


def test_a_member_that_is_removed_at_the_same_moment_cannot_accept(postgres_store: Store) -> None:
    make(postgres_store)
    postgres_store.transact(share, "a")
    _, second = overlap(
        postgres_store,
        lambda tx: image_members.remove_member(tx, "i", "a", **OWNER),
        lambda tx: image_members.answer(tx, "i", "a", "accepted", project_id="a", admin=False),
    )
    assert isinstance(second, NotFound)
