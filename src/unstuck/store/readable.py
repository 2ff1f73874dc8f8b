"""Reading JSON out of columns: one that cannot be read spoils its own row and nobody else's (law 8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.data import Backup
from unstuck.core.instance.data import Pending
from unstuck.core.instance.view import DatabaseView
from unstuck.core.instance.want import Origin
from unstuck.core.server.data import Failure, Flavor, Former, Observation, Spec, Step, Thing, Trouble, Unclear
from unstuck.store.schema.compute import flavors, hosts, servers
from unstuck.store.schema.database import backups, configurations, instances
from unstuck.store.schema.identity import app_credentials, projects, users
from unstuck.store.schema.images import images
from unstuck.store.tx import Tx

T = TypeVar("T")

REMEDY = "put the column back from a backup of the store, or delete the {kind}"

LOST = Trouble(
    "observation-lost",
    "what its host last saw cannot be read any more in the store",
    "its host reports it anew when anything is asked of the server, or when its agent is started again",
)
UNSEEN = Observation(0, Unclear(LOST.reason), Thing.UNKNOWN, Step.WAITING, LOST)
"""Stands for an observation that cannot be read: not absent, not gone, but unknown (law 4)."""


FORMER = Former("", "{}", Flavor(0, 0, 0))
"""Stands for a former flavor that cannot be read: a resize can be confirmed then, and not taken back."""


def read(decoder: msgspec.json.Decoder[T], text: str, otherwise: T) -> T:
    """What a column holds, or ``otherwise``."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        return otherwise


def lost_failure(since: float) -> Failure:
    """The server failed, that is sure; the words are lost."""
    reason = "the server failed, and why cannot be read any more in the store"
    return Failure("failure-lost", reason, "delete the server", since)


class Unreadable(msgspec.Struct, frozen=True):
    """A row with columns that cannot be read."""

    kind: str
    id: str
    name: str
    columns: tuple[str, ...]
    remedy: str


class _Flavor(msgspec.Struct, frozen=True):
    vcpus: int
    ram: int
    disk: int


_WORDS = tuple[str, ...]
_MAP = dict[str, Any]
_KINDS: list[tuple[str, sa.Table, sa.ColumnElement[Any], dict[str, Any], sa.ColumnElement[bool]]] = [
    (
        "server", servers, servers.c.name,
        {"spec": Spec, "seen": Observation, "failure": Failure, "flavor": _Flavor, "meta": dict[str, str],
         "tags": _WORDS, "before": Former},
        sa.not_(servers.c.removed),
    ),
    (
        "instance", instances, instances.c.name,
        {"origin": Origin, "allowed_cidrs": _WORDS, "pending": Pending,
         "seen": DatabaseView, "failure": Failure, "guest_former": _WORDS},
        sa.not_(instances.c.removed),
    ),
    ("configuration", configurations, configurations.c.name, {"parameters": _MAP}, sa.true()),
    ("host", hosts, hosts.c.hostname, {"facts": _MAP, "unknown": _WORDS}, sa.true()),
    ("image", images, images.c.name, {"tags": _WORDS, "properties": dict[str, str]},
     images.c.deleted_wall.is_(None)),
    ("backup", backups, backups.c.name, {"facts": Backup, "recipients": _WORDS}, sa.not_(backups.c.removed)),
    ("flavor", flavors, flavors.c.name, {"extra_specs": dict[str, str]}, sa.true()),
    ("project", projects, projects.c.name, {"extra": _MAP}, sa.true()),
    ("user", users, users.c.name, {"extra": _MAP}, sa.true()),
    ("application credential", app_credentials, app_credentials.c.name, {"role_ids": _WORDS}, sa.true()),
]  # fmt: skip


def find_unreadable(tx: Tx) -> list[Unreadable]:
    """Every row with a column that cannot be read. Reads all rows: only for ``doctor``."""
    return [item for kind in _KINDS for item in _of_kind(tx, *kind)]


def _of_kind(
    tx: Tx, kind: str, table: sa.Table, name: sa.ColumnElement[Any], columns: dict[str, Any],
    alive: sa.ColumnElement[bool],
) -> Iterable[Unreadable]:  # fmt: skip
    decoders = {column: msgspec.json.Decoder(of) for column, of in columns.items()}
    query = sa.select(table.c.id, name.label("called"), *(table.c[column] for column in columns))
    for row in tx.execute(query.where(alive).order_by(table.c.id)):
        bad = tuple(column for column in columns if not _is_readable(decoders[column], row._mapping[column]))
        if bad:
            yield Unreadable(kind, row.id, row.called or "", bad, REMEDY.format(kind=kind))


def _is_readable(decoder: msgspec.json.Decoder[Any], text: str | None) -> bool:
    try:
        return text is None or decoder.decode(text) is not None
    except msgspec.DecodeError:
        return False
