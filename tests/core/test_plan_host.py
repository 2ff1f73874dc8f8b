"""The host's planner, cell by cell: what is wanted x what is seen -> what is done."""

from __future__ import annotations

import functools
import itertools

import msgspec
import pytest

from unstuck.core.server.data import (
    Access,
    CopyFailed,
    Copying,
    Delivered,
    Fence,
    FetchFailed,
    Fetching,
    Flavor,
    Gone,
    Guest,
    Images,
    Missing,
    Mute,
    Off,
    Paused,
    Power,
    Ready,
    Running,
    Spec,
    Step,
    Thing,
    Unclear,
    View,
    Want,
)
from unstuck.core.server.host import (
    COPY_BUDGET,
    DISK_BUDGET,
    Act,
    Decision,
    Do,
    Hold,
    Rest,
    after_failure,
    plan_host,
)

P, A, U = Thing.PRESENT, Thing.ABSENT, Thing.UNKNOWN
SPEC = Spec("a", "a", "p", "nova", Flavor(1, 64, 1), ())
ON = Want(
    server_id="a",
    fence=Fence(1, 1),
    nonce="n",
    version=1,
    intent=5,
    power=Power.ON,
    edge=3,
    soft=False,
    patience=0.0,
    gone=False,
    disk_recorded=True,
    spec=SPEC,
)
WANTS = {
    "on": ON,
    "reboot hard": msgspec.structs.replace(ON, edge=4),
    "reboot soft": msgspec.structs.replace(ON, edge=4, soft=True, patience=30.0),
    "reboot soft, overdue": msgspec.structs.replace(ON, edge=4, soft=True),
    "paused": msgspec.structs.replace(ON, power=Power.PAUSED),
    "suspended": msgspec.structs.replace(ON, power=Power.SUSPENDED),
    "off": msgspec.structs.replace(ON, power=Power.OFF, patience=30.0),
    "off, overdue": msgspec.structs.replace(ON, power=Power.OFF),
    "gone": msgspec.structs.replace(ON, gone=True),
}
GUESTS: dict[str, Guest] = {
    "running": Running(3),
    "paused": Paused(3),
    "no room": Paused(3, "io-error"),
    "broken": Paused(3, "internal-error"),
    "off": Off(3),
    "mute": Mute(3),
    "absent": Gone(),
    "failing": Gone(starts=5),
    "unknown": Unclear("?"),
}
WHOLE = View(guest=Gone(), images=Ready(), disk=P, nics=P, folder=P)

TABLE = {
    "on": "rest resume resume hold rest hold start hold hold",
    "reboot hard": "quit quit quit quit quit quit start hold hold",
    "reboot soft": "power_down quit quit quit quit quit start hold hold",
    "reboot soft, overdue": "quit quit quit quit quit quit start hold hold",
    "suspended": "save save save save rest hold hold hold hold",
    "paused": "pause rest rest rest rest hold start hold hold",
    "off": "power_down quit quit quit quit quit rest rest hold",
    "off, overdue": "quit quit quit quit quit quit rest rest hold",
    "gone": "quit quit quit quit quit quit remove_nics remove_nics hold",
}
CELLS = [
    (wanted, seen, expected)
    for wanted, row in TABLE.items()
    for seen, expected in zip(GUESTS, row.split(), strict=True)
]


def word(decision: Decision) -> str:
    match decision:
        case Act(do, _, _):
            return do.value
        case Hold():
            return "hold"
        case Rest():
            return "rest"


@pytest.mark.parametrize(("wanted", "seen", "expected"), CELLS)
def test_each_want_and_guest_has_its_decision(wanted: str, seen: str, expected: str) -> None:
    view = msgspec.structs.replace(WHOLE, guest=GUESTS[seen])
    assert word(plan_host(WANTS[wanted], view)) == expected


