"""A database's guest for tests: a volume, a host, and agents that come and go as processes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.guest.host_double import Host, Served, wait_for
from tests.guest.kinds import KINDS, Kind
from unstuck.blobs.age import new_identity, recipient_of
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.objects import FolderObjects
from unstuck.core.backup.content import Content, Parent
from unstuck.core.instance.scram import verifier
from unstuck.core.instance.view import DatabaseView, GuestStep
from unstuck.core.instance.want import BackupWant, DatabaseWant, Origin, WantedUser
from unstuck.core.server.data import Thing
from unstuck.runtime.processes import stopped

PASSWORD = "correct horse"
VERIFIER = verifier(PASSWORD, salt=b"0123456789abcdef")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Guest:
    """One volume with its host; agents run on it one after the other."""

    def __init__(
        self, folder: Path, objects: FolderObjects, volume: Path | None = None, datastore: str = "postgresql"
    ) -> None:
        self.kind: Kind = KINDS[datastore]
        self.folder = folder
        self.volume = volume or folder / "volume"
        self.volume.mkdir(exist_ok=True)
        self.run = folder / "run"
        self.run.mkdir(exist_ok=True)
        for made in (folder, self.run):
            made.chmod(0o755)
        self.host = Host(objects)
        self.socket = folder / "host.sock"
        self.served = Served(self.host, self.socket)
        self.log = folder / "agent.log"
        self.agent: subprocess.Popen[bytes] | None = None
        self.keys: dict[str, str] = {}
        self.port = free_port()

    def want(self, **changes: Any) -> DatabaseWant:
        values: dict[str, Any] = {
            "instance_id": "instance-1", "datastore": self.kind.name, "version": self.kind.version(),
            "generation": "generation-1", "data_recorded": False, "origin": Origin(), "port": self.port,
            "cidrs": ("127.0.0.1/32",), "ram_mb": 256,
        }  # fmt: skip
        return DatabaseWant(**(values | changes))

    def start(self, stop_at: str = "", *options: str, user: str | None = None) -> subprocess.Popen[bytes]:
        environment = os.environ | {"UNSTUCK_STOP_AT": stop_at, "MALLOC_MMAP_THRESHOLD_": "1048576"}
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "tests.guest.agent_process", self.socket,
                 "--volume", self.volume, "--run", self.run, "--datastore", self.kind.name,
                 *self.kind.options(), *options],
                stdout=log, stderr=log, env=environment, cwd=Path(__file__).parents[2], user=user,
                group=None if user is None else pwd.getpwnam(user).pw_gid,
                extra_groups=None if user is None else [],
            )  # fmt: skip
        return self.agent

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(10)
        self.agent = None

    def stopped(self, seconds: float = 60.0) -> None:
        """Wait until the agent stands at its barrier."""
        assert self.agent is not None
        agent = self.agent
        wait_for(lambda: stopped(agent.pid) or agent.poll() is not None, seconds)
        assert agent.poll() is None, self.log.read_text()

    def view(self) -> DatabaseView:
        assert self.host.view is not None
        return self.host.view

    def ready(self, seconds: float = 90.0) -> DatabaseView:
        """Wait until all that is wanted is there."""
        want = self.host.want
        assert want is not None

        def there() -> bool:
            view = self.host.view
            assert self.agent is None or self.agent.poll() is None, self.log.read_text()
            return (
                view is not None and view.step is GuestStep.READY and view.data is Thing.PRESENT
                and view.generation == want.generation and view.restart == want.restart
            )  # fmt: skip

        try:
            wait_for(there, seconds)
        except AssertionError:
            raise AssertionError(f"{self.host.view}\n{self.log.read_text()}\n{self.server_log()}") from None
        return self.view()

    def trouble(self, code: str, seconds: float = 60.0) -> DatabaseView:
        def there() -> bool:
            view = self.host.view
            return view is not None and view.trouble is not None and view.trouble.code == code

        try:
            wait_for(there, seconds)
        except AssertionError:
            raise AssertionError(f"{self.host.view}\n{self.log.read_text()}\n{self.server_log()}") from None
        return self.view()

    def server_log(self) -> str:
        path = self.volume / "log" / f"{self.kind.name}.log"
        return path.read_text() if path.exists() else ""

    def server_pid(self) -> int:
        """0: there is none."""
        return self.kind.server_pid(self.volume)

    def connect(
        self, user: str = "anna", database: str = "shop", password: str = PASSWORD, **more: Any
    ) -> Any:
        """As anybody would, over the network."""
        return self.kind.connect(self.port, user, database, password, **more)

    def backup_want(self, nonce: str, **changes: Any) -> BackupWant:
        self.keys.setdefault(nonce, new_identity())
        values: dict[str, Any] = {
            "backup_id": "backup-1", "attempt": 1, "nonce": nonce,
            "recipient": recipient_of(self.keys[nonce]), "chunk_size": 4 << 20, "stalls": {},
        }  # fmt: skip
        return BackupWant(**(values | changes))

    def back_up(self, nonce: str = "n1", seconds: float = 120.0, since: str | None = None) -> Content:
        """Make a backup and wait until it is made; ``since``: the nonce of its parent."""
        assert self.host.want is not None
        backup = self.backup_want(nonce, generation=self.host.want.generation)
        if since is not None:
            parent = msgspec.structs.replace(self.host.finished[since], chunks=())
            backup = msgspec.structs.replace(backup, since=Parent("backup-1", since), since_content=parent)
        self.host.wants(self.want(**_fields(self.host.want) | {"backup": backup}))
        try:
            wait_for(lambda: nonce in self.host.finished or nonce in self.host.gave_up, seconds)
        except AssertionError:
            raise AssertionError(self.log.read_text()) from None
        assert nonce in self.host.finished, self.host.gave_up
        return self.host.finished[nonce]

    def source(self, nonce: str) -> tuple[str, Content, str]:
        """For another guest to be restored from."""
        return prefix_of("backup-1", 1, nonce), self.host.finished[nonce], self.keys[nonce]

    def end(self) -> None:
        """The container's end."""
        if self.agent is not None:
            self.kill()
        pid = self.server_pid()
        if pid:
            for number in (signal.SIGCONT, self.kind.kill):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + 10
            while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                if _zombie(pid):
                    break
                time.sleep(0.02)
        self.served.close()

    def end_server(self) -> None:
        """In order, as the container's end does."""
        os.kill(self.server_pid(), self.kind.stop)
        wait_for(lambda: self.server_pid() == 0, 30)


def processes_with(path: Path) -> list[int]:
    """Those that have this path on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.fsencode(path) in (entry / "cmdline").read_bytes() and not _zombie(int(entry.name)):
                    found.append(int(entry.name))
    return found


def processes_named(name: str, place: Path) -> list[int]:
    """The programs of this name (not their leashes) that have a path below this one on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if words.split(b"\0")[0].endswith(name.encode()) and os.fsencode(place) in words:
                    found.append(int(entry.name))
    return found


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _fields(want: DatabaseWant) -> dict[str, Any]:
    return {name: getattr(want, name) for name in want.__struct_fields__}


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Where the datastore's user gets in too; short, because sockets' paths are."""
    made = Path(tempfile.mkdtemp(prefix="ug-"))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def anna(*databases: str, verifier: str = VERIFIER) -> WantedUser:
    return WantedUser("anna", verifier, databases)
