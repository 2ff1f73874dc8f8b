"""Groups of users: a role of a group is a role of each of its members."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import NotFound
from unstuck.store.engine import Tx
from unstuck.store.identity import User, changed, free_name, get_user, user_from
from unstuck.store.schema.identity import group_members, groups, users


class Group(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    description: str = ""


def _group(row: Any) -> Group:
    return Group(**row._mapping)


def create_group(tx: Tx, group: Group) -> None:
    """Add a group; refused when the name is taken."""
    free_name(tx, groups, "group", group.name, group.id)
    tx.execute(sa.insert(groups).values(msgspec.structs.asdict(group)))


def get_group(tx: Tx, group_id: str) -> Group:
    """A group by id."""
    row = tx.execute(sa.select(groups).where(groups.c.id == group_id)).first()
    if row is None:
        raise NotFound(f"Could not find group: {group_id}.")
    return _group(row)


def list_groups(tx: Tx, *, name: str | None = None, user_id: str | None = None) -> list[Group]:
    """All groups, or those of a user, by name."""
    query = sa.select(groups).order_by(groups.c.name)
    if name is not None:
        query = query.where(groups.c.name == name)
    if user_id is not None:
        get_user(tx, user_id)
        mine = sa.select(group_members.c.group_id).where(group_members.c.user_id == user_id)
        query = query.where(groups.c.id.in_(mine))
    return [_group(row) for row in tx.execute(query)]


def update_group(tx: Tx, group_id: str, changes: dict[str, Any]) -> Group:
    """Change name or description."""
    after = msgspec.structs.replace(get_group(tx, group_id), **changes)
    free_name(tx, groups, "group", after.name, group_id)
    tx.execute(sa.update(groups).where(groups.c.id == group_id).values(msgspec.structs.asdict(after)))
    return after


def delete_group(tx: Tx, group_id: str) -> None:
    """Delete a group with what it was given; its members lose that from the next request on."""
    get_group(tx, group_id)
    tx.execute(sa.delete(groups).where(groups.c.id == group_id))
    changed(tx)


def list_members(tx: Tx, group_id: str) -> list[User]:
    """The users in a group, by name."""
    get_group(tx, group_id)
    inside = sa.select(group_members.c.user_id).where(group_members.c.group_id == group_id)
    return [
        user_from(row)
        for row in tx.execute(sa.select(users).where(users.c.id.in_(inside)).order_by(users.c.name))
    ]


def is_member(tx: Tx, group_id: str, user_id: str) -> bool:
    """Whether a user is in a group; 404 for either that is not there."""
    get_group(tx, group_id)
    get_user(tx, user_id)
    query = sa.select(group_members.c.user_id).where(
        group_members.c.group_id == group_id, group_members.c.user_id == user_id
    )
    return tx.execute(query).first() is not None


def add_member(tx: Tx, group_id: str, user_id: str) -> None:
    """Put a user into a group; again is no error."""
    if not is_member(tx, group_id, user_id):
        tx.execute(sa.insert(group_members).values(group_id=group_id, user_id=user_id))
        changed(tx)


def remove_member(tx: Tx, group_id: str, user_id: str) -> None:
    """Take a user out of a group; it counts from the next request on."""
    if not is_member(tx, group_id, user_id):
        raise NotFound(f"User {user_id!r} not found in group {group_id!r}.")
    tx.execute(
        sa.delete(group_members).where(
            group_members.c.group_id == group_id, group_members.c.user_id == user_id
        )
    )
    changed(tx)
