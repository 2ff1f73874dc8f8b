"""A moment of an instance out of a store of objects and the recovery file, with no cloud."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_recover import Bucket, archive, found_in

from unstuck.blobs import archive as logs
from unstuck.blobs import keys, moments
from unstuck.blobs.chunks import make_chunk
from unstuck.core.archive import ledger
from unstuck.core.archive.data import Base, Kept, Mark, Piece
from unstuck.core.backup.content import Datastore
from unstuck.core.time import iso_seconds

WALL = 1_700_000_000.0
SEGMENT = 0x1000000


def place(number: int, offset: int = 0) -> str:
    return f"{number * SEGMENT + offset:016X}"


class Logged(Bucket):
    """Its backup ends in segment 2; the log goes on in segments 2 to 5, a minute each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.upload = self.add("b-2", archive(self.FILES), archive="i-1")
        self.key = self.keyring.new_backup_key(self.keyring.new_project_key())
        for number in range(2, 6):
            self.keep(number, WALL + 60 * number, marks=((10.0, 0x800),))

    def keep(
        self, number: int, wall: float, *, marks: tuple[tuple[float, int], ...] = (), of: str = "i-1"
    ) -> Path:
        name = f"00000001000000000000000{number}"
        folder = logs.folder_of(f"archives/i/{of[-1]:0>4}-n", name, f"t{number}")
        made = [make_chunk(0, b"segment %d of %s" % (number, of.encode()), self.key.recipient)]
        kept = Kept(
            prefix=folder, archive_id=of, instance_id="i", generation="g",
            datastore=Datastore("postgresql", "15", ""), chunk_size=4 << 20,
            piece=Piece(name=name, timeline=1, start=place(number), stop=place(number + 1),
                        size=made[0][0].length, digest="d" * 64),
            chunks=tuple(chunk for chunk, _ in made), recipients=self.key.recipients, key=self.key.wrapped,
            kept_at=wall + 50, marks=tuple(Mark(wall + at, 1, place(number, end)) for at, end in marks),
        )  # fmt: skip
        signer = keys.Signer.new()
        for chunk, data in made:
            self.objects.put_new(logs.part_key(folder, chunk.index), data)
        certificate = self.keyring.certify("host", signer.public)
        self.objects.put_new(logs.manifest_key(folder), logs.sign(kept, signer, certificate))
        return self.folder / folder

    def to(self, at: float, target: Path) -> int:
        return self.recover("--restore", "i", "--at", iso_seconds(at), "--to", str(target))


@pytest.fixture
def bucket(tmp_path: Path) -> Logged:
    return Logged(tmp_path)


def test_a_moment_is_a_base_and_the_log_up_to_what_was_known_then(
    bucket: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bucket.recover() == 0
    span = f"i  any moment from {iso_seconds(WALL + 130)} to {iso_seconds(WALL + 350)}"
    assert span in capsys.readouterr().out
    assert bucket.to(WALL + 60 * 4 + 20, tmp_path / "data") == 0
    found = found_in(tmp_path / "data")
    settings = found.pop("postgresql.auto.conf").decode()
    assert "recovery_target_lsn = '0/4000800'\nrecovery_target_inclusive = off\n" in settings
    assert found == {
        **Bucket.FILES, "recovery.signal": b"",
        **{f"restored-log/00000001000000000000000{n}": b"segment %d of i-1" % n for n in (2, 3, 4, 5)},
    }  # fmt: skip


def test_the_last_moment_of_all_takes_the_log_to_its_end(bucket: Logged, tmp_path: Path) -> None:
    assert bucket.to(WALL + 350, tmp_path / "data") == 0
    assert "recovery_target_lsn" not in (tmp_path / "data" / "postgresql.auto.conf").read_text()


@pytest.mark.parametrize(
    ("at", "said"),
    [(100.0, "the earliest moment is"), (3600.0, "the latest moment is")],
    ids=["before", "after"],
)
def test_what_is_not_there_is_refused_with_what_is(
    bucket: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: float, said: str
) -> None:
    assert bucket.to(WALL + at, tmp_path / "data") == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("how", ["part", "manifest", "forged"])
def test_behind_a_piece_that_is_missing_or_not_ours_nothing_can_be_restored(
    bucket: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    (folder,) = bucket.folder.glob("archives/i/*/000000010000000000000004/t4")
    match how:
        case "part":
            (folder / "00000000.zst.age").unlink()
        case "manifest":
            (folder / "piece.json").unlink()
        case _:
            path = folder / "piece.json"
            path.write_bytes(path.read_bytes().replace(b"postgresql", b"postgresqm"))
    assert bucket.to(WALL + 60 * 5 + 20, tmp_path / "data") == 1
    assert "cannot be restored to that moment" in capsys.readouterr().err
    assert bucket.to(WALL + 60 * 3 + 20, tmp_path / "data") == 0


def test_a_part_that_was_flipped_is_named_and_leaves_nothing(
    bucket: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (part,) = bucket.folder.glob("archives/i/*/000000010000000000000003/t3/*.age")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert bucket.to(WALL + 60 * 4 + 20, tmp_path / "data") == 1
    assert "is not the object that was written" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_log_of_another_history_is_not_replayed_on_a_base(bucket: Logged, tmp_path: Path) -> None:
    """The volume was set back: the next archive has other data in places that the first one has, too."""
    for number in range(2, 5):
        bucket.keep(number, WALL + 1000 + 60 * number, of="i-2")
    assert bucket.to(WALL + 1000 + 60 * 4, tmp_path / "data") == 1
    assert bucket.to(WALL + 60 * 4 + 20, tmp_path / "then") == 0
    then = found_in(tmp_path / "then")
    assert then["restored-log/000000010000000000000004"] == b"segment 4 of i-1"


def test_a_moment_that_is_none_is_answered_with_a_sentence(
    bucket: Logged, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bucket.recover("--restore", "i", "--at", "noon", "--to", "/nonexistent/x") == 1
    assert "is not a time" in capsys.readouterr().err
    assert bucket.recover("--at", "2026-11-30T12:00:00Z") == 1
    assert "--at needs" in capsys.readouterr().err


def test_a_silence_is_a_hole_also_when_it_became_known_with_the_next_piece() -> None:
    """Segment 4 was begun to be kept before anybody knew that its last mark would be the last for long."""
    version, wall = Datastore("postgresql", "15", ""), WALL

    def kept(number: int, at: float, *marks: Mark) -> Kept:
        piece = Piece(name=f"{number:024X}", timeline=1, start=place(number), stop=place(number + 1), size=1,
                      digest="d" * 64)  # fmt: skip
        return Kept(
            prefix="p", archive_id="i-1", instance_id="i", generation="g", datastore=version, piece=piece,
            chunk_size=1, chunks=(), recipients=(), key="", kept_at=wall + at, marks=marks,
        )  # fmt: skip

    last = Mark(wall + 60, 1, place(4, 0x800))
    held = msgspec.structs.replace(last, held=wall + 70)
    after = Mark(wall + 300, 1, place(6, 0x800))
    run = [
        kept(4, 65.0, last), kept(5, 200.0, held), kept(6, 310.0, held, after),
    ]  # fmt: skip
    base = Base("b", 1, place(4), wall)
    found = ledger.windows(moments._archive("i-1", run, [base]))
    spans = [(round(one.earliest - wall), round(one.latest - wall)) for one in found]
    assert spans == [(60, 70), (200, 200), (300, 310)]
