"""A database in a virtual machine, in a whole cloud: made, filled, backed up although its agent is killed in
the middle, and restored into a container on the same host."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.real.container_stage import why_not
from tests.real.fault_cloud import FaultCloud
from tests.real.test_database_cloud import ask, cloud, create, healthy
from unstuck.cli import boxes, guests
from unstuck.cli.dbcalls import Databases
from unstuck.host import cpio, dbimage, dbkernel
from unstuck.host.built import file_entry
from unstuck.host.debian import BuildError

__all__ = ["cloud"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU"),
    pytest.mark.timeout(1500),
]
EMULATED = 600.0
"""Seconds for what starts a machine: under TCG it takes one to three minutes, most of it initdb."""
HERE = "10.77.0.1/32"
KILLER = rb"""
( until pid=$(pidof pg_basebackup) && [ -n "$pid" ]; do usleep 50000; done
  for file in $(grep -l unstuck.guest /proc/[0-9]*/cmdline); do
      place=${file%/cmdline}
      [ "$(stat -c %u "$place")" = 900 ] && kill -9 "${place#/proc/}" && say "the agent was killed meanwhile"
  done ) &
"""
"""Below the system tree, where no guest gets: kills the agent once, when a base backup first runs."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of the code as it is now, with an initramfs whose first program also kills the agent."""
    built = dbimage.default_folder()
    try:
        dbimage.build(built)
    except BuildError as error:
        pytest.skip(f"the database image cannot be built here: {error}")
    folder = tmp_path_factory.mktemp("image") / "image"
    shutil.copytree(built, folder)
    archive, start = cpio.Archive(), b"chroot /root /usr/lib/unstuck/init &"
    script = dbkernel.script()
    assert start in script
    archive.file("init", script.replace(start, KILLER + start), 0o755)
    with (folder / dbkernel.RAMDISK).open("ab") as file:
        file.write(archive.packed())  # the kernel unpacks one archive after the other
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["ramdisk"] = file_entry(folder / dbkernel.RAMDISK, "ari")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers")
def test_a_database_in_a_machine_is_backed_up_past_its_agents_death_and_restored(cloud: FaultCloud) -> None:
    cloud.kill("host")
    cloud.environment["UNSTUCK_CONTAINERS"] = "off"
    cloud.start("host")
    api = Databases(cloud.cloud)
    began = time.monotonic()
    instance = create(api, HERE)
    address = address_of(patient(cloud, api, instance))
    cloud.note(f"HEALTHY after {time.monotonic() - began:.1f} s")
    assert boxes.running(cloud.state) == []
    (machine,) = guests.running(cloud.state)
    ask(address, "create table t as select n, md5(n::text) from generate_series(1, 20000) n")
    query = "select count(*), md5(string_agg(md5, '' order by n)) from t"
    rows = ask(address, query)
    assert rows[0] == 20000

    began = time.monotonic()
    order = {"backup": {"name": "monday", "instance": instance}}
    backup = api.ask("POST", "/backups", json=order)["backup"]["id"]
    shown = ended(cloud, api, backup)
    cloud.note(f"COMPLETED after {time.monotonic() - began:.1f} s")
    console = (cloud.state.host / "servers" / machine.server_id / "console.log").read_text(errors="replace")
    assert "the agent was killed meanwhile" in console
    assert (shown["status"], shown["unstuck"]["attempt"]) == ("COMPLETED", 2), shown
    assert ask(address, query) == rows
    assert guests.running(cloud.state) == [machine]

    cloud.kill("host")
    del cloud.environment["UNSTUCK_CONTAINERS"]
    cloud.start("host")
    restored = api.ask("POST", "/instances", json={"instance": again(api, backup)})["instance"]["id"]
    other = address_of(patient(cloud, api, restored))
    assert len(boxes.running(cloud.state)) == 1
    assert guests.running(cloud.state) == [machine]
    cloud.until("the restored one answers", lambda: answers(other, query), seconds=EMULATED)
    assert ask(other, query) == rows
    assert ask(address, query) == rows

    for one in (restored, instance):
        api.ask("DELETE", f"/instances/{one}")
    cloud.until("nothing runs any more", lambda: not boxes.running(cloud.state) + guests.running(cloud.state))
    cloud.agree()


def patient(cloud: FaultCloud, api: Databases, instance: str) -> dict[str, Any]:
    cloud.until("it is healthy", lambda: is_healthy(api, instance), lambda: told(api, instance), EMULATED)
    return healthy(cloud, api, instance)


def is_healthy(api: Databases, instance: str) -> bool:
    return bool(api.get(f"/instances/{instance}")["instance"]["operating_status"] == "HEALTHY")


def told(api: Databases, instance: str) -> str:
    return json.dumps(api.get(f"/instances/{instance}")["instance"], indent=1)


def address_of(shown: dict[str, Any]) -> str:
    return str(next(item["address"] for item in shown["addresses"]))


def ended(cloud: FaultCloud, api: Databases, backup: str) -> dict[str, Any]:
    def seen() -> dict[str, Any] | None:
        found: dict[str, Any] = api.get(f"/backups/{backup}")["backup"]
        return found if found["status"] in ("COMPLETED", "FAILED") else None

    return cloud.until("the backup ends", seen, seconds=EMULATED)


def again(api: Databases, backup: str) -> dict[str, Any]:
    return {
        "name": "again", "flavorRef": api.flavor(None, 256), "volume": {"size": 1},
        "restorePoint": {"backupRef": backup}, "access": {"allowed_cidrs": [HERE]},
    }  # fmt: skip


def answers(address: str, query: str) -> bool:
    try:
        return bool(ask(address, query))
    except psycopg.OperationalError:
        return False
