"""The archive of a log in the store, on both databases: ledger, ends, moments, what is trimmed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from tests.backup_world import PLACES, add_instance, set_instance
from tests.store.backup_play import DIGEST, SIGNING, Databases
from unstuck.core.archive.data import Closed, Gap, LogView, Piece
from unstuck.core.backup.content import Chunk, Datastore, Position
from unstuck.core.backup.data import Done, Verified
from unstuck.core.errors import Invalid, NotFound
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.instance.want import Origin
from unstuck.core.instance.wire import AskLog, BeginPiece, EndPiece, GuestReport
from unstuck.core.server.data import Thing
from unstuck.store import (
    archive_pieces,
    archive_work,
    archives,
    backup_work,
    backups,
    instance_backups,
    instance_guests,
    instance_work,
)
from unstuck.store.agents import Stale
from unstuck.store.archive_moments import moments, restorable
from unstuck.store.archive_work import Trim
from unstuck.store.backup_chain import Checked
from unstuck.store.backup_work import Written
from unstuck.store.engine import Store
from unstuck.store.instance_rows import load_instance
from unstuck.store.schema.compute import servers

_numbers = itertools.count(1)


class Logs(Databases):
    """An instance whose log is kept: segments have 16 positions each."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store, folder)
        self.log(0)
        self.set_up()

    @property
    def archive(self) -> str:
        found = self.store.read(archives.open_id, self.instance)
        assert found is not None
        return found

    def set_up(self) -> None:
        nonce = f"n{next(_numbers)}"
        self.store.transact(
            archive_work.set_up_archive, self.archive, nonce, 60, self.keyring, PLACES
        )  # fmt: skip

    def log(self, position: int, timeline: int = 1, gap: Gap | None = None) -> None:
        """Its agent says how far the log is."""
        view = DatabaseView(
            generation="g", data=Thing.PRESENT, server=ServerState.UP, step=GuestStep.READY,
            log=LogView(timeline=timeline, position=f"{position:016X}", gap=gap),
        )  # fmt: skip
        report = GuestReport(self.who(), next(_numbers), True, view)
        self.store.transact(instance_guests.guest_report, "h", report)

    def piece(self, index: int, timeline: int = 1, digest: str = "a" * 64) -> Piece:
        return Piece(
            name=f"{timeline:08X}{index:016X}", timeline=timeline, start=f"{index * 16:016X}",
            stop=f"{(index + 1) * 16:016X}", size=10, digest=digest,
        )  # fmt: skip

    def begin(self, piece: Piece, tag: str = "t", archive: str | None = None, guest: int = 1) -> Any:
        ask = BeginPiece(self.who(guest=guest), archive or self.archive, piece, tag, SIGNING)
        return self.store.transact(archive_pieces.begin_piece, "h", ask, self.keyring)

    def end_it(self, piece: Piece, tag: str = "t", archive: str | None = None) -> None:
        ask = EndPiece(self.who(), archive or self.archive, piece.name, tag, (Chunk(0, 10, "", 20, ""),))
        self.store.transact(archive_pieces.end_piece, "h", ask)

    def keep(self, *indexes: int, timeline: int = 1) -> None:
        for index in indexes:
            piece = self.piece(index, timeline)
            assert self.begin(piece).kept is not None
            self.end_it(piece)

    def run(self) -> tuple[str, str]:
        row = self.store.read(lambda tx: archives.ONE.first(tx, archive=self.archive))
        return row.start.lstrip("0"), row.stop.lstrip("0")

    def base(self, stop: int, timeline: int = 1, **more: Any) -> str:
        backup_id = self.backup(**more)
        grant = self.take(backup_id)
        self.end(backup_id, Done(DIGEST))
        assert super().begin(backup_id).work is not None
        says = Checked(
            Datastore("postgresql", "15", "15.9"), "7300", Position(timeline, "0/1"),
            Position(timeline, f"0/{stop:X}"), generation="g",
        )  # fmt: skip
        written = Written(grant.prefix, DIGEST, 99, msgspec.json.encode(says).decode())
        self.store.transact(backup_work.store_verified, backup_id, "me", Verified(99), written)
        return backup_id

    def now(self) -> float:
        return self.store.read(lambda tx: tx.now.wall)

    def look(self, archive: str | None = None) -> Trim | None:
        return self.store.transact(archive_work.look_at_archive, archive or self.archive, "me", 30.0)

    def names(self, archive: str | None = None) -> dict[str, bool]:
        """Pieces of the ledger, and whether they are dropped."""
        found = self.store.read(lambda tx: archive_work._NAMES.all(tx, archive=archive or self.archive))
        return {row.name[-2:]: row.dropped for row in found}


