"""What people ask for while a database is backed up, and what happens to the control plane's own store: real
processes; delete wins, the rest waits its turn or cancels the backup and says so."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.proof import proves
from tests.real.database_cloud import DatabaseCloud, Instance, spin
from tests.real.test_set_back import accept, copy_of, put_back, recovery

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(400),
]


@proves("B12", ends="the same where its agent is frozen: that one finds nothing to do when it is thawed")
def test_a_backup_deleted_while_its_agent_is_frozen(made: DatabaseCloud, shop: Instance) -> None:
    backup, holds = shop.held("copying")
    shop.cloud.until("a piece is there", lambda: made.objects().list(f"backups/{backup}"))
    agent = shop.hold(shop.agent())
    holds[0].go_on()
    shop.api.ask("DELETE", f"/backups/{backup}")
    assert shop.is_unknown(backup)
    shop.cloud.until(
        "its objects are gone", lambda: not made.objects().list(f"backups/{backup}"), seconds=120.0
    )
    agent.go_on()
    shop.free()
    assert shop.is_unknown(backup)
    assert not made.objects().list(f"backups/{backup}")


@proves("B13", ends="the restore completes, exact; the objects go when it has")
def test_a_backup_deleted_while_it_is_restored_from(made: DatabaseCloud, shop: Instance) -> None:
    backup = shop.request()
    least = len(shop.acknowledged())
    shop.completed(backup)
    restored = made.create("restored", backup)
    restored.find_server()
    spin(shop.cloud, "it unpacks", lambda: bool(restored.named("Unpacks a backup")), 90.0)
    held = restored.hold(restored.agent())
    shop.api.ask("DELETE", f"/backups/{backup}")
    assert shop.is_unknown(backup)
    refused = shop.api.cloud.client.post(
        f"{shop.api.base}/instances",
        json={"instance": {"name": "late", "flavorRef": shop.api.flavor(None, 256), "volume": {"size": 1},
                           "restorePoint": {"backupRef": backup}}},
    )  # fmt: skip
    assert refused.status_code in (400, 404), refused.text
    held.go_on()
    restored.until_healthy()
    restored.is_exact(shop, least)
    shop.cloud.until("its objects are gone", lambda: not made.objects().list(f"backups/{backup}"))
    restored.delete()
    shop.free()


@pytest.mark.parametrize("agent", ["alive", "dead"])
@proves("T15", ends="FAILED saying so; the instance is gone, its finished backups stay")
def test_an_instance_deleted_during_its_backup(made: DatabaseCloud, shop: Instance, agent: str) -> None:
    kept = shop.completed(shop.request("kept"))["id"]
    backup, holds = shop.held("copying")
    if agent == "dead":
        shop.hold(shop.init)  # which would start another
        shop.kill_agent()
    shop.api.ask("DELETE", f"/instances/{shop.id}")
    for hold in holds:
        hold.go_on()
    shop.failed(backup, "the instance was deleted")
    assert shop.writer is not None
    shop.writer.end()
    shop.let_all_go()
    shop.gone()
    assert shop.backup(kept)["status"] == "COMPLETED"
    made.only_objects_of_complete_backups()
    shop.cloud.agree()
    shop.api.ask("DELETE", f"/backups/{backup}")
    restored = shop.restore(kept)
    restored.delete()
    shop.api.ask("DELETE", f"/backups/{kept}")
    made.only_objects_of_complete_backups()


@proves("B16", ends="the restart waits until the backup is complete")
def test_a_restart_waits_for_a_backup_that_ends_in_time(shop: Instance) -> None:
    backup, holds = shop.held("copying")
    before = shop.postmaster()
    shop.api.ask("POST", f"/instances/{shop.id}/action", json={"restart": {}})
    said = shop.shown()["unstuck"]
    assert f"waits for backup {backup}" in said["reason"]
    assert shop.postmaster() == before
    shop.writes_go_on()
    holds[0].go_on()
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.cloud.until("the server is another", lambda: shop.postmaster() != before)
    shop.until_settled()
    shop.free()


@pytest.mark.parametrize(
    "action", [{"restart": {}}, {"resize": {"volume": {"size": 2}}}], ids=["restart", "resize"]
)
@proves("B16", ends="after a minute the backup is cancelled, saying for what; the action comes about")
def test_an_action_waits_for_a_backup_then_cancels_it(shop: Instance, action: dict[str, Any]) -> None:
    shop.is_free = False
    shop.made.settings(copying=300.0)
    backup, _ = shop.held("copying")
    shop.api.ask("POST", f"/instances/{shop.id}/action", json=action)
    shop.writes_go_on()
    shop.failed(backup, next(iter(action)), 90.0 + 60.0)
    shop.let_all_go()
    shop.until_settled()
    if "resize" in action:
        assert shop.shown()["volume"]["size"] == 2
    shop.free()


@proves("B16", "T15", ends="delete wins over a restart that waits")
def test_a_delete_wins_over_what_waits(made: DatabaseCloud, shop: Instance) -> None:
    backup, _ = shop.held("copying")
    shop.api.ask("POST", f"/instances/{shop.id}/action", json={"restart": {}})
    shop.api.ask("DELETE", f"/instances/{shop.id}")
    shop.failed(backup, "the instance was deleted|restart", 90.0)
    assert shop.writer is not None
    shop.writer.end()
    shop.let_all_go()
    shop.gone()
    made.only_objects_of_complete_backups()
    shop.cloud.agree()


@proves("B8", ends="the backup ends; with room again all goes on by itself")
def test_a_volume_that_is_full(shop: Instance) -> None:
    volume = Path(f"/proc/{shop.init}/root/var/lib/unstuck")
    filler = volume / "filler"
    backup, holds = shop.held("copying")
    for size in (1 << 20, 4096, 1):
        fill(filler, size)
    holds[0].go_on()
    shop.until_over(backup)
    later = shop.request("full")
    shop.until_over(later)
    filler.unlink()
    shop.until_healthy()
    shop.writes_go_on()
    shop.free()


def fill(file: Path, size: int) -> None:
    """Append so many bytes at a time until there is no room for them."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            while os.write(opened, bytes(size)):
                pass
    finally:
        os.close(opened)


