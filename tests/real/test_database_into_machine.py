"""Restored into a virtual machine, exactly, from a folder and from S3; and a machine whose clock is an hour
off, ahead and behind, is restored, healthy, and backed up like any other."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import proves
from tests.real.container_stage import why_not
from tests.real.database_cloud import DatabaseCloud, Instance, database_cloud, login
from tests.s3_server import S3Server, s3_is_built
from unstuck.cli import guests
from unstuck.host import cpio, dbkernel
from unstuck.host.built import file_entry

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers"),
    pytest.mark.timeout(1800),
]
EMULATED = 900.0
"""Seconds for what a machine does under TCG."""
START = b"chroot /root /usr/lib/unstuck/init &"


def with_clock(built: Path, folder: Path, hours: int) -> Path:
    """The image, with an initramfs that sets its machine's clock before anything of ours runs."""
    shutil.copytree(built, folder)
    script = dbkernel.script()
    assert START in script
    wrong = b"date -s @$(( $(date +%%s) + %d ))\n" % (hours * 3600)
    archive = cpio.Archive()
    archive.file("init", script.replace(START, wrong + START), 0o755)
    with (folder / dbkernel.RAMDISK).open("ab") as file:
        file.write(archive.packed())  # the kernel unpacks one archive after the other
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["ramdisk"] = file_entry(folder / dbkernel.RAMDISK, "ari")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(params=[1, -1], ids=["ahead", "behind"])
def hours(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def cloud(database_image: Path, tmp_path: Path, hours: int) -> Iterator[DatabaseCloud]:
    image = with_clock(database_image, tmp_path / "image", hours)
    with (
        tempfile.TemporaryDirectory(prefix="unstuck-db-") as root,
        database_cloud(Path(root), image) as made,
    ):
        made.settings(claim=120.0, starting=120.0, copying=120.0, finishing=120.0, uploading=120.0)
        yield made


@proves("B9", ends="a machine with such a clock is restored, exact and HEALTHY; its backup is COMPLETED")
def test_a_database_is_restored_into_a_machine_whose_clock_is_an_hour_off(
    cloud: DatabaseCloud, hours: int, tmp_path: Path
) -> None:
    shop = cloud.ready("shop")
    if hours < 0:
        _restored(cloud, shop, hours)
        return
    if not s3_is_built():
        pytest.skip("the S3 server for tests is not installed: scripts/s3-server build (make test does it)")
    server = S3Server(tmp_path / "s3")
    try:
        cloud.send_to("far", server.bucket("backups"))
        _restored(cloud, shop, hours)
    finally:
        server.close()


def _restored(made: DatabaseCloud, shop: Instance, hours: int) -> None:
    least = len(shop.acknowledged())
    backup = shop.completed(shop.request(), EMULATED)["id"]  # the writer writes all the time
    made.cloud.kill("host")
    made.cloud.environment["UNSTUCK_CONTAINERS"] = "off"
    made.cloud.start("host")
    restored = shop.restore(backup, "again", EMULATED)
    assert len(guests.running(made.cloud.state)) == 1
    restored.is_exact(shop, least)
    with login(restored.address, "shop") as connection:
        (ahead,) = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp()) - extract(epoch FROM %s::timestamptz)",
            [_now(shop)],
        ).fetchone() or (0,)
        assert abs(float(ahead) - hours * 3600) < 300
        connection.execute("CREATE TABLE since AS SELECT 1 AS n")
    restored.completed(restored.request("of the machine"), EMULATED)
    made.cloud.kill("host")
    del made.cloud.environment["UNSTUCK_CONTAINERS"]
    made.cloud.start("host")
    for each in made.backups_of(restored.id):
        made.api.ask("DELETE", f"/backups/{each['id']}")
    made.api.ask("DELETE", f"/instances/{restored.id}")
    made.cloud.until("the machine is gone", lambda: not guests.running(made.cloud.state))
    shop.delete()
    made.cloud.agree()


def _now(shop: Instance) -> str:
    with login(shop.address, "shop") as connection:
        return str((connection.execute("SELECT clock_timestamp()").fetchone() or ("",))[0])
