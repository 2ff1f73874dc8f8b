"""``unstuck chaos``: a real cloud under load, hit from all sides for minutes; then the account is drawn."""

from __future__ import annotations

import random
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from unstuck.cli.chaos.checks import Checks
from unstuck.cli.chaos.lanes import SETTLED, Book, Lane, lanes
from unstuck.cli.chaos.load import Backups, ServerUser, Writer
from unstuck.cli.chaos.report import Result, page
from unstuck.cli.chaos.world import ChaosWorld
from unstuck.cli.demo_world import Failed
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain


def chaos(
    *,
    minutes: float = 10.0,
    seed: int | None = None,
    report: Annotated[Path, Parameter(name=["--report", "-o"])] = Path("chaos.html"),
) -> int:
    """Kill, freeze, cut off and fill up a real cloud under load; then check that nothing is lost or stuck.

    It makes a cloud in a temporary folder: two servers, and two databases of each registered version, with a
    writer outside that remembers what was acknowledged. Needs root; leaves nothing but the report. The last
    line is JSON. Exit code 1 where anything does not hold.

    Parameters
    ----------
    minutes
        How long faults are injected. Building the cloud and checking it come on top.
    seed
        Of the dice: which faults, and the pauses between them. When they hit is up to the machine.
    report
        Where the page goes. Where anything does not hold, the cloud's logs lie beside it.
    """
    if not 0 < minutes <= 24 * 60:
        raise CliError("--minutes: a number above 0, up to a day.")
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    run = Run(minutes, seed, report.with_suffix(".logs"))
    old = signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = run.run()
    except Failed as error:
        raise CliError(f"The cloud could not be built, or put to work: {error}") from None
    finally:
        run.world.clean_up()
        signal.signal(signal.SIGTERM, old)
    report.write_text(page(result, run.book.records))
    run.say(f"the report is {report}")
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0 if result.ok else 1


class Run:
    """One run, from nothing to the account."""

    def __init__(self, minutes: float, seed: int, logs: Path) -> None:
        self.minutes, self.seed, self.logs = minutes, seed, logs
        self.world = ChaosWorld()
        self.began = time.monotonic()
        self.book = Book(self.began)

    def say(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self.began:7.1f} s  {plain(text)}\n")
        sys.stderr.flush()

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}:{name}")  # noqa: S311 (dice, no secrets)

    def run(self) -> Result:
        self.say(f"seed {self.seed}: a cloud in {self.world.root}")
        self.world.build()
        writers = [Writer(database) for database in self.world.databases]
        for writer in writers:
            writer.database.client.connect(writer.database.address).create()
        user = ServerUser(self.world, self.dice("user"))
        backups = Backups(self.world, writers, self.dice("backups"))
        self.say(f"{len(self.world.servers)} servers and {len(writers)} databases are at work; faults begin")
        hitting = self._hit(writers, user, backups)
        self.say(f"{self.book.kills} kills, {len(self.book.records)} faults; now all must become true")
        checks = self._check(writers, user, backups)
        for record in self.book.records:
            if record.settled is None:
                checks.violations.append(f"not settled {SETTLED:.0f} s after the last fault: {record.what}")
        checks.violations += [lane.broken for lane in hitting if lane.broken]
        return self._result(writers, backups, checks)

    def _hit(self, writers: list[Writer], user: ServerUser, backups: Backups) -> list[Lane]:
        over = threading.Event()
        hitting = lanes(self.world, writers, self.seed, self.book, over, self.say)
        for thread in (*writers, user, backups, *hitting):
            thread.start()
        try:
            time.sleep(self.minutes * 60.0)
        finally:
            over.set()
            for lane in hitting:
                lane.finish()
            user.end()
            backups.end()
            for writer in writers:
                writer.end()
        return hitting

    def _check(self, writers: list[Writer], user: ServerUser, backups: Backups) -> Checks:
        checks = Checks(self.world, self.say)
        checks.claim("every server and database is settled", checks.settled)
        checks.claim("each server is what its user was told", lambda: checks.servers_are_as_told(user))
        checks.claim("each server keeps what it said", lambda: checks.servers_keep_what_they_said(user))
        checks.claim(
            "each backup has ended, with a reason if it failed", lambda: checks.backups_are_over(backups)
        )
        for writer in writers:
            name = writer.database.name
            checks.claim(f"{name} has every row", lambda one=writer: checks.rows_are_there(one))  # type: ignore[misc]
            checks.claim(
                f"backups of {name}, restored, have every row",
                lambda one=writer: checks.restored(one, backups),  # type: ignore[misc]
            )
        checks.claim("doctor finds no difference between the store and this machine", checks.agree)
        if checks.violations or any(record.settled is None for record in self.book.records):
            self.world.keep_logs(self.logs)
            self.say(f"the logs are in {self.logs}")
        checks.claim("after the deletes nothing is left over", checks.nothing_left)
        checks.claim("and doctor finds no difference either", checks.agree)
        return checks

    def _result(self, writers: list[Writer], backups: Backups, checks: Checks) -> Result:
        took = [record.settled for record in self.book.records if record.settled is not None]
        return Result(
            ok=not checks.violations, seed=self.seed, minutes=self.minutes,
            seconds=round(time.monotonic() - self.began, 1), kills=self.book.kills,
            faults=len(self.book.records), skipped=self.book.skipped,
            acknowledged={writer.database.name: len(writer.acknowledged) for writer in writers},
            backups=dict(backups.ended), worst_settled=round(max(took, default=0.0), 1),
            violations=checks.violations, held=checks.held, not_driven=self.world.not_driven,
        )  # fmt: skip


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
