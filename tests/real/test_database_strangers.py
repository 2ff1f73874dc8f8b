"""Guests whose agent never comes, speaks another version, or cannot be understood: images like the real one
with one thing changed. A backup that is asked for ends, saying so, and the instance can be deleted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import proves
from tests.real.database_cloud import DatabaseCloud, Instance
from unstuck.cli.cloud import connect
from unstuck.cli.dbimage import register
from unstuck.host import dbimage

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(400),
]


@contextlib.contextmanager
def strange(image: Path, file: str, old: str, new: str) -> Iterator[Path]:
    """An image like the real one with this in one of its sources."""
    sources = dbimage._sources()
    text = sources[file].decode()
    assert text.count(old) == 1, f"{old!r} is not once in {file}"
    sources[file] = text.replace(old, new).encode()
    folder = image.with_name(f"{image.name}-strange")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dbimage, "_sources", lambda: sources)
        dbimage.build(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def use(made: DatabaseCloud, folder: Path) -> None:
    with connect(made.cloud.state) as admin:
        register(admin, folder)


WIRE = "unstuck/core/instance/guestwire.py"
STRANGERS = {
    "never_comes": ("unstuck/guest/__main__.py", "import main", "import nothing as main", False),
    "another_version": (WIRE, "PROTOCOL = ", "PROTOCOL = 9", False),
    "another_framing": ("unstuck/runtime/framing.py", 'b"\\xa7UnS"', 'b"\\xa7Oth"', False),
    "another_message": (WIRE, 'tag="take"', 'tag="seize"', True),
}


@pytest.mark.parametrize("kind", STRANGERS)
@proves("T1", "T12", "T13", "T14", ends="FAILED: no agent took it; the instance can be deleted, or rebuilt")
def test_an_agent_that_never_comes_or_cannot_be_understood(
    made: DatabaseCloud, database_image: Path, kind: str
) -> None:
    made.settings(claim=6.0)
    file, old, new, comes = STRANGERS[kind]
    with strange(database_image, file, old, new) as folder:
        use(made, folder)
        try:
            instance = made.create(kind.replace("_", "-"))
        finally:
            use(made, database_image)
        if comes:
            instance.prepare()
        else:
            instance.find_server()
            instance.cloud.until("its guest runs", instance.pids, seconds=60.0)
        backup = instance.request()
        instance.failed(backup, "no agent of the instance took it within")
        if comes:
            instance.writes_go_on()
            rebuild(made, instance)
            instance.free()
        instance.delete()
        made.only_objects_of_complete_backups()
        made.cloud.agree()


def rebuild(made: DatabaseCloud, instance: Instance) -> None:
    """With the image that is its datastore's now; the volume stays."""
    with connect(made.cloud.state) as admin:
        path = f"/database/v1.0/{admin.project_id}/mgmt"
        image = admin.get(f"{path}/datastore-versions")["versions"][0]["image"]
        admin.ask("POST", f"{path}/instances/{instance.id}/action", json={"rebuild": {"image_id": image}})
    instance.until_settled()
