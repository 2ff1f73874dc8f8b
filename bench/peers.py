"""Headline faults of docs/faults.md, replayed through public APIs on a cloud that runs: Nova, Trove, Unstuck.

It installs nothing and breaks nothing by itself: how an agent or a control plane is killed and started again
on that cloud is told in a TOML file of shell commands (`hooks`). It asks through openstacksdk as a user does,
waits, and prints a JSON line for each fault: what the API shows in the end, and whether that is wrong. Wrong
means that it is not what was asked for, and only an administrator, a delete or SQL would change it.

    python -m bench.peers compute --cloud NAME --hooks hooks.toml --image IMAGE --flavor FLAVOR
    python -m bench.peers database --cloud NAME --hooks hooks.toml --instance ID

hooks.toml, for compute and for database (``{instance}`` is the instance's id):

    kill_agent = "ssh node pkill -9 -f nova-compute"
    start_agent = "ssh node systemctl start nova-compute"
    kill_control = "pkill -9 -f nova-conductor"
    start_control = "systemctl start nova-conductor"
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keystoneauth1.exceptions
import msgspec
import openstack

AWAY = 5.0
"""Seconds between a kill and the start after it, unless a fault says otherwise."""
POLL = 0.2
UNANSWERED = (keystoneauth1.exceptions.ConnectFailure, openstack.exceptions.HttpException)
"""A control plane that was killed does not answer, and that is no end yet."""


class Outcome(msgspec.Struct, frozen=True):
    """What one fault came to."""

    fault: str
    shown: str
    wrong: bool
    seconds: float


class Hooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shell commands that kill and start parts of the cloud; each has to return when it is done."""

    kill_agent: str
    start_agent: str
    kill_control: str = ""
    start_control: str = ""

    def run(self, name: str, instance: str = "") -> None:
        """Raises ``CalledProcessError`` if the command fails, and after a minute ``TimeoutExpired``."""
        command = getattr(self, name).replace("{instance}", instance)
        # What is to be killed may be dead already; what is to be started has to start.
        subprocess.run(command, shell=True, check=name.startswith("start"), timeout=60)


