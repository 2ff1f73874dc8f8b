"""Backups out of a store of objects and the recovery file, with no cloud: by us, and by stock tools."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest
from tests.backup_world import Upload, new_keyring

from unstuck.blobs import keys
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.manifest import digest, manifest_key
from unstuck.blobs.objects import FolderObjects
from unstuck.cli.main import run
from unstuck.core.backup.content import Frame, Parent, Position

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


class Bucket:
    """A store with one backup of a few files, and the recovery file that opens it."""

    FILES = {"PG_VERSION": b"15\n", "base/1/1259": os.urandom(20_000)}

    def __init__(self, folder: Path) -> None:
        self.keyring = new_keyring(folder)
        self.recovery = folder / "recovery-key.json"
        shutil.rmtree(folder / "keys")  # with the cloud gone, its own keys are gone too
        self.folder = folder / "store"
        self.folder.mkdir()
        self.objects = FolderObjects(self.folder)
        self.upload = self.add("b-1", archive(self.FILES))

    def add(self, backup_id: str, plain: bytes, parent: Upload | None = None, **says: object) -> Upload:
        project = self.keyring.new_project_key()
        key = self.keyring.new_backup_key(project)
        signer = keys.Signer.new()
        frame = Frame(
            cloud_id=self.keyring.public.cloud_id, project_id="p", instance_id="i", instance_name="shop",
            backup_id=backup_id, backup_name="nightly", attempt=1, nonce="n1", taken_at=1_700_000_000.0,
            recipients=key.recipients, key=key.wrapped, generation="g",
            parent=None if parent is None else Parent(parent.manifest.backup_id, parent.digest),
        )  # fmt: skip
        certificate = msgspec.json.encode(self.keyring.certify("host", signer.public)).decode()
        prefix = prefix_of(backup_id, 1, "n1")
        upload = Upload(frame, certificate, prefix, signer, key.recipient, plain)
        if parent is not None:
            says = {"start": parent.manifest.stop, "content": "wal", **says}
        upload.manifest = msgspec.structs.replace(upload.manifest, **says)
        for name, data in upload.objects.items():
            self.objects.put_new(name, data)
        signed = upload.signed()
        upload.digest = digest(signed)
        self.objects.put_new(manifest_key(prefix), signed)
        return upload

    def path(self, name: str) -> Path:
        return self.folder / self.upload.prefix / name

    def recover(self, *words: str) -> int:
        return run(["recover", "--from", str(self.folder), "--key", str(self.recovery), *words])


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def found_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_there_is_listed_from_the_manifests_alone(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bucket.recover() == 0
    said = capsys.readouterr().out
    assert "b-1  2023-11-14 22:13:20 UTC  postgresql 15.9" in said
    assert "instance shop (i)" in said
    assert "1 backup of cloud" in said


def test_a_backup_is_restored_exactly(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "new" / "data"
    assert bucket.recover("--restore", "b-1", "--to", str(target)) == 0
    assert found_in(target) == Bucket.FILES
    assert target.stat().st_mode & 0o777 == 0o700


def test_a_backup_is_restored_with_all_that_comes_before_it(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bucket.add("b-2", archive({"0001": b"one", "0002": b"half"}), bucket.upload)
    bucket.add("b-3", archive({"0002": b"two", "0003": b"three"}), first)
    assert bucket.recover() == 0
    assert "since b-2" in capsys.readouterr().out
    target = tmp_path / "data"
    assert bucket.recover("--restore", "b-3", "--to", str(target)) == 0
    found = found_in(target)
    settings = found.pop("postgresql.auto.conf")
    assert b"restore_command = 'cp restored-log/%f %p'" in settings
    assert found == {
        **Bucket.FILES, "recovery.signal": b"", "restored-log/0001": b"one", "restored-log/0002": b"two",
        "restored-log/0003": b"three",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["parent gone", "another parent", "gap"])
def test_a_chain_that_does_not_hold_together_is_listed_as_such_and_never_restored(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    first = bucket.add("b-2", archive({"0001": b"one"}), bucket.upload)
    if how == "another parent":
        first.digest = "f" * 64
    says = {"start": Position(1, "0/9")} if how == "gap" else {}
    bucket.add("b-3", archive({"0002": b"two"}), first, **says)
    if how == "parent gone":
        (bucket.folder / first.prefix / "manifest.json").unlink()
    assert bucket.recover() == 1
    assert "FAULT  b-3: " in capsys.readouterr().out
    assert bucket.recover("--restore", "b-3", "--to", str(tmp_path / "data")) == 1
    assert "cannot be restored" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def damage(bucket: Bucket, how: str) -> str:
    """Do something to the objects; what is to be said of it."""
    piece, manifest = bucket.path("00000001.zst.age"), bucket.path("manifest.json")
    match how:
        case "flipped bit":
            data = bytearray(piece.read_bytes())
            data[len(data) // 2] ^= 1
            piece.write_bytes(data)
            return "piece 1 is not the object that was written"
        case "missing":
            piece.unlink()
            return "1 of its pieces are missing"
        case "truncated":
            piece.write_bytes(piece.read_bytes()[:-1])
            return "1 of its pieces are missing or of another length"
        case "swapped":
            other = bucket.path("00000002.zst.age")
            first, second = piece.read_bytes(), other.read_bytes()
            piece.write_bytes(second)
            other.write_bytes(first)
            return "is"
        case "bit in the manifest":
            manifest.write_bytes(manifest.read_bytes().replace(b"shop", b"shoq"))
            return "not signed by this cloud"
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize("how", ["flipped bit", "missing", "truncated", "swapped", "bit in the manifest"])
def test_what_is_damaged_is_named_and_leaves_nothing_that_looks_restored(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    expected = damage(bucket, how)
    target = tmp_path / "out" / "data"
    assert bucket.recover("--restore", "b-1", "--to", str(target)) == 1
    assert expected in capsys.readouterr().err
    assert not target.exists()
    assert list((tmp_path / "out").iterdir() if (tmp_path / "out").exists() else []) == []


def test_another_clouds_recovery_file_believes_nothing_here(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = Bucket(tmp_path / "other")
    words = ["recover", "--from", str(bucket.folder), "--key", str(other.recovery)]
    assert run(words) == 1
    assert "FAULT" in capsys.readouterr().out
    assert run([*words, "--restore", "b-1", "--to", str(tmp_path / "data")]) == 1
    assert "not signed by this cloud" in capsys.readouterr().err


def test_an_archive_that_would_leave_its_folder_does_not(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.add("b-2", archive({"../escaped": b"x"}))
    assert bucket.recover("--restore", "b-2", "--to", str(tmp_path / "out" / "data")) == 1
    assert "not the archive it says" in capsys.readouterr().err
    assert not (tmp_path / "out" / "escaped").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--restore", "b-1"], "belong together"),
        (["--restore", "none", "--to", "/nonexistent/x"], "no manifest of it"),
        (["--list", "--restore", "b-1", "--to", "/nonexistent/x"], "not both"),
    ],
)
def test_what_was_asked_wrongly_is_answered_with_a_sentence(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert bucket.recover(*words) == 1
    assert said in capsys.readouterr().err


def test_a_folder_that_is_there_is_not_written_into(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bucket.recover("--restore", "b-1", "--to", str(tmp_path)) == 1
    assert "is there already" in capsys.readouterr().err


def test_the_page_on_stock_tools_says_commands_that_restore_and_check(bucket: Bucket, tmp_path: Path) -> None:
    """Exactly the page's commands, with Debian's age, zstd, jq and tar."""
    missing = [tool for tool in ("age", "zstd", "jq", "tar", "sha256sum") if shutil.which(tool) is None]
    assert not missing, f"scripts/setup installs {missing}"
    work = tmp_path / "elsewhere"
    shutil.copytree(bucket.folder, work)
    shutil.copy(bucket.recovery, work / "recovery-key.json")
    commands = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(commands) == 2
    said = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)], cwd=work, check=True, text=True,
        stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], "PREFIX": bucket.upload.prefix},
    )  # fmt: skip
    assert found_in(work / "restored") == Bucket.FILES
    assert said.stdout.count(": OK") == len(bucket.upload.chunks)
