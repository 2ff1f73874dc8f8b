"""Roles, and who has which role where: users by themselves, and through their groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Forbidden, NotFound
from unstuck.core.roles import implied
from unstuck.store.engine import Tx
from unstuck.store.groups import Group, get_group
from unstuck.store.identity import (
    ROLES,
    Project,
    Role,
    User,
    changed,
    free_name,
    get_project,
    get_user,
    project_from,
)
from unstuck.store.schema.identity import (
    group_members,
    group_role_assignments,
    projects,
    role_assignments,
    roles,
)


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A user, or every member of a group, has a role in a project."""

    project: Project
    role: Role
    user: User | None = None
    group: Group | None = None


def _role(row: Any) -> Role:
    return Role(id=row.id, name=row.name, description=row.description)


def list_roles(tx: Tx, *, name: str | None = None) -> list[Role]:
    """All roles, by name."""
    query = sa.select(roles).order_by(roles.c.name)
    if name is not None:
        query = query.where(roles.c.name == name)
    return [_role(row) for row in tx.execute(query)]


def get_role(tx: Tx, role_id: str) -> Role:
    """A role by id."""
    row = tx.execute(sa.select(roles).where(roles.c.id == role_id)).first()
    if row is None:
        raise NotFound(f"Could not find role: {role_id}.")
    return _role(row)


def create_role(tx: Tx, role: Role) -> None:
    """Add a role. It allows nothing here by itself: the policy knows the built-in ones."""
    free_name(tx, roles, "role", role.name, role.id)
    tx.execute(sa.insert(roles).values(msgspec.structs.asdict(role)))


def update_role(tx: Tx, role_id: str, changes: dict[str, Any]) -> Role:
    """Change name or description; the built-in ones keep their names, which the policy goes by."""
    before = get_role(tx, role_id)
    after = msgspec.structs.replace(before, **changes)
    if before.name in ROLES and after.name != before.name:
        raise Forbidden(f"The role {before.name} is built in and keeps its name.")
    free_name(tx, roles, "role", after.name, role_id)
    tx.execute(sa.update(roles).where(roles.c.id == role_id).values(msgspec.structs.asdict(after)))
    changed(tx)
    return after


def delete_role(tx: Tx, role_id: str) -> None:
    """Delete a role with its assignments; the built-in ones stay."""
    role = get_role(tx, role_id)
    if role.name in ROLES:
        raise Forbidden(f"The role {role.name} is built in and cannot be deleted.")
    tx.execute(sa.delete(roles).where(roles.c.id == role_id))
    changed(tx)


class _Holders(msgspec.Struct, frozen=True):
    """Users or groups: their table of assignments, and how to see that one of them is there."""

    kind: str
    table: sa.Table
    get: Callable[[Tx, str], object]

    def match(self, key: str, project_id: str, role_id: str) -> tuple[sa.ColumnElement[bool], ...]:
        columns = self.table.c
        who = columns[f"{self.kind}_id"]
        return who == key, columns.project_id == project_id, columns.role_id == role_id


_USERS = _Holders("user", role_assignments, get_user)
_GROUPS = _Holders("group", group_role_assignments, get_group)


def _has(tx: Tx, of: _Holders, key: str, project_id: str, role_id: str) -> bool:
    query = sa.select(of.table.c.role_id).where(*of.match(key, project_id, role_id))
    return tx.execute(query).first() is not None


def _grant(tx: Tx, of: _Holders, key: str, project_id: str, role_id: str) -> None:
    of.get(tx, key)
    get_project(tx, project_id)
    get_role(tx, role_id)
    if not _has(tx, of, key, project_id, role_id):
        values = {f"{of.kind}_id": key, "project_id": project_id, "role_id": role_id}
        tx.execute(sa.insert(of.table).values(values))
        changed(tx)


def _revoke(tx: Tx, of: _Holders, key: str, project_id: str, role_id: str) -> None:
    if not _has(tx, of, key, project_id, role_id):
        raise NotFound(f"Could not find role assignment with role: {role_id}, {of.kind}: {key}.")
    tx.execute(sa.delete(of.table).where(*of.match(key, project_id, role_id)))
    changed(tx)


def grant(tx: Tx, user_id: str, project_id: str, role_id: str) -> None:
    """Give a user a role in a project; again is no error."""
    _grant(tx, _USERS, user_id, project_id, role_id)


def revoke(tx: Tx, user_id: str, project_id: str, role_id: str) -> None:
    """Take a role away; it counts from the next request on."""
    _revoke(tx, _USERS, user_id, project_id, role_id)


def has_role(tx: Tx, user_id: str, project_id: str, role_id: str) -> bool:
    """Whether exactly this assignment exists (implied roles and groups do not count)."""
    return _has(tx, _USERS, user_id, project_id, role_id)


def grant_group(tx: Tx, group_id: str, project_id: str, role_id: str) -> None:
    """Give all members of a group a role in a project; again is no error."""
    _grant(tx, _GROUPS, group_id, project_id, role_id)


def revoke_group(tx: Tx, group_id: str, project_id: str, role_id: str) -> None:
    """Take it away again."""
    _revoke(tx, _GROUPS, group_id, project_id, role_id)


