"""The store is set back under real processes: nothing is lost twice, and one accepted diff settles the rest.

The driver is the instant one: what is at stake is what store, agent and files on the host say.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import postgres
from tests.real.fault_cloud import FaultCloud, cloud_in, namespace, uploaded
from unstuck.blobs.images import folder as image_folder
from unstuck.cli import tiny
from unstuck.cli.cloud import connect
from unstuck.cli.doctor import doctor
from unstuck.cli.errors import CliError

pytestmark = [pytest.mark.timeout(600), pytest.mark.root]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with the tiny image in it."""
    return uploaded(tmp_path_factory.mktemp("set-back") / "state", "instant")


@pytest.fixture
def cloud(tmp_path: Path, template: Path) -> Iterator[FaultCloud]:
    shutil.copytree(template, tmp_path / "state")
    with cloud_in(tmp_path / "state", "instant") as made:
        yield made


def recovery(cloud: FaultCloud) -> dict[str, Any] | None:
    with connect(cloud.state) as admin:
        found: dict[str, Any] | None = admin.get("/unstuck/v1/recovery")["recovery"]
    return found


def until_heard(cloud: FaultCloud) -> dict[str, Any]:
    """The diff once every host has said what it holds."""

    def heard() -> dict[str, Any] | None:
        found = recovery(cloud)
        return found if found is not None and not found["waiting_for"] else None

    return cloud.until("recovery mode, and every host has spoken", heard)


def put_back(cloud: FaultCloud, copy: Path) -> None:
    for name in ("store.db-wal", "store.db-shm"):
        (cloud.state.root / name).unlink(missing_ok=True)
    shutil.copyfile(copy, cloud.state.store)


def copy_of(cloud: FaultCloud, target: Path) -> Path:
    """A copy of the living store, as a backup tool makes it; the next tick is waited for."""
    with (
        contextlib.closing(sqlite3.connect(cloud.state.store)) as source,
        contextlib.closing(sqlite3.connect(target)) as made,
    ):
        source.backup(made)
        tick = made.execute("SELECT tick FROM clock").fetchone()[0]
    mark = cloud.state.store_mark
    cloud.until("a later tick", lambda: json.loads(mark.read_bytes())["tick"] > tick + 1)
    return target


def upload(cloud: FaultCloud, name: str) -> str:
    with connect(cloud.state) as admin:
        body = {"name": name, "disk_format": "raw", "container_format": "bare"}
        image_id = str(admin.ask("POST", "/image/v2/images", json=body).json()["id"])
        headers = {"content-type": "application/octet-stream"}
        answer = admin.client.put(
            f"/image/v2/images/{image_id}/file", content=b"data" * 1000, headers=headers
        )
        assert answer.status_code == 204, answer.text
    return image_id


def accept(cloud: FaultCloud, diff_id: str, **more: Any) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert doctor(accept=diff_id, state=cloud.state.root, **more) == 0
    return text.getvalue()


def active(cloud: FaultCloud, name: str) -> str:
    made = cloud.create(name)
    cloud.until_status(made, "ACTIVE")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("record", [pytest.param("with", marks=pytest.mark.slow), "without"])
def test_an_sqlite_copy_put_back_loses_nothing_and_is_settled_by_one_diff(
    cloud: FaultCloud, tmp_path: Path, record: str
) -> None:
    """``without``: the control plane's record was put back with it, so that only the agent can tell."""
    cloud.start("control")
    cloud.start("host")
    kept, gone, off = active(cloud, "kept"), active(cloud, "gone"), active(cloud, "off")
    before = cloud.marker(kept)
    copy = copy_of(cloud, tmp_path / "copy.db")

    late, held = active(cloud, "late"), active(cloud, "held")
    cloud.delete(gone)
    cloud.agree_gone(gone)
    cloud.act(off, reboot={"type": "HARD"})
    cloud.until_status(off, "ACTIVE")
    image = upload(cloud, "late-image")
    addresses = {cloud.address(server) for server in (kept, late, held, off)}
    guests = {server: cloud.marker(server) for server in (kept, late, held, off)}
    assert all(guests.values())
    assert guests[kept] == before

    cloud.kill("control")
    put_back(cloud, copy)
    if record == "without":
        cloud.state.store_mark.unlink()
    cloud.start("control")
    found = until_heard(cloud)
    kinds = {(item["kind"], item["id"]) for item in found["items"]}
    [file] = [path.name for path in image_folder(cloud.state.root).iterdir() if path.name.startswith(image)]
    assert kinds == {
        ("server-unknown", late), ("server-unknown", held), ("server-missing", gone), ("image-file", file),
    }  # fmt: skip

    # What is not in dispute goes on by itself; what is, is shown, and nothing of it is touched.
    cloud.until_status(kept, "ACTIVE")
    cloud.until_status(late, "ACTIVE")
    new = active(cloud, "new")
    assert cloud.address(new) not in addresses
    cloud.delete(held)
    codes = [item["code"] for item in cloud.explain(held)["conditions"]]
    assert codes == ["disputed"]
    assert [item["code"] for item in cloud.explain(late)["conditions"]] == ["disputed"]
    with pytest.raises(CliError, match="has changed"):
        accept(cloud, found["id"])
    cloud.until_status(off, "ACTIVE")
    cloud.act(off, reboot={"type": "HARD"})
    cloud.until_status(off, "ACTIVE")
    assert cloud.marker(off) != guests[off], "a reboot after the copy was put back is a reboot"
    assert {server: cloud.marker(server) for server in (kept, late, held)} == {
        server: guests[server] for server in (kept, late, held)
    }

    said = accept(cloud, until_heard(cloud)["id"])
    assert "Settled" in said
    assert recovery(cloud) is None
    cloud.agree_gone(gone)
    cloud.agree_gone(held)
    cloud.until_status(late, "ACTIVE")
    assert cloud.marker(late) == guests[late]
    assert (cloud.state.root / "blobs" / "set-aside" / file).exists(), "data that nobody names is kept"
    for server in (kept, late, off, new):
        cloud.delete(server)
    for server in (kept, late, off, new):
        cloud.agree_gone(server)


