"""Whom shared images are shared with. Every change takes the image's row first, in a statement of its own."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from unstuck.core.errors import Conflict, Forbidden, NotFound, TooLarge
from unstuck.core.image import Image, Member
from unstuck.store.engine import Tx
from unstuck.store.images import get_image, own_image
from unstuck.store.schema.images import image_members

MAX_MEMBERS = 128


def _query(image_id: str) -> sa.Select[Any]:
    table = image_members.c
    return sa.select(image_members).where(table.image_id == image_id).order_by(table.created, table.member_id)


def _member(row: Any) -> Member:
    return Member(**row._mapping)


def _one(tx: Tx, image_id: str, member_id: str) -> Member:
    row = tx.execute(_query(image_id).where(image_members.c.member_id == member_id)).first()
    if row is None:
        raise NotFound(f"Member {member_id} was not found for image {image_id}.")
    return _member(row)


def _sees_all(image: Image, project_id: str | None, *, admin: bool) -> bool:
    return admin or image.project_id == project_id


def list_members(tx: Tx, image_id: str, *, project_id: str | None, admin: bool) -> list[Member]:
    """The members of an image: all for its owner, for a member only itself."""
    image = get_image(tx, image_id, project_id=project_id, admin=admin)
    query = _query(image_id)
    if not _sees_all(image, project_id, admin=admin):
        query = query.where(image_members.c.member_id == project_id)
    found = [_member(row) for row in tx.execute(query)]
    if not found and image.visibility == "public":
        raise Forbidden("Public images do not have members.")
    return found


def show_member(tx: Tx, image_id: str, member_id: str, *, project_id: str | None, admin: bool) -> Member:
    """One member; a member sees only itself, others are a 404."""
    image = get_image(tx, image_id, project_id=project_id, admin=admin)
    if not _sees_all(image, project_id, admin=admin) and member_id != project_id:
        raise NotFound(f"Member {member_id} was not found for image {image_id}.")
    return _one(tx, image_id, member_id)


def add_member(tx: Tx, image_id: str, member_id: str, *, project_id: str | None, admin: bool) -> Member:
    """Share an image with a project, which then has to accept it; 409 if it is shared with it already."""
    image = own_image(tx, image_id, project_id=project_id, admin=admin)
    if image.visibility != "shared":
        raise Forbidden("Only shared images have members.")
    known = [row.member_id for row in tx.execute(_query(image_id))]
    if member_id in known:
        raise Conflict(f"Member {member_id} is duplicated for image {image_id}.")
    if len(known) >= MAX_MEMBERS:
        raise TooLarge(f"An image has at most {MAX_MEMBERS} members; remove some first.")
    wall = tx.now.wall
    tx.execute(
        sa.insert(image_members).values(
            image_id=image_id, member_id=member_id, status="pending", created=wall, updated=wall
        )
    )
    return _one(tx, image_id, member_id)


def answer(
    tx: Tx, image_id: str, member_id: str, status: str, *, project_id: str | None, admin: bool
) -> Member:
    """Accept or reject an image: the member's own decision, not the owner's."""
    image = get_image(tx, image_id, project_id=project_id, admin=admin, lock=True)
    if member_id != project_id and not admin:
        if image.project_id == project_id:
            raise Forbidden("Only the member itself may change its status.")
        raise NotFound(f"Member {member_id} was not found for image {image_id}.")
    _one(tx, image_id, member_id)
    tx.execute(
        sa.update(image_members)
        .where(image_members.c.image_id == image_id, image_members.c.member_id == member_id)
        .values(status=status, updated=tx.now.wall)
    )
    return _one(tx, image_id, member_id)


def remove_member(tx: Tx, image_id: str, member_id: str, *, project_id: str | None, admin: bool) -> None:
    """Share it no longer. Servers made of it go on."""
    own_image(tx, image_id, project_id=project_id, admin=admin)
    _one(tx, image_id, member_id)
    tx.execute(
        sa.delete(image_members).where(
            image_members.c.image_id == image_id, image_members.c.member_id == member_id
        )
    )