def group_has_role(tx: Tx, group_id: str, project_id: str, role_id: str) -> bool:
    """Whether exactly this assignment exists."""
    return _has(tx, _GROUPS, group_id, project_id, role_id)


def roles_of_group(tx: Tx, group_id: str, project_id: str) -> list[Role]:
    """The roles that a group was given in a project."""
    get_group(tx, group_id)
    get_project(tx, project_id)
    table = group_role_assignments.c
    given = sa.select(table.role_id).where(table.group_id == group_id, table.project_id == project_id)
    return [
        _role(row) for row in tx.execute(sa.select(roles).where(roles.c.id.in_(given)).order_by(roles.c.name))
    ]


def roles_in(tx: Tx, user_id: str, project_id: str) -> list[Role]:
    """The roles that a user was given in a project, not counting groups."""
    table = role_assignments.c
    given = sa.select(table.role_id).where(table.user_id == user_id, table.project_id == project_id)
    return [
        _role(row) for row in tx.execute(sa.select(roles).where(roles.c.id.in_(given)).order_by(roles.c.name))
    ]


def held_in(tx: Tx, user_id: str, project_id: str) -> list[Role]:
    """The roles that a user has in a project, by itself or through groups."""
    own, through = role_assignments.c, group_role_assignments.c
    given = sa.select(own.role_id).where(own.user_id == user_id, own.project_id == project_id)
    shared = sa.select(through.role_id).where(
        through.project_id == project_id, through.group_id.in_(_groups_of(user_id))
    )
    query = sa.select(roles).where(sa.or_(roles.c.id.in_(given), roles.c.id.in_(shared)))
    return [_role(row) for row in tx.execute(query.order_by(roles.c.name))]


def _groups_of(user_id: str) -> sa.Select[Any]:
    return sa.select(group_members.c.group_id).where(group_members.c.user_id == user_id)


def projects_of(tx: Tx, user_id: str) -> list[Project]:
    """The enabled projects in which a user has a role, by itself or through groups."""
    own, through = role_assignments.c, group_role_assignments.c
    given = sa.select(own.project_id).where(own.user_id == user_id)
    shared = sa.select(through.project_id).where(through.group_id.in_(_groups_of(user_id)))
    query = sa.select(projects).where(
        sa.or_(projects.c.id.in_(given), projects.c.id.in_(shared)), projects.c.enabled
    )
    return [project_from(row) for row in tx.execute(query.order_by(projects.c.name))]


def list_assignments(
    tx: Tx, *, user_id: str | None = None, group_id: str | None = None, project_id: str | None = None,
    role_id: str | None = None, effective: bool = False,
) -> list[Assignment]:  # fmt: skip
    """Assignments that match all given ids. ``effective``: groups as their members, implied roles too."""
    found = [] if group_id is not None else _of_users(tx, user_id, project_id)
    if user_id is None or effective:
        of_groups = _of_groups(tx, group_id, project_id)
        found += _expanded(tx, of_groups, user_id) if effective else of_groups
    if effective:
        found = _with_implied(tx, found)
    return [item for item in found if role_id in (None, item.role.id)]


def _rows(tx: Tx, table: sa.Table, *given: tuple[str, str | None]) -> list[tuple[Any, Project, Role]]:
    conditions = [table.c[name] == value for name, value in given if value is not None]
    rows = tx.execute(sa.select(table).where(*conditions)).all()
    places = {key: get_project(tx, key) for key in {row.project_id for row in rows}}
    known = {role.id: role for role in list_roles(tx)}
    return [(row, places[row.project_id], known[row.role_id]) for row in rows]


def _of_users(tx: Tx, user_id: str | None, project_id: str | None) -> list[Assignment]:
    rows = _rows(tx, role_assignments, ("user_id", user_id), ("project_id", project_id))
    people = {key: get_user(tx, key) for key in {row.user_id for row, _, _ in rows}}
    return [Assignment(user=people[row.user_id], project=where, role=role) for row, where, role in rows]


def _of_groups(tx: Tx, group_id: str | None, project_id: str | None) -> list[Assignment]:
    rows = _rows(tx, group_role_assignments, ("group_id", group_id), ("project_id", project_id))
    known = {key: get_group(tx, key) for key in {row.group_id for row, _, _ in rows}}
    return [Assignment(group=known[row.group_id], project=where, role=role) for row, where, role in rows]


def _expanded(tx: Tx, of_groups: Iterable[Assignment], user_id: str | None) -> list[Assignment]:
    """Each member of a group instead of the group."""
    found = []
    for item in of_groups:
        assert item.group is not None
        query = sa.select(group_members.c.user_id).where(group_members.c.group_id == item.group.id)
        for member in tx.execute(query).scalars():
            if user_id in (None, member):
                found.append(Assignment(user=get_user(tx, member), project=item.project, role=item.role))
    return found


def _with_implied(tx: Tx, found: list[Assignment]) -> list[Assignment]:
    """Every role that follows from what is held, each once."""
    by_name = {role.name: role for role in list_roles(tx)}
    effective: dict[tuple[str, str, str], Assignment] = {}
    for item in found:
        assert item.user is not None
        for name in implied([item.role.name]):
            role = by_name[name]
            effective[item.user.id, item.project.id, role.id] = msgspec.structs.replace(item, role=role)
    return list(effective.values())
