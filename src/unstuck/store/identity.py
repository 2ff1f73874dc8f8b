"""Projects, users, roles and assignments: one function is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, NotFound
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import servers
from unstuck.store.schema.identity import identity_state, projects, role_assignments, roles, users
from unstuck.store.schema.images import images
from unstuck.store.schema.network import networks

ROLES: Final = ("admin", "manager", "member", "reader", "service")


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project; ``extra`` holds whatever else the caller wanted kept."""

    id: str
    name: str
    description: str = ""
    enabled: bool = True
    extra: dict[str, Any] = {}


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user. The hash never leaves the process."""

    id: str
    name: str
    password_hash: str | None = None
    enabled: bool = True
    epoch: int = 0
    default_project_id: str | None = None
    extra: dict[str, Any] = {}


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A role."""

    id: str
    name: str


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A user has a role in a project."""

    user: User
    project: Project
    role: Role


class Bootstrapped(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of what a new cloud starts with; None for what was deleted since."""

    first_time: bool
    projects: dict[str, str]
    users: dict[str, str]


_extra = msgspec.json.Decoder(dict[str, Any])


def _project(row: Any) -> Project:
    return Project(
        id=row.id, name=row.name, description=row.description, enabled=row.enabled,
        extra=readable.read(_extra, row.extra, {}),
    )  # fmt: skip


def user_from(row: Any) -> User:
    """The user in a row of the users table."""
    return User(
        id=row.id, name=row.name, password_hash=row.password_hash, enabled=row.enabled, epoch=row.epoch,
        default_project_id=row.default_project_id, extra=readable.read(_extra, row.extra, {}),
    )  # fmt: skip


def _columns(item: Project | User) -> dict[str, Any]:
    values = msgspec.structs.asdict(item)
    values["extra"] = msgspec.json.encode(item.extra).decode()
    return values


def changed(tx: Tx) -> None:
    """Something changed that may make a token invalid: verified tokens must be looked at again."""
    tx.execute(sa.update(identity_state).values(version=identity_state.c.version + 1))


def _free_name(tx: Tx, table: sa.Table, kind: str, name: str, own_id: str) -> None:
    taken = sa.select(table.c.id).where(table.c.name == name, table.c.id != own_id)
    if tx.execute(taken).first() is not None:
        raise Conflict(f"Conflict occurred attempting to store {kind} - it is a duplicate entry: {name!r}.")


def create_project(tx: Tx, project: Project) -> None:
    """Add a project; refused when the name is taken."""
    _free_name(tx, projects, "project", project.name, project.id)
    tx.execute(sa.insert(projects).values(_columns(project)))


def get_project(tx: Tx, project_id: str, *, lock: bool = False) -> Project:
    """A project by id."""
    query = sa.select(projects).where(projects.c.id == project_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"Could not find project: {project_id}.")
    return _project(row)


def list_projects(tx: Tx, *, name: str | None = None, enabled: bool | None = None) -> list[Project]:
    """All projects, by name."""
    query = sa.select(projects).order_by(projects.c.name)
    if name is not None:
        query = query.where(projects.c.name == name)
    if enabled is not None:
        query = query.where(projects.c.enabled == enabled)
    return [_project(row) for row in tx.execute(query)]


def update_project(tx: Tx, project_id: str, change: Callable[[Project], Project]) -> Project:
    """Change a project."""
    updated = change(get_project(tx, project_id, lock=True))
    _free_name(tx, projects, "project", updated.name, project_id)
    tx.execute(sa.update(projects).where(projects.c.id == project_id).values(_columns(updated)))
    changed(tx)
    return updated


