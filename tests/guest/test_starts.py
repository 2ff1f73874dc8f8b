"""Starts of a server are counted, and from nothing where it was not at fault."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.core.test_plan_guest import WANT
from unstuck.guest.starts import ANEW, LATELY, ROOM, Starts
from unstuck.guest.volume import Volume


class Site:
    """A volume whose room the test says, and a clock of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: int | None = 10 * ROOM
        self.now = 1000.0
        volume = Volume(root, "nobody", mounted=False)
        monkeypatch.setattr(volume, "space", self.space)
        self.starts = Starts(volume, lambda: self.now)

    def space(self) -> tuple[int, int]:
        if self.free is None:
            raise OSError("gone")
        return self.free, 100 * ROOM

    def start(self, times: int) -> int:
        for _ in range(times):
            self.starts.note(WANT)
        return self.starts.lately(WANT)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_starts_are_counted_for_ten_minutes_or_until_somebody_wishes_another(site: Site) -> None:
    assert site.start(5) == 5
    assert site.starts.lately(msgspec.structs.replace(WANT, restart=WANT.restart + 1)) == 0
    site.now += LATELY - 1
    assert site.starts.lately(WANT) == 5
    site.now += 1
    assert site.starts.lately(WANT) == 0


def test_with_room_again_they_are_counted_from_nothing(site: Site) -> None:
    site.start(5)
    assert not site.starts.look()
    assert site.starts.lately(WANT) == 5, "there was room all the time"
    site.free = ROOM - 1
    assert site.starts.look()
    assert site.starts.lately(WANT) == 5
    site.free = ROOM
    assert not site.starts.look()
    assert site.starts.lately(WANT) == 0


def test_room_that_comes_and_goes_starts_no_server_for_ever(site: Site) -> None:
    for free in (0, 10 * ROOM):
        site.free = free
        site.starts.look()
    site.start(5)
    for free in (0, 10 * ROOM):
        site.free = free
        assert site.starts.look()
    assert site.starts.lately(WANT) == 5
    site.now += ANEW
    assert not site.starts.look()
    assert site.starts.lately(WANT) == 0


def test_a_volume_that_cannot_be_asked_is_taken_for_what_it_was(site: Site) -> None:
    site.free = 0
    assert site.starts.look()
    site.free = None
    assert site.starts.look()
