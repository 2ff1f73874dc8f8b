"""What doctor finds: each difference between store and machine has a name, and a healthy one has none."""

from __future__ import annotations

import pytest

from unstuck.cli.guests import GuestProcess
from unstuck.cli.reality import Expected, Port, Reality, Tap, compare

ID = "11111111-2222-4333-8444-555555555555"
GUEST = GuestProcess(ID, 42, 1, False)
TAP = Tap("us0", ID, "port", True)
ON = Expected(ID, "web", "live", False, "on", "disk", (Port("port", "10.0.0.9"),))
OFF = Expected(ID, "web", "live", False, "off", "disk")
GONE = Expected(ID, "web", "live", True, "on", "disk")
TOMB = Expected(ID, "web", "tombstone", True, "on", "disk")
NEW = Expected(ID, "web", "live", False, "on", None)


def real(
    folders: tuple[str, ...] = (ID,),
    guests: tuple[GuestProcess, ...] = (GUEST,),
    taps: tuple[Tap, ...] | None = (TAP,),
    parts: tuple[str, ...] = (),
) -> Reality:
    return Reality(frozenset(folders), guests, frozenset(), taps, parts)


NOTHING = real((), (), ())
CASES = [
    (ON, real(), []),
    (OFF, real(guests=()), []),
    (GONE, NOTHING, []),
    (TOMB, NOTHING, []),
    (NEW, NOTHING, []),
    (ON, real(taps=None), []),
    (None, NOTHING, []),
    (ON, NOTHING, ["disk-missing"]),
    (ON, real(guests=()), ["guest-missing"]),
    (OFF, real(), ["guest-too-much"]),
    (GONE, real(), ["not-removed"]),
    (TOMB, real(guests=(), taps=()), ["not-removed"]),
    (ON, real(taps=()), ["tap-missing"]),
    (ON, real(taps=(Tap("us0", ID, "port", False),)), ["tap-missing"]),
    (ON, real(guests=(GUEST, GuestProcess(ID, 43, 2, False))), ["two-processes"]),
    (ON, real(guests=(GuestProcess(ID, 42, 1, True),)), ["guest-frozen"]),
    (None, real(), ["unknown-folder", "unknown-guest", "unknown-tap"]),
    (ON, real(parts=("a.part",)), ["image-part"]),
]


@pytest.mark.parametrize(("expected", "found", "kinds"), CASES)
def test_differences(expected: Expected | None, found: Reality, kinds: list[str]) -> None:
    differences = compare([expected] if expected else [], found, "qemu")
    assert sorted(item.kind for item in differences) == kinds
    assert all(item.remedy and item.detail for item in differences)


def test_guests_of_the_instant_driver_are_markers() -> None:
    found = Reality(frozenset({ID}), (), frozenset({ID}), (), ())
    assert compare([ON], found, "instant") == []
    assert [item.kind for item in compare([OFF], found, "instant")] == ["guest-too-much"]


def test_a_guest_that_cannot_be_asked_any_more_is_shown() -> None:
    found = Reality(frozenset({ID}), (GUEST,), frozenset(), (TAP,), (), frozenset(), frozenset({ID}))
    assert [difference.kind for difference in compare([ON], found, "qemu")] == ["socket-missing"]


def test_a_folder_without_its_disk_is_shown() -> None:
    found = Reality(frozenset({ID}), (GUEST,), frozenset(), (TAP,), (), frozenset({ID}), frozenset())
    assert [difference.kind for difference in compare([ON], found, "qemu")] == ["disk-missing"]


def test_mounts_without_their_container_are_shown() -> None:
    found = Reality(frozenset({ID}), (), frozenset(), (), (), mounts=frozenset({ID}))
    assert [difference.kind for difference in compare([OFF], found, "qemu")] == ["mounts-left"]
    found = Reality(frozenset({ID}), (GUEST,), frozenset(), (TAP,), (), mounts=frozenset({ID}))
    assert compare([ON], found, "qemu") == []
