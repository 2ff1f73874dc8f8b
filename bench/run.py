"""``make bench``: what a fast cloud costs over bare QEMU, how fast it recovers, what it costs at rest.

All of it is measured on real processes: a control plane and an agent of our own, with state in a folder
that is removed again. Figures are medians; a goal that was missed is said to be missed (``ok`` false) and
the exit status is 1. A measurement that this machine cannot make is ``skipped``, with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.creates import creates
from bench.databases import Database, both
from bench.datapath import datapath
from bench.figure import Figure, figure, row
from bench.finished import finished
from bench.guestbackup import backups
from bench.guests import instant, qemu, up
from bench.healthy import healthy
from bench.lists import lists
from bench.mariadb import mariadb
from bench.recovery import hundred
from bench.rest import rest
from unstuck.host.kvm import accelerator

SCHEDULES = 1000
ON_BOTH: dict[str, Callable[[Database], Iterator[Figure]]] = {
    "instant": instant, "lists": lists, "creates": creates, "recovery": hundred, "rest": rest,
    "finished": finished,
}  # fmt: skip


def built_image() -> Path | None:
    from unstuck.cli import tiny
    from unstuck.runtime.state import State

    return tiny.built(State(Path(tempfile.gettempdir()) / "unstuck-bench-none"))


def simulation() -> Iterator[Figure]:
    command = [sys.executable, "-m", "unstuck.cli.main", "sim", "random", "--schedules", str(SCHEDULES)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    summary = msgspec.json.decode(done.stdout.splitlines()[-1])
    note = f"{SCHEDULES} schedules, {summary['violations']} violations"
    yield figure("simulator", SCHEDULES / summary["seconds"], "schedules/s", None, note)


ONCE: dict[str, Callable[[], Iterator[Figure]]] = {
    "qemu": lambda: qemu(built_image()), "up": up, "datapath": datapath, "simulation": simulation,
    "backups": backups, "mariadb": mariadb, "healthy": healthy,
}  # fmt: skip


def machine(name: str) -> Figure:
    """How busy the machine was before a part began: others' load makes every figure worse."""
    note = f"{len(os.sched_getaffinity(0))} CPUs, {accelerator().value}"
    return figure(f"load before {name}", os.getloadavg()[0], "processes", None, note)


def measure(wanted: set[str]) -> Iterator[Figure]:
    """The parts that are wanted, one after the other, both databases side by side."""
    with both() as databases:
        for name, part in ON_BOTH.items():
            if name in wanted:
                yield machine(name)
                for database in databases:
                    yield from part(database)
    for name, single in ONCE.items():
        if name in wanted:
            yield machine(name)
            yield from single()


def main() -> int:
    parts = [*ON_BOTH, *ONCE]
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default="", help=f"with commas between them: {', '.join(parts)}")
    options = parser.parse_args()
    wanted = set(options.only.split(",")) if options.only else set(parts)
    if not wanted <= set(parts):
        parser.error(f"there is no {', '.join(sorted(wanted - set(parts)))}")
    missed = False
    for item in measure(wanted):
        missed |= item.ok is False
        print(msgspec.json.encode(item).decode() if options.json else row(item), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
