"""A later version finds what version 1 left: everything is adopted, nothing is started again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from tests.fixtures import thaw
from tests.processes.many import Many, free_port
from unstuck.host.drivers.folder import ServerFolder, check_identity
from unstuck.host.main import read_identity
from unstuck.host.networks.bridge import tap_name
from unstuck.runtime.processes import boot_id
from unstuck.store.engine import Store
from unstuck.store.migrate import FOLDER, ensure_schema
from unstuck.store.schema import metadata
from unstuck.store.schema.compute import servers

# The real test runs these very servers; an agent refuses those that run out of another folder.
pytestmark = pytest.mark.xdist_group("qemu")


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Many]:
    """Version 1's state folder, its guests replaced by the instant driver's."""
    state = thaw.state_folder(tmp_path / "state", port=free_port(), driver="instant")
    for server, said in thaw.guests()["guests"].items():
        folder = state.host / "servers" / server
        disk = next(name for name in said["files"] if name.startswith("disk-"))
        (folder / disk).touch()
        (folder / "nics").touch()
        (folder / "guest.json").write_bytes(msgspec.json.encode({"edge": 1, "boot_id": boot_id()}))
    made = Many(tmp_path / "state", prepared=state)
    yield made
    made.close()


def reported_by(many: Many) -> set[int]:
    """The incarnations whose reports the servers carry."""
    store = Store(many.state.store_url)
    try:
        return set(store.read(lambda tx: tx.execute(sa.select(servers.c.seen_incarnation)).scalars().all()))
    finally:
        store.close()


def test_servers_of_version_1_are_adopted_by_the_next_and_not_started_again(left: Many) -> None:
    markers = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in left.state.host.glob("servers/*/guest.json")
    }
    assert len(markers) == 2
    assert reported_by(left) == {1}
    left.control()
    left.agent()
    left.until("the new agent has reported both", lambda: reported_by(left) == {2})
    assert left.statuses() == {"alone": "ACTIVE", "web": "ACTIVE"}
    for path, before in markers.items():
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    with left.admin() as cloud:  # the passwords, the images and all else of the old store are there as well
        assert {item["name"] for item in cloud.get("/image/v2/images")["images"]} >= {"tiny", "tiny-kernel"}


def test_the_files_of_format_1_are_read(left: Many) -> None:
    identity = read_identity(left.state.host)
    check_identity(left.state.host, identity.host_id)
    for server, said in thaw.guests()["guests"].items():
        folder = ServerFolder(left.state.host, server)
        grant, starts = folder.read_grant(), folder.starts()
        assert grant is not None
        assert starts is not None
        assert (grant.generation, grant.epoch, grant.edge) == (1, 1, 1)
        assert (starts.edge, starts.boot_id, len(starts.times)) == (1, boot_id(), 1)
        names = {folder.lock, folder.pid, *folder.sockets, folder.console, folder.output, folder.config}
        assert {path.name for path in (*names, folder.disk(grant.nonce))} <= set(said["files"])
        taps = [tap_name(server, index) for index in range(len(grant.nics))]
        given = [word.partition("ifname=")[2].partition(",")[0] for word in said["argv"] if "ifname=" in word]
        assert taps == given


def test_the_dump_of_version_1_is_migrated_to_whatever_comes_next(tmp_path: Path) -> None:
    """With a revision of the future: rows are kept, and what it adds is there."""
    folder = tmp_path / "migrations"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_future.py").write_text(FUTURE.format(last=last_revision()))
    thaw.dump(tmp_path / "store.db")
    store = Store(f"sqlite:///{tmp_path}/store.db")
    try:
        before = counts(store)
        assert before["servers"] == 2
        with store.engine.connect() as connection:
            from alembic import command
            from alembic.config import Config

            config = Config()
            config.set_main_option("script_location", str(folder))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        after = counts(store)
        assert {name: after[name] for name in before} == before
        with store.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT of_the_future FROM servers").scalars().all()
            assert rows == ["default", "default"]
    finally:
        store.close()


FUTURE = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9000", "{last}", None, None


def upgrade():
    with op.batch_alter_table("servers") as batch:
        batch.add_column(sa.Column("of_the_future", sa.String(10), nullable=False, server_default="default"))
"""


def last_revision() -> str:
    from unstuck.store.migrate import HEAD

    return HEAD


def counts(store: Store) -> dict[str, int]:
    with store.engine.connect() as connection:
        there = set(sa.inspect(connection).get_table_names())
        return {
            name: connection.exec_driver_sql(f'SELECT count(*) FROM "{name}"').scalar_one()
            for name in metadata.tables
            if name in there
        }


def test_a_store_that_was_recorded_is_at_head_and_whole_after_the_migration(tmp_path: Path) -> None:
    thaw.restore(tmp_path / "store.db")
    store = Store(f"sqlite:///{tmp_path}/store.db")
    try:
        ensure_schema(store)
        assert counts(store)["servers"] == 2
        with store.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    finally:
        store.close()
