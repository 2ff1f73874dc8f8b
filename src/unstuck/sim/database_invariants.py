"""What must hold of databases and backups: at each effect, at each commit, every few seconds, and at rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs import manifest as manifests
from unstuck.blobs.chunks import Damaged, chunk_key, open_chunk
from unstuck.blobs.manifest import Manifest, ManifestError
from unstuck.core.backup.change import UPLOAD_AT_LONGEST
from unstuck.core.backup.content import Content, Parent
from unstuck.core.backup.control import LEASE
from unstuck.core.backup.data import Backup, Ending, Unanswered
from unstuck.core.backup.scrub import cleared
from unstuck.core.instance.status import BACKUP, status
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.sim import parameters
from unstuck.sim.archive_invariants import ArchiveTruth
from unstuck.sim.datastore import row_of, rows_in
from unstuck.sim.invariants import Truth
from unstuck.sim.schedule_scenarios import overdue_ticks
from unstuck.store.backup_chain import chain_of
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.backups_made import USER
from unstuck.store.clock import clock_row
from unstuck.store.cloud_keys import project_key
from unstuck.store.engine import Tx
from unstuck.store.generation import recovery
from unstuck.store.instance_rows import load_instance
from unstuck.store.prepared import Prepared
from unstuck.store.schema.database import backups, datastore_versions, instances

if TYPE_CHECKING:
    from unstuck.sim.databases import Databases
    from unstuck.sim.guest import Inside

SILENT: Final = 120.0
"""Seconds after which nothing may be shown as healthy any more that is not (lease, and host away: 60 s)."""
OVERDUE: Final = 90.0
"""Seconds by which a row's next look may be late: a control plane is killed or frozen for less."""
MARGIN: Final = 10.0
FROZEN: Final = 60.0
"""Seconds from an answer to the transaction that notes it, at the longest."""
SPARE: Final = 180.0
"""Seconds from a deadline to a settled row, after a single fault (decisions: numbers)."""
MANY: Final = 300.0
"""So many more where there are several faults: one for who looks at the blob store, one for the store."""

_BACKUPS = Prepared(
    sa.select(
        backups.c.id, backups.c.ended, backups.c.deleted, backups.c.removed, backups.c.settled,
        backups.c.next_look, backups.c.lease_until, backups.c.damaged,
    ).order_by(backups.c.id)
)  # fmt: skip
_INSTANCES = Prepared(
    sa.select(
        instances.c.id, instances.c.deleted, instances.c.removed, instances.c.settled, instances.c.next_look,
        instances.c.data_recorded,
    ).order_by(instances.c.id)
)  # fmt: skip
_OF_SERVER = Prepared(
    sa.select(instances.c.id, instances.c.data_recorded, instances.c.restores, instances.c.origin).where(
        instances.c.server_id == sa.bindparam("server")
    )
)
_RESTORING = Prepared(
    sa.select(sa.func.count()).where(
        instances.c.restores == sa.bindparam("backup"), sa.not_(instances.c.data_recorded),
        sa.not_(instances.c.deleted),
    )
)  # fmt: skip
_NEEDED = Prepared(
    sa.select(backups.c.id).where(
        backups.c.parent_id == sa.bindparam("backup"), sa.not_(backups.c.deleted),
        sa.or_(backups.c.ended.is_(None), backups.c.ended == "COMPLETED"),
    )
)  # fmt: skip
_ABSENT = Prepared(
    sa.select(backups.c.id, backups.c.facts).where(
        backups.c.ended.is_(None), backups.c.facts.contains('"store":{"type":"absent"')
    )
)
_MARKS = Prepared(
    sa.select(
        instances.c.id, instances.c.deleted, instances.c.removed, instances.c.settled, instances.c.guest,
        instances.c.alive, instances.c.seen, instances.c.data_recorded, instances.c.restores,
        instances.c.pending, instances.c.failure, instances.c.restart,
        instances.c.configuration_id, instances.c.datastore_version_id,
    ).order_by(instances.c.id)
)  # fmt: skip
_BACKUP_MARKS = Prepared(sa.select(backups).order_by(backups.c.id))


