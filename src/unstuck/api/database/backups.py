"""Backups: list, create, show, delete; and ours: cancel, retry."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from unstuck.api.backups import keyring, places
from unstuck.api.database.backup_import import RestoreFrom, import_one
from unstuck.api.database.backup_views import Versions, backup_view, verification_view, versions_of
from unstuck.api.database.common import (
    BASE,
    QUERY_MAX,
    description_of,
    invalid,
    limit,
    marker,
    object_id,
    page,
    project,
    scope,
    text_of,
    truth,
    wake,
)
from unstuck.api.errors import bad_request, forbidden
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Query, Reply, Route, actions, route
from unstuck.core.errors import NotFound
from unstuck.core.time import Now
from unstuck.store import backups as store
from unstuck.store import datastores
from unstuck.store.backup_rows import BackupRow
from unstuck.store.engine import Tx
from unstuck.store.instance_lists import show_instance
from unstuck.store.verifications import NewVerification, verifications_of, verify_backup


class NewBackup(Body, frozen=True, kw_only=True):
    name: str
    instance: str | None = None
    description: str | None = None
    parent_id: str | None = None
    incremental: int | bool = 0
    swift_container: str | None = None
    storage_driver: str | None = None
    restore_from: RestoreFrom | None = None


class CreateBody(Body, frozen=True, kw_only=True):
    backup: NewBackup


class Nothing(Body, frozen=True, kw_only=True):
    """The empty object that an action is given."""


class Filters(Query, frozen=True, kw_only=True):
    datastore: str | None = None
    instance_id: str | None = None
    project_id: str | None = None
    all_projects: str | None = None


class Deleting(Query, frozen=True, kw_only=True):
    cascade: str | None = None


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    project_id: str | None
    limit: int
    marker: str | None
    instance_id: str | None = None
    datastore: str | None = None


def _list(tx: Tx, wanted: _Wanted) -> tuple[list[BackupRow], Versions, Now]:
    """One more than fits on the page, so that it is known whether there is more."""
    versions = versions_of(tx)
    chosen = None
    if wanted.datastore is not None:
        found = datastores.get_datastore(tx, wanted.datastore, inactive=True)
        chosen = [version.id for version in found.versions]
    rows = store.list_backups(
        tx, wanted.project_id, limit=wanted.limit + 1, marker=wanted.marker,
        instance_id=wanted.instance_id, datastore_version_ids=chosen,
    )  # fmt: skip
    return rows, versions, tx.now


def _get(tx: Tx, backup_id: str, project_id: str | None) -> tuple[BackupRow, Versions, Now]:
    return store.get_backup(tx, backup_id, project_id), versions_of(tx), tx.now


async def _page(call: Call, wanted: _Wanted) -> Reply:
    rows, versions, now = await call.store.run_read(_list, wanted)
    shown = [backup_view(row, versions, now) for row in rows[: wanted.limit]]
    return page(call, "backups", shown, shown[-1]["id"] if len(rows) > wanted.limit else None)


async def list_backups(call: Call) -> Reply:
    """``GET /backups``: the newest first."""
    filters: Filters = call.query
    own = project(call)
    owner: str | None = own
    everybody = filters.all_projects is not None and truth(filters.all_projects, "all_projects")
    if everybody or filters.project_id not in (None, "", own):
        if not call.is_admin:
            raise forbidden("Policy does not allow this request: it is about other projects.")
        owner = filters.project_id or None
    wanted = _Wanted(
        project_id=owner, limit=limit(call), marker=marker(call), datastore=filters.datastore or None,
        instance_id=filters.instance_id or None,
    )  # fmt: skip
    return await _page(call, wanted)


async def list_of_instance(call: Call) -> Reply:
    """``GET /instances/{id}/backups``."""
    instance_id = object_id(call.params["id"], "Instance")
    await call.store.run_read(show_instance, instance_id, scope(call))
    return await _page(
        call,
        _Wanted(project_id=scope(call), limit=limit(call), marker=marker(call), instance_id=instance_id),
    )


async def show(call: Call) -> Reply:
    """``GET /backups/{id}``."""
    key = object_id(call.params["id"], "Backup")
    return Reply({"backup": backup_view(*await call.store.run_read(_get, key, scope(call)))})


async def create(call: Call) -> Reply:
    """``POST /backups``: its row is the work, and the instance stays usable."""
    own = scope(call)
    asked: NewBackup = call.body.backup
    if asked.restore_from is not None:
        return await _import(call, asked, asked.restore_from)
    _refuse_what_is_not_there(asked)
    if asked.instance is None:
        raise bad_request("Invalid input for field backup.instance: the id of an instance is required.")
    new = store.NewBackup(
        id=call.new_id(),
        nonce=secrets.token_hex(16),
        name=text_of(asked.name, "backup.name"),
        instance_id=object_id(asked.instance, "Instance"),
        description=description_of(asked.description, "backup.description"),
        location=asked.swift_container or None,
        parent_id=None if asked.parent_id in (None, "") else object_id(asked.parent_id, "Backup"),
        incremental=bool(asked.incremental),
    )
    app = call.app
    made = await call.store.run(store.create_backup, new, own, keyring=keyring(app), places=places(app))
    return await _made(call, made.id)


async def _import(call: Call, asked: NewBackup, where: RestoreFrom) -> Reply:
    refused = ("instance", "parent_id", "swift_container", "storage_driver")
    for field in refused:
        if getattr(asked, field) not in (None, ""):
            invalid(f"backup.{field}", "an import says where it is from and nothing else (restore_from).")
    name = text_of(asked.name, "backup.name")
    description = description_of(asked.description, "backup.description")
    return await _made(call, await import_one(call, name, description, where))


async def _made(call: Call, backup_id: str) -> Reply:
    row, versions, now = await call.store.run_read(_get, backup_id, None)
    await _wake(call, row)
    return Reply({"backup": backup_view(row, versions, now)})


async def _wake(call: Call, row: BackupRow) -> None:
    """Its instance's host is to hear of it; where there is none any more, only the control loop."""
    try:
        shown = await call.store.run_read(show_instance, row.instance_id, None)
    except NotFound:
        wake(call)
    else:
        place = None if shown.item.facts.server is None else shown.item.facts.server.host
        wake(call, None if place is None else place.id)