def delete_project(tx: Tx, project_id: str) -> None:
    """Delete a project with its assignments and credentials; its tokens end at once.

    Refused while it owns something: nobody could reach that any more. (A user may always be deleted: what
    users made belongs to their projects.) Its row is locked first, by this and by every create.
    """
    name = get_project(tx, project_id, lock=True).name
    owned = {
        "server": sa.select(sa.func.count()).select_from(servers).where(
            servers.c.project_id == project_id, sa.not_(servers.c.removed)
        ),
        "image": sa.select(sa.func.count()).select_from(images).where(
            images.c.project_id == project_id, images.c.deleted_wall.is_(None)
        ),
        "network": sa.select(sa.func.count()).select_from(networks).where(
            networks.c.project_id == project_id
        ),
    }  # fmt: skip
    counts = {what: int(tx.execute(query).scalar_one()) for what, query in owned.items()}
    left = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items() if count]
    if left:
        raise Conflict(f"Project {name} ({project_id}) still owns {', '.join(left)}: delete them first.")
    tx.execute(sa.delete(projects).where(projects.c.id == project_id))
    changed(tx)


def projects_of(tx: Tx, user_id: str) -> list[Project]:
    """The enabled projects in which a user has a role."""
    query = (
        sa.select(projects)
        .where(
            projects.c.id.in_(
                sa.select(role_assignments.c.project_id).where(role_assignments.c.user_id == user_id)
            ),
            projects.c.enabled,
        )
        .order_by(projects.c.name)
    )
    return [_project(row) for row in tx.execute(query)]


def create_user(tx: Tx, user: User) -> None:
    """Add a user; refused when the name is taken."""
    _free_name(tx, users, "user", user.name, user.id)
    tx.execute(sa.insert(users).values(_columns(user)))


def get_user(tx: Tx, user_id: str, *, lock: bool = False) -> User:
    """A user by id."""
    query = sa.select(users).where(users.c.id == user_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"Could not find user: {user_id}.")
    return user_from(row)


def list_users(tx: Tx, *, name: str | None = None, enabled: bool | None = None) -> list[User]:
    """All users, by name."""
    query = sa.select(users).order_by(users.c.name)
    if name is not None:
        query = query.where(users.c.name == name)
    if enabled is not None:
        query = query.where(users.c.enabled == enabled)
    return [user_from(row) for row in tx.execute(query)]


def update_user(tx: Tx, user_id: str, change: Callable[[User], User]) -> User:
    """Change a user; a new password, or being disabled, ends all tokens made before."""
    before = get_user(tx, user_id, lock=True)
    after = change(before)
    _free_name(tx, users, "user", after.name, user_id)
    if after.password_hash != before.password_hash or (before.enabled and not after.enabled):
        after = msgspec.structs.replace(after, epoch=before.epoch + 1)
    tx.execute(sa.update(users).where(users.c.id == user_id).values(_columns(after)))
    changed(tx)
    return after


def delete_user(tx: Tx, user_id: str) -> None:
    """Delete a user with the assignments and credentials; the user's tokens end at once."""
    get_user(tx, user_id)
    tx.execute(sa.delete(users).where(users.c.id == user_id))
    changed(tx)


def list_roles(tx: Tx, *, name: str | None = None) -> list[Role]:
    """All roles, by name."""
    query = sa.select(roles).order_by(roles.c.name)
    if name is not None:
        query = query.where(roles.c.name == name)
    return [Role(id=row.id, name=row.name) for row in tx.execute(query)]


def get_role(tx: Tx, role_id: str) -> Role:
    """A role by id."""
    row = tx.execute(sa.select(roles).where(roles.c.id == role_id)).first()
    if row is None:
        raise NotFound(f"Could not find role: {role_id}.")
    return Role(id=row.id, name=row.name)


def grant(tx: Tx, user_id: str, project_id: str, role_id: str) -> None:
    """Give a user a role in a project; again is no error."""
    get_user(tx, user_id)
    get_project(tx, project_id)
    get_role(tx, role_id)
    if not has_role(tx, user_id, project_id, role_id):
        values = {"user_id": user_id, "project_id": project_id, "role_id": role_id}
        tx.execute(sa.insert(role_assignments).values(values))
        changed(tx)


