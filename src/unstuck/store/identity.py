"""Projects and users, and what a cloud begins with: one function is one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, NotFound
from unstuck.store import readable
from unstuck.store.engine import Tx
from unstuck.store.schema.compute import servers
from unstuck.store.schema.database import backups, instances
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
    description: str | None = None


class Bootstrapped(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of what a new cloud starts with; None for what was deleted since."""

    first_time: bool
    projects: dict[str, str]
    users: dict[str, str]


_extra = msgspec.json.Decoder(dict[str, Any])


def project_from(row: Any) -> Project:
    """The project in a row of the projects table."""
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


def free_name(tx: Tx, table: sa.Table, kind: str, name: str, own_id: str) -> None:
    """409 when another row of the table has the name."""
    taken = sa.select(table.c.id).where(table.c.name == name, table.c.id != own_id)
    if tx.execute(taken).first() is not None:
        raise Conflict(f"Conflict occurred attempting to store {kind} - it is a duplicate entry: {name!r}.")


def create_project(tx: Tx, project: Project) -> None:
    """Add a project; refused when the name is taken."""
    free_name(tx, projects, "project", project.name, project.id)
    tx.execute(sa.insert(projects).values(_columns(project)))


def get_project(tx: Tx, project_id: str, *, lock: bool = False) -> Project:
    """A project by id."""
    query = sa.select(projects).where(projects.c.id == project_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"Could not find project: {project_id}.")
    return project_from(row)


def list_projects(tx: Tx, *, name: str | None = None, enabled: bool | None = None) -> list[Project]:
    """All projects, by name."""
    query = sa.select(projects).order_by(projects.c.name)
    if name is not None:
        query = query.where(projects.c.name == name)
    if enabled is not None:
        query = query.where(projects.c.enabled == enabled)
    return [project_from(row) for row in tx.execute(query)]


def update_project(tx: Tx, project_id: str, change: Callable[[Project], Project]) -> Project:
    """Change a project."""
    updated = change(get_project(tx, project_id, lock=True))
    free_name(tx, projects, "project", updated.name, project_id)
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
        "database instance": sa.select(sa.func.count()).select_from(instances).where(
            instances.c.project_id == project_id, sa.not_(instances.c.deleted)
        ),
        "backup": sa.select(sa.func.count()).select_from(backups).where(
            backups.c.project_id == project_id, sa.not_(backups.c.deleted)
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


def create_user(tx: Tx, user: User) -> None:
    """Add a user; refused when the name is taken."""
    free_name(tx, users, "user", user.name, user.id)
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
    free_name(tx, users, "user", after.name, user_id)
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
    first = ((admin, "admin", "admin"), (admin, "demo", "admin"), (demo, "demo", "member"))
    for user, project, role in first:
        held = {"user_id": user.id, "project_id": project_ids[project], "role_id": role_ids[role]}
        tx.execute(sa.insert(role_assignments).values(held))
