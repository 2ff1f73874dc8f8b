"""Faults that are planted in how backups and databases are looked after; the simulator has to notice each."""

from __future__ import annotations

import msgspec
import pytest

from unstuck.blobs import manifest as manifests
from unstuck.blobs import verify as checks
from unstuck.blobs.objects import Objects
from unstuck.control.backup_blobs import ThreadedBlobs
from unstuck.core.backup import change
from unstuck.core.backup import control as backup_control
from unstuck.core.backup.data import Backup, Claimed, Done, Gave, Phase, Present
from unstuck.core.instance import control as instance_control
from unstuck.core.instance import trial
from unstuck.core.instance.guest import Decision, Sight, plan_guest
from unstuck.core.instance.want import DatabaseWant
from unstuck.guest import agent as agent_module
from unstuck.guest.agent import Agent
from unstuck.sim.blobs import SimObjects
from unstuck.store import backup_rows, configurations
from unstuck.store.backup_work import Work

Monkey = pytest.MonkeyPatch


def no_lease_of_an_attempt_is_looked_at(patch: Monkey) -> None:
    patch.setattr(backup_control, "LEASE", 1e9)
    patch.setattr(instance_control, "BACKUP_LEASE", 1e9)


def any_agent_may_go_on_with_an_attempt(patch: Monkey) -> None:
    def claim(backup: Backup, nonce: str, incarnation: int, now: float) -> Backup:
        return change._with(backup, backup.attempt, claimed=Claimed(incarnation, now, now, Phase.STARTING))

    patch.setattr(change, "claim", claim)
    patch.setattr(change, "superseded", lambda backup, _incarnation: backup)


def a_manifest_counts_without_its_pieces(patch: Monkey) -> None:
    a_store_that_loses_pieces(patch)
    patch.setattr(manifests, "missing", lambda _manifest, _found: [])


def a_store_that_loses_pieces(patch: Monkey) -> None:
    put_new = SimObjects.put_new

    def lossy(self: SimObjects, key: str, data: bytes) -> None:
        if not key.endswith("00000001.zst.age"):
            put_new(self, key, data)

    patch.setattr(SimObjects, "put_new", lossy)


def lost_data_is_made_again_empty(patch: Monkey) -> None:
    def plan(want: DatabaseWant | None, sight: Sight) -> Decision:
        return plan_guest(want and msgspec.structs.replace(want, data_recorded=False), sight)

    patch.setattr(agent_module, "plan_guest", plan)


def what_cannot_be_restored_is_made_empty(patch: Monkey) -> None:
    def plan(want: DatabaseWant | None, sight: Sight) -> Decision:
        if want is not None:
            origin = msgspec.structs.replace(want.origin, backup_id=None)
            want = msgspec.structs.replace(want, origin=origin)
        return plan_guest(want, sight)

    patch.setattr(agent_module, "plan_guest", plan)


def everything_is_collected(patch: Monkey) -> None:
    remove = checks.remove
    patch.setattr(checks, "remove", lambda objects, backup, _keep: remove(objects, backup, None))


def readers_are_not_counted(patch: Monkey) -> None:
    patch.setattr(backup_rows, "READER", -1e9)
    patch.setattr(backup_rows, "READ_AT_LONGEST", -1e9)


def unknown_is_taken_for_absent(patch: Monkey) -> None:
    look = ThreadedBlobs.look

    async def sure(self: ThreadedBlobs, work: Work, seconds: float) -> Present | None:
        try:
            return await look(self, work, seconds)
        except Exception:
            return None

    patch.setattr(ThreadedBlobs, "look", sure)


def only_the_newest_attempt_is_asked_for(patch: Monkey) -> None:
    """A finished backup is thrown away because its report was lost."""

    def nothing(_objects: Objects, _backup_id: str, _key: str) -> None:
        return None

    def listed(objects: Objects, backup_id: str, key: str) -> None:
        objects.list(checks.root_of(backup_id))
        return nothing(objects, backup_id, key)

    patch.setattr(checks, "look", listed)


def nobody_looks_again_at_a_backup(patch: Monkey) -> None:
    """Settled it cannot be called: the schema refuses that."""
    patch.setattr(backup_rows, "_next_look", lambda _plan, _backup, now: (False, now + 1e6))


def slots_of_dead_attempts_stay(patch: Monkey) -> None:
    async def keep(self: Agent) -> None:
        self._swept = True

    patch.setattr(Agent, "_sweep", keep)


def a_late_word_opens_a_backup_again(patch: Monkey) -> None:
    report = change.report

    def late(backup: Backup, nonce: str, by: int, said: Done | Gave, now: float) -> Backup:
        return report(msgspec.structs.replace(backup, ended=None), nonce, by, said, now)

    patch.setattr(change, "report", late)


def parameters_on_trial_are_never_given_up(patch: Monkey) -> None:
    patch.setattr(trial, "TRIES", 10**9)


def a_changed_group_is_told_to_nobody(patch: Monkey) -> None:
    patch.setattr(configurations, "_tell", lambda _tx, _rows: [])


def a_failed_upgrade_stays_where_it_is(patch: Monkey) -> None:
    patch.setattr(instance_control, "upgrade_failed", lambda _instance, _now: None)