STANDING = Paused(3)
MEMORIES: list[tuple[str, Want, Guest, str]] = [
    ("saved, the process goes", WANTS["suspended"], STANDING, "quit"),
    ("saved, no process", WANTS["suspended"], Gone(), "rest"),
    ("saved, and it ran on", WANTS["suspended"], Running(3), "drop_memory"),
    ("wakes up", ON, Gone(), "start"),
    ("has woken up", ON, STANDING, "drop_memory"),
    ("runs", ON, Running(3), "drop_memory"),
    ("is to stand still", WANTS["paused"], STANDING, "drop_memory"),
    ("is to be off", WANTS["off"], Gone(), "rest"),
    ("deleted", WANTS["gone"], Gone(), "remove_nics"),
]


@pytest.mark.parametrize(("what", "want", "guest", "expected"), MEMORIES, ids=[row[0] for row in MEMORIES])
def test_no_cpu_runs_while_a_saved_memory_could_be_loaded(
    what: str, want: Want, guest: Guest, expected: str
) -> None:
    assert word(plan_host(want, msgspec.structs.replace(WHOLE, guest=guest, memory=P))) == expected


NEW = msgspec.structs.replace(ON, disk_recorded=False)
RAISE: list[tuple[str, Want, dict[str, object], str]] = [
    ("fetch first", NEW, {"disk": A, "images": Missing(), "nics": A}, "fetch"),
    ("wait for the fetch", NEW, {"disk": A, "images": Fetching(1, 2)}, "hold"),
    ("fetch again", NEW, {"disk": A, "images": FetchFailed("cut off", final=False)}, "fetch"),
    ("an image that cannot be used", NEW, {"disk": A, "images": FetchFailed("gone", final=True)}, "hold"),
    ("make the disk", NEW, {"disk": A}, "make_disk"),
    ("adopt and record the disk", NEW, {"disk": P}, "record_disk"),
    ("the base of a disk that is there", ON, {"disk": P, "images": Missing()}, "fetch"),
    ("a recorded disk that is missing", ON, {"disk": A}, "hold"),
    ("a recorded disk that cannot be seen", ON, {"disk": U}, "hold"),
    ("a new disk that cannot be seen", NEW, {"disk": U}, "hold"),
    ("make the ports", ON, {"nics": A}, "make_nics"),
    ("ports that cannot be seen", ON, {"nics": U}, "hold"),
    ("everything is there", ON, {}, "start"),
]


@pytest.mark.parametrize(("what", "want", "seen", "expected"), RAISE, ids=[row[0] for row in RAISE])
def test_a_guest_is_brought_up_step_by_step(
    what: str, want: Want, seen: dict[str, object], expected: str
) -> None:
    assert word(plan_host(want, msgspec.structs.replace(WHOLE, **seen))) == expected


REBUILD = msgspec.structs.replace(NEW, edge=4, nonce="new", replaced=("old",))
MADE = msgspec.structs.replace(REBUILD, disk_recorded=True)
REBUILDS: list[tuple[str, Want, dict[str, object], str]] = [
    ("the old guest goes first", REBUILD, {"guest": Running(3), "disk": A, "replaced": P}, "quit"),
    ("the image", REBUILD, {"disk": A, "replaced": P, "images": Missing()}, "fetch"),
    ("the new disk beside the old one", REBUILD, {"disk": A, "replaced": P}, "make_disk"),
    ("a disk that nobody knows", REBUILD, {"disk": U, "replaced": P}, "hold"),
    ("the new disk is recorded", REBUILD, {"replaced": P}, "record_disk"),
    ("then the old one goes", MADE, {"replaced": P, "nics": A}, "drop_disks"),
    ("the new one is lost before that", MADE, {"disk": A, "replaced": P}, "hold"),
    ("then it is started", MADE, {"replaced": A}, "start"),
    ("off: the new disk is made too", OFF := msgspec.structs.replace(REBUILD, power=Power.OFF),
     {"disk": A, "replaced": P}, "make_disk"),
    ("off: recorded", OFF, {"replaced": P}, "record_disk"),
    ("off: the old one goes", msgspec.structs.replace(MADE, power=Power.OFF), {"replaced": P}, "drop_disks"),
    ("off: done, with no need of images", msgspec.structs.replace(MADE, power=Power.OFF),
     {"images": Missing()}, "rest"),
    ("delete wins", msgspec.structs.replace(REBUILD, gone=True), {"disk": A, "replaced": P}, "remove_nics"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "want", "seen", "expected"), REBUILDS, ids=[row[0] for row in REBUILDS])
