"""``make bench``: what a fast cloud costs over bare QEMU, how fast it recovers, what it takes when idle.

All of it is measured on real processes: a control plane and an agent of our own, with state in a folder
that is removed again. Figures are medians; a goal that was missed is said to be missed (``ok`` false) and
the exit status is 1. A measurement that this machine cannot make is ``skipped``, with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import msgspec
from bare import Bare
from bench_cloud import Site, User, kill_hard, new_site, pss_mb, small_image, until, user

from unstuck.core.server.data import Flavor
from unstuck.host.kvm import accelerator

ROUNDS = {"instant": 40, "qemu": 7, "recovery": 5, "up": 5}
WARM = 3
SCHEDULES = 1000


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the result. ``goal`` is the most that is allowed; without one it is for information."""

    name: str
    value: float | None
    unit: str
    goal: float | None = None
    ok: bool | None = None
    note: str = ""


def figure(name: str, value: float, unit: str, goal: float | None = None, note: str = "") -> Figure:
    return Figure(
        name,
        round(value, 1 if value < 1000 else 0),
        unit,
        goal,
        None if goal is None else value <= goal,
        note,
    )


def spread(values: list[float], factor: float = 1000) -> str:
    ordered = sorted(values)
    return f"{len(ordered)} times, {ordered[0] * factor:.0f} to {ordered[-1] * factor:.0f}"


def instant() -> Iterator[Figure]:
    """POST to ACTIVE with guests that are files: what Unstuck itself takes."""
    with new_site("instant") as site:
        site.control()
        site.agent()
        with user(site, small_image(site.folder / "image")) as client:
            posts, actives = [], []
            for number in range(WARM + ROUNDS["instant"]):
                began = time.monotonic()
                server = client.create(f"bench-{number}")
                accepted = time.monotonic()
                active = client.until_active(server)
                client.delete(server)
                if number >= WARM:
                    posts.append(accepted - began)
                    actives.append(active - began)
    yield figure("instant: POST to ACTIVE", median(actives) * 1000, "ms", 50, spread(actives))
    yield figure("instant: POST /servers", median(posts) * 1000, "ms", None, spread(posts))


def why_no_qemu(image: Path | None) -> str:
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86_64 is not installed"
    if os.geteuid() != 0:
        return "networks of real guests need root"
    return "" if image is not None else "the tiny image is not built"


def built_image() -> Path | None:
    from unstuck.cli import tiny
    from unstuck.runtime.state import State

    return tiny.built(State(Path(tempfile.gettempdir()) / "unstuck-bench-none"))


def qemu(image: Path) -> Iterator[Figure]:
    """POST to ACTIVE with real guests, against a bare start of the same QEMU; turn and turn about."""
    with new_site("qemu") as site:
        site.control()
        agent, _ = site.agent()
        with user(site, image) as client:
            flavor = client.flavor
            bare = Bare(site.folder / "bare", image, Flavor(flavor["vcpus"], flavor["ram"], flavor["disk"]))
            ours, bares = [], []
            for number in range(1 + ROUNDS["qemu"]):
                began = time.monotonic()
                server = client.create(f"bench-{number}")
                took = client.until_active(server) - began
                client.delete(server)
                alone = bare.start()
                if number:  # the first one fetches the image
                    ours.append(took)
                    bares.append(alone)
            yield figure("QEMU: POST to ACTIVE", median(ours) * 1000, "ms", None, spread(ours))
            yield figure("QEMU: bare start to running", median(bares) * 1000, "ms", None, spread(bares))
            yield figure("QEMU: our own part", (median(ours) - median(bares)) * 1000, "ms", 150)
            yield figure("QEMU: ratio to bare", median(ours) / median(bares), "x")
            kill_hard(agent)
            yield from recovery(site, client)
            yield from idle(site)


