"""What tests of backups share: keys, an instance in the store, and an agent's side of an attempt."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.blobs import keyring, keys, manifest
from unstuck.blobs.chunks import chunk_key, make_chunk
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.manifest import Manifest
from unstuck.blobs.stores import Places
from unstuck.core.backup.content import Datastore, Frame, Position
from unstuck.core.instance.want import Origin
from unstuck.core.server.data import Fence
from unstuck.store import identity
from unstuck.store.backup_rows import BackupRow, load_backup
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.compute import placements
from unstuck.store.schema.database import datastore_versions, datastores, instances
from unstuck.store.schema.identity import projects

PLACES = Places(("local",), "local")
_numbers = itertools.count(1)


def new_keyring(folder: Path) -> Keyring:
    """A cloud's keys, with its recovery file beside them."""
    keyring.ensure(folder / "keys", folder / "recovery-key.json")
    return keyring.load(folder / "keys")


def add_instance(tx: Tx, server_id: str, *, restores: str | None = None, project_id: str = "project") -> str:
    """An instance in a server, as creating one writes it; its guest's agent has registered once."""
    if tx.execute(sa.select(projects.c.id).where(projects.c.id == project_id)).first() is None:
        identity.create_project(tx, identity.Project(id=project_id, name=project_id))
    if tx.execute(sa.select(datastores.c.id)).first() is None:
        tx.execute(sa.insert(datastores).values(id="pg", name="postgresql", default_version_id="pg-15"))
        tx.execute(
            sa.insert(datastore_versions).values(
                id="pg-15",
                datastore_id="pg",
                name="15",
                manager="postgresql",
                version="15",
                image_id=None,
                active=True,
            )
        )
    instance_id = f"i-{next(_numbers)}"
    now = tx.now
    known: dict[str, Any] = dict(  # noqa: C408
            id=instance_id, project_id=project_id, user_id="user", name="shop", server_id=server_id,
            datastore_version_id="pg-15", flavor_id="1", ram_mb=64, volume_gb=1, port=5432, is_public=False,
            allowed_cidrs="[]", created=now.lease, created_wall=now.wall, updated_wall=now.wall,
            origin=msgspec.json.encode(Origin(backup_id=restores)).decode(), generation="g", restart=0,
            settings="{}", protected=False, deleted=False, restores=restores,
            data_recorded=restores is None, alive=True, seen_at=now.lease, seen_incarnation=0,
            seen_sequence=0, guest=1, guest_start="start", guest_former="[]", removed=False, settled=False,
            next_look=now.lease,
    )  # fmt: skip
    # What an instance has beside what matters here: numbers that count from 0.
    rest = {column.name: 0 for column in instances.c if not column.nullable and column.name not in known}
    tx.execute(sa.insert(instances).values(**known, **rest))
    return instance_id


def set_instance(store: Store, instance_id: str, **values: Any) -> None:
    store.transact(
        lambda tx: tx.execute(sa.update(instances).values(values).where(instances.c.id == instance_id))
    )


def fence_of(store: Store, server_id: str) -> Fence:
    def read(tx: Tx) -> Fence:
        query = sa.select(placements.c.generation, placements.c.epoch).where(
            placements.c.server_id == server_id, placements.c.state == "live"
        )
        row = tx.execute(query).one()
        return Fence(row.generation, row.epoch)

    return store.read(read)


def backup_row(store: Store, backup_id: str) -> BackupRow:
    found = store.read(load_backup, backup_id)
    assert found is not None
    return found


class Upload:
    """What a host writes for an attempt: pieces and, last, the manifest."""

    def __init__(
        self, frame: Frame, certificate: str, prefix: str, signer: keys.Signer, recipient: str,
        plain: bytes = b"all of the data" * 1000, chunk_size: int = 4096,
    ) -> None:  # fmt: skip
        self.prefix = prefix
        self.plain = plain
        pieces = [plain[at : at + chunk_size] for at in range(0, len(plain), chunk_size)]
        made = [make_chunk(index, piece, recipient) for index, piece in enumerate(pieces)]
        self.chunks = tuple(chunk for chunk, _ in made)
        self.objects = {chunk_key(prefix, chunk.index): data for chunk, data in made}
        self.manifest = Manifest(
            **{name: getattr(frame, name) for name in frame.__struct_fields__},
            datastore=Datastore("postgresql", "15", "15.9"), system_identifier="7300",
            start=Position(1, "0/2000028"), stop=Position(1, "0/2000100"), chunk_size=chunk_size,
            size=len(plain), chunks=self.chunks,
        )  # fmt: skip
        self.signer = signer
        self.digest = ""
        """Of the manifest that was written."""
        self.certificate = msgspec.json.decode(certificate, type=keys.Certificate)

    def signed(self, **changes: Any) -> bytes:
        """The manifest's object; ``changes`` are what a liar would have it say."""
        return manifest.sign(msgspec.structs.replace(self.manifest, **changes), self.signer, self.certificate)


def nonce() -> str:
    return secrets.token_hex(8)