def test_a_rebuild_keeps_the_old_disk_until_the_new_one_is_recorded(
    what: str, want: Want, seen: dict[str, object], expected: str
) -> None:
    assert word(plan_host(want, msgspec.structs.replace(WHOLE, **seen))) == expected


LARGER = msgspec.structs.replace(ON, edge=4)
RESIZES: list[tuple[str, Want, dict[str, object], str]] = [
    ("the guest goes first", LARGER, {"guest": Running(3), "short": True}, "quit"),
    ("what the disk stands on", LARGER, {"short": True, "images": Missing()}, "fetch"),
    ("a disk that is missing", LARGER, {"disk": A}, "hold"),
    ("the disk is recorded before it grows", msgspec.structs.replace(LARGER, disk_recorded=False),
     {"short": True}, "record_disk"),
    ("the disk grows", LARGER, {"short": True}, "grow_disk"),
    ("then it is started", LARGER, {}, "start"),
    ("not under a guest that runs", ON, {"guest": Running(3), "short": True}, "rest"),
    ("off: it grows too", msgspec.structs.replace(ON, power=Power.OFF), {"short": True}, "grow_disk"),
    ("off: done, with no need of images", msgspec.structs.replace(ON, power=Power.OFF),
     {"images": Missing()}, "rest"),
    ("suspended: it waits for the next start", WANTS["suspended"], {"short": True, "memory": P}, "rest"),
    ("delete wins", msgspec.structs.replace(LARGER, gone=True), {"short": True}, "remove_nics"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "want", "seen", "expected"), RESIZES, ids=[row[0] for row in RESIZES])
def test_a_disk_grows_when_no_guest_is_on_it(
    what: str, want: Want, seen: dict[str, object], expected: str
) -> None:
    assert word(plan_host(want, msgspec.structs.replace(WHOLE, **seen))) == expected


PICTURED = msgspec.structs.replace(ON, capture="i")
CAPTURES: list[tuple[str, Want, dict[str, object], str]] = [
    ("a guest that runs", PICTURED, {"guest": Running(3)}, "capture"),
    ("under way", PICTURED, {"guest": Running(3), "copy": Copying(1, 2)}, "hold"),
    ("it failed", PICTURED, {"guest": Running(3), "copy": CopyFailed("x", final=False)}, "capture"),
    (
        "it keeps failing",
        PICTURED,
        {"guest": Running(3), "copy": CopyFailed("x", False, COPY_BUDGET)},
        "hold",
    ),
    ("it cannot be", PICTURED, {"guest": Running(3), "copy": CopyFailed("x", final=True)}, "hold"),
    ("delivered", PICTURED, {"guest": Running(3), "copy": Delivered(), "copies": P}, "hold"),
    ("no more wanted", ON, {"guest": Running(3), "copies": P}, "drop_copies"),
    ("a guest that crashed is started first", PICTURED, {}, "start"),
    ("one that stands still unasked goes on first", PICTURED, {"guest": Paused(3)}, "resume"),
    ("paused", msgspec.structs.replace(PICTURED, power=Power.PAUSED), {"guest": Paused(3)}, "capture"),
    ("off", msgspec.structs.replace(PICTURED, power=Power.OFF), {}, "capture"),
    ("off, no more wanted", msgspec.structs.replace(ON, power=Power.OFF), {"copies": P}, "drop_copies"),
    ("suspended", msgspec.structs.replace(PICTURED, power=Power.SUSPENDED), {"memory": P}, "capture"),
    (
        "given up, and suspended at once",
        WANTS["suspended"],
        {"guest": Running(3), "copies": P},
        "drop_copies",
    ),
    ("given up, suspended while paused", WANTS["suspended"], {"guest": STANDING, "copies": P}, "drop_copies"),
    ("delete wins", msgspec.structs.replace(PICTURED, gone=True), {"guest": Running(3)}, "quit"),
]