@pytest.fixture
def cloud(any_store: Store, tmp_path: Path) -> Logs:
    return Logs(any_store, tmp_path)


def test_an_archive_is_wanted_of_the_guest_once_it_has_a_key(cloud: Logs) -> None:
    cloud.log(0, gap=Gap(cloud.archive, "x"))  # the next one begins
    [archive_id] = [
        one for one in cloud.store.read(archive_work.due_archives, 10) if one == cloud.archive
    ]  # fmt: skip
    assert cloud.store.read(archives.wanted, cloud.instance) is None
    assert cloud.store.read(archive_work.needs_key, archive_id)
    before = cloud.wants()["a"].version
    cloud.set_up()
    want = cloud.store.read(archives.wanted, cloud.instance)
    assert want is not None
    assert (want.id, want.timeout, want.budget_mb) == (archive_id, 60, 256)
    assert want.recipient.startswith("age1")
    assert cloud.wants()["a"].version > before


def test_a_piece_is_kept_once_and_its_digest_comes_before_its_objects(cloud: Logs) -> None:
    piece = cloud.piece(0)
    granted = cloud.begin(piece, "t1")
    assert granted.kept is not None
    assert granted.kept.prefix.endswith(f"/{piece.name}/t1")
    assert cloud.run() == ("", "")
    again = cloud.begin(piece, "t2")  # its answer was lost, or the agent died
    assert again.kept is not None
    with pytest.raises(Stale):
        cloud.end_it(piece, "t1")
    cloud.end_it(piece, "t2")
    cloud.end_it(piece, "t2")  # the same end told again is no news
    assert cloud.begin(piece, "t3").known
    assert cloud.run() == ("", "10")
    assert cloud.now() > 0


def test_the_log_that_is_there_without_a_gap_goes_on_with_what_follows_it(cloud: Logs) -> None:
    cloud.keep(3)
    assert cloud.run() == ("30", "40")
    cloud.keep(5, 6)
    assert cloud.run() == ("30", "40")
    cloud.keep(4)
    assert cloud.run() == ("30", "70")
    cloud.keep(2)
    assert cloud.run() == ("20", "70")
    cloud.keep(7, timeline=2)
    assert cloud.run() == ("70", "80")
    cloud.keep(7)  # what is left of the timeline before
    assert cloud.run() == ("70", "80")


def test_only_the_present_agent_of_the_instance_keeps_pieces_in_its_own_archive(cloud: Logs) -> None:
    with pytest.raises(Stale):
        cloud.begin(cloud.piece(0), guest=2)
    with pytest.raises(Stale):
        cloud.begin(cloud.piece(0), archive="another-1")
    cloud.active("b")
    other = cloud.store.transact(add_instance, "b")
    ask = BeginPiece(cloud.who("b"), cloud.archive, cloud.piece(0), "t", SIGNING)
    with pytest.raises(Stale):
        cloud.store.transact(archive_pieces.begin_piece, "h", ask, cloud.keyring)
    assert cloud.store.read(archives.open_id, other) is None
    prefix = cloud.begin(cloud.piece(0), "t").kept.prefix.rsplit("/", 2)[0]
    name = cloud.piece(0).name
    where = cloud.store.read(archive_pieces.may_keep, "h", cloud.who(), prefix, name, "t")
    assert where == "local"
    for wrong in ((prefix, name, "t9"), (f"{prefix}x", name, "t"), (prefix, "other", "t")):
        with pytest.raises(Stale):
            cloud.store.read(archive_pieces.may_keep, "h", cloud.who(), *wrong)


def test_other_data_under_a_name_ends_the_archive_and_the_next_one_takes_it(cloud: Logs) -> None:
    cloud.keep(0)
    first, before = cloud.archive, cloud.wants()["a"].version
    assert cloud.begin(cloud.piece(0, digest="b" * 64)).diverged
    assert cloud.archive != first
    row = cloud.store.read(lambda tx: archives.ONE.first(tx, archive=first))
    assert row.closed == Closed.DIVERGED.value
    assert cloud.wants()["a"].version > before
    with pytest.raises(Stale):
        cloud.begin(cloud.piece(0), archive=first)
    cloud.set_up()
    assert cloud.begin(cloud.piece(0, digest="b" * 64)).kept is not None
    assert cloud.store.read(moments, cloud.instance).ended == "diverged"