def revoke(tx: Tx, user_id: str, project_id: str, role_id: str) -> None:
    """Take a role away; it counts from the next request on."""
    if not has_role(tx, user_id, project_id, role_id):
        raise NotFound(f"Could not find role assignment with role: {role_id}, user: {user_id}.")
    tx.execute(sa.delete(role_assignments).where(*_match(user_id, project_id, role_id)))
    changed(tx)


def has_role(tx: Tx, user_id: str, project_id: str, role_id: str) -> bool:
    """Whether exactly this assignment exists (implied roles do not count)."""
    query = sa.select(role_assignments.c.role_id).where(*_match(user_id, project_id, role_id))
    return tx.execute(query).first() is not None


def _match(user_id: str, project_id: str, role_id: str) -> tuple[Any, ...]:
    table = role_assignments.c
    return table.user_id == user_id, table.project_id == project_id, table.role_id == role_id


def list_assignments(
    tx: Tx, *, user_id: str | None = None, project_id: str | None = None, role_id: str | None = None
) -> list[Assignment]:
    """Assignments that match all given ids."""
    table = role_assignments.c
    given = ((table.user_id, user_id), (table.project_id, project_id), (table.role_id, role_id))
    conditions = [column == value for column, value in given if value is not None]
    found = tx.execute(sa.select(role_assignments).where(*conditions)).all()
    people = {key: get_user(tx, key) for key in {row.user_id for row in found}}
    places = {key: get_project(tx, key) for key in {row.project_id for row in found}}
    known = {role.id: role for role in list_roles(tx)}
    return [
        Assignment(user=people[row.user_id], project=places[row.project_id], role=known[row.role_id])
        for row in found
    ]


def roles_in(tx: Tx, user_id: str, project_id: str) -> list[Role]:
    """The roles that a user was given in a project."""
    query = (
        sa.select(roles)
        .join(role_assignments, role_assignments.c.role_id == roles.c.id)
        .where(role_assignments.c.user_id == user_id, role_assignments.c.project_id == project_id)
    )
    return [Role(id=row.id, name=row.name) for row in tx.execute(query.order_by(roles.c.name))]


def bootstrap(
    tx: Tx,
    *,
    admin_password_hash: str,
    token_key: bytes,
    ids: Callable[[], str],
    demo_password_hash: str | None = None,
) -> Bootstrapped:
    """Give a new cloud its roles, projects and users. Later calls change nothing: deletes stay final."""
    first_time = tx.execute(sa.select(identity_state.c.id)).first() is None
    if first_time:
        tx.execute(sa.insert(identity_state).values(id=1, token_key=token_key, version=1))
        _first_rows(tx, admin_password_hash, demo_password_hash, ids)
    return Bootstrapped(
        first_time=first_time,
        projects={item.name: item.id for item in list_projects(tx)},
        users={item.name: item.id for item in list_users(tx)},
    )


def _first_rows(tx: Tx, admin_hash: str, demo_hash: str | None, ids: Callable[[], str]) -> None:
    role_ids = {name: ids() for name in ROLES}
    tx.execute(sa.insert(roles), [{"id": key, "name": name} for name, key in role_ids.items()])
    project_ids = {name: ids() for name in ("admin", "demo", "service")}
    for name, key in project_ids.items():
        create_project(tx, Project(id=key, name=name, description=f"The {name} project"))
    admin = User(id=ids(), name="admin", password_hash=admin_hash)
    demo = User(id=ids(), name="demo", password_hash=demo_hash or admin_hash)
    create_user(tx, admin)
    create_user(tx, demo)
    grant(tx, admin.id, project_ids["admin"], role_ids["admin"])
    grant(tx, admin.id, project_ids["demo"], role_ids["admin"])
    grant(tx, demo.id, project_ids["demo"], role_ids["member"])