@pytest.mark.parametrize(("what", "want", "seen", "expected"), CAPTURES, ids=[row[0] for row in CAPTURES])
def test_an_image_of_the_disk_is_made_when_all_else_is_done(
    what: str, want: Want, seen: dict[str, object], expected: str
) -> None:
    decision = plan_host(want, msgspec.structs.replace(WHOLE, **seen))
    assert word(decision) == expected
    if isinstance(decision, Hold) and decision.trouble is not None:
        assert decision.trouble.code == "image-failed"
        assert not decision.trouble.final, "the server is none the worse"


REMOVE: list[tuple[dict[str, object], str]] = [
    ({"nics": P, "folder": P}, "remove_nics"),
    ({"nics": U, "folder": P}, "hold"),
    ({"nics": A, "folder": P}, "remove_folder"),
    ({"nics": A, "folder": U}, "hold"),
    ({"nics": A, "folder": A}, "rest"),
]


@pytest.mark.parametrize(("seen", "expected"), REMOVE)
def test_a_deleted_server_goes_piece_by_piece(seen: dict[str, object], expected: str) -> None:
    decision = plan_host(WANTS["gone"], msgspec.structs.replace(WHOLE, **seen))
    assert word(decision) == expected
    if isinstance(decision, Rest):
        assert decision.step is Step.REMOVED


IMAGES: list[Images] = [Ready(), Missing(), Fetching(0, 1), FetchFailed("x", False), FetchFailed("x", True)]


@functools.cache
def everything() -> list[tuple[Want, View]]:
    """Every state there is; made when it is asked for, because every process of a run imports this."""
    return [
        (
            msgspec.structs.replace(want, disk_recorded=recorded, replaced=replaced),
            View(guest, images, disk, nics, folder, replaced=P if replaced else A, memory=memory),
        )
        for want in WANTS.values()
        for recorded in (True, False)
        for replaced in ((), ("old",))
        for memory in (P, A)
        for guest in GUESTS.values()
        for images, disk, nics, folder in itertools.product(IMAGES, Thing, Thing, Thing)
    ]


def test_the_planner_is_total_and_keeps_the_laws() -> None:
    """Over every cell there is: unknown destroys nothing, data is made once, nothing starts twice."""
    for want, view in everything():
        decision = plan_host(want, view)
        does = decision.do if isinstance(decision, Act) else None
        if isinstance(view.guest, Unclear):
            assert does is None, (want, view)
        if does is Do.MAKE_DISK:
            assert view.disk is A
            assert not want.disk_recorded
            assert not want.gone
        if does is Do.START:
            assert isinstance(view.guest, Gone)
            assert (view.disk, view.nics, want.disk_recorded) == (P, P, True)
            assert want.power in (Power.ON, Power.PAUSED)
            assert not want.gone
        if does is Do.DROP_DISKS:
            assert (view.disk, want.disk_recorded, want.gone) == (P, True, False)
            assert isinstance(view.guest, Gone)
        if does is Do.PAUSE:
            assert want.power is Power.PAUSED
        if does is Do.SAVE:
            assert (want.power, view.memory) == (Power.SUSPENDED, A)
        if does is Do.DROP_MEMORY:
            assert isinstance(view.guest, Running | Paused), "a process has it"
            assert want.power is not Power.SUSPENDED or isinstance(view.guest, Running)
        if does is Do.RESUME:
            assert view.memory is A
            assert want.power is Power.ON
            assert isinstance(view.guest, Paused)
        if does in (Do.REMOVE_NICS, Do.REMOVE_FOLDER):
            assert want.gone
            assert isinstance(view.guest, Gone)
        if does is Do.REMOVE_FOLDER:
            assert view.folder is P
        if does is Do.QUIT and not want.gone and want.power is not Power.OFF:
            saved = want.power is Power.SUSPENDED and view.memory is P and isinstance(view.guest, Paused)
            assert want.edge > 3 or saved, "a guest that is wanted is never ended"


