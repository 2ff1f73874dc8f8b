"""POST to ACTIVE with guests that are files and with real ones, recovery of one guest, idle memory, `up`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.tiny_image import fake_tiny

from bench.bare import Bare
from bench.databases import Database
from bench.figure import Figure, figure, times
from bench.site import Site, User, kill_hard, new_site, pss_mb, until, user
from unstuck.core.server.data import Flavor

ROUNDS = {"instant": 40, "qemu": 7, "recovery": 5, "up": 5}
WARM = 3


def instant(database: Database) -> Iterator[Figure]:
    """POST to ACTIVE with guests that are files: what Unstuck itself takes."""
    with database.fresh() as url, new_site("instant", url) as site:
        site.control()
        site.agent()
        with user(site, fake_tiny(site.folder / "image")) as client:
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
    yield times(f"{database.name}: POST to ACTIVE", actives, 50)
    yield times(f"{database.name}: POST /servers", posts, 6)


def why_no_qemu(image: Path | None) -> str:
    """Why real guests cannot be measured here; empty when they can."""
    if shutil.which("qemu-system-x86_64") is None:
        return "qemu-system-x86_64 is not installed"
    if os.geteuid() != 0:
        return "networks of real guests need root"
    return "" if image is not None else "the tiny image is not built"


def qemu(image: Path | None) -> Iterator[Figure]:
    """POST to ACTIVE with real guests, against a bare start of the same QEMU; turn and turn about."""
    reason = why_no_qemu(image)
    if reason or image is None:
        yield Figure("QEMU, recovery, idle", None, "", note=f"skipped: {reason}")
        return
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
            yield times("QEMU: POST to ACTIVE", ours)
            yield times("QEMU: bare start to running", bares)
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
    yield times("recovery of one guest: after the agent's own start", beyond, 1000)
    yield times("recovery of one guest: with the agent's own start", whole)


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
    yield times("up: first answered request", firsts, 2000)
    yield times("up: command returns", returns)
