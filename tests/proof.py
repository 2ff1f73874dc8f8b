"""Which test proves what: crash points of a build, and faults that were measured on real peers.

A test says with :func:`proves` what it stands for; ``python -m tests.proof`` writes the table in
docs/faults.md from that, so that the table cannot say more than the tests do (tests/test_proof.py), and the
list of planted faults in docs/guarantees.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=Callable[..., Any])
PAGE = "docs/faults.md"
GUARANTEES = "docs/guarantees.md"
PLANTED_FROM = "| planted | where | caught as |"
MODULES = (
    "tests.core.test_crash_points",
    "tests.sim.test_crash_points",
    "tests.real.test_faults",
    "tests.real.test_peer_faults",
    "tests.real.test_database_faults",
    "tests.real.test_database_phases",
    "tests.real.test_database_requests",
    "tests.real.test_database_stores",
    "tests.real.test_database_strangers",
    "tests.real.test_database_exact",
    "tests.real.test_database_into_machine",
    "tests.real.test_database_inside",
    "tests.guest.test_clock",
)


class Proof(msgspec.Struct, frozen=True):
    """One test's claim: what it stands for, and how that must end."""

    point: str
    module: str
    test: str
    ends: str


PROOFS: list[Proof] = []


def proves(*points: str, ends: str) -> Callable[[T], T]:
    """The decorated test fails unless each of these points ends so."""
    unknown = [point for point in points if not any(point in known for known in KNOWN)]
    if unknown:
        raise ValueError(f"no such point: {unknown}")

    def mark(test: T) -> T:
        PROOFS.extend(Proof(point, test.__module__, test.__name__, ends) for point in points)
        return test

    return mark


class Point(msgspec.Struct, frozen=True):
    """A place where a build can be cut off, and what real Nova shows after a restart."""

    where: str
    nova: str


POINTS: dict[str, Point] = {
    "P1": Point("before anything is committed", "no server; a reserved volume is leaked"),
    "P2": Point("committed, and nobody was told", "BUILD for ever"),
    "P3": Point("whoever was told has died, or the message is lost", "BUILD for ever"),
    "P4": Point("a host is chosen, and the choice is not written", "BUILD for ever, room on the host leaked"),
    "P5": Point("the server is in one database, its mapping not yet in the other", "BUILD for ever"),
    "P6": Point("both records are written, the first not yet removed", "BUILD for ever"),
    "P7": Point("the host is written, and was not told", "BUILD, or ERROR when the host restarts"),
    "P8": Point("the host knows, and waits to begin", "ERROR"),
    "P9": Point("the host has claimed it, and done nothing", "ERROR"),
    "P10": Point("while its ports are made", "ERROR; a user's own port may be lost"),
    "P11": Point("while a volume is made of an image", "ERROR; a volume nobody has the id of"),
    "P12": Point("while the image is fetched or the disk is made", "ERROR; half made files stay"),
    "P13": Point("ports plugged, guest defined, nothing started", "ERROR; a defined guest stays"),
    "P14": Point(
        "the guest waits for an event that came while nobody listened", "ERROR; a paused guest for ever"
    ),
    "P15": Point("**the guest runs, and its record does not say so**", "ERROR, and the guest runs"),
    "P16": Point("the last write of a build fails", "ERROR; ports deleted under a running guest"),
    "P17": Point("after the last write", "ACTIVE"),
    "P18": Point("between giving a build up and giving it to another host", "BUILD for ever"),
    "P19": Point("deleted during its build, then a restart", "ERROR: the delete is lost"),
    "P20": Point("the order to delete is lost", "deleting for ever"),
    "P21": Point("a time-out fires while the build still works", "ERROR, later perhaps ACTIVE"),
    "P22": Point("the host starts while its order still waits", "ERROR, then BUILD, then ACTIVE"),
    "P23": Point("the host never comes back", "BUILD for ever"),
}

ELSEWHERE: dict[str, str] = {
    "P5": "there is one row, written in one transaction; no second record that could be missing",
    "P6": "the same: there is no first record to remove",
    "P11": "servers have no volumes yet; the data that a build copies is the image, and that is P12",
    "P14": "no guest waits for a message: it is started when its ports are there, and what is missed is "
    "looked at",
    "P18": "a build is never given to another host by itself; where an operator strikes a host off, the next "
    "grant is written in the transaction that ends the last one",
}
"""Points whose cause cannot exist here, and why."""


class PeerFault(msgspec.Struct, frozen=True):
    """A fault that a peer was given, what its API showed ten minutes later, whether that is wrong."""

    fault: str
    shown: str
    wrong: bool


