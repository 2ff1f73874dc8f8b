"""Who does which faults, beside each other: one lane for each thing that is hit, each with its own dice."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from unstuck.cli.chaos import faults
from unstuck.cli.chaos.faults import Done, Fault, Skipped
from unstuck.cli.chaos.load import Writer
from unstuck.cli.chaos.world import ChaosWorld

SETTLED: Final = 180.0
"""Seconds after the last fault of all within which the effect of each is over."""
AT_MOST: Final = 20.0
GUESTS: Final = (100.0, 160.0)
"""Seconds between kills of guests. No server's is killed more than three times in ten minutes: started five
times it would be left as it is, with that reason (``core.server.host.START_BUDGET``)."""


class Record(msgspec.Struct, frozen=True):
    """One fault. ``at``: seconds since the beginning; ``settled``: seconds from its end until its effect was
    over, None where it was not within :data:`SETTLED`."""

    at: float
    lane: str
    what: str
    seen: str
    settled: float | None
    kills: int = 0


class Book:
    """Everything that was done, by all lanes."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.records: list[Record] = []
        self.skipped = 0
        self._lock = threading.Lock()

    def note(self, record: Record) -> None:
        with self._lock:
            self.records.append(record)

    def skip(self) -> None:
        with self._lock:
            self.skipped += 1

    @property
    def kills(self) -> int:
        return sum(record.kills for record in list(self.records))


class Lane(threading.Thread):
    """One after the other: wait, do one, look until its effect is over; the next one comes after
    :data:`AT_MOST` seconds all the same, so that a slow machine is hit as often as a fast one."""

    def __init__(
        self, name: str, book: Book, rng: random.Random, choices: Sequence[Fault], pause: tuple[float, float],
        over: threading.Event, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._book, self._rng, self._choices, self._pause = book, rng, choices, pause
        self._over, self._say = over, say
        self.broken = ""
        self._watches: list[threading.Thread] = []

    def run(self) -> None:
        try:
            while not self._over.wait(self._rng.uniform(*self._pause)):
                self._one(self._rng.choice(self._choices))
        except Exception as error:  # what does the faults must not fail in silence
            self.broken = f"{self.name}: {type(error).__name__}: {error}"

    def _one(self, fault: Fault) -> None:
        at = time.monotonic() - self._book.began
        try:
            done = fault()
        except Skipped:
            self._book.skip()
            return
        watch = threading.Thread(target=self._watch, args=(at, done), daemon=True)
        self._watches.append(watch)
        watch.start()
        watch.join(AT_MOST)

    def _watch(self, at: float, done: Done) -> None:
        began = time.monotonic()
        settled: float | None = None
        last = began
        while settled is None and time.monotonic() - last < SETTLED:
            if not self._over.is_set():
                last = time.monotonic()  # further faults may hold it up for as long as there are any
            if done.over():
                settled = time.monotonic() - began
            else:
                time.sleep(0.1)
        self._book.note(Record(at, self.name, done.what, done.seen, settled, done.kills))
        took = "NOT settled" if settled is None else f"settled after {settled:.1f} s"
        self._say(f"{self.name}: {done.what}; {took}")

    def finish(self) -> None:
        """Until the effect of its last fault is over, or was waited for long enough."""
        self.join(SETTLED)
        for watch in self._watches:
            watch.join(SETTLED + 10.0)


def lanes(
    world: ChaosWorld, writers: Sequence[Writer], seed: int, book: Book, over: threading.Event,
    say: Callable[[str], None],
) -> list[Lane]:  # fmt: skip
    """All of them, not started."""

    def dice(name: str) -> random.Random:
        return random.Random(f"{seed}:{name}")  # noqa: S311 (dice, no secrets)

    def lane(name: str, choices: list[Fault], *pause: float) -> Lane:
        return Lane(name, book, dice(f"when {name}"), choices, (pause[0], pause[1]), over, say)

    what = dice("what")
    part = functools.partial
    turn = itertools.cycle(world.servers)
    made = [
        lane(
            "control plane",
            [
                *[part(faults.kill_control, world)] * 3,
                part(faults.freeze_process, world, "control plane", what),
            ],
            4.0, 14.0,
        ),
        lane(
            "host agent",
            [
                *[part(faults.kill_agent, world)] * 3, part(faults.kill_both, world),
                part(faults.freeze_process, world, "host agent", what),
            ],
            4.0, 14.0,
        ),
        lane("guests of the servers", [part(faults.kill_guest, world, turn)], *GUESTS),
        lane(
            "surroundings",
            [
                part(faults.block_control, world, what), part(faults.fill_store, world, what),
                part(faults.fill_backups, world, what),
                *[part(faults.block_database, writer, what) for writer in writers],
            ],
            10.0, 30.0,
        ),
    ]  # fmt: skip
    for writer in writers:
        name = writer.database.name
        made.append(
            lane(
                f"agent in {name}",
                [*[part(faults.kill_guest_agent, writer)] * 4, part(faults.freeze_guest_agent, writer, what)],
                5.0,
                14.0,
            )
        )
        made.append(
            lane(
                f"server of {name}",
                [*[part(faults.kill_database, writer)] * 2, part(faults.kill_helper, writer, what)],
                5.0,
                15.0,
            )
        )
    return made
