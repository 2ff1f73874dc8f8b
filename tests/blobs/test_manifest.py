"""Pieces and manifest: what was backed up comes back exactly, and whatever was changed is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from unstuck.blobs import keys, manifest
from unstuck.blobs.chunks import CHUNK_SIZE, Chunk, Damaged, chunk_key, make_chunk, open_chunk, open_into
from unstuck.blobs.manifest import Datastore, Manifest, ManifestError, Position
from unstuck.blobs.objects import Entry, FolderObjects

PROJECT, RECOVERY, BACKUP = (keys.new_identity() for _ in range(3))
CLOUD, HOST = keys.Signer.new(), keys.Signer.new()
CERTIFICATE = CLOUD.certify("host-1", HOST.public)
DATA = os.urandom(CHUNK_SIZE) + b"the rest"


def chunks_of(data: bytes) -> list[tuple[Chunk, bytes]]:
    pieces = [data[at : at + CHUNK_SIZE] for at in range(0, len(data), CHUNK_SIZE)]
    return [make_chunk(n, piece, keys.recipient_of(BACKUP)) for n, piece in enumerate(pieces)]


CHUNKS = chunks_of(DATA)


def a_manifest(**changes: object) -> Manifest:
    recipients = (keys.recipient_of(PROJECT), keys.recipient_of(RECOVERY))
    made = Manifest(
        cloud_id="c", project_id="p", instance_id="i", instance_name="db", backup_id="b", backup_name="daily",
        attempt=1, nonce="n", datastore=Datastore("postgresql", "15", "15.8"), system_identifier="7",
        start=Position(1, "0/2000028"), stop=Position(1, "0/2000100"), chunk_size=CHUNK_SIZE, size=len(DATA),
        taken_at=1_700_000_000.0, recipients=recipients, key=keys.wrap(BACKUP, list(recipients)),
        chunks=tuple(chunk for chunk, _ in CHUNKS),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def signed(made: Manifest) -> bytes:
    return manifest.sign(made, HOST, CERTIFICATE)


def test_what_was_signed_is_read_again() -> None:
    made = a_manifest()
    assert manifest.read(signed(made), CLOUD.public, made.prefix) == made


@pytest.mark.parametrize("identity", [PROJECT, RECOVERY], ids=["project", "recovery"])
def test_project_and_recovery_key_each_open_the_data(identity: str) -> None:
    made = a_manifest()
    secret = keys.unwrap(made.key, identity)
    assert b"".join(open_chunk(chunk, sealed, secret) for chunk, sealed in CHUNKS) == DATA


def test_another_projects_key_opens_nothing() -> None:
    with pytest.raises(keys.BadKey):
        keys.unwrap(a_manifest().key, keys.new_identity())


def test_every_flipped_byte_of_a_manifest_is_noticed() -> None:
    made = a_manifest()
    whole = signed(made)
    for at in range(0, len(whole), 7):
        bad = bytearray(whole)
        bad[at] ^= 1
        with pytest.raises(ManifestError):
            manifest.read(bytes(bad), CLOUD.public, made.prefix)


def test_a_manifest_that_another_cloud_signed_is_forged() -> None:
    made, other = a_manifest(), keys.Signer.new()
    forged = manifest.sign(made, HOST, other.certify("host-1", HOST.public))
    with pytest.raises(ManifestError, match="not signed by this cloud"):
        manifest.read(forged, CLOUD.public, made.prefix)


def test_a_certificate_of_one_host_does_not_serve_another_key() -> None:
    made, thief = a_manifest(), keys.Signer.new()
    with pytest.raises(ManifestError):
        manifest.read(manifest.sign(made, thief, CERTIFICATE), CLOUD.public, made.prefix)


def test_a_manifest_in_another_backups_place_is_refused() -> None:
    with pytest.raises(ManifestError, match="another backup"):
        manifest.read(signed(a_manifest()), CLOUD.public, "backups/other/0001-n")


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": ()},
        {"chunks": tuple(reversed([chunk for chunk, _ in CHUNKS]))},
        {"chunks": (CHUNKS[0][0],)},
        {"size": len(DATA) + 1},
        {"chunk_size": 1000},
    ],
)
def test_a_manifest_that_is_not_sound_is_never_signed(changes: dict[str, object]) -> None:
    with pytest.raises(ManifestError):
        signed(a_manifest(**changes))


@pytest.mark.parametrize("what", ["flipped", "truncated", "swapped", "empty", "wrong key"])
def test_a_damaged_piece_is_named(what: str) -> None:
    (first, sealed), (_, other) = CHUNKS
    secret = BACKUP
    match what:
        case "flipped":
            sealed = sealed[:100] + bytes([sealed[100] ^ 1]) + sealed[101:]
        case "truncated":
            sealed = sealed[:-1]
        case "swapped":
            sealed = other
        case "empty":
            sealed = b""
        case _:
            secret = keys.new_identity()
    with pytest.raises(Damaged, match="piece 0"):
        open_chunk(first, sealed, secret)
    with pytest.raises(Damaged, match="piece 0"):
        open_into(first, sealed, secret, bytearray(CHUNK_SIZE))


def test_pieces_are_opened_one_after_the_other_into_the_same_memory() -> None:
    memory = bytearray(CHUNK_SIZE)
    assert b"".join(bytes(open_into(chunk, sealed, BACKUP, memory)) for chunk, sealed in CHUNKS) == DATA


@pytest.mark.parametrize("length", [-1, 1, 1000])
def test_a_piece_whose_length_is_not_the_manifests_is_refused(length: int) -> None:
    """With every digest right but the plain data's length."""
    chunk, sealed = CHUNKS[0]
    other = msgspec.structs.replace(chunk, length=chunk.length + length)
    for memory in (bytearray(CHUNK_SIZE), bytearray(10)):
        with pytest.raises(Damaged):
            open_into(other, sealed, BACKUP, memory)


