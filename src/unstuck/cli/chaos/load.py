"""The load: a writer for each database, a user for the servers, backups and restores beside them.

Each keeps a book of what was acknowledged. In the end it is compared with what is there.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from typing import Any, Final

from unstuck.cli.chaos.world import ChaosWorld, Database
from unstuck.cli.cloud import COMPUTE
from unstuck.cli.dbcalls import Databases
from unstuck.cli.demo_world import ask
from unstuck.cli.errors import CliError


class Writer(threading.Thread):
    """One row after the other; what was acknowledged is remembered, what was not is tried under a new number,
    so that a row that was sent and not acknowledged may be there or not."""

    def __init__(self, database: Database) -> None:
        super().__init__(name=f"writer of {database.name}", daemon=True)
        self.database = database
        self.sent = 0
        self.acknowledged: list[int] = []
        self.trouble = ""
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                session = self.database.client.connect(self.database.address, 3)
            except OSError as error:
                self.trouble = str(error)
                self._over.wait(0.3)
                continue
            with contextlib.closing(session), contextlib.suppress(OSError):
                while not self._over.is_set():
                    self.sent += 1
                    session.insert(self.sent)
                    self.acknowledged.append(self.sent)
                    self._over.wait(0.02)

    def end(self) -> None:
        self._over.set()
        self.join(40.0)


class ServerUser(threading.Thread):
    """Starts, stops and reboots the servers. ``may_be`` says of each what it may be in the end: after an
    answer one thing, after a lost answer two. And a line on each disk: the last that was acknowledged."""

    def __init__(self, world: ChaosWorld, rng: random.Random) -> None:
        super().__init__(name="user of the servers", daemon=True)
        self._world, self._rng = world, rng
        self.may_be: dict[str, set[str]] = {name: {"ACTIVE"} for name in world.servers}
        self.written: dict[str, int] = {}
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._rng.uniform(1.0, 4.0)):
            name = self._rng.choice(list(self._world.servers))
            if self._rng.random() < 0.8:
                self._write(name)
            else:
                with contextlib.suppress(CliError, OSError, ValueError, KeyError):
                    self._act(name)

    def _write(self, name: str) -> None:
        with contextlib.suppress(Exception):
            address = self._world.address(self._world.servers[name])
            self.sent[name] += 1
            number = self.sent[name]
            if ask(address, f"write {number}") == "ok":
                self.written[name] = number

    def _act(self, name: str) -> None:
        what, body, then = self._rng.choice(ACTIONS)
        before = set(self.may_be[name])
        self.may_be[name] = before | {then}  # until it is answered
        path = f"/compute/v2.1/servers/{self._world.servers[name]}/action"
        with self._world.cloud() as cloud:
            answer = cloud.client.post(path, json=body, headers=COMPUTE)
        self.asked[f"{what} {answer.status_code}"] += 1
        if answer.status_code == 202:
            self.may_be[name] = {then}
        elif answer.status_code == 409:
            self.may_be[name] = before
        elif answer.status_code < 500:
            self.wrong.append(f"{what} of {name} was answered {answer.status_code}: {answer.text[:200]}")

    def end(self) -> None:
        self._over.set()
        self.join(60.0)


ACTIONS: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    ("stop", {"os-stop": None}, "SHUTOFF"),
    ("start", {"os-start": None}, "ACTIVE"),
    ("start", {"os-start": None}, "ACTIVE"),
    ("reboot", {"reboot": {"type": "HARD"}}, "ACTIVE"),
)


class Backups(threading.Thread):
    """A backup now and then. Under faults it may fail, with a reason; it must not stay."""

    def __init__(self, world: ChaosWorld, writers: list[Writer], rng: random.Random) -> None:
        super().__init__(name="backups", daemon=True)
        self._world, self._writers, self._rng = world, writers, rng
        self.least: dict[str, tuple[Writer, int]] = {}
        """By backup: whose, and how many rows were acknowledged before it was asked for."""
        self.ended: Counter[str] = Counter()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._rng.uniform(5.0, 15.0)):
            writer = self._rng.choice(self._writers)
            with contextlib.suppress(CliError, OSError, ValueError, KeyError):
                self.one(writer)

    def one(self, writer: Writer) -> str:
        """Ask for a backup; returns its id. Raises :class:`CliError` where it is not accepted now."""
        known = len(writer.acknowledged)
        body = {"backup": {"name": f"chaos-{len(self.least)}", "instance": writer.database.id}}
        with self._world.cloud() as cloud:
            backup_id = str(Databases(cloud).ask("POST", "/backups", json=body)["backup"]["id"])
        self.least[backup_id] = (writer, known)
        return backup_id

    def end(self) -> None:
        self._over.set()
        self.join(60.0)
