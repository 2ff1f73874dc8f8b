"""Kills at random moments while a client works: everything acknowledged is honoured, nothing is left over."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real.fault_cloud import FaultCloud, namespace
from tests.real.random_kills import rampage
from unstuck.cli import tiny
from unstuck.runtime.state import State

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("qemu")]
SEED = int(os.environ.get("UNSTUCK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
HOUR_KILLS = int(os.environ.get("UNSTUCK_KILLS", "500"))
EVERY = float(os.environ.get("UNSTUCK_KILLS_EVERY", "8.5"))
"""Seconds between two, on the average: 500 kills of one process or both take about an hour."""

Make = Callable[[str], FaultCloud]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A cloud with the tiny image, by driver; nothing runs yet."""
    image = tiny.built(State(tmp_path / "state"))
    if image is None:
        pytest.skip("the tiny image is not built: make setup")
    made: list[FaultCloud] = []

    def new(driver: str) -> FaultCloud:
        cloud = FaultCloud(tmp_path / "state", driver)
        made.append(cloud)
        cloud.start("control")
        cloud.upload(image)
        cloud.kill("control")
        return cloud

    with namespace():
        try:
            yield new
        finally:
            for cloud in made:
                cloud.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_kills_at_random_moments_with_instant_guests(
    make: Make, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", SEED)
    killer, worker = rampage(make("instant"), SEED, 20, every=0.6)
    assert sum(killer.kills.values()) >= 20
    assert worker.asked["create 202"] > 0


@pytest.mark.slow
@pytest.mark.timeout(6000)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for taps")
@pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU")
def test_five_hundred_kills_in_an_hour_with_real_guests(
    make: Make, record_property: Callable[[str, object], None]
) -> None:
    """``UNSTUCK_KILLS`` and ``UNSTUCK_KILLS_EVERY`` make it shorter; ``UNSTUCK_SEED`` repeats the moments."""
    record_property("seed", SEED)
    killer, worker = rampage(make("qemu"), SEED, HOUR_KILLS, every=EVERY)
    record_property("kills", dict(killer.kills))
    record_property("asked", dict(worker.asked))
    assert sum(killer.kills.values()) >= HOUR_KILLS
    print(f"seed {SEED}: {dict(killer.kills)}; {len(worker.may_be)} servers; {dict(worker.asked)}")