def _refuse_what_is_not_there(asked: NewBackup) -> None:
    if asked.incremental not in (0, 1):
        raise bad_request("Invalid input for field backup.incremental: it is 0 or 1.")
    if asked.storage_driver not in (None, "", "swift"):
        raise bad_request(
            f"storage_driver: there is no {asked.storage_driver[:60]!r}; where a backup goes is named by "
            "swift_container."
        )


async def delete(call: Call) -> Reply:
    """``DELETE /backups/{id}``: in every state. Ours: ``?cascade=true`` deletes its children with it."""
    key = object_id(call.params["id"], "Backup")
    ask: Deleting = call.query
    cascade = ask.cascade is not None and truth(ask.cascade, "cascade")
    row = await call.store.run(store.delete_backup, key, scope(call), cascade=cascade)
    await _wake(call, row)
    return Reply()


async def cancel(call: Call) -> Reply:
    """Ours: action ``cancel``."""
    key = object_id(call.params["id"], "Backup")
    await call.store.run(store.cancel_backup, key, scope(call))
    return await _made(call, key)


class Verify(Body, frozen=True, kw_only=True):
    """``query``: one statement whose first value has to be true; ``database``: where it is run. ``version``:
    of the datastore, by name or id, where it is not the backup's own."""

    query: str = ""
    database: str = ""
    version: str | None = None


async def verify(call: Call) -> Reply:
    """Ours: action ``verify``: restore it into an instance that is thrown away, and read that."""
    key = object_id(call.params["id"], "Backup")
    asked: Verify = call.body or Verify()
    if len(asked.query) > QUERY_MAX:
        invalid("verify.query", f"it has at most {QUERY_MAX} characters.")
    if asked.database:
        text_of(asked.database, "verify.database", most=63)
    version = None if asked.version in (None, "") else text_of(asked.version, "verify.version")
    new = NewVerification(
        id=call.new_id(), backup_id=key, query=asked.query, database=asked.database, version=version
    )
    await call.store.run(verify_backup, new, scope(call))
    return await _made(call, key)


async def list_verifications(call: Call) -> Reply:
    """Ours: ``GET /backups/{id}/verifications``: the last ones, the newest first."""
    key = object_id(call.params["id"], "Backup")
    rows = await call.store.run_read(verifications_of, key, scope(call))
    return Reply({"verifications": [verification_view(row) for row in rows]})


class Pin(Body, frozen=True, kw_only=True):
    pinned: bool = True


async def pin(call: Call) -> Reply:
    """Ours: action ``pin``: retention leaves it alone, or does so no more."""
    key = object_id(call.params["id"], "Backup")
    asked: Pin | bool | None = call.body
    pinned = asked if isinstance(asked, bool) else asked is None or asked.pinned
    await call.store.run(store.pin_backup, key, scope(call), pinned=pinned)
    return await _made(call, key)


async def retry(call: Call) -> Reply:
    """Ours: action ``retry``: answers with the new backup."""
    key = object_id(call.params["id"], "Backup")
    made = await call.store.run(
        store.retry_backup, key, scope(call), new_id=call.new_id(), nonce=secrets.token_hex(16),
        keyring=keyring(call.app), places=places(call.app),
    )  # fmt: skip
    return await _made(call, made.id)


_ALL: Final = f"{BASE}/backups"

ROUTES: list[Route] = [
    route("GET", _ALL, list_backups, "reader", query=Filters),
    route("POST", _ALL, create, "member", body=CreateBody, status=202),
    route("GET", f"{_ALL}/{{id}}", show, "reader"),
    route("DELETE", f"{_ALL}/{{id}}", delete, "member", query=Deleting, status=202),
    route("GET", f"{BASE}/instances/{{id}}/backups", list_of_instance, "reader"),
    route("GET", f"{_ALL}/{{id}}/verifications", list_verifications, "reader"),
    *actions(
        f"{_ALL}/{{id}}/action",
        [
            Act(name="cancel", handler=cancel, rule="member", body=Nothing | None),
            Act(name="verify", handler=verify, rule="member", body=Verify | None),
            Act(name="pin", handler=pin, rule="member", body=Pin | bool | None),
            Act(name="retry", handler=retry, rule="member", body=Nothing | None),
        ],
    ),
]