@pytest.mark.slow
def test_what_the_store_had_lost_can_be_given_up(cloud: FaultCloud, tmp_path: Path) -> None:
    cloud.start("control")
    cloud.start("host")
    copy = copy_of(cloud, tmp_path / "copy.db")
    late = active(cloud, "late")
    cloud.kill("control")
    put_back(cloud, copy)
    cloud.start("control")
    found = until_heard(cloud)
    with pytest.raises(CliError, match="is no server that the store had lost"):
        accept(cloud, found["id"], give_up=["00000000-0000-4000-8000-000000000000"])
    assert cloud.marker(late)
    accept(cloud, found["id"], give_up=[late])
    cloud.agree_gone(late)


@pytest.mark.slow
def test_a_restart_of_the_control_plane_is_no_set_back(cloud: FaultCloud) -> None:
    cloud.start("control")
    cloud.start("host")
    server = active(cloud, "web")
    guest = cloud.marker(server)
    for _ in range(2):
        cloud.kill("control")
        cloud.start("control")
        cloud.until_status(server, "ACTIVE")
        assert recovery(cloud) is None
    assert cloud.marker(server) == guest
    assert cloud.state.store_mark.exists()
    assert json.loads((cloud.state.host / "mark.json").read_bytes())["generation"] == 1


@pytest.mark.slow
@pytest.mark.xdist_group("qemu")
@pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU")
def test_a_real_guest_that_the_store_had_lost_runs_on_and_is_adopted(tmp_path: Path, template: Path) -> None:
    shutil.copytree(template, tmp_path / "state")
    with namespace():
        cloud = FaultCloud(tmp_path / "state", "qemu")
        try:
            cloud.start("control")
            cloud.start("host")
            copy = copy_of(cloud, tmp_path / "copy.db")
            late = active(cloud, "late")
            guest, address = cloud.one(late), cloud.address(late)
            cloud.kill("control")
            put_back(cloud, copy)
            cloud.start("control")
            found = until_heard(cloud)
            assert [(item["kind"], item["id"]) for item in found["items"]] == [("server-unknown", late)]
            cloud.until_status(late, "ACTIVE")
            accept(cloud, until_heard(cloud)["id"])
            cloud.until_status(late, "ACTIVE")
            assert cloud.one(late) == guest, "the same process, untouched"
            assert cloud.address(late) == address
            cloud.agree()
            cloud.delete(late)
            cloud.agree_gone(late)
        finally:
            cloud.close()


@pytest.mark.slow
@pytest.mark.skipif(postgres.programs() is None, reason="PostgreSQL's server is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network of its own")
@pytest.mark.parametrize("how", ["copied", "recovered"])
def test_a_postgresql_put_back_loses_nothing_and_is_settled_by_one_diff(
    cloud: FaultCloud, tmp_path: Path, how: str
) -> None:
    """``copied``: the data directory as it was, the same cluster and timeline; only agents and the control
    plane's record can tell. ``recovered``: as from a base backup, on a timeline of its own."""
    with postgres.controlled(durable=False) as server:
        # These are of another store, of which the tests above know.
        cloud.state.store_mark.unlink()
        shutil.rmtree(cloud.state.root / "blobs")
        cloud.environment["UNSTUCK_STORE"] = postgres.url(server.address, "postgres")
        cloud.start("control")
        with connect(cloud.state) as admin:
            image = tiny.built(cloud.state)
            assert image is not None
            tiny.upload(admin, image)
        cloud.start("host")
        kept = active(cloud, "kept")
        server.stop()
        data = server.folder / "data"
        shutil.copytree(data, tmp_path / "data", symlinks=True)
        server.start()
        cloud.until("the store is back", lambda: cloud.status(kept) == "ACTIVE")
        late = active(cloud, "late")
        address = cloud.address(late)
        guests = {made: cloud.marker(made) for made in (kept, late)}
        time.sleep(1.1)  # the record is written once a tick

        cloud.kill_anyhow("control")
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "data", data, symlinks=True)
        if how == "recovered":
            (data / "recovery.signal").touch()
            with (data / "postgresql.auto.conf").open("a") as settings:
                settings.write("restore_command = 'false'\n")
        for path in [data, *data.rglob("*")]:
            shutil.chown(path, "postgres", "postgres")
        data.chmod(0o700)
        server.start()
        cloud.start("control")
        found = until_heard(cloud)
        assert [(item["kind"], item["id"]) for item in found["items"]] == [("server-unknown", late)]
        if how == "recovered":
            assert found["generation"] >= 2
        new = active(cloud, "new")
        assert cloud.address(new) != address
        assert {made: cloud.marker(made) for made in (kept, late)} == guests
        with connect(cloud.state) as admin:
            admin.ask("POST", "/unstuck/v1/recovery/accept", json={"id": until_heard(cloud)["id"]})
        assert recovery(cloud) is None
        cloud.until_status(late, "ACTIVE")
        assert cloud.marker(late) == guests[late]
        for made in (kept, late, new):
            cloud.delete(made)
        for made in (kept, late, new):
            cloud.until_status(made, "GONE")
        cloud.kill_anyhow("control")
        cloud.kill("host")