def test_an_intent_alone_tells_another_history_apart(cloud: Logs) -> None:
    cloud.begin(cloud.piece(0), "t1")  # the host died before any object was there
    assert cloud.begin(cloud.piece(0, digest="b" * 64), "t2").diverged


def test_a_log_that_went_back_is_another_history(cloud: Logs) -> None:
    first = cloud.archive
    cloud.log(100)
    cloud.log(100)
    assert cloud.archive == first
    cloud.log(40)
    assert cloud.archive != first


def test_a_gap_ends_the_archive_once(cloud: Logs) -> None:
    first = cloud.archive
    cloud.log(10, gap=Gap(first, "x"))
    second = cloud.archive
    assert second != first
    cloud.log(11, gap=Gap(first, "x"))
    assert cloud.archive == second
    row = cloud.store.read(lambda tx: archives.ONE.first(tx, archive=first))
    assert row.closed == Closed.GAP.value


def test_moments_are_those_from_a_complete_base_to_where_the_log_is_kept(cloud: Logs) -> None:
    cloud.log(5)
    early = cloud.now()
    assert cloud.store.read(moments, cloud.instance).windows == ()
    with pytest.raises(Invalid, match="no complete backup"):
        cloud.store.read(restorable, cloud.instance, early, "project")
    base = cloud.base(stop=20)
    cloud.log(20)
    cloud.log(25)
    at = cloud.now()
    cloud.log(60)  # not kept yet
    # Its own log is in the base: where that ends can be restored at once.
    [only] = cloud.store.read(moments, cloud.instance).windows
    assert only.latest < at
    cloud.keep(1)
    [window] = cloud.store.read(moments, cloud.instance).windows
    found = cloud.store.read(restorable, cloud.instance, window.latest, "project")
    assert (found.base.backup_id, found.point.position) == (base, f"{25:016X}")
    with pytest.raises(Invalid, match="earliest"):
        cloud.store.read(restorable, cloud.instance, window.earliest - 1, "project")
    with pytest.raises(Invalid, match=r"latest|ahead"):
        cloud.store.read(restorable, cloud.instance, window.latest + 1000, "project")
    with pytest.raises(NotFound):
        cloud.store.read(restorable, cloud.instance, at, "other")
    cloud.store.transact(backups.delete_backup, base, "project")
    assert cloud.store.read(moments, cloud.instance).windows == ()


def test_a_restore_to_a_point_reads_the_pieces_up_to_it_and_one_more(cloud: Logs) -> None:
    base = cloud.base(stop=20)
    cloud.log(20)
    cloud.log(40)
    at = cloud.now()
    cloud.keep(0, 1, 2, 3, 4)
    cloud.log(70)
    found = cloud.store.read(restorable, cloud.instance, at, "project")
    cloud.active("b")
    reader = cloud.store.transact(add_instance, "b", restores=base)
    origin = msgspec.json.encode(Origin(backup_id=base, point=found.point)).decode()
    set_instance(cloud.store, reader, origin=origin)
    page = cloud.store.read(archive_pieces.grant_log, "h", AskLog(cloud.who("b")), cloud.keyring)
    assert [part.name[-1] for part in page.parts] == ["1", "2", "3"]
    assert page.identity.startswith("AGE-SECRET-KEY-1")
    last = page.parts[-1]
    after = AskLog(cloud.who("b"), last.name)
    assert cloud.store.read(archive_pieces.grant_log, "h", after, cloud.keyring).parts == ()
    allowed = (cloud.who("b"), last.prefix, last.name)
    assert cloud.store.read(archive_pieces.may_read_log, "h", *allowed) == "local"
    with pytest.raises(Stale):
        cloud.store.read(archive_pieces.may_read_log, "h", cloud.who(), last.prefix, last.name)
    # What it reads stays, also when its base is deleted meanwhile.
    cloud.store.transact(backups.delete_backup, base, "project")
    cloud.look()
    assert not any(dropped for name, dropped in cloud.names().items() if name > "00")
    set_instance(cloud.store, reader, data_recorded=True)
    with pytest.raises(Stale):
        cloud.store.read(archive_pieces.grant_log, "h", AskLog(cloud.who("b")), cloud.keyring)