def test_a_piece_that_would_unpack_to_more_than_a_piece_is_refused() -> None:
    bomb, sealed = make_chunk(0, bytes(CHUNK_SIZE * 40), keys.recipient_of(BACKUP))
    with pytest.raises(Damaged):
        open_chunk(bomb, sealed, BACKUP)
    with pytest.raises(Damaged):
        open_into(bomb, sealed, BACKUP, bytearray(CHUNK_SIZE))


def test_missing_and_short_objects_are_told() -> None:
    made = a_manifest()
    names = [chunk_key(made.prefix, chunk.index) for chunk in made.chunks]
    whole = [Entry(name, chunk.sealed_length) for name, chunk in zip(names, made.chunks, strict=True)]
    assert manifest.missing(made, whole) == []
    assert manifest.missing(made, whole[1:]) == [names[0]]
    assert manifest.missing(made, [whole[0], Entry(names[1], 3)]) == [names[1]]


def test_a_backup_is_restored_with_stock_tools_alone(tmp_path: Path) -> None:
    for tool in ("age", "zstd"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    made, store = a_manifest(), FolderObjects(tmp_path)
    for chunk, sealed in CHUNKS:
        store.put_new(chunk_key(made.prefix, chunk.index), sealed)
    store.put_new(manifest.manifest_key(made.prefix), signed(made))
    (tmp_path / "recovery.key").write_text(RECOVERY + "\n")
    script = """
    set -euo pipefail
    key='import json, sys; print(json.loads(json.load(sys.stdin)["manifest"])["key"])'
    python3 -c "$key" < manifest.json | base64 -d | age -d -i "$1" > backup.key
    for piece in *.zst.age; do age -d -i backup.key "$piece" | zstd -dc; done > base.tar
    """
    place = tmp_path / made.prefix
    subprocess.run(["bash", "-c", script, "restore", str(tmp_path / "recovery.key")], cwd=place, check=True)
    assert (place / "base.tar").read_bytes() == DATA
