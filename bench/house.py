"""A database's guest on its host, as in a cloud: the agent's process, the host's, the channel between them.

Only what the control plane does is done by the tests' double, over HTTP.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from tests.guest.guest import PASSWORD, free_port
from tests.guest.kinds import KINDS, Kind
from tests.guest_cloud import SERVER, GuestCloud
from tests.guest_http import served
from tests.guest_site import server_folder

from bench.datapath import heard, program
from unstuck.blobs import manifest as manifests
from unstuck.blobs.manifest import Manifest
from unstuck.core.backup.data import Done, Gave
from unstuck.core.instance.view import GuestStep
from unstuck.core.instance.want import Origin
from unstuck.guest.init import AGENT_ENVIRONMENT

PIECE = 4 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


class House:
    """One volume with its agent and host. ``direct``: the host writes objects itself."""

    def __init__(
        self, folder: Path, objects: Path, *, direct: bool = True, origin: Origin | None = None,
        datastore: str = "postgresql",
    ) -> None:  # fmt: skip
        self.folder = folder
        self.kind: Kind = KINDS[datastore]
        self.port = free_port()
        self.cloud = GuestCloud(objects, direct=direct)
        self.cloud.origin = origin or Origin()
        self.host: subprocess.Popen[str] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self._version = 0
        for name in ("volume", "run"):
            (folder / name).mkdir(parents=True)
        for made in (folder, folder / "run"):
            made.chmod(0o755)

    @property
    def data(self) -> Path:
        return self.folder / "volume" / "database" / ("pg" if self.kind.name == "postgresql" else "data")

    @property
    def sockets(self) -> Path:
        return self.folder / "run" / "pg"

    @contextlib.contextmanager
    def open(self) -> Iterator[House]:
        """With its host's process; the agent's comes with :meth:`start`."""
        socket = server_folder(self.folder / "host") / "channel" / "agent.sock"
        self._write(recorded=False)
        try:
            with (
                served(self.cloud) as url,
                program("guest_host", self.folder / "host", self.folder / "want.json", url) as self.host,
            ):
                heard(self.host, "started")
                self._until(socket.exists, 10)
                yield self
        finally:
            self.end()

    def _write(self, *, recorded: bool) -> None:
        self._version += 1
        want = self.cloud.want(chunk_size=PIECE, data_recorded=recorded, version=self._version)
        assert want.database is not None
        mine = msgspec.structs.replace(
            want.database, port=self.port, cidrs=("127.0.0.1/32",), datastore=self.kind.name,
            version=self.kind.version(),
        )  # fmt: skip
        path = self.folder / "want.json"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(want, database=mine)))

    def _hold(self, *, recorded: bool) -> None:
        """The host hears what is wanted now."""
        self._write(recorded=recorded)
        assert self.host is not None
        assert self.host.stdin is not None
        self.host.stdin.write("\n")
        self.host.stdin.flush()
        heard(self.host, "peak")

    def start(self) -> None:
        command = [
            sys.executable, "-m", "unstuck.guest", "--volume", self.folder / "volume", "--run",
            self.folder / "run", "--channel", self.folder / "host/servers" / SERVER / "channel/agent.sock",
            "--datastore", self.kind.name, *self.kind.options(),
        ]  # fmt: skip
        with (self.folder / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=Path(__file__).parents[1],
                env=os.environ | AGENT_ENVIRONMENT,
            )  # fmt: skip

    def ready(self, seconds: float = 90.0) -> None:
        """Wait until the database serves."""

        def there() -> bool:
            view = self.cloud.reports[-1].view if self.cloud.reports else None
            return view is not None and view.step is GuestStep.READY

        self._until(there, seconds)

    def back_up(self, nonce: str, seconds: float) -> Manifest:
        """Make a backup, from its offer until its manifest is written."""
        self.cloud.offer(nonce)
        self._hold(recorded=True)

        def over() -> Done | Gave | None:
            assert self.cloud.backup is not None
            report = self.cloud.backup.attempt.report
            return report if isinstance(report, Done | Gave) else None

        said = self._until(over, seconds)
        assert isinstance(said, Done), said
        return self.manifest()

    def manifest(self) -> Manifest:
        written = self.cloud.objects.get(manifests.manifest_key(self.cloud.prefix))
        return manifests.read(written or b"", self.cloud.signer.public, self.cloud.prefix)

    def may_restore(self, other: House) -> None:
        """From what the other has backed up."""
        other.cloud.may_restore(manifests.content(other.manifest()))
        self.cloud.restore, self.cloud.origin = other.cloud.restore, other.cloud.origin

    def _until(self, holds: Callable[[], Any], seconds: float) -> Any:
        end = time.monotonic() + seconds
        while not (found := holds()):
            if time.monotonic() > end or (self.agent is not None and self.agent.poll() is not None):
                raise AssertionError((self.folder / "agent.log").read_text())
            time.sleep(0.005)
        return found

    def connect(self) -> Any:
        return self.kind.connect(self.port, "anna", "shop", PASSWORD)

    def admin(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=str(self.sockets), port=self.port, user="postgres", dbname="postgres", autocommit=True
        )

    def server_pid(self) -> int:
        """0: there is none."""
        return self.kind.server_pid(self.folder / "volume")

    def end(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait(10)
            self.agent = None
        if pid := self.server_pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, self.kind.kill)
            end = time.monotonic() + 10
            while _lives(pid) and time.monotonic() < end:
                time.sleep(0.02)

    # --- what it costs

    def worked(self) -> float:
        """Seconds of processor time of agent, host and database server, with all that they started and
        that has ended."""
        pids = [self.server_pid()]
        pids += [child.pid for child in (self.agent, self.host) if child is not None]
        return sum(worked(pid) for pid in pids)

    def memory(self) -> float:
        """The agent's, MiB."""
        assert self.agent is not None
        status = Path(f"/proc/{self.agent.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[float]]:
        """All that the agent's memory is meanwhile, MiB, ten times a second."""
        found, over = [self.memory()], threading.Event()

        def watch() -> None:
            while not over.wait(0.1):
                found.append(self.memory())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()


def worked(pid: int) -> float:
    """Seconds of processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _lives(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
