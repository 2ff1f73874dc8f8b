"""What the demonstration acts with: a throw-away cloud, the stock client, guests' port 7, and kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from unstuck.cli import boxes, dbimage, guests, tiny
from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.cli.errors import CliError
from unstuck.cli.reality import Reality, look
from unstuck.cli.supervisor import identity_of
from unstuck.runtime.barriers import VARIABLE
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import ProcessId, end, end_for_sure
from unstuck.runtime.state import State

T = TypeVar("T")
LINKS = ("unb", "unt")
"""What the names of our bridges and taps begin with."""


class Failed(Exception):
    """Something was not as it should be; the message names it."""


class World:
    """A cloud in a temporary folder with a home of its own: nothing of the user's is touched."""

    def __init__(self, prefix: str = "unstuck-demo-") -> None:
        image, self.database_image = _fit()
        self.root = Path(tempfile.mkdtemp(prefix=prefix))
        self.state = State(self.root / "state")
        self.furnish()
        home = self.root / "home"
        home.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OS_", "UNSTUCK_"))}
        self.environment = {
            **kept, "HOME": str(home), "OS_CLOUD": "unstuck", "UNSTUCK_TINY": str(image),
            "UNSTUCK_STATE": str(self.state.root), "UNSTUCK_TRASH_SECONDS": "0",
        }  # fmt: skip
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
            self.environment.pop(name, None)

    def furnish(self) -> None:
        """What has to be in the folder before anything else; nothing here."""

    # --- commands

    def unstuck(self, *words: str, barrier: str = "", expect: int | None = 0) -> str:
        """Our own command, as anybody would call it."""
        more = {VARIABLE: barrier} if barrier else {}
        return self._run([sys.executable, "-m", "unstuck.cli.main", *words], more, expect)

    def openstack(self, *words: str) -> Any:
        """The stock client; parsed where it was asked for JSON, else its text."""
        text = self._run([str(Path(sys.executable).with_name("openstack")), *words], {}, 0)
        return json.loads(text) if "json" in words else text

    def _run(self, command: list[str], more: dict[str, str], expect: int | None) -> str:
        words = " ".join([Path(command[0]).name, *command[1:]])
        try:
            done = subprocess.run(
                command, env={**self.environment, **more}, capture_output=True, text=True, timeout=300,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failed(f"`{words}` did not end within 300 seconds") from None
        if expect is not None and done.returncode != expect:
            raise Failed(f"`{words}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def start_control(self) -> None:
        """The control plane alone: no supervisor, no agent."""
        with (self.state.logs / "control.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "unstuck.control.main", "--state", str(self.state.root)],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        wait_for("the control plane answers", 30.0, self._healthy)

    def _healthy(self) -> bool:
        try:
            with self.cloud():
                return True
        except CliError:
            return False

    # --- the API, where the stock client would be too slow to measure with

    @contextlib.contextmanager
    def cloud(self) -> Iterator[Cloud]:
        with connect(self.state, "demo") as cloud:
            yield cloud

    def address(self, server_id: str) -> str:
        with self.cloud() as cloud:
            server = show(cloud, server_id)
        found = [item["addr"] for items in server["addresses"].values() for item in items]
        if not found:
            raise Failed(f"server {server_id} has no address")
        return str(found[0])

    # --- processes

    def processes(self) -> dict[str, ProcessId]:
        """Ours that live, each known for certain by its lock."""
        places = {
            "supervisor": self.state.supervisor_lock, "host agent": self.state.host_lock,
            "control plane": self.state.control_lock,
        }  # fmt: skip
        found = {name: holder(lock) for name, lock in places.items()}
        return {name: process for name, process in found.items() if process is not None}

    def named(self) -> list[ProcessId]:
        """Python processes of ours by their command line: the folder's name is nobody else's."""
        mark = f"\0--state\0{self.state.root}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in entry.joinpath("cmdline").read_bytes():
                    found.append(identity_of(int(entry.name)))
        return [process for process in found if process is not None]

    def kill_all(self) -> dict[str, int]:
        """kill -9, the supervisor first so that it starts nothing again."""
        found = self.processes()
        for name, process in found.items():
            if not end(process, signal.SIGKILL, 5.0):
                raise Failed(f"the {name} (process {process.pid}) does not die")
        return {name: process.pid for name, process in found.items()}

    def guest_pids(self, server_id: str) -> list[int]:
        return [guest.pid for guest in guests.running(self.state) if guest.server_id == server_id]

    def reality(self) -> Reality:
        return look(self.state)

    # --- the end

    def clean_up(self) -> None:
        """Everything that is ours, however far it came."""
        for _ in range(3):  # more than once: one that was just being started has no lock yet
            for process in [*self.processes().values(), *self.named()]:
                end_for_sure(process, 10.0)
        if self.state.host.exists():
            asyncio.run(guests.end_all(self.state, 0.0))
            asyncio.run(boxes.end_all(self.state, 0.0))
        leftovers = [["ip", "link", "del", name] for name in links()]
        leftovers += [["nft", "delete", "table", family, "unstuck"] for family in ("inet", "bridge")]
        for command in leftovers:
            with contextlib.suppress(OSError):
                subprocess.run(command, check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)


def _fit() -> tuple[Path, Path]:
    """The images of servers and of databases: their folders. Raises :class:`CliError`: what is missing."""
    if os.geteuid() != 0:
        raise CliError("The demonstration needs root, for the servers' networks: sudo make demo.")
    if links():
        raise CliError(
            "Another cloud's networks are on this machine; in namespaces of its own the demonstration is not "
            "in its way: scripts/in-netns unstuck demo."
        )
    if not Path(sys.executable).with_name("openstack").exists():
        raise CliError("The stock client is missing: pip install python-openstackclient.")
    image = tiny.built(State(Path("/nonexistent")))
    if image is None:
        raise CliError("The guest image is missing: make setup builds it.")
    database = dbimage.built(State(Path("/nonexistent")))
    if database is None:
        raise CliError("The databases' image is missing: make setup builds it.")
    return image, database


def links() -> list[str]:
    """Bridges and taps on this machine, of whatever cloud."""
    return [name for _, name in socket.if_nameindex() if name.startswith(LINKS)]


def show(cloud: Cloud, server_id: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.get(f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)["server"]
    return found


def ask(address: str, line: str) -> str | None:
    """One line to a guest's port 7 and its answer; None when it does not answer."""
    try:
        with socket.create_connection((address, 7), timeout=2.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(line.encode() + b"\n")
            with connection.makefile("r", encoding="utf-8", errors="replace") as reader:
                return reader.readline().strip() or None
    except OSError:
        return None


def say(address: str, line: str) -> str:
    """The same where there must be an answer."""
    return wait_for(f"the guest at {address} answers `{line}`", 60.0, lambda: ask(address, line))


def wait_for(what: str, seconds: float, look_up: Callable[[], T | None]) -> T:
    """The first answer that counts as true. Raises :class:`Failed` when the time is over."""
    end_at = time.monotonic() + seconds
    while True:
        found = look_up()
        if found:
            return found
        if time.monotonic() > end_at:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)
