"""A backup over the agents' API, with the control plane's loop: it always ends, whoever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from backup_site import BackupCloud

from unstuck.core.backup.data import Done
from unstuck.store.engine import Store


def run(store: Store, tmp_path: Path, play: Callable[[BackupCloud], Awaitable[None]]) -> None:
    """Play against a control plane whose loops run."""

    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        port = cloud.control_port()
        task = cloud.control_backups(port)
        try:
            await play(cloud)
            assert not task.done(), "the control plane has ended"
        finally:
            port.end(0)
            await task

    asyncio.run(whole())


def test_a_backup_is_taken_written_verified_and_complete(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        instance = await cloud.instance()
        backup_id = await instance.backup()
        assert cloud.status(backup_id) == "NEW"
        taken = await instance.taken(backup_id)
        assert taken.place is None
        assert cloud.status(backup_id) == "BUILDING"
        assert (await instance.renew(backup_id, size=7)).json() == {"stop": None}
        digest = await instance.write(backup_id, taken)
        assert (await instance.end(backup_id, Done(digest))).status_code == 204
        row = await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"
        assert (row.digest, row.prefix, row.size) == (digest, taken.prefix, 15000)
        assert row.settled

    run(store, tmp_path, play)