def until(seconds: float, look: Callable[[], bool]) -> bool:
    """Whether it came about in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if look():
            return True
        time.sleep(POLL)
    return False


class Compute:
    """Faults while servers are built."""

    def __init__(self, cloud: Any, hooks: Hooks, image: str, flavor: str, patience: float) -> None:
        self._compute = cloud.compute
        self._hooks = hooks
        self._image = cloud.image.find_image(image, ignore_missing=False).id
        self._flavor = cloud.compute.find_flavor(flavor, ignore_missing=False).id
        self._patience = patience

    def faults(self) -> Iterator[tuple[str, Callable[[], tuple[str, bool]]]]:
        yield "agent killed while the guest is started, then started again", self.killed_while_spawning
        yield "agent dead at the request, back a minute later", self.dead_at_the_request
        yield "agent killed with five builds on their way, then started again", self.killed_with_many
        yield "deleted during its build with the agent dead, then started again", self.deleted_while_dead
        if self._hooks.kill_control:
            yield "control plane killed right after the request, then started again", self.control_killed

    def _create(self) -> str:
        made = self._compute.create_server(
            name=f"fault-{uuid.uuid4().hex[:8]}", image_id=self._image, flavor_id=self._flavor,
            networks="auto",
        )  # fmt: skip
        return str(made.id)

    def _state(self, server: str) -> tuple[str, str | None]:
        """Status and task; GONE for one that is not there any more, UNANSWERED while nobody says."""
        try:
            found = self._compute.get_server(server)
        except openstack.exceptions.NotFoundException:
            return "GONE", None
        except UNANSWERED:
            return "UNANSWERED", None
        return str(found.status), found.task_state

    def _end(self, servers: list[str], wanted: str) -> tuple[str, bool]:
        """What they show when all are as wanted or patience is over; ERROR may heal until then."""
        until(self._patience, lambda: all(self._state(one)[0] == wanted for one in servers))
        shown = [self._state(one) for one in servers]
        for one in servers:
            with contextlib.suppress(*UNANSWERED):
                self._compute.delete_server(one, ignore_missing=True)
        words = sorted({status + (f"/{task}" if task else "") for status, task in shown})
        return ", ".join(words), any(status != wanted for status, _ in shown)

    def _restart(self, part: str, after: float = AWAY) -> None:
        time.sleep(after)
        self._hooks.run(f"start_{part}")

    def killed_while_spawning(self) -> tuple[str, bool]:
        server = self._create()
        until(60.0, lambda: self._state(server)[1] == "spawning" or self._state(server)[0] != "BUILD")
        self._hooks.run("kill_agent")
        self._restart("agent")
        return self._end([server], "ACTIVE")

    def dead_at_the_request(self) -> tuple[str, bool]:
        self._hooks.run("kill_agent")
        server = self._create()
        self._restart("agent", 60.0)
        return self._end([server], "ACTIVE")

    def killed_with_many(self) -> tuple[str, bool]:
        servers = [self._create() for _ in range(5)]
        time.sleep(1.0)
        self._hooks.run("kill_agent")
        self._restart("agent")
        return self._end(servers, "ACTIVE")

    def deleted_while_dead(self) -> tuple[str, bool]:
        server = self._create()
        self._hooks.run("kill_agent")
        self._compute.delete_server(server)
        self._restart("agent")
        return self._end([server], "GONE")

    def control_killed(self) -> tuple[str, bool]:
        server = self._create()
        self._hooks.run("kill_control")
        self._restart("control")
        return self._end([server], "ACTIVE")


class Databases:
    """Faults while an instance is backed up. Wrong is also one that takes no other backup afterwards."""

    def __init__(self, cloud: Any, hooks: Hooks, instance: str, patience: float) -> None:
        self._api = cloud.database
        self._hooks = hooks
        self._instance = instance
        self._patience = patience

    def faults(self) -> Iterator[tuple[str, Callable[[], tuple[str, bool]]]]:
        yield "agent dead before the request, back when the backup has ended", self.dead_before
        yield "agent killed during the backup, then started again", self.killed_during
        if self._hooks.kill_control:
            yield "control plane killed right after the request, then started again", self.control_killed

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._api.request(path, method, json=body)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.json() if answer.content else None

    def _backup(self) -> str:
        body = {"backup": {"name": f"fault-{uuid.uuid4().hex[:8]}", "instance": self._instance}}
        return str(self._ask("POST", "/backups", body)["backup"]["id"])

    def _status(self, backup: str) -> str:
        try:
            return str(self._ask("GET", f"/backups/{backup}")["backup"]["status"])
        except (RuntimeError, *UNANSWERED):
            return "UNANSWERED"

    def _ended(self, backup: str, seconds: float) -> bool:
        return until(seconds, lambda: self._status(backup) in ("COMPLETED", "FAILED"))

    def _end(self, backup: str) -> tuple[str, bool]:
        ended = self._ended(backup, self._patience)
        shown = f"backup {self._status(backup)}, "
        shown += f"instance {self._ask('GET', f'/instances/{self._instance}')['instance']['status']}"
        try:
            free = self._ended(self._backup(), self._patience)
        except RuntimeError as error:
            shown, free = f"{shown}; another backup is refused: {error}", False
        return shown, not (ended and free)

    def dead_before(self) -> tuple[str, bool]:
        self._hooks.run("kill_agent", self._instance)
        backup = self._backup()
        self._ended(backup, self._patience)
        self._hooks.run("start_agent", self._instance)
        return self._end(backup)

    def killed_during(self) -> tuple[str, bool]:
        backup = self._backup()
        until(60.0, lambda: self._status(backup) not in ("NEW",))
        self._hooks.run("kill_agent", self._instance)
        time.sleep(AWAY)
        self._hooks.run("start_agent", self._instance)
        return self._end(backup)

    def control_killed(self) -> tuple[str, bool]:
        backup = self._backup()
        self._hooks.run("kill_control")
        time.sleep(AWAY)
        self._hooks.run("start_control")
        return self._end(backup)


def replay(faults: Iterator[tuple[str, Callable[[], tuple[str, bool]]]]) -> list[Outcome]:
    """One fault after the other; prints a line for each."""
    found = []
    for fault, run in faults:
        began = time.monotonic()
        shown, wrong = run()
        outcome = Outcome(fault, shown, wrong, round(time.monotonic() - began, 1))
        print(msgspec.json.encode(outcome).decode(), flush=True)
        found.append(outcome)
    return found


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if anything ended wrong, 2 if it could not be asked."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=("compute", "database"))
    parser.add_argument("--cloud", required=True, help="its name in clouds.yaml")
    parser.add_argument("--hooks", required=True, type=Path, help="a TOML file of shell commands")
    parser.add_argument("--image", help="compute: name or id")
    parser.add_argument("--flavor", help="compute: name or id")
    parser.add_argument("--instance", help="database: the id of an instance that is healthy")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds until it is judged")
    options = parser.parse_args(argv)
    needed = ("image", "flavor") if options.kind == "compute" else ("instance",)
    if missing := [name for name in needed if getattr(options, name) is None]:
        parser.error(f"{options.kind} needs --{' and --'.join(missing)}")
    try:
        hooks = msgspec.convert(tomllib.loads(options.hooks.read_text()), Hooks)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        parser.error(f"--hooks: {error}")
    cloud = openstack.connect(cloud=options.cloud)
    if options.kind == "compute":
        faults = Compute(cloud, hooks, options.image, options.flavor, options.patience).faults()
    else:
        faults = Databases(cloud, hooks, options.instance, options.patience).faults()
    found = replay(faults)
    wrong = sum(one.wrong for one in found)
    print(json.dumps({"faults": len(found), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
