"""Configuration groups: parameters that a project's instances of one datastore version may have.

Their order of locks: project, configuration, then host, server and instance (``instance_rows.hold``). Whoever
changes a group tells every host that has an instance of it; what is wanted there is read from the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.datastores import ALLOWED
from unstuck.core.datastores.parameters import BadValue
from unstuck.core.errors import Invalid, NotFound, Refused, TooLarge
from unstuck.store import datastores, readable
from unstuck.store.engine import Tx
from unstuck.store.quotas import lock_project
from unstuck.store.rows import bump_world, lock_host
from unstuck.store.schema.compute import placements
from unstuck.store.schema.database import configurations, datastore_versions, instances
from unstuck.store.schema.database import datastores as stores

MOST: Final = 200
"""Groups that a project may have."""
Values = dict[str, Any]
_values = msgspec.json.Decoder(Values)


class Unfit(Refused):
    """A parameter that cannot be set so (422, as the API has it)."""

    status = 422


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A group. ``values`` are as their owner wrote them; ``instances``: how many have it."""

    id: str
    project_id: str
    name: str
    description: str | None
    values: Values
    version_id: str
    version: str
    version_number: str
    manager: str
    datastore: str
    created_wall: float
    updated_wall: float
    instances: int

    def texts(self) -> dict[str, str]:
        """As they go into a server's file; what cannot be set any more is left out."""
        return ALLOWED[self.manager].readable(self.values)


class Attached(msgspec.Struct, frozen=True):
    """An instance of a group."""

    id: str
    name: str


_COUNT = (
    sa.select(sa.func.count())
    .select_from(instances)
    .where(instances.c.configuration_id == configurations.c.id, sa.not_(instances.c.deleted))
    .correlate(configurations)
    .scalar_subquery()
)
_QUERY = (
    sa.select(
        configurations, datastore_versions.c.name.label("version"),
        datastore_versions.c.version.label("version_number"), datastore_versions.c.manager,
        stores.c.name.label("datastore"), _COUNT.label("instances"),
    )
    .join(datastore_versions, datastore_versions.c.id == configurations.c.datastore_version_id)
    .join(stores, stores.c.id == datastore_versions.c.datastore_id)
)  # fmt: skip


def _from(row: Any) -> Configuration:
    return Configuration(
        id=row.id, project_id=row.project_id, name=row.name, description=row.description,
        values=readable.read(_values, row.parameters, {}), version_id=row.datastore_version_id,
        version=row.version, version_number=row.version_number, manager=row.manager, datastore=row.datastore,
        created_wall=row.created_wall, updated_wall=row.updated_wall, instances=row.instances,
    )  # fmt: skip


def missing(configuration_id: str) -> NotFound:
    return NotFound(f"Configuration {configuration_id[:255]} cannot be found.")


def get_configuration(tx: Tx, configuration_id: str, project_id: str | None) -> Configuration:
    """One group; 404 where it is not this project's (None: any)."""
    row = tx.execute(_QUERY.where(configurations.c.id == configuration_id)).first()
    if row is None or (project_id is not None and row.project_id != project_id):
        raise missing(configuration_id)
    return _from(row)


def list_configurations(
    tx: Tx, project_id: str, *, limit: int, marker: str | None
) -> tuple[list[Configuration], bool]:
    """A project's groups by id, after ``marker``; and whether there are more."""
    query = _QUERY.where(configurations.c.project_id == project_id)
    if marker is not None:
        query = query.where(configurations.c.id > marker)
    rows = tx.execute(query.order_by(configurations.c.id).limit(limit + 1)).all()
    return [_from(row) for row in rows[:limit]], len(rows) > limit


def attached_to(
    tx: Tx, configuration_id: str, project_id: str | None, *, limit: int, marker: str | None
) -> tuple[list[Attached], bool]:
    """Instances that have the group, by id."""
    get_configuration(tx, configuration_id, project_id)
    query = sa.select(instances.c.id, instances.c.name).where(
        instances.c.configuration_id == configuration_id, sa.not_(instances.c.deleted)
    )
    if marker is not None:
        query = query.where(instances.c.id > marker)
    rows = tx.execute(query.order_by(instances.c.id).limit(limit + 1)).all()
    return [Attached(row.id, row.name) for row in rows[:limit]], len(rows) > limit


def checked_texts(manager: str, values: Mapping[str, Any]) -> dict[str, str]:
    """As they go into the server's file. Raises :class:`Unfit`, which names the parameter."""
    try:
        return ALLOWED[manager].texts(values)
    except BadValue as error:
        raise Unfit(f"Invalid input for configuration parameter {error}.") from None


def check_fit(manager: str, texts: Mapping[str, str], ram_mb: int, instance_id: str | None) -> None:
    """Raises :class:`Unfit` where they cannot work with this memory (MiB)."""
    bad = ALLOWED[manager].unfit(texts, ram_mb)
    if bad is not None:
        where = f" (instance {instance_id})" if instance_id else ""
        raise Unfit(f"Invalid input for configuration parameter {bad}{where}.")


