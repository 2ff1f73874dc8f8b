"""Backups that lie in a store and are no rows (any more) are imported by their manifests."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_cloud import Cloud
from database_setup import Trove
from tests.backup_world import Upload
from tests.database_site import DatabaseSite

from unstuck.blobs import keyring, keys
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.manifest import digest, manifest_key
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores, make_folder
from unstuck.core.backup.content import Datastore, Frame, Parent
from unstuck.store.cloud_keys import ensure_project_key
from unstuck.store.engine import Store


class Lying:
    """Writes whole backups that no row knows of."""

    def __init__(self, store: Store, stores: Stores, ring: Keyring) -> None:
        self.store = store
        self.stores = stores
        self.ring = ring

    def add(self, project: str, parent: Upload | None = None, **says: Any) -> Upload:
        own = self.store.transact(ensure_project_key, project, self.ring)
        key = self.ring.new_backup_key(own)
        backup_id = str(uuid.uuid4())
        signer = keys.Signer.new()
        frame = Frame(
            cloud_id=self.ring.public.cloud_id, project_id=project, instance_id=str(uuid.uuid4()),
            instance_name="shop", backup_id=backup_id, backup_name="nightly", attempt=1,
            nonce=(name := uuid.uuid4().hex[:16]),
            taken_at=1_700_000_000.0, recipients=key.recipients, key=key.wrapped, generation="g",
            parent=None if parent is None else Parent(parent.manifest.backup_id, parent.digest),
        )  # fmt: skip
        certificate = msgspec.json.encode(self.ring.certify("host", signer.public)).decode()
        upload = Upload(frame, certificate, prefix_of(backup_id, 1, name), signer, key.recipient)
        says = {"datastore": Datastore("postgresql", "17", "17.6"), **says}
        upload.manifest = msgspec.structs.replace(upload.manifest, **says)
        data = upload.signed()
        upload.digest = digest(data)
        for name, value in {**upload.objects, manifest_key(upload.prefix): data}.items():
            self.stores.objects("local").put_new(name, value)
        return upload


@pytest.fixture
def lying(cloud: Cloud, store: Store, tmp_path: Path) -> Lying:
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery.json")
    make_folder(tmp_path / "objects")
    stores = Stores(tmp_path / "objects", tmp_path / "backup-stores.json")
    ring = keyring.load(tmp_path / "keys")
    cloud.app.app.extra["backups"] = BackupSite(stores, ring)
    return Lying(store, stores, ring)


@pytest.fixture
def site(lying: Lying, store: Store, cloud: Cloud) -> DatabaseSite:
    made = DatabaseSite(store)
    made.host.wake = cloud.app.app.notifier.wake
    return made


def version(trove: Trove) -> str:
    return str(trove.get("/datastores/postgresql/versions")["versions"][0]["id"])


def asked(trove: Trove, where: str, **more: Any) -> dict[str, Any]:
    found = {"remote_location": where, "local_datastore_version_id": version(trove), "size": 0.1, **more}
    return {"backup": {"name": "back", "restore_from": found}}


def test_what_is_imported_is_a_backup_like_any_other(trove: Trove, site: DatabaseSite, lying: Lying) -> None:
    upload = lying.add(trove.project)
    made = trove.post("/backups", asked(trove, f"local/{upload.prefix}"))["backup"]
    assert (made["id"], made["status"]) == (upload.manifest.backup_id, "RESTORED")
    assert made["locationRef"] == f"local/{upload.prefix}"
    assert "imported from local/" in made["unstuck"]["reason"]
    restored = trove.post("/instances", site.body(restorePoint={"backupRef": made["id"]}), 200)
    assert restored["instance"]["id"]
    there = trove.refused(
        "POST", "/backups", 409, "conflict", json=asked(trove, f"local/{upload.prefix}/manifest.json")
    )
    assert "there already" in there
    assert trove.ask("DELETE", f"/backups/{made['id']}").status_code == 202
    gone = trove.refused("POST", "/backups", 409, "conflict", json=asked(trove, f"local/{upload.prefix}"))
    assert "was deleted" in gone


def test_an_incremental_one_needs_its_parent_first(trove: Trove, lying: Lying) -> None:
    parent = lying.add(trove.project)
    child = lying.add(trove.project, parent, content="wal")
    where = asked(trove, f"local/{child.prefix}")
    needs = trove.refused("POST", "/backups", 409, "conflict", json=where)
    assert f"it needs backup {parent.manifest.backup_id}" in needs
    trove.post("/backups", asked(trove, f"local/{parent.prefix}"))
    assert trove.post("/backups", where)["backup"]["parent_id"] == parent.manifest.backup_id


def test_another_projects_is_not_there_but_for_an_operator(
    trove: Trove, operator: Trove, lying: Lying
) -> None:
    upload = lying.add(operator.project)
    where = asked(trove, f"local/{upload.prefix}")
    assert "no backup of this project" in trove.missing("POST", "/backups", json=where)
    theirs = lying.add(trove.project)
    made = operator.post("/backups", asked(operator, f"local/{theirs.prefix}"))["backup"]
    assert made["project_id"] == trove.project
    assert trove.get(f"/backups/{made['id']}")["backup"]["status"] == "RESTORED"


def test_what_is_not_whole_or_not_ours_is_refused_and_changes_nothing(trove: Trove, lying: Lying) -> None:
    lost, forged, old = (lying.add(trove.project) for _ in range(3))
    other = lying.add(trove.project, datastore=Datastore("postgresql", "9", "9.6"))
    root = Path(lying.stores.objects("local").root)  # type: ignore[attr-defined]
    (root / lost.prefix / "00000001.zst.age").unlink()
    manifest = root / forged.prefix / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"shop", b"shoq"))
    (root / old.prefix / "manifest.json").unlink()
    for where, word in (
        (f"local/{lost.prefix}", "pieces are missing"),
        (f"local/{forged.prefix}", "not signed by this cloud"),
        (f"local/{old.prefix}", "no manifest"),
        (f"elsewhere/{lost.prefix}", "no store is called"),
        ("https://swift.example/v1/backups/x", "remote_location"),
        (f"local/../{lost.prefix}", "remote_location"),
        (f"local/{other.prefix}", "the backup is of postgresql 9"),
    ):
        assert word in trove.bad("POST", "/backups", json=asked(trove, where)), where
    assert "backup.instance" in trove.bad(
        "POST", "/backups", json={"backup": {**asked(trove, "x")["backup"], "instance": str(uuid.uuid4())}}
    )
    assert trove.get("/backups")["backups"] == []