_BOOTS = Prepared(
    sa.select(datastore_versions.c.image_id)
    .join(instances, instances.c.datastore_version_id == datastore_versions.c.id)
    .where(instances.c.id == sa.bindparam("instance"))
)


class DatabaseTruth:
    """Judges databases and backups by the world itself."""

    def __init__(self, world: Databases, truth: Truth) -> None:
        self._world = world
        self._truth = truth
        self.archives = ArchiveTruth(world, self)
        self.timelines: dict[int, list[str]] = {}
        """All rows that were ever written, by the history that they belong to."""
        self.recorded: set[str] = set()
        """Instances whose data the store has recorded."""
        self._late: set[str] = set()
        """Prefixes that something arrived below after its attempt was over: for the second look."""
        self._actors: dict[str, tuple[str, str]] = {}
        self._acts: dict[str, float] = {}
        self._manifests: dict[str, float] = {}
        self._absent: set[tuple[str, int]] = set()
        self._pretends: dict[str, float] = {}
        self._final: dict[str, str] = {}
        self._deleted: set[str] = set()
        self.undeleted: set[str] = set()
        """Instances that their users want back."""
        self.complete: set[str] = set()
        """Backups that were COMPLETED."""
        self.unwanted: set[str] = set()
        """Backups and instances that their users deleted."""
        self._anew = False
        self.set_back = False
        """The store was an older copy since: what it shows may be older than what was seen."""

    def fail(self, text: str) -> None:
        self._truth.fail(text)

    def put_back(self) -> None:
        """The store is an older copy from now on."""
        self.set_back = self._anew = True
        self._final.clear()
        self._deleted.clear()

    # --- effects

    def acted(self, nonce: str, server_id: str, start: str) -> None:
        """A guest's agent was let work on an attempt: it is one process's, and its instance's."""
        before = self._actors.setdefault(nonce, (server_id, start))
        if before != (server_id, start) and not self.set_back:
            self.fail(f"one attempt, two agents: {nonce} is {before}'s, and {(server_id, start)} acts on it")

    def works(self, server_id: str) -> None:
        """An agent says that it works on an attempt."""
        self._acts[server_id] = self._world.store.read(_lease_now)

    def object_written(self, key: str) -> None:
        if key.startswith("archives/"):
            return
        if key.endswith(manifests.NAME):
            self._manifests[key] = self._world.engine.now
        self._world.store.read(self._written, key)

    def _written(self, tx: Tx, key: str) -> None:
        _, backup_id, run, _ = key.split("/")
        nonce = run.partition("-")[2]
        row = load_backup(tx, backup_id)
        if row is None or self.set_back:
            return
        backup, now = row.backup, tx.now.lease
        if backup.attempt.nonce == nonce and backup.ended is None:
            return
        self._late.add(key.rpartition("/")[0])
        over = (
            backup.collect_after - UPLOAD_AT_LONGEST if backup.ended is not None else backup.attempt.granted
        )
        if backup.ended is not None and backup.ended.ending is Ending.COMPLETED and not backup.litter:
            self.fail(f"late object: {key} was written into a backup that is complete")
        if now > over + UPLOAD_AT_LONGEST:
            self.fail(f"late object: {key} was written {now - over:.0f} s after its attempt was over")

    def object_removed(self, key: str) -> None:
        if key.startswith("archives/"):
            self._world.store.read(self.archives.removing, key)
            return
        self._world.store.read(self._removed, key)

    def _removed(self, tx: Tx, key: str) -> None:
        """Collection never takes what a complete backup or a living attempt consists of."""
        _, backup_id, run, _ = key.split("/")
        self._manifests.pop(key, None)
        row = load_backup(tx, backup_id)
        if self.set_back and backup_id in self.complete - self.unwanted:
            prefixes = {known.rpartition("/")[0] for known in self._manifests if f"/{backup_id}/" in known}
            if key.rpartition("/")[0] in prefixes:
                self.fail(f"live object removed: {key} of a backup that was complete")
        if row is None:
            self.fail(f"live object removed: {key} of a backup that the store does not know")
            return
        backup = row.backup
        if backup.ended is None:
            self.fail(f"live object removed: {key} of a backup that has not ended")
        elif backup.ended.ending is Ending.COMPLETED and not backup.deleted:
            if row.prefix == key.rpartition("/")[0]:
                self.fail(f"live object removed: {key} of a complete backup")
        elif backup.deleted and _RESTORING.scalar(tx, backup=row.id):
            self.fail(f"live object removed: {key} is being restored from (attempt {run})")
        child = _NEEDED.scalar(tx, backup=row.id)
        if child is not None and row.prefix == key.rpartition("/")[0]:
            self.fail(f"live object removed: {key}, and backup {child} cannot be restored without")

    def data_made(self, inside: Inside, want: DatabaseWant) -> None:
        """Data only once, and never in the place of what a backup holds (law 3)."""
        row = self._world.store.read(lambda tx: _OF_SERVER.first(tx, server=inside.server_id))
        if want.origin.backup_id is not None:
            self.fail(f"empty for a backup: {inside.server_id} is restored, and empty data was made")
        if row is not None and (row.data_recorded or row.id in self.recorded - self.unwanted):
            self.fail(f"empty again: the recorded data of {row.id} was made again, empty")

    def restored(self, inside: Inside, want: DatabaseWant, content: Content, rows: list[str]) -> None:
        """A restored instance has exactly the rows at its backup's position, or at its point in time."""
        if want.origin.point is not None:
            self.archives.restored(want, rows)
            return
        timeline = int(content.system_identifier.partition("-")[2])
        true = self.timelines.get(timeline, [])[: row_of(content.stop)]
        if rows != true:
            self.fail(f"restored other rows: {want.instance_id} has {len(rows)}, and {len(true)} were there")

    # --- commits

    def committed(self) -> None:
        self._world.store.read(self._committed)

    def _committed(self, tx: Tx) -> None:
        for row in _BACKUPS.all(tx):
            before = self._final.get(row.id)
            if row.ended is not None and before is None:
                self._final[row.id] = row.ended
                if row.ended == Ending.COMPLETED.value and not self._anew:
                    self.complete.add(row.id)
                    self._check_complete(tx, row.id)
            elif before is not None and row.ended != before and not self.set_back:
                self.fail(f"final is final: backup {row.id} was {before} and is {row.ended}")
            if row.deleted and f"backup {row.id}" not in self._deleted:
                self._check_trimmed(tx, row.id)
            self._check_deleted(f"backup {row.id}", gone=row.deleted)
        self._anew = False
        for row in _ABSENT.all(tx):
            self._check_absent(row.id, row.facts)
        for row in _INSTANCES.all(tx):
            if row.data_recorded:
                self.recorded.add(row.id)
            elif row.id in self.recorded and not self.set_back:
                self.fail(f"the store forgot that {row.id} has data")
            if row.id not in self.undeleted:
                self._check_deleted(f"instance {row.id}", gone=row.deleted)

    def _check_trimmed(self, tx: Tx, backup_id: str) -> None:
        """What goes by itself leaves the last one, breaks no chain, and is never what somebody asked for."""
        if self.set_back or backup_id in self.unwanted:
            return
        row = load_backup(tx, backup_id)
        assert row is not None
        others = [
            other
            for other in _BACKUP_MARKS.all(tx)
            if not other.deleted and other.instance_id == row.instance_id
        ]
        if row.made_by == USER:
            self.fail(f"retention took {backup_id}, which somebody asked for")
        if any(other.parent_id == backup_id for other in others):
            self.fail(f"a chain is broken: {backup_id} went by itself, and a child of it is there")
        sound = [o for o in others if o.ended == Ending.COMPLETED.value and o.made_by != USER]
        if row.backup.ended is not None and row.backup.ended.ending is Ending.COMPLETED and not sound:
            self.fail(f"below the minimum: {backup_id} went by itself, and was the last one")

    def _check_deleted(self, name: str, *, gone: bool) -> None:
        if gone:
            self._deleted.add(name)
        elif name in self._deleted and not self.set_back:
            self.fail(f"delete undone: {name}")

    def _check_absent(self, backup_id: str, facts: str) -> None:
        """A manifest is absent for certain, or not known to be: it takes a whole listing to say so."""
        said = (backup_id, msgspec.json.decode(facts)["attempt"]["number"])
        if said in self._absent:
            return
        self._absent.add(said)
        listed = self._world.blobs.listed.get(f"backups/{backup_id}", 0.0)
        if listed < self._world.engine.now - FROZEN:
            self.fail(f"absent without a look: nobody has listed backup {backup_id}")
        before = [key for key, at in self._manifests.items() if f"/{backup_id}/" in key and at < listed]
        if before:
            self.fail(f"absent, and it is there: {before}")

    def _check_complete(self, tx: Tx, backup_id: str) -> None:
        row = load_backup(tx, backup_id)
        assert row is not None
        wrong = self._flaw(tx, row)
        if wrong is not None:
            self.fail(f"COMPLETED is no backup: {backup_id}: {wrong}")

    def _flaw(self, tx: Tx, row: BackupRow) -> str | None:
        """What keeps a restore from giving exactly the rows at its position; None: nothing does."""
        objects, keyring = self._world.blobs.objects, self._world.keyring
        data = objects.get(f"{row.prefix}/{manifests.NAME}")
        if row.prefix is None or data is None:
            return "it has no manifest"
        if manifests.digest(data) != row.digest:
            return "its manifest is another"
        try:
            manifest = manifests.read(data, keyring.public.signing, row.prefix)
        except ManifestError as error:
            return str(error)
        project = project_key(tx, row.project_id)
        assert project is not None
        identity = keyring.open_backup_key(project, row.key)
        plain = b""
        for chunk in manifest.chunks:
            sealed = objects.get(chunk_key(row.prefix, chunk.index))
            if sealed is None:
                return f"piece {chunk.index} is missing"
            try:
                plain += open_chunk(chunk, sealed, identity)
            except Damaged as error:
                return str(error)
        kept = rows_in(plain)
        if list(kept.rows) != self.timelines[kept.timeline][kept.since : row_of(manifest.stop)]:
            return "its rows are not those at its position"
        return self._flaw_above(tx, row, manifest, kept.since)

    def _flaw_above(self, tx: Tx, row: BackupRow, manifest: Manifest, since: int) -> str | None:
        """A child goes on where its parent ends, and its parent can be restored."""
        if (row.parent_id is None) != (manifest.parent is None) or (since > 0 and row.parent_id is None):
            return "its manifest and its row disagree about its parent"
        if row.parent_id is None:
            return None
        above = load_backup(tx, row.parent_id)
        if above is None or manifest.parent != Parent(above.id, above.digest or ""):
            return "its parent is another one"
        if row_of(manifest.start) != since:
            return "it does not go on where its parent ends"
        flaw = None if above.id in self._world.damaged else self._flaw(tx, above)
        return None if flaw is None else f"its parent {above.id} cannot be restored: {flaw}"

    # --- every few seconds

    def audit(self, tx: Tx, up_since: float | None, jumped_at: float) -> None:
        """Nothing is shown that no fact supports, and nothing is overdue."""
        clock = tx.now
        if self._world.archiving:
            self.archives.audit(tx)
        for row in _BACKUPS.all(tx):
            if cleared(row.damaged) and row.id not in self._world.damaged:
                self.fail(f"claimed without a fact: {row.id} is damaged, and nobody has spoiled it")
        for row in _INSTANCES.all(tx):
            loaded = load_instance(tx, row.id)
            assert loaded is not None
            shown = status(loaded.instance, clock)
            acted = self._acts.get(loaded.server_id, 0.0)
            # After an outage of the control plane nobody is silent before everybody could be heard.
            acted = max(acted, clock_row(tx).sweep_after - LEASE)
            if shown.status == BACKUP and acted < clock.lease - LEASE - MARGIN:
                self.fail(f"claimed without a fact: {row.id} shows BACKUP, and no agent works on one")
            self._check_healthy(
                loaded.server_id, shown.operating_status == "HEALTHY" and up_since is not None
            )
        if up_since is None or up_since > self._world.engine.now - OVERDUE:
            return
        for table in (_INSTANCES, _BACKUPS):
            for row in table.all(tx):
                leased = getattr(row, "lease_until", None) or 0.0
                late = clock.lease - max(row.next_look or 0.0, leased)
                if not row.settled and late > OVERDUE:
                    self.fail(f"overdue: {row.id} was to be looked at {late:.0f} s ago")
        if jumped_at > self._world.engine.now - OVERDUE:
            return
        for schedule in overdue_ticks(tx):
            self.fail(f"overdue: the tick of schedule {schedule} has come, and nobody runs it")
        for row in _BACKUPS.all(tx):
            if row.ended is None:
                self._check_age(tx, row.id, row.lease_until or 0.0)

    def _check_healthy(self, server_id: str, healthy: bool) -> None:
        """No longer than a silence takes to be noticed."""
        inside, now = self._world.inside_of(server_id), self._world.engine.now
        up = inside is not None and inside.server is ServerState.UP and inside.guest.state == "running"
        if up or not healthy:
            self._pretends.pop(server_id, None)
        elif self._pretends.setdefault(server_id, now) < now - SILENT:
            self.fail(f"claimed without a fact: {server_id} shows HEALTHY, and no server answers in it")

    def _check_age(self, tx: Tx, backup_id: str, leased: float) -> None:
        """A step in work has an owner and a lease; who finds its owner dead begins anew when that is over."""
        row = load_backup(tx, backup_id)
        assert row is not None
        spare = SPARE if self._world.engine.fair else SPARE + MANY
        if tx.now.lease > max(longest(row.backup, spare), leased + spare):
            self.fail(f"stuck: backup {backup_id} has not ended {tx.now.lease - row.backup.created:.0f} s on")

    # --- at rest

    def differences(self, tx: Tx, expected: dict[str, str], written: dict[str, list[str]]) -> list[str]:
        """The full diff of instances, backups and objects against the world."""
        wrong = self._of_instances(tx, expected, written)
        self.archives.check_moments(tx)
        kept: set[str] = set()
        for row in _BACKUPS.all(tx):
            found = load_backup(tx, row.id)
            assert found is not None
            complete = row.ended == Ending.COMPLETED.value
            if complete and not row.deleted and found.prefix is not None:
                kept |= {link.prefix for link in chain_of(tx, found) if link.prefix is not None}
                flaw = None if row.id in self._world.damaged else self._flaw(tx, found)
                if flaw is not None:
                    wrong.append(f"COMPLETED is no backup: {row.id}: {flaw}")
            want = expected.get(f"backup {row.id}")
            is_now = "DELETED" if row.deleted else row.ended
            if want is not None and is_now not in want.split("|"):
                wrong.append(f"backup {row.id} is {is_now}, expected {want}")
            if row.deleted and found.backup.children and not self._world.patient:
                kept.add(found.prefix or "")  # its child waits for what could arrive late, and it for that
        if not self._world.patient:
            kept |= self._late
        if self.set_back:  # what the store does not know is reported, and removed by nobody
            return wrong
        stray = sorted(
            {key.rpartition("/")[0] for key in self._world.blobs.objects if key.startswith("backups/")} - kept
        )
        wrong += [f"orphan objects below {prefix}" for prefix in stray]
        return wrong

    def _of_instances(self, tx: Tx, expected: dict[str, str], written: dict[str, list[str]]) -> list[str]:
        wrong = []
        for row in _INSTANCES.all(tx):
            loaded = load_instance(tx, row.id)
            assert loaded is not None
            shown = status(loaded.instance, tx.now)
            is_now = "DELETED" if row.removed else "TRASH" if row.deleted else shown.status
            want = expected.get(row.id)
            if want is not None and is_now != want:
                wrong.append(f"instance {row.id} is {is_now}, expected {want}")
            inside = self._world.inside_of(loaded.server_id)
            if is_now == "ACTIVE" and (inside is None or inside.server is not ServerState.UP):
                wrong.append(f"instance {row.id} is ACTIVE, and no server answers in it")
            if inside is not None and (inside.slots or inside.tools):
                wrong.append(f"orphans in {row.id}: slots {inside.slots}, {len(inside.tools)} tools")
            volume = self._world.volume_of(loaded.server_id)
            kept = [] if volume is None else volume.rows
            if not row.removed and not set(written.get(row.id, ())) <= set(kept):
                wrong.append(f"rows lost: {row.id} has not the rows that were acknowledged")
            boots = _BOOTS.scalar(tx, instance=row.id)
            if inside is not None and is_now == "ACTIVE" and inside.image != boots:
                wrong.append(f"another system: {row.id} runs {inside.image}, and its version is {boots}")
            wrong_parameters = parameters.flaw(tx, self._world, row.id)
            if wrong_parameters is not None:
                wrong.append(wrong_parameters)
            if loaded.instance.restores is not None and loaded.instance.data_recorded:
                wrong.append(f"instance {row.id} still holds backup {loaded.instance.restores}")
        return wrong


