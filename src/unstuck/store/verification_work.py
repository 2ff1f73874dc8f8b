"""The loop's part of verifications. One function is one transaction, and decides in it.

Locks: the verification first, then what creating and deleting an instance take.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.core.backup.verification import (
    CHECK,
    Ask,
    Finish,
    LookAgain,
    Make,
    Plan,
    Remove,
    Result,
    Settled,
    Verdict,
    Verified,
    plan_verification,
)
from unstuck.core.errors import Conflict
from unstuck.core.instance.data import SERVICE_PROJECT
from unstuck.core.instance.requests import Check, Checked, DatabaseAnswer, Failed, Ok
from unstuck.store import asks, readable
from unstuck.store.backup_chain import chain_of
from unstuck.store.backup_rows import load_backup
from unstuck.store.engine import Tx
from unstuck.store.instance_asks import ask_instance
from unstuck.store.instance_create import AskedInstance, NewIds, create_instance, ensure_service_project
from unstuck.store.instances import delete_instance
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups, instances
from unstuck.store.schema.schedules import backup_verifications as table
from unstuck.store.scrub_work import mark_damaged, mark_sound
from unstuck.store.servers import Caller
from unstuck.store.verifications import VerificationRow, facts_of, load_verification

AT_ONCE: Final = 2
"""Throw-away instances in the cloud at a time: they take room that users could have."""
WAIT: Final = 30.0
"""Seconds until the next try where there is no room now."""
GRACE: Final = 15.0
"""Seconds by which the answer may come later than the reading has to end."""
AGAIN: Final = 10.0
"""Seconds until a restored database is asked again that could not answer yet."""
NOBODY: Final = ("127.0.0.1/32",)
"""Who may connect to a throw-away instance: whoever reads it, from inside."""

_answer = msgspec.json.Decoder(DatabaseAnswer)
_DUE = Prepared(
    sa.select(table.c.id)
    .where(sa.not_(table.c.settled), table.c.next_look <= sa.bindparam("now"))
    .order_by(table.c.next_look)
    .limit(sa.bindparam("most"))
)
_BUSY = Prepared(
    sa.select(sa.func.count())
    .select_from(table)
    .join(instances, instances.c.id == table.c.instance_id)
    .where(sa.not_(table.c.settled), sa.not_(instances.c.removed))
)
_SOURCE = Prepared(
    sa.select(instances.c.flavor_id, instances.c.volume_gb).where(
        instances.c.id == sa.bindparam("instance")
    )
)  # fmt: skip


class Step(msgspec.Struct, frozen=True):
    """``host_id``: who is to hear of it. ``done``: its verdict was written by this step."""

    host_id: str | None = None
    done: Verdict | None = None


def due_verifications(tx: Tx, most: int) -> list[str]:
    """Those whose next look has come, the longest overdue first."""
    return _DUE.scalars(tx, now=tx.now.lease, most=most)


def postpone_verification(tx: Tx, verification_id: str, seconds: float, trouble: str | None = None) -> None:
    """Nothing could be done now; look again in ``seconds``."""
    told = {} if trouble is None else {"trouble": trouble[:1000]}
    _write(tx, verification_id, next_look=tx.now.lease + seconds, **told)


def step_verification(tx: Tx, verification_id: str, *, ask_id: str) -> Step:
    """Take the next step. Raises :class:`Refused` where an instance cannot be made: nothing is changed then.

    ``ask_id`` names the question to the restored database, should there be one.
    """
    held = load_verification(tx, verification_id, lock=True)
    if held is None or held.settled:
        return Step()
    row, answer = _heard(tx, _note_restored(tx, held))
    plan = plan_verification(facts_of(tx, row, answer), tx.now.lease)
    return _do(tx, row, plan, ask_id)


def _do(tx: Tx, row: VerificationRow, plan: Plan, ask_id: str) -> Step:
    now = tx.now.lease
    match plan:
        case Make():
            if _BUSY.scalar(tx) >= AT_ONCE:
                postpone_verification(tx, row.id, WAIT, f"{AT_ONCE} others are being verified")
                return Step()
            _make(tx, row)
            _write(tx, row.id, trouble=None, next_look=now)
        case Ask():
            return _ask(tx, row, ask_id)
        case Finish(verdict):
            _finish(tx, row, verdict)
            return Step(done=verdict)
        case Remove():
            by = _by(row)
            host_id = delete_instance(tx, row.instance_id, None, by, trash_seconds=0.0)
            _write(tx, row.id, next_look=now)
            return Step(host_id)
        case LookAgain(at, _):
            _write(tx, row.id, next_look=at)
        case Settled():
            _write(tx, row.id, settled=True, next_look=None)
    return Step()


def give_up(tx: Tx, verification_id: str, reason: str) -> None:
    """It can never be restored as things are, and that says nothing of the backup."""
    held = load_verification(tx, verification_id, lock=True)
    if held is not None and held.verdict is None:
        _finish(tx, held, Verdict(Result.UNKNOWN, reason))


def _by(row: VerificationRow) -> Caller:
    """For what the control plane does of its own accord."""
    return Caller(f"req-{row.id}", SERVICE_PROJECT, SERVICE_PROJECT, admin=True)


def _make(tx: Tx, row: VerificationRow) -> None:
    backup = load_backup(tx, row.backup_id)
    assert backup is not None
    source = _SOURCE.first(tx, instance=backup.instance_id)
    assert source is not None
    size = sum(part.size or 0 for part in chain_of(tx, backup))
    ensure_service_project(tx)
    asked = AskedInstance(
        name=f"verify-{backup.id}"[:255], flavor_id=source.flavor_id, cidrs=NOBODY, backup_id=backup.id,
        accept_damage=True, version=row.version_id,
        volume_gb=max(source.volume_gb, -(-size // (1 << 30)) + 1),
    )  # fmt: skip
    ids = NewIds(row.instance_id, row.server_id, row.port_id, row.instance_id)
    create_instance(tx, asked, ids, _by(row))


def _note_restored(tx: Tx, row: VerificationRow) -> VerificationRow:
    """When it could be used for the first time; the time that a restore takes is a promise to be measured."""
    if row.restored is not None or row.verdict is not None:
        return row
    query = sa.select(instances.c.launched_wall).where(instances.c.id == row.instance_id)
    if tx.execute(query).scalar_one_or_none() is None:
        return row
    _write(tx, row.id, restored=tx.now.lease)
    return msgspec.structs.replace(row, restored=tx.now.lease)


def _ask(tx: Tx, row: VerificationRow, ask_id: str) -> Step:
    argument = msgspec.json.encode(Check(CHECK, row.database, row.query)).decode()
    seconds = CHECK + GRACE
    try:
        host_id = ask_instance(tx, row.instance_id, None, ask_id=ask_id, argument=argument, seconds=seconds)
    except Conflict as error:
        postpone_verification(tx, row.id, WAIT / 3, error.message)
        return Step()
    now = tx.now.lease
    _write(
        tx, row.id, ask_id=ask_id, asks=row.asks + 1, ask_until=now + seconds, trouble=None, next_look=now + 1
    )
    return Step(host_id)


def _heard(tx: Tx, row: VerificationRow) -> tuple[VerificationRow, Verdict | None]:
    """What was answered. One that is not ready yet is asked again in a while."""
    text = None if row.ask_id is None or row.verdict is not None else asks.read_answer(tx, row.ask_id)
    if text is None:
        return row, None
    said = readable.read(_answer, text, Failed("unready", "its answer cannot be understood"))
    if not (isinstance(said, Failed) and said.code == "unready"):
        return row, _verdict_of(said, row)
    again = tx.now.lease + AGAIN
    _write(tx, row.id, ask_id=None, ask_until=again, trouble=_plain(said.message))
    return msgspec.structs.replace(row, ask_id=None, ask_until=again, trouble=_plain(said.message)), None


def _verdict_of(said: DatabaseAnswer, row: VerificationRow) -> Verdict:
    """A guest is its tenant: what it says is taken for its own backup, and for no other."""
    match said:
        case Ok(checked=Checked() as checked):
            return Verdict(Result.SOUND, "", _detail(checked, row.query))
        case Failed(code="wrong", message=message):
            return Verdict(Result.DAMAGED, _plain(message))
        case Failed(code=code, message=message):
            return Verdict(Result.UNKNOWN, f"what was restored could not be read ({code}): {_plain(message)}")
        case _:
            return Verdict(
                Result.UNKNOWN, "what was restored could not be read: its agent knows no such request"
            )


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:500]


def _detail(checked: Checked, query: str) -> str:
    read = f"{checked.tables_read} of {checked.tables} tables in {checked.databases} databases"
    words = f"{read}, {checked.rows} rows"
    return f"{words}; the statement gave {_plain(checked.value)}" if query else words


def _finish(tx: Tx, row: VerificationRow, verdict: Verdict) -> None:
    """The verdict, and what stands on the backup: of damage until it is shown to be sound."""
    now = tx.now
    text = msgspec.json.encode(verdict).decode()
    _write(tx, row.id, verdict=text, finished_wall=now.wall, next_look=now.lease)
    if row.ask_id is not None:
        asks.drop_ask(tx, row.ask_id)
    if row.version_id is not None:
        return  # it is of the version that something was found out
    seconds = None if row.restored is None else round(row.restored - _began(tx, row), 3)
    found = Verified(
        id=row.id, when=now.wall, seconds=seconds, result=verdict.result, reason=verdict.reason,
        detail=verdict.detail,
    )  # fmt: skip
    text = msgspec.json.encode(found).decode()
    tx.execute(sa.update(backups).where(backups.c.id == row.backup_id).values(verified=text))
    if verdict.result is Result.DAMAGED:
        mark_damaged(tx, row.backup_id, f"verified by a restore: {verdict.reason}")
    elif verdict.result is Result.SOUND:
        mark_sound(tx, row.backup_id)


def _began(tx: Tx, row: VerificationRow) -> float:
    query = sa.select(instances.c.created).where(instances.c.id == row.instance_id)
    found = tx.execute(query).scalar_one_or_none()
    return row.created if found is None else float(found)


def _write(tx: Tx, verification_id: str, **values: Any) -> None:
    tx.execute(
        sa.update(table).where(table.c.id == verification_id, sa.not_(table.c.settled)).values(**values)
    )
