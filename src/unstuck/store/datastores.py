"""Datastores and their versions: what instances can be made of, and the images that they boot from."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid, NotFound
from unstuck.store.engine import Tx
from unstuck.store.schema.database import backups, configurations, datastore_versions, datastores, instances

MANAGERS: Final = {"postgresql": 5432, "mariadb": 3306}
"""What runs a datastore in the guest, and the port that it listens on."""
POSTGRESQL: Final = "0c7a9e52-33f1-4f0c-9d3b-5f5c6f1f7a10"
"""The datastore that a cloud begins with; its versions are registered with the images that have them."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """``version``: the datastore's own number, ``name``: what people call it. ``image_id`` None: none yet."""

    id: str
    datastore_id: str
    name: str
    manager: str
    version: str
    image_id: str | None
    active: bool


class Datastore(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    default_version_id: str | None
    versions: tuple[Version, ...] = ()


class Chosen(msgspec.Struct, frozen=True):
    """A version with its datastore, for a new instance."""

    datastore: Datastore
    version: Version


_VERSION = (
    datastore_versions.c.id, datastore_versions.c.datastore_id, datastore_versions.c.name,
    datastore_versions.c.manager, datastore_versions.c.version, datastore_versions.c.image_id,
    datastore_versions.c.active,
)  # fmt: skip


def _version(row: Any) -> Version:
    return Version(**row._mapping)


def same_line(one: Version, other: Version) -> bool:
    """Whether a server of one version can go on with the data of the other: the same datastore, and the same
    major version (MariaDB: also the same minor one)."""
    digits = 2 if one.manager == "mariadb" else 1
    return one.manager == other.manager and (
        one.version.split(".")[:digits] == other.version.split(".")[:digits]
    )


def ensure_datastores(tx: Tx) -> None:
    """The datastore that every cloud has; a second time changes nothing."""
    if tx.execute(sa.select(datastores.c.id).limit(1)).first() is None:
        tx.execute(sa.insert(datastores).values(id=POSTGRESQL, name="postgresql"))


def list_datastores(tx: Tx, *, inactive: bool = False) -> list[Datastore]:
    """All of them by name, with their versions. ``inactive``: also those that nobody can choose."""
    query = sa.select(*_VERSION).order_by(datastore_versions.c.name, datastore_versions.c.id)
    if not inactive:
        query = query.where(datastore_versions.c.active)
    versions: dict[str, list[Version]] = {}
    for row in tx.execute(query):
        versions.setdefault(row.datastore_id, []).append(_version(row))
    return [
        Datastore(
            id=row.id, name=row.name, default_version_id=row.default_version_id,
            versions=tuple(versions.get(row.id, ())),
        )
        for row in tx.execute(sa.select(datastores).order_by(datastores.c.name))
    ]  # fmt: skip


def get_datastore(tx: Tx, key: str, *, inactive: bool = False) -> Datastore:
    """One by its id or name; raises :class:`NotFound`."""
    for found in list_datastores(tx, inactive=inactive):
        if key in (found.id, found.name):
            return found
    raise NotFound(f"Datastore {key} cannot be found.")


def get_version(tx: Tx, key: str, datastore: str | None = None, *, inactive: bool = False) -> Chosen:
    """One by its id, name or number, within a datastore by id or name (None: of any, by id only)."""
    for store in list_datastores(tx, inactive=inactive):
        if datastore is not None and datastore not in (store.id, store.name):
            continue
        exact = [version for version in store.versions if version.id == key]
        named = [version for version in store.versions if key in (version.name, version.version)]
        for version in (*exact, *(named if datastore is not None else ())):
            return Chosen(store, version)
    raise NotFound(f"Datastore version {key} cannot be found.")


def choose(tx: Tx, datastore: str | None, version: str | None) -> Chosen:
    """What a new instance is made of: as named, else the cloud's first datastore (or the only one that has
    versions) and its default version.

    Raises :class:`Invalid` that names the field.
    """
    stores = [
        store for store in list_datastores(tx) if datastore is None or datastore in (store.id, store.name)
    ]
    if not stores:
        raise Invalid(f"datastore.type: there is no datastore {datastore!r}.")
    with_versions = [store for store in stores if store.versions]
    if not with_versions:
        raise Invalid(
            f"datastore.version: {stores[0].name} has no version yet; an administrator adds one "
            f"(unstuck image build {stores[0].name} --register)."
        )
    if version is None:
        first = [store for store in with_versions if store.id == POSTGRESQL]
        if len(with_versions) > 1 and not first:
            raise Invalid("datastore.type: name one; there are several.")
        return _default((first or with_versions)[0])
    for store in with_versions:
        for found in store.versions:
            if version in (found.id, found.name, found.version):
                return Chosen(store, found)
    raise Invalid(f"datastore.version: {with_versions[0].name} has no version {version!r}.")


def _default(store: Datastore) -> Chosen:
    for version in store.versions:
        if version.id == store.default_version_id or len(store.versions) == 1:
            return Chosen(store, version)
    raise Invalid(f"datastore.version: {store.name} has no default version; name one.")


def register_version(
    tx: Tx, *, version_id: str, datastore_id: str, datastore: str, name: str, manager: str, version: str,
    image_id: str | None, active: bool, default: bool,
) -> Chosen:  # fmt: skip
    """Add a version, and its datastore where there is none of that name. ``datastore_id`` is a fresh id for
    it. Raises :class:`Conflict` where the version is there, :class:`Invalid` for an unknown manager."""
    if manager not in MANAGERS:
        raise Invalid(f"datastore_manager: there is no {manager!r}; there are {', '.join(MANAGERS)}.")
    row = tx.execute(sa.select(datastores.c.id).where(datastores.c.name == datastore)).first()
    try:
        if row is None:
            tx.execute(sa.insert(datastores).values(id=datastore_id, name=datastore))
        parent = datastore_id if row is None else row.id
        tx.execute(
            sa.insert(datastore_versions).values(
                id=version_id, datastore_id=parent, name=name, manager=manager, version=version,
                image_id=image_id, active=active,
            )
        )  # fmt: skip
    except sa.exc.IntegrityError:
        raise Conflict(f"Datastore {datastore} has a version {name} already.") from None
    if default:
        _set_default(tx, parent, version_id)
    return get_version(tx, version_id, inactive=True)


def update_version(tx: Tx, version_id: str, *, default: bool = False, **changes: Any) -> Chosen:
    """Change ``image_id``, ``active`` or ``name``; what runs keeps what it has."""
    unknown = changes.keys() - {"image_id", "active", "name"}
    assert not unknown, unknown
    found = get_version(tx, version_id, inactive=True)
    if changes:
        try:
            tx.execute(
                sa.update(datastore_versions)
                .where(datastore_versions.c.id == found.version.id)
                .values(changes)
            )
        except sa.exc.IntegrityError:
            raise Conflict(
                f"Datastore {found.datastore.name} has a version {changes.get('name')} already."
            ) from None
    if default:
        _set_default(tx, found.datastore.id, found.version.id)
    return get_version(tx, version_id, inactive=True)


def _set_default(tx: Tx, datastore_id: str, version_id: str) -> None:
    tx.execute(
        sa.update(datastores).where(datastores.c.id == datastore_id).values(default_version_id=version_id)
    )


def delete_version(tx: Tx, version_id: str) -> None:
    """Refused while anything was made of it: instances and backups are listed with their version."""
    found = get_version(tx, version_id, inactive=True)
    tables = (("instances", instances), ("backups", backups), ("configuration groups", configurations))
    # An upgrade that goes on needs the version that it came from, too.
    upgrades = sa.select(instances.c.id).where(instances.c.pending.contains(version_id)).limit(1)
    if tx.execute(upgrades).first() is not None:
        raise Conflict(f"An instance is being upgraded to or from version {found.version.name}.")
    for what, table in tables:
        query = sa.select(table.c.id).where(table.c.datastore_version_id == version_id).limit(1)
        if tx.execute(query).first() is not None:
            raise Conflict(f"Datastore version {found.version.name} has {what}: make it inactive instead.")
    tx.execute(
        sa.update(datastores)
        .where(datastores.c.default_version_id == version_id)
        .values(default_version_id=None)
    )
    tx.execute(sa.delete(datastore_versions).where(datastore_versions.c.id == version_id))


def delete_datastore(tx: Tx, key: str) -> None:
    """Refused while it has versions."""
    found = get_datastore(tx, key, inactive=True)
    if found.versions:
        raise Conflict(f"Datastore {found.name} has versions; delete them first.")
    tx.execute(sa.delete(datastores).where(datastores.c.id == found.id))