PEER_FAULTS: dict[str, PeerFault] = {
    "N1": PeerFault("agent killed when the guest runs and the record does not say so", "ERROR", True),
    "N2": PeerFault("agent killed before the guest's start", "ERROR", True),
    "N3": PeerFault("agent killed while the order waits for it", "ERROR, then ACTIVE", False),
    "N4": PeerFault("the same, and the broker restarts (here: the control plane)", "ERROR, no host", True),
    "N5": PeerFault("agent killed with 12 builds on their way", "all 12 ERROR", True),
    "N6": PeerFault("broker (control plane) away for 10 s during the start", "ACTIVE", False),
    "N7": PeerFault("broker (control plane) killed when only it knows of the order", "BUILD for ever", True),
    "N8": PeerFault(
        "request while the broker (here: the control plane) is down", "no answer for 120 s, then ERROR", True
    ),
    "N9": PeerFault("conductor (control plane) killed while the host is chosen", "BUILD for ever", True),
    "N10": PeerFault("conductor (control plane) killed during the start, back after 5 s", "ACTIVE", False),
    "N11": PeerFault(
        "conductor (control plane) away for 100 s when the start returns", "ERROR, guest runs", True
    ),
    "N12": PeerFault("deleted during the build, agent dead, then restarted", "deleted", False),
    "N13": PeerFault(
        "deleted after the start, host seen as down, then restarted", "deleted; guest ran on 130 s", False
    ),
    "N14": PeerFault("request while the only host is seen as down", "ERROR: no valid host", False),
}

TROVE_FAULTS: dict[str, PeerFault] = {
    "T1": PeerFault("the agent never existed", "backup NEW, instance BACKUP for ever", True),
    "T2": PeerFault("the agent is dead before the request", "backup NEW, instance BACKUP for ever", True),
    "T3": PeerFault("the agent is killed in mid-backup", "backup BUILDING, instance BACKUP for ever", True),
    "T4": PeerFault("the agent is frozen, then thawed", "COMPLETED after the thaw", False),
    "T5": PeerFault("the backup tool hangs, the agent is healthy", "BUILDING, BACKUP for ever", True),
    "T6": PeerFault("the store is full, or fails (507)", "FAILED after 33 s", False),
    "T7": PeerFault("the store refuses the credentials at the request", "no backup, 401", False),
    "T8": PeerFault("the store accepts and never answers", "BUILDING, BACKUP for ever", True),
    "T9": PeerFault("the agent hears of it 45 s late", "COMPLETED", False),
    "T10": PeerFault("the same, given up meanwhile", "FAILED, then COMPLETED again", True),
    "T11": PeerFault("the same, with a second backup meanwhile", "both run at once; luck", False),
    "T12": PeerFault("the agent speaks another version", "NEW, BACKUP for ever", True),
    "T13": PeerFault("the agent has another key (here: another framing)", "NEW, BACKUP for ever", True),
    "T14": PeerFault("the agent lacks a class of the message", "NEW, BACKUP for ever", True),
    "T15": PeerFault("the instance is deleted during its backup", "backup BUILDING for ever: SQL only", True),
    "T16": PeerFault("the API is killed between the row and the message", "NEW, BACKUP, quota leaked", True),
    "T17": PeerFault("the task manager (control plane) fails before it passes it on", "NEW, BACKUP", True),
    "T18": PeerFault("the same, killed", "NEW, BACKUP for ever", True),
    "T19": PeerFault("the broker (control plane) restarts while the message waits", "NEW, BACKUP", True),
}
"""What real Trove 26.0.0 was given, in the same way."""

DATABASE_FAULTS: dict[str, str] = {
    "B1": "the store of objects answers 5xx",
    "B2": "it refuses the credentials half way",
    "B3": "it accepts and never answers, half way",
    "B4": "it is full, then not any more",
    "B5": "the host agent restarts in mid-backup",
    "B6": "the manifest is written, and the report is lost with both agents",
    "B7": "the database server crashes in mid-backup",
    "B8": "the guest's volume is full",
    "B9": "the guest's clock is an hour ahead or behind",
    "B10": "the guest is paused",
    "B11": "two backups are requested at once",
    "B12": "a backup is deleted while it runs",
    "B13": "a backup is deleted while it is restored from",
    "B14": "the control plane's store is restored from an older copy",
    "B15": "the control plane is away for longer than the lease",
    "B16": "a restart or resize while a backup runs",
    "B17": "an object is damaged, missing, swapped or cut short",
    "B18": "a manifest is forged",
    "B19": "another cloud's key",
    "B20": "agents are killed 50 times under load",
    "B21": "the tenant's root tries to read or become more than it may",
    "B22": "the control plane is killed while it verifies a backup",
    "B23": "a tenant's root that the operator lets be a superuser tries to get further",
}
"""Further faults at databases and their backups: of these no peer was measured."""