def recovery(site: Site, client: User) -> Iterator[Figure]:
    """The agent dies between a guest's start and its report; the next one finds the guest."""
    beyond, whole = [], []
    for number in range(ROUNDS["recovery"]):
        first, _ = site.agent(stop_at="control.report.running")
        server = client.create(f"recovery-{number}")
        until((site.state.run / f"stopped-{first.pid}").exists)
        assert client.status(server) == "BUILD"
        kill_hard(first)
        began = time.time()
        second, registered = site.agent()
        client.until_active(server)
        now = time.time()
        beyond.append(now - registered)
        whole.append(now - began)
        client.delete(server)
        kill_hard(second)
    yield figure("recovery: after the agent's own start", median(beyond) * 1000, "ms", 1000, spread(beyond))
    yield figure("recovery: with the agent's own start", median(whole) * 1000, "ms", None, spread(whole))


def idle(site: Site) -> Iterator[Figure]:
    """Memory a moment after work, and nobody asks anything."""
    site.agent()
    time.sleep(8.0)
    parts = {name: pss_mb(process) for name, process in site.holders().items()}
    note = ", ".join(f"{name} {value:.0f}" for name, value in sorted(parts.items()))
    yield figure("idle: PSS of control plane and agent", sum(parts.values()), "MB", 150, note)


def up() -> Iterator[Figure]:
    """`unstuck up` in a folder that was up before, until the first request is answered."""
    with new_site("instant") as site:
        words = ("--state", str(site.state.root))
        firsts, returns = [], []
        for number in range(1 + ROUNDS["up"]):
            began = time.monotonic()
            child = site.start("unstuck.cli.main", "up", "--detach", "--no-clouds-yaml", *words)
            until(site.answers, 0.005)
            first = time.monotonic() - began
            assert child.wait(60.0) == 0
            if number:  # the first one makes the database
                firsts.append(first)
                returns.append(time.monotonic() - began)
            assert site.start("unstuck.cli.main", "down", *words).wait(60.0) == 0
    yield figure("up: first answered request", median(firsts) * 1000, "ms", 2000, spread(firsts))
    yield figure("up: command returns", median(returns) * 1000, "ms", None, spread(returns))


def simulation() -> Iterator[Figure]:
    command = [sys.executable, "-m", "unstuck.cli.main", "sim", "random", "--schedules", str(SCHEDULES)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    summary = msgspec.json.decode(done.stdout.splitlines()[-1])
    note = f"{SCHEDULES} schedules, {summary['violations']} violations"
    yield figure("simulator", SCHEDULES / summary["seconds"], "schedules/s", None, note)


def machine() -> Figure:
    """How busy the machine was before we began: others' load makes every figure worse."""
    note = f"{len(os.sched_getaffinity(0))} CPUs, {accelerator().value}"
    return figure("load before the bench", os.getloadavg()[0], "processes", None, note)


def measure(image: Path | None) -> Iterator[Figure]:
    yield machine()
    yield from instant()
    reason = why_no_qemu(image)
    if reason or image is None:
        yield Figure("QEMU, recovery, idle", None, "", note=f"skipped: {reason}")
    else:
        yield from qemu(image)
    yield from up()
    yield from simulation()


def row(item: Figure) -> str:
    value = "-" if item.value is None else f"{item.value:g}"
    goal = "" if item.goal is None else f"<= {item.goal:g}"
    verdict = {True: "ok", False: "MISSED", None: ""}[item.ok]
    return f"{item.name:40} {value:>8} {item.unit:12} {goal:8} {verdict:7} {item.note}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default="", help="instant, qemu, up or simulation")
    options = parser.parse_args()
    image = built_image()
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "": lambda: measure(image), "instant": instant, "up": up, "simulation": simulation,
    }  # fmt: skip
    if image is not None:
        parts["qemu"] = lambda: qemu(image)
    missed = False
    for item in parts[options.only]():
        missed |= item.ok is False
        print(msgspec.json.encode(item).decode() if options.json else row(item), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