@proves("B14", ends="the backup goes on where it is: its manifest is found, COMPLETED")
def test_the_store_is_put_back_to_when_the_backup_ran(shop: Instance, tmp_path: Path) -> None:
    cloud = shop.cloud
    backup, holds = shop.held("copying")
    copy = copy_of(cloud, tmp_path / "copy.db")
    holds[0].go_on()
    shop.completed(backup)
    cloud.kill("control")
    put_back(cloud, copy)
    cloud.start("control")
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    cloud_accepts(shop)
    shop.free()


@proves("B14", ends="a forgotten backup is not removed, and can be restored")
def test_the_store_is_put_back_to_before_the_backup(
    made: DatabaseCloud, shop: Instance, tmp_path: Path
) -> None:
    cloud = shop.cloud
    copy = copy_of(cloud, tmp_path / "copy.db")
    backup = shop.request()
    shop.completed(backup)
    cloud.kill("control")
    put_back(cloud, copy)
    cloud.start("control")
    assert shop.is_unknown(backup)
    shop.writes_go_on()
    cloud_accepts(shop)
    made.forgotten.append(backup)
    shop.free()
    assert made.objects().list(f"backups/{backup}")
    recovered(made, backup, tmp_path / "recovered")


def cloud_accepts(shop: Instance) -> None:
    """The diff, where there is one: what agrees with every host is settled by itself."""
    over = shop.cloud.until("the store is settled, or waits for a word", lambda: settled(shop))
    if over["recovery"] is not None:
        accept(shop.cloud, over["recovery"]["id"])


def settled(shop: Instance) -> dict[str, Any] | None:
    found = recovery(shop.cloud)
    return {"recovery": found} if found is None or not found["waiting_for"] else None


def recovered(made: DatabaseCloud, backup: str, target: Path) -> None:
    from unstuck.cli.recover import recover

    state = made.cloud.state
    assert recover(from_=str(made.state_backups), key=state.recovery, restore=backup, to=target) == 0
    assert json.loads((target / "backup_manifest").read_bytes())["Files"]
