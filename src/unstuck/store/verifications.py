"""Verifications of backups as their users ask for them, and as the loop finds them."""

from __future__ import annotations

import uuid
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.status import status as backup_status
from unstuck.core.backup.verification import LIMIT, State, Verdict, Verification, Verified
from unstuck.core.errors import Conflict, Invalid
from unstuck.core.instance.control import ready
from unstuck.core.instance.status import fault_of
from unstuck.core.instance.view import DatabaseView
from unstuck.store import datastores, readable
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.backups import get_backup
from unstuck.store.engine import Tx
from unstuck.store.instance_rows import Loaded, load_instance
from unstuck.store.schema.schedules import backup_verifications as table

LATELY: Final = 20
"""Verifications of a backup that are shown."""

_verdict: msgspec.json.Decoder[Verdict | None] = msgspec.json.Decoder(Verdict | None)
_verified: msgspec.json.Decoder[Verified | None] = msgspec.json.Decoder(Verified | None)


class NewVerification(msgspec.Struct, frozen=True, kw_only=True):
    """``query``, ``database``: the owner's own statement, if there is one, and where it is run. ``version``:
    another version of the datastore, by name or id, that it is restored into: an upgrade is rehearsed, and
    what comes of it says nothing of the backup."""

    id: str
    backup_id: str
    version: str | None = None
    query: str = ""
    database: str = ""
    made_by: str = "user"


class VerificationRow(msgspec.Struct, frozen=True, kw_only=True):
    """Lease times, but where they are wall time by name. ``restored``: when it could be used first."""

    id: str
    backup_id: str
    project_id: str
    made_by: str
    query: str
    database: str
    version_id: str | None
    created: float
    created_wall: float
    deadline: float
    instance_id: str
    server_id: str
    port_id: str
    restored: float | None
    ask_id: str | None
    asks: int
    ask_until: float | None
    trouble: str | None
    verdict: Verdict | None
    finished_wall: float | None
    settled: bool
    next_look: float | None


def from_row(row: Any) -> VerificationRow:
    values = {name: row._mapping[name] for name in VerificationRow.__struct_fields__}
    text = row.verdict
    values["verdict"] = None if text is None else readable.read(_verdict, text, None)
    return VerificationRow(**values)


def load_verification(tx: Tx, verification_id: str, *, lock: bool = False) -> VerificationRow | None:
    query = sa.select(table).where(table.c.id == verification_id)
    row = tx.execute(query.with_for_update() if lock else query).first()
    return None if row is None else from_row(row)


def verify_backup(tx: Tx, new: NewVerification, project_id: str | None) -> VerificationRow:
    """Have a COMPLETED backup restored into an instance that is thrown away. Its row is the work item.

    Raises :class:`NotFound`; :class:`Conflict` for one that is not complete, or is being verified.
    """
    backup = get_backup(tx, new.backup_id, project_id)
    held = load_backup(tx, new.backup_id, lock=True)
    assert held is not None
    if backup_status(held.backup) not in ("COMPLETED", "RESTORED"):
        raise Conflict(
            f"Backup {new.backup_id} is {backup_status(held.backup)}; only a COMPLETED one can be verified."
        )
    live = _live(tx, new.backup_id)
    if live is not None:
        raise Conflict(f"Backup {new.backup_id} is being verified already ({live}).")
    version_id = None if new.version is None else _version(tx, held, new.version)
    now = tx.now

    def name(what: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{new.id}.{what}"))

    values: dict[str, Any] = dict(  # noqa: C408
        id=new.id, backup_id=new.backup_id, project_id=backup.project_id, made_by=new.made_by,
        query=new.query, database=new.database, version_id=version_id,
        created=now.lease, created_wall=now.wall,
        deadline=now.lease + LIMIT, instance_id=name("instance"), server_id=name("server"),
        port_id=name("port"), asks=0, settled=False, next_look=now.lease,
    )  # fmt: skip
    tx.execute(sa.insert(table).values(**values))
    made = load_verification(tx, new.id)
    assert made is not None
    return made


def _version(tx: Tx, backup: BackupRow, wanted: str) -> str:
    """Raises :class:`NotFound`, and :class:`Invalid` for one that cannot go on with the backup's data."""
    own = datastores.get_version(tx, backup.datastore_version_id, inactive=True)
    found = datastores.choose(tx, own.datastore.id, wanted).version
    if not datastores.same_line(found, own.version):
        raise Invalid(
            f"verify.version: the backup is of version {own.version.version}, and can be restored into one "
            "of the same major version only."
        )
    return found.id


def _live(tx: Tx, backup_id: str) -> str | None:
    query = sa.select(table.c.id).where(table.c.backup_id == backup_id, table.c.verdict.is_(None))
    return tx.execute(query).scalar_one_or_none()


def verifications_of(tx: Tx, backup_id: str, project_id: str | None) -> list[VerificationRow]:
    """The last of them, the newest first. Raises :class:`NotFound`."""
    get_backup(tx, backup_id, project_id)
    query = (
        sa.select(table)
        .where(table.c.backup_id == backup_id)
        .order_by(table.c.created_wall.desc(), table.c.id.desc())
        .limit(LATELY)
    )
    return [from_row(row) for row in tx.execute(query)]


def read_verified(text: str | None) -> Verified | None:
    """What stands on a backup's row."""
    return None if text is None else readable.read(_verified, text, None)


def facts_of(tx: Tx, row: VerificationRow, answer: Verdict | None) -> Verification:
    """All that decides what comes next."""
    backup = load_backup(tx, row.backup_id)
    loaded = load_instance(tx, row.instance_id)
    state, code, reason = _state(loaded)
    return Verification(
        deadline=row.deadline, state=state, code=code, reason=reason or row.trouble or "",
        backup_deleted=backup is None or backup.backup.deleted, asks=row.asks, ask_until=row.ask_until,
        answer=answer, verdict=row.verdict,
    )  # fmt: skip


def _state(loaded: Loaded | None) -> tuple[State, str, str]:
    if loaded is None:
        return State.NONE, "", ""
    instance = loaded.instance
    if instance.removed:
        return State.GONE, "", ""
    if instance.deleted:
        return State.LEAVING, "", ""
    fault = fault_of(instance)
    if fault is not None:
        return State.FAILED, _code(instance.seen), fault.reason
    return (State.READY if ready(instance) else State.BUILDING), "", ""


def _code(seen: DatabaseView | None) -> str:
    return "" if seen is None or seen.trouble is None else seen.trouble.code