def longest(backup: Backup, spare: float) -> float:
    """By when it has to have moved on or ended: what it waits for has one deadline, and from there on a row
    is at rest ``spare`` seconds later."""
    limits, attempt = backup.limits, backup.attempt
    if backup.verify_since is not None:
        deadline = backup.verify_since + limits.verify
    elif attempt.claimed is None:
        deadline = attempt.granted + limits.claim
    elif attempt.report is None:
        deadline = attempt.claimed.moved + limits.stalls[attempt.claimed.phase]
    else:
        deadline = attempt.claimed.heard
    if isinstance(backup.store, Unanswered):
        deadline = max(deadline, backup.store.since + limits.unknown)
    return deadline + spare


def _lease_now(tx: Tx) -> float:
    return tx.now.lease


def unsettled(tx: Tx, *, patient: bool) -> int:
    """Instances and backups that are not at rest. What only waits for its time in the trash is; and, unless
    ``patient``, what only waits for uploads that could still arrive."""
    now, count, held = tx.now, 0, recovery(tx) is not None
    for row in _INSTANCES.all(tx):
        if not row.settled:
            loaded = load_instance(tx, row.id)
            assert loaded is not None
            server = loaded.instance.server
            kept = row.deleted and loaded.instance.room_mb == 0 and (row.next_look or 0) > now.lease + 600
            # What is in dispute counts as settled, with a condition.
            disputed = server is not None and server.disputed is not None
            count += 0 if kept or disputed else 1
    for row in _BACKUPS.all(tx):
        if not row.settled:
            found = load_backup(tx, row.id)
            assert found is not None
            ended = found.backup.ended is not None
            waits = ended and found.backup.swept and not patient and (row.next_look or 0) > now.lease
            waits = waits or (ended and found.backup.children > 0)  # kept for its children
            count += 0 if waits or (ended and held) else 1
    return count