KNOWN = (POINTS, PEER_FAULTS, TROVE_FAULTS, DATABASE_FAULTS)


def _order(point: str) -> tuple[str, int]:
    return point[0], int(point[1:])


def _proofs(point: str) -> list[Proof]:
    """In one order, whichever module was imported first."""
    found = [proof for proof in PROOFS if proof.point == point]
    return sorted(found, key=lambda proof: MODULES.index(proof.module))


def _tests(point: str) -> str:
    return "<br>".join(
        f"`{proof.module.removeprefix('tests.').replace('.', '/')}.py`: {proof.test.removeprefix('test_')}"
        for proof in _proofs(point)
    )


def _ends(point: str) -> str:
    return "; ".join(dict.fromkeys(proof.ends for proof in _proofs(point)))


def load() -> None:
    """Import every module that proves something."""
    for module in MODULES:
        importlib.import_module(module)


def lines() -> Iterator[str]:
    yield "# Faults, and how they end"
    yield ""
    yield "`python -m tests.proof` writes this page from what the tests say of themselves, and"
    yield "`tests/test_proof.py` fails when it is out of date. A row stands only if its tests pass. Tests in"
    yield "`real/` kill real processes; those marked slow run in `make test-all`."
    yield ""
    yield "## Every place where a build can be cut off"
    yield ""
    yield "| | cut off | real Nova after the restart | Unstuck | proved by |"
    yield "| --- | --- | --- | --- | --- |"
    for name in sorted(POINTS, key=_order):
        point = POINTS[name]
        if name in ELSEWHERE:
            yield f"| {name} | {point.where} | {point.nova} | cannot happen | {ELSEWHERE[name]} |"
        else:
            yield f"| {name} | {point.where} | {point.nova} | {_ends(name)} | {_tests(name)} |"
    wrong = sum(fault.wrong for fault in PEER_FAULTS.values())
    yield ""
    yield "## The faults that real Nova was given"
    yield ""
    yield "Nova 34.0.0 with its default settings and a driver whose guests outlive the service; seen ten"
    yield 'minutes later. "Wrong" means that only an administrator, a delete or SQL changes it.'
    yield f"Nova: {wrong} of {len(PEER_FAULTS)} wrong. Unstuck: 0 of {len(PEER_FAULTS)}, or the tests fail."
    yield ""
    yield "| | fault | Nova | | Unstuck | proved by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in sorted(PEER_FAULTS, key=_order):
        fault = PEER_FAULTS[name]
        verdict = "wrong" if fault.wrong else "right"
        yield f"| {name} | {fault.fault} | {fault.shown} | {verdict} | {_ends(name)} | {_tests(name)} |"
    yield from database_lines()


def database_lines() -> Iterator[str]:
    wrong = sum(fault.wrong for fault in TROVE_FAULTS.values())
    yield ""
    yield "## The faults that real Trove was given"
    yield ""
    yield "Trove 26.0.0 with its default settings; seen ten minutes later. Every test ends the same way: the"
    yield "next backup completes, rows that were acknowledged to an outside writer are there, and no process,"
    yield "slot, file, socket or object of the fault is left."
    count = len(TROVE_FAULTS)
    yield f"Trove: {wrong} of {count} wrong. Unstuck: 0 of {count}, or the tests fail."
    yield ""
    yield "| | fault | Trove | | Unstuck | proved by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in sorted(TROVE_FAULTS, key=_order):
        fault = TROVE_FAULTS[name]
        verdict = "wrong" if fault.wrong else "right"
        yield f"| {name} | {fault.fault} | {fault.shown} | {verdict} | {_ends(name)} | {_tests(name)} |"
    yield ""
    yield "## Further faults at databases and their backups"
    yield ""
    yield "| | fault | Unstuck | proved by |"
    yield "| --- | --- | --- | --- |"
    for name in sorted(DATABASE_FAULTS, key=_order):
        yield f"| {name} | {DATABASE_FAULTS[name]} | {_ends(name)} | {_tests(name)} |"


def page() -> str:
    """The whole page."""
    load()
    return "\n".join(lines()) + "\n"


def planted(text: str) -> str:
    """docs/guarantees.md with the list of planted faults as it is."""
    from tests.sim.planted import PLANTED

    rows = [f"| {one.name.replace('_', ' ')} | `{one.where}` | {one.by} |" for one in PLANTED]
    head = text.partition(PLANTED_FROM)[0]
    return "\n".join([head + PLANTED_FROM, "| --- | --- | --- |", *rows]) + "\n"


if __name__ == "__main__":
    from tests import proof  # the module that the tests import, not this one, has heard of them

    root = Path(__file__).parents[1]
    (root / PAGE).write_text(proof.page())
    (root / GUARANTEES).write_text(planted((root / GUARANTEES).read_text()))