def test_pieces_before_the_oldest_base_go_and_those_behind_it_stay(cloud: Logs) -> None:
    cloud.keep(0, 1, 2, 3)
    first = cloud.base(stop=20)
    second = cloud.base(stop=50)
    trim = cloud.look()
    assert trim is not None
    assert not trim.whole
    assert cloud.names() == {"00": True, "01": False, "02": False, "03": False}
    listed = [(f"00000001{0:016X}", "t"), (f"00000001{1:016X}", "t"), (f"00000001{1:016X}", "dead")]
    gone = cloud.store.read(archive_work.doomed, trim, listed)
    assert gone == {listed[0], listed[2]}
    assert cloud.look() is None  # somebody is at it
    cloud.store.transact(archive_work.trimmed, trim, "me", "it does not answer", 5.0)
    assert "00" in cloud.names()
    trim = cloud.look()
    assert trim is not None
    cloud.store.transact(archive_work.trimmed, trim, "me", None, 0.0)
    assert cloud.names() == {"01": False, "02": False, "03": False}
    cloud.store.transact(backups.delete_backup, first, "project")
    cloud.look()
    assert cloud.names() == {"01": True, "02": True, "03": False}
    assert second


def test_an_archive_goes_with_its_instance_and_not_before(cloud: Logs) -> None:
    cloud.keep(0, 1)
    cloud.base(stop=5)
    archive = cloud.archive
    set_instance(cloud.store, cloud.instance, deleted=True, deleted_wall=1.0)
    trim = cloud.look(archive)
    assert trim is None or not trim.whole
    set_instance(cloud.store, cloud.instance, removed=True, settled=True, next_look=None)
    trim = cloud.look(archive)
    assert trim is not None
    assert trim.whole
    cloud.store.transact(archive_work.trimmed, trim, "me", None, 0.0)
    row = cloud.store.read(lambda tx: archives.ONE.first(tx, archive=archive))
    assert (row.removed, row.next_look) == (True, None)


def test_an_archive_is_looked_at_as_soon_as_a_reader_a_base_or_its_instance_has_gone(cloud: Logs) -> None:
    base, archive = cloud.base(stop=20), cloud.archive

    def wakes(tx: Callable[..., object], *args: object) -> bool:
        cloud.store.transact(archive_work.postpone_archive, archive, 3600.0)
        assert archive not in cloud.store.read(archive_work.due_archives, 9)
        cloud.store.transact(tx, *args)
        return archive in cloud.store.read(archive_work.due_archives, 9)

    assert wakes(instance_backups.look_at, base)
    assert wakes(backups.delete_backup, base, "project")
    loaded = cloud.store.read(load_instance, cloud.instance)
    assert loaded is not None
    set_instance(cloud.store, cloud.instance, deleted=True, deleted_wall=1.0)
    gone = {"deleted": True, "deleted_wall": 1.0, "settled": True, "next_look": None}
    gone |= {"removed": True, "removed_wall": 1.0}
    server = sa.update(servers).where(servers.c.id == loaded.server_id).values(gone)
    cloud.store.transact(lambda tx: tx.execute(server))
    assert wakes(instance_work.finish_instance, cloud.instance)
    trim = cloud.look(archive)
    assert trim is not None
    assert trim.whole


def test_a_base_is_made_by_itself_once_for_each_try(cloud: Logs) -> None:
    new = cloud.store.read(archive_work.base_wanted, cloud.archive, 0.0)
    assert new is not None
    assert new.made_by == "base:first"
    assert cloud.store.read(archive_work.base_wanted, cloud.archive, 1e9) is None  # it is too young
    named = msgspec.structs.replace(new, id="base", nonce="nonce")
    again = msgspec.structs.replace(new, id="again", nonce="other")
    make = {"keyring": cloud.keyring, "places": PLACES}
    assert cloud.store.transact(archive_work.make_base, cloud.archive, named, **make)
    cloud.store.transact(archive_work.make_base, cloud.archive, again, **make)
    assert [row.id for row in cloud.store.read(backups.list_backups, "project", limit=9)] == ["base"]
    assert cloud.store.read(archive_work.base_wanted, cloud.archive, 0.0) is None  # one is under way
    # Whoever asks for a backup now gets this one, which holds all that is there now.
    asked = msgspec.structs.replace(cloud.new(), limits=None)
    made = cloud.store.transact(cloud.create_tx, asked)
    assert (made.id, made.made_by, made.name) == ("base", "user", "nightly")