def create_configuration(
    tx: Tx, configuration_id: str, project_id: str, *, name: str, description: str | None, values: Values,
    datastore: str | None, version: str | None,
) -> Configuration:  # fmt: skip
    """Add a group for a datastore's version (names or ids; None: the default)."""
    if not lock_project(tx, project_id):
        raise Invalid(f"Project {project_id} cannot be found.")
    chosen = datastores.choose(tx, datastore, version)
    checked_texts(chosen.version.manager, values)
    count = sa.select(sa.func.count()).where(configurations.c.project_id == project_id)
    if tx.execute(count).scalar_one() >= MOST:
        raise TooLarge(f"Quota exceeded: a project may have {MOST} configuration groups.")
    tx.execute(
        sa.insert(configurations).values(
            id=configuration_id, project_id=project_id, name=name, description=description,
            datastore_version_id=chosen.version.id, parameters=_text(values),
            created_wall=tx.now.wall, updated_wall=tx.now.wall,
        )
    )  # fmt: skip
    return get_configuration(tx, configuration_id, project_id)


def _text(values: Values) -> str:
    return msgspec.json.encode(values).decode()


def hold_configuration(tx: Tx, configuration_id: str) -> None:
    """Until the end: instances get it, lose it and hear of it one after the other."""
    tx.execute(
        sa.select(configurations.c.id).where(configurations.c.id == configuration_id).with_for_update()
    ).first()


def _locked(tx: Tx, configuration_id: str, project_id: str | None) -> Configuration:
    hold_configuration(tx, configuration_id)
    return get_configuration(tx, configuration_id, project_id)


def change_configuration(
    tx: Tx, configuration_id: str, project_id: str | None, *, values: Values | None, replace: bool,
    name: str | None = None, description: str | None = None,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Other values (``replace``: all of them anew, else beside those that are there), name, description.

    Every instance of the group gets them. Returns its instances, and the hosts to notify.
    """
    found = _locked(tx, configuration_id, project_id)
    changes: dict[str, Any] = {"updated_wall": tx.now.wall}
    if name is not None:
        changes["name"] = name
    if description is not None:
        changes["description"] = description
    rows = _instances_of(tx, configuration_id)
    told: list[str] = []
    if values is not None:
        kept = {} if replace else found.texts()
        texts = checked_texts(found.manager, values)
        for row in rows:
            check_fit(found.manager, {**kept, **texts}, row.ram_mb, row.id)
        changes["parameters"] = _text(values if replace else {**found.values, **values})
        told = _tell(tx, rows)
    tx.execute(sa.update(configurations).where(configurations.c.id == configuration_id).values(changes))
    return [row.id for row in rows], told


def _instances_of(tx: Tx, configuration_id: str) -> Sequence[Any]:
    query = (
        sa.select(instances.c.id, instances.c.server_id, instances.c.ram_mb, placements.c.host_id)
        .outerjoin(
            placements,
            sa.and_(placements.c.server_id == instances.c.server_id, placements.c.state == "live"),
        )
        .where(instances.c.configuration_id == configuration_id, sa.not_(instances.c.deleted))
    )
    return tx.execute(query.order_by(placements.c.host_id, instances.c.id)).all()


def _tell(tx: Tx, rows: Sequence[Any]) -> list[str]:
    """Bump each in its host's world; hosts in one order everywhere."""
    told: list[str] = []
    for row in rows:
        if row.host_id is None:
            continue
        if row.host_id not in told:
            lock_host(tx, row.host_id)
            told.append(row.host_id)
        bump_world(tx, row.host_id, row.server_id)
    return told


def delete_configuration(tx: Tx, configuration_id: str, project_id: str | None) -> None:
    """Refused while an instance has it; ones in the trash lose it."""
    found = _locked(tx, configuration_id, project_id)
    if found.instances:
        raise Invalid(
            f"Configuration group {configuration_id} is attached to {found.instances} instances: detach it "
            "from them first."
        )
    tx.execute(
        sa.update(instances)
        .where(instances.c.configuration_id == configuration_id)
        .values(configuration_id=None)
    )
    tx.execute(sa.delete(configurations).where(configurations.c.id == configuration_id))


def configuration_for(
    tx: Tx, configuration_id: str, project_id: str, version_id: str, ram_mb: int, instance_id: str | None
) -> Configuration:
    """A group that an instance is to have: held, of its project and version, and fit for its memory."""
    found = _locked(tx, configuration_id, project_id)
    of = datastores.get_version(tx, found.version_id, inactive=True).version
    if not datastores.same_line(of, datastores.get_version(tx, version_id, inactive=True).version):
        raise Invalid(
            f"configuration: group {configuration_id} is for version {found.version} of {found.datastore}, "
            "and the instance has another one."
        )
    check_fit(found.manager, found.texts(), ram_mb, instance_id)
    return found