def fingerprint(tx: Tx, world: Databases) -> str:
    """Rows and world without times."""
    kept: list[Any] = [tuple(row) for row in _MARKS.all(tx)]
    for row in _BACKUP_MARKS.all(tx):
        facts: dict[str, Any] = msgspec.json.decode(row.facts)
        attempt = facts["attempt"]
        claimed = attempt.get("claimed") or {}
        kept.append(
            (row.id, row.ended, row.deleted, row.removed, row.settled, row.owner is None, row.prefix,
             attempt["number"], attempt["nonce"], claimed.get("incarnation"), claimed.get("phase"),
             claimed.get("bytes"), attempt.get("report"), facts["cancelled"], facts["instance_gone"],
             facts["litter"], facts["swept"], (facts["store"] or {}).get("type"),
             (facts["verdict"] or {}).get("type"))
        )  # fmt: skip
    insides = [
        (key, inside.server, inside.restart, len(inside.tools), sorted(inside.slots), str(inside.volume),
         inside.agent is None or inside.agent.dead)
        for key, inside in sorted(world.insides.items())
    ]  # fmt: skip
    return repr((kept, insides, world.blobs.mode, sorted(world.blobs.objects)))


__all__ = ["DatabaseTruth", "fingerprint", "longest", "unsettled"]