def test_a_trouble_always_names_reason_and_remedy() -> None:
    for want, view in everything():
        decision = plan_host(want, view)
        if isinstance(decision, Hold) and decision.trouble is not None:
            assert decision.trouble.reason
            assert decision.trouble.remedy


def test_a_fetch_that_fails_is_tried_again_ever_more_slowly_and_says_why_meanwhile() -> None:
    """It was tried every two seconds for ever, and its server just said BUILD."""
    waits = []
    for tries in (1, 2, 6, 7, 100):
        failed = FetchFailed("the host's disk is full", final=False, tries=tries, remedy="make room")
        want = msgspec.structs.replace(ON, disk_recorded=False)
        decision = plan_host(want, View(Gone(), failed, A, A, A))
        assert isinstance(decision, Act)
        assert decision.trouble is not None
        assert decision.trouble.reason == "the image cannot be fetched: the host's disk is full"
        assert (decision.trouble.remedy, decision.trouble.final) == ("make room", False)
        waits.append(decision.then)
    assert waits == [2.0, 4.0, 60.0, 60.0, 60.0]


def test_a_disk_that_cannot_be_made_is_given_up_only_when_nothing_is_short() -> None:
    for lasting in range(DISK_BUDGET):
        trouble = after_failure("no", "wait", lasting)
        assert (trouble.code, trouble.remedy, trouble.final) == ("effect-failed", "wait", False)
    for lasting in (DISK_BUDGET, DISK_BUDGET + 1000):
        trouble = after_failure("no", "wait", lasting)
        assert (trouble.code, trouble.final) == ("disk-impossible", True)
        assert "no" in trouble.reason
        assert trouble.remedy == "delete the server and use another image"


def test_a_network_that_cannot_be_seen_is_told_with_its_reason_and_remedy() -> None:
    """It said "see doctor", whatever the reason was."""
    want = msgspec.structs.replace(ON, disk_recorded=True)
    view = View(Gone(), Ready(), P, Thing.UNKNOWN, P, "networks need root", "start Unstuck as root")
    decision = plan_host(want, view)
    assert isinstance(decision, Hold)
    assert decision.trouble is not None
    assert decision.trouble.reason == "the host's network cannot be read: networks need root"
    assert decision.trouble.remedy == "start Unstuck as root"


@pytest.mark.parametrize("running", [Running(3), Gone()])
def test_access_rules_that_differ_are_applied_to_a_guest_that_runs(running: Guest) -> None:
    """A guest without access rules is left alone: its tap may be all that is left of its network."""
    access = msgspec.structs.replace(SPEC, access=Access((5432,), ("10.0.0.0/8",)))
    with_rules = msgspec.structs.replace(ON, spec=access)
    view = View(running, Ready(), P, A, P)
    assert plan_host(with_rules, view) == Act(Do.MAKE_NICS, Step.NETWORK)
    assert plan_host(with_rules, View(Running(3), Ready(), P, P, P)) == Rest()
    assert plan_host(with_rules, View(Running(3), Ready(), P, U, P)) == Rest()
    assert plan_host(ON, View(Running(3), Ready(), P, A, P)) == Rest()
    assert plan_host(msgspec.structs.replace(with_rules, power=Power.OFF), view) != Act(
        Do.MAKE_NICS, Step.NETWORK
    )
