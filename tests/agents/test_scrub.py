"""Complete backups are read again in their store of objects: what rots is found and marked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from backup_site import BackupCloud, run

from unstuck.api.database.backup_views import extension
from unstuck.control import scrub as loop
from unstuck.control.scrub import ScrubController, ThreadedScrubs
from unstuck.core.backup import scrub
from unstuck.store import scrub_work
from unstuck.store.engine import Store
from unstuck.store.scrub_work import read_scrub

EVERY = 0.05
RATE = 1e9


@pytest.fixture(autouse=True)
def pieces_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "AT_ONCE", 1)


class Scrubbing:
    """The loop in a process of its own that can be ended."""

    def __init__(self, cloud: BackupCloud, *, rate: float = RATE) -> None:
        self.port = cloud.control_port()
        blobs = ThreadedScrubs(cloud.stores, cloud.keyring.public.signing)
        loop_of = ScrubController(
            self.port, cloud.store, blobs, lambda _: None, rate=rate, every=EVERY, job=5.0
        )
        self.task = asyncio.ensure_future(self.port.run({"scrub": loop_of.run_forever()}))

    async def end(self) -> None:
        self.port.end(0)
        await self.task


async def complete(cloud: BackupCloud) -> str:
    """A complete backup that is due to be read."""
    backup_id = await (await cloud.instance()).complete()
    await cloud.ended(backup_id)
    await cloud.store.run(scrub_work.postpone_scrub, backup_id, 0.0)
    return backup_id


def piece(cloud: BackupCloud, backup_id: str, number: int) -> Path:
    prefix = cloud.row(backup_id).prefix
    assert prefix is not None
    return Path(cloud.objects.root) / prefix / f"{number:08d}.zst.age"


def whole(cloud: BackupCloud, backup_id: str) -> bool:
    return read_scrub(cloud.row(backup_id).scrub).whole is not None


def test_what_is_as_it_was_written_stays_as_it_is_and_progress_shows(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        scrubbing = Scrubbing(cloud)
        await cloud.until(lambda: whole(cloud, backup_id))
        await scrubbing.end()
        row = cloud.row(backup_id)
        assert row.damaged is None
        shown = extension(row, await cloud.store.run_read(lambda tx: tx.now))["scrub"]
        assert shown["of"] > 2
        assert shown["whole"]

    run(store, tmp_path, play)


@pytest.mark.parametrize("how", ["flipped", "missing", "manifest"])
def test_what_rots_is_found_says_which_piece_and_heals_when_it_is_put_back(
    store: Store, tmp_path: Path, how: str
) -> None:
    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        sound = await complete(cloud)
        place = piece(cloud, backup_id, 2)
        if how == "manifest":
            place = place.with_name("manifest.json")
        data = place.read_bytes()
        if how == "missing":
            place.unlink()
        else:
            place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        scrubbing = Scrubbing(cloud)
        await cloud.until(lambda: cloud.row(backup_id).damaged is not None)
        await cloud.until(lambda: whole(cloud, sound))
        found = cloud.row(backup_id).damaged
        assert found is not None
        assert {"flipped": "piece 2 is not", "missing": "piece 2 is missing", "manifest": "manifest"}[
            how
        ] in found
        assert cloud.row(sound).damaged is None
        place.write_bytes(data)
        await cloud.until(lambda: cloud.row(backup_id).damaged is None)
        await scrubbing.end()

    run(store, tmp_path, play)


def test_one_that_is_ended_is_followed_by_one_that_reads_on(store: Store, tmp_path: Path) -> None:
    """Slow enough to be ended in the middle of a pass."""

    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        first = Scrubbing(cloud, rate=200.0)
        await cloud.until(lambda: read_scrub(cloud.row(backup_id).scrub).done >= 1)
        await first.end()
        before = read_scrub(cloud.row(backup_id).scrub)
        assert 0 < before.done < before.pieces
        piece(cloud, backup_id, 0).unlink()  # it was read already: whoever begins anew would find that
        await cloud.store.run(scrub_work.postpone_scrub, backup_id, 0.0)  # as if its lease were over
        second = Scrubbing(cloud)
        await cloud.until(lambda: whole(cloud, backup_id))
        await second.end()

    run(store, tmp_path, play)


def test_a_store_that_is_away_says_nothing_of_its_backups(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        root = Path(cloud.objects.root)
        away = root.with_name("not-mounted")
        await asyncio.to_thread(root.rename, away)
        scrubbing = Scrubbing(cloud)
        await cloud.until(lambda: read_scrub(cloud.row(backup_id).scrub).trouble != "")
        await scrubbing.end()
        await asyncio.to_thread(away.rename, root)
        row = cloud.row(backup_id)
        assert row.damaged is None
        assert "mount" in read_scrub(row.scrub).trouble

    run(store, tmp_path, play)


def test_reading_keeps_to_its_rate(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it pauses for: as long as it takes to read what was read at that rate."""
    pauses: list[float] = []

    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        scrubbing = Scrubbing(cloud, rate=1e6)
        wait = scrubbing.port.pause

        async def noted(seconds: float, key: str = "") -> None:
            if key == "scrub-rate":
                pauses.append(seconds)
            await wait(seconds, key)

        monkeypatch.setattr(scrubbing.port, "pause", noted)
        await cloud.until(lambda: whole(cloud, backup_id))
        await scrubbing.end()
        prefix = cloud.row(backup_id).prefix
        size = sum(entry.size for entry in cloud.objects.list(prefix) if entry.key.endswith(".age"))
        assert sum(pauses) >= 0.999 * size / 1e6

    run(store, tmp_path, play)


def test_what_two_have_read_from_the_same_place_counts_once(store: Store, tmp_path: Path) -> None:
    async def play(cloud: BackupCloud) -> None:
        backup_id = await complete(cloud)
        one = await cloud.store.run(scrub_work.begin_scrub, backup_id, 60.0)
        assert one is not None
        assert await cloud.store.run(scrub_work.begin_scrub, backup_id, 60.0) is None
        await cloud.store.run(scrub_work.postpone_scrub, backup_id, 0.0)  # the first one's lease is over
        other = await cloud.store.run(scrub_work.begin_scrub, backup_id, 60.0)
        assert other is not None
        await cloud.store.run(scrub_work.end_scrub, other, scrub.Right(2, 9), EVERY)
        await cloud.store.run(scrub_work.end_scrub, one, scrub.Wrong(0, 9, "piece 0 is missing"), EVERY)
        found = read_scrub(cloud.row(backup_id).scrub)
        assert (found.done, found.doubt) == (2, "")

    run(store, tmp_path, play)
