"""A cloud with a database for tests of faults: real containers, PostgreSQL, stores of objects, and an outside
writer that remembers what was acknowledged to it.

Everything of the guest is a process of this machine, so it is frozen and killed from here, by a verified pid.
A phase of a backup is held by freezing what the server or the store would do next in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import httpx2
import msgspec
import psycopg
import pytest

from tests.real.datastore_kits import KITS, PASSWORD, USER, Kit, comm, ended, line
from tests.real.fault_cloud import FaultCloud, cloud_in
from unstuck.blobs import stores
from unstuck.blobs.objects import Entry, FolderObjects, Location, Objects, open_objects
from unstuck.cli import boxes
from unstuck.cli.cloud import connect
from unstuck.cli.dbcalls import Databases
from unstuck.cli.dbimage import register
from unstuck.core.backup.limits import Wish
from unstuck.host.drivers.podman import cgroups
from unstuck.runtime.files import write_whole
from unstuck.runtime.processes import start_time

T = TypeVar("T")

BOTH: Final = pytest.mark.parametrize(
    "made", ["postgresql", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True, scope="module"
)
"""Mark of a module: each of its tests once for each datastore."""
RIGHT: Final = "word = md5(cast(id AS char(20)))"
"""A row of the ledger is as it was written."""

HERE: Final = "10.77.0.1/32"
LIMITS: Final = Wish(
    claim=30.0, starting=20.0, copying=20.0, finishing=20.0, uploading=20.0, verify=60.0, unknown=15.0,
    attempts=3,
)  # fmt: skip
"""What these tests give a backup, in seconds; a real operator gives minutes. A test that waits for one of
them to be over gives less, and more attempts: on a busy machine a good one may be over, too."""
LEASE: Final = 30.0
"""Seconds of an agent's silence that its attempt survives (core/backup/control.py)."""


class Writer:
    """One row after the other from outside; what was acknowledged is remembered, what was not is retried
    under a new number. A row that was sent and not acknowledged may be there or not."""

    def __init__(self, kit: Kit, address: str) -> None:
        self.kit = kit
        self.address = address
        self.sent = 0
        self.acknowledged: list[int] = []
        self.last_error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self.kit.login(self.address, "shop", 3) as connection:
                    while not self._stop.is_set():
                        self.sent += 1
                        row = self.sent
                        self.kit.insert(connection, row)
                        self.acknowledged.append(row)
                        self._stop.wait(0.03)
            except self.kit.error as error:
                self.last_error = str(error)
                self._stop.wait(0.2)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30.0)


def login(address: str, database: str, seconds: int = 5, user: str = USER) -> psycopg.Connection[Any]:
    """Into a PostgreSQL."""
    found: psycopg.Connection[Any] = KITS["postgresql"].login(address, database, seconds, user)
    return found


class Hold:
    """A process that stands until it is let go on; also when the test fails. Held by several, it stands until
    all of them let it go."""

    _held: ClassVar[dict[int, int]] = {}

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._start = start_time(pid)
        self._held[pid] = self._held.get(pid, 0) + 1
        os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self._start is None:
            return
        self._held[self.pid] -= 1
        if self._held[self.pid] == 0 and start_time(self.pid) == self._start:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
        self._start = None


class Other(Hold):
    """A process that holds something in the server until it is let go on, which is its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process: subprocess.Popen[str] | None = process
        self.pid = process.pid

    def go_on(self) -> None:
        if self._process is not None:
            ended(self._process)
        self._process = None


class Instance:
    """One database: its processes, its rows, its backups."""

    def __init__(self, made: DatabaseCloud, instance_id: str) -> None:
        self.made = made
        self.kit = made.kit
        self.cloud = made.cloud
        self.id = instance_id
        self.address = ""
        self.server_id = ""
        self._holds: list[Hold] = []
        self.writer: Writer | None = None
        self.is_free = True

    # --- what the API says

    @property
    def api(self) -> Databases:
        return self.made.api

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/instances/{self.id}")["instance"]
        return found

    def until_healthy(self, seconds: float = 180.0) -> None:
        self.cloud.until(
            "the database is healthy", lambda: self.shown()["operating_status"] == "HEALTHY",
            lambda: json.dumps(self.shown(), indent=1), seconds,
        )  # fmt: skip

    def prepare(self, *, write: bool = True) -> None:
        """Its bulk of data and the table that the writer writes into."""
        self.until_healthy(240.0)
        self.find_server()
        self.address = next(item["address"] for item in self.shown()["addresses"])
        self.cloud.until("it lets its user in", self.reaches)
        with self.login() as connection:
            self.kit.prepare(connection)
        if write:
            self.writer = Writer(self.kit, self.address)

    def login(self, seconds: int = 5) -> Any:
        return self.kit.login(self.address, "shop", seconds)

    def until_error(self, words: str, seconds: float = 90.0) -> dict[str, Any]:
        """In ERROR for good, and saying so in these words (a pattern); never healthy on the way."""

        def failed() -> dict[str, Any] | None:
            found = self.shown()
            if found["operating_status"] == "HEALTHY":
                self.cloud.fail(f"it looks healthy: {json.dumps(found, indent=1)}")
            said = f"{found['unstuck']['reason']} {found.get('fault')}"
            return found if found["status"] == "ERROR" and re.search(words, said) else None

        return self.cloud.until(
            f"the instance is in ERROR for {words!r}",
            failed,
            lambda: json.dumps(self.shown(), indent=1),
            seconds,
        )

    def find_server(self) -> None:
        """The server that it lives in, which only an administrator is told."""
        with connect(self.cloud.state) as admin:
            base = f"/database/v1.0/{admin.project_id}/mgmt/instances/{self.id}"
            self.server_id = str(admin.get(base)["instance"]["server"]["id"])

    def until_settled(self, seconds: float = 120.0) -> None:
        """What was asked for has come about."""
        self.cloud.until(
            "nothing is pending", lambda: self.shown()["unstuck"]["pending"] is None,
            lambda: json.dumps(self.shown(), indent=1), seconds,
        )  # fmt: skip
        self.until_healthy()

    def reaches(self) -> bool:
        with contextlib.suppress(self.kit.error), self.login(2):
            return True
        return False

    # --- its processes

    def pids(self) -> list[int]:
        mine = boxes.places(self.cloud.state)
        assert mine is not None
        return cgroups.living(mine.guest_group(self.server_id))

    def named(self, word: str) -> list[int]:
        """Its processes with this in their command line."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                if word.encode() in line:
                    found.append(pid)
        return found

    def one(self, word: str, seconds: float = 30.0) -> int:
        return self.cloud.until(
            f"a process `{word}` in the guest", lambda: self.named(word), seconds=seconds
        )[0]

    @property
    def init(self) -> int:
        (found,) = [each.pid for each in boxes.running(self.cloud.state) if each.server_id == self.server_id]
        return found

    def agents(self) -> list[int]:
        """Not the guest's PID 1, in whose command line theirs is."""
        return [pid for pid in self.named("unstuck.guest ") if b"unstuck.guest.init" not in line(pid)]

    def agent(self, seconds: float = 60.0) -> int:
        return self.cloud.until("an agent in the guest", self.agents, seconds=seconds)[0]

    def tool(self, seconds: float = 30.0) -> int:
        """The one that makes the copy itself, not the leash that it runs on."""

        def found() -> list[int]:
            return [pid for pid in self.pids() if comm(pid) == self.kit.tool]

        return self.cloud.until(f"{self.kit.tool} runs", found, seconds=seconds)[0]

    def sender(self, seconds: float = 30.0) -> int:
        return self.one("walsender", seconds)

    def postmaster(self) -> int:
        def found() -> list[int]:
            return [pid for pid in self.pids() if self.kit.is_server(pid)]

        return self.cloud.until("the server runs", found)[0]

    def run_inside(self, script: str, *arguments: str) -> str:
        """A Python program in the guest as its agent's user, as somebody who broke in would run it."""
        done = subprocess.run(self._inside(script, *arguments), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_inside(self, script: str) -> subprocess.Popen[str]:
        """The same, in the background, once it has said its first line."""
        made = subprocess.Popen(
            self._inside(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert made.stdout is not None
        assert made.stdout.readline(), "it ended without a word"
        return made

    def _inside(self, script: str, *arguments: str) -> list[str]:
        pid = self.agent()
        status = Path(f"/proc/{pid}/status").read_text()
        uid, gid = (re.search(rf"^{word}:\s+(\d+)", status, re.MULTILINE) for word in ("Uid", "Gid"))
        assert uid is not None
        assert gid is not None
        offset = int(Path(f"/proc/{pid}/uid_map").read_text().split()[1])
        inside = [str(int(found[1]) - offset) for found in (uid, gid)]
        return [
            "nsenter", "-t", str(pid), "--user", "--mount", "--pid", "--net", "--ipc", "--root", "--wd=/",
            "--setuid", inside[0], "--setgid", inside[1],
            "/usr/bin/env", "PYTHONPATH=/usr/lib/unstuck/python",
            "/usr/bin/python3", "-c", script, *arguments,
        ]  # fmt: skip

    def hold(self, pid: int) -> Hold:
        made = Hold(pid)
        self.holds(made)
        return made

    def holds(self, hold: Hold) -> None:
        self._holds.append(hold)
        self.cloud.note(f"holds {hold.pid} ({comm(hold.pid)})")

    def kill(self, pid: int) -> None:
        self.cloud.note(f"kills {pid} ({comm(pid)})")
        os.kill(pid, signal.SIGKILL)

    def kill_agent(self) -> int:
        """kill -9; the next one is started by the guest's PID 1."""
        pid = self.agent()
        self.kill(pid)
        return pid

    def let_all_go(self) -> None:
        for held in self._holds:
            held.go_on()
        self._holds.clear()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The whole guest stands still, as a paused machine does."""
        mine = boxes.places(self.cloud.state)
        assert mine is not None
        group = mine.guest_group(self.server_id)
        name, stand, go = (
            ("cgroup.freeze", "1", "0") if cgroups.unified() else ("freezer.state", "FROZEN", "THAWED")
        )
        top = (cgroups.ROOT if cgroups.unified() else cgroups.ROOT / "freezer") / group
        (top / name).write_text(stand)
        self.cloud.note("the guest is frozen")
        try:
            yield
        finally:
            (top / name).write_text(go)
            self.cloud.note("the guest goes on")

    # --- backups, and holding one in a phase

    def request(self, name: str = "b") -> str:
        body = {"backup": {"name": name, "instance": self.id}}
        made = str(self.api.ask("POST", "/backups", json=body)["backup"]["id"])
        self.cloud.note(f"backup {made} requested")
        return made

    def ask_in_vain(self) -> None:
        """A request for a backup whose answer never comes."""
        body = {"backup": {"name": "in vain", "instance": self.id}}
        with contextlib.suppress(httpx2.TransportError):
            self.cloud.cloud.client.post(f"{self.api.base}/backups", json=body, timeout=2.0)
            self.cloud.fail("the request was answered")

    def backup(self, backup_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/backups/{backup_id}")["backup"]
        return found

    def is_unknown(self, backup_id: str) -> bool:
        """To its user it is not there (any more)."""
        answer = self.cloud.cloud.client.get(f"{self.api.base}/backups/{backup_id}")
        return bool(answer.status_code == 404)

    def until_phase(self, backup_id: str, phase: str, seconds: float = 90.0) -> None:
        self.until_backup(
            backup_id, f"is {phase}", lambda found: bool(found["unstuck"]["phase"] == phase), seconds
        )

    def until_backup(
        self, backup_id: str, what: str, there: Callable[[dict[str, Any]], bool], seconds: float = 60.0
    ) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.backup(backup_id)
            return found if there(found) else None

        return self.cloud.until(
            f"the backup {what}", look, lambda: json.dumps(self.backup(backup_id), indent=1), seconds
        )

    def until_attempt(self, backup_id: str, number: int, seconds: float = 120.0) -> None:
        """It has come to this attempt, and has not ended."""
        what = f"comes to attempt {number}"
        self.until_backup(backup_id, what, lambda found: bool(found["unstuck"]["attempt"] == number), seconds)

    def until_over(self, backup_id: str, seconds: float = 180.0) -> dict[str, Any]:
        found = self.until_backup(
            backup_id, "ends", lambda found: found["status"] in ("COMPLETED", "FAILED"), seconds
        )
        self.cloud.note(f"backup {backup_id}: {found['status']} {found['unstuck']['reason']}")
        return found

    def completed(self, backup_id: str, seconds: float = 180.0) -> dict[str, Any]:
        found = self.until_over(backup_id, seconds)
        if found["status"] != "COMPLETED":
            self.cloud.fail(f"the backup failed: {json.dumps(found, indent=1)}")
        return found

    def failed(self, backup_id: str, words: str, seconds: float = 180.0) -> dict[str, Any]:
        """It ended, and says why in these words (a pattern)."""
        found = self.until_over(backup_id, seconds)
        if found["status"] != "FAILED" or not re.search(words, found["unstuck"]["reason"]):
            self.cloud.fail(f"it should have failed with {words!r}: {json.dumps(found, indent=1)}")
        return found

    def held(self, phase: str, name: str = "held") -> tuple[str, list[Hold]]:
        """A backup that stands in this phase while its agent is healthy, and what holds it."""
        backup_id, holds = self.kit.held(self, phase, name)
        self.until_phase(backup_id, phase)
        return backup_id, holds

    # --- what has to hold in the end

    def free(self) -> None:
        """Nothing holds the instance: the next backup completes, and nothing is lost or left."""
        self.let_all_go()
        self.made.settings()
        self.until_healthy()
        self.completed(self.request("next"))
        self.keeps_what_it_acknowledged()
        self.nothing_left()
        self.is_free = True

    def keeps_what_it_acknowledged(self) -> None:
        assert self.writer is not None
        known = set(self.writer.acknowledged)
        self.cloud.until("it lets its user in", self.reaches)
        with self.login() as connection:
            rows = self.kit.rows(connection, f"SELECT id FROM ledger WHERE {RIGHT}")
        lost = known - {row[0] for row in rows}
        assert not lost, f"{len(lost)} of {len(known)} acknowledged rows are lost: {sorted(lost)[:10]}"

    def acknowledged(self) -> list[int]:
        """As of now."""
        assert self.writer is not None
        return list(self.writer.acknowledged)

    def is_exact(self, source: Instance, least: int) -> None:
        """Restored: every row that was acknowledged before the backup was asked for, each as it was written,
        none that was never sent, and no gap: what was acknowledged is there up to the last row that is."""
        assert source.writer is not None
        if not self.address:
            self.address = next(item["address"] for item in self.shown()["addresses"])
        self.cloud.until("it lets its user in", self.reaches)
        with self.login() as connection:
            rows = self.kit.rows(connection, f"SELECT id, {RIGHT} FROM ledger ORDER BY id")
            bulk = self.kit.bulk(connection)
        with source.login() as connection:
            assert bulk == self.kit.bulk(connection)
        found = [row[0] for row in rows]
        assert all(row[1] for row in rows)
        acknowledged = source.writer.acknowledged
        assert set(acknowledged[:least]) <= set(found), "rows from before the backup are missing"
        last = found[-1]
        missing = {row for row in acknowledged if row <= last} - set(found)
        assert not missing, f"rows in the middle are missing: {sorted(missing)[:10]}"
        assert last <= source.writer.sent

    def writes_go_on(self) -> None:
        """The outside writer gets answers."""
        writer = self.writer
        assert writer is not None
        before = len(writer.acknowledged)
        self.cloud.until(
            "rows are acknowledged", lambda: len(writer.acknowledged) > before + 3, lambda: writer.last_error
        )

    def nothing_left(self) -> None:
        """No tool, no leash, no sender, no slot; on the host no file of an attempt but the last one's."""

        def left() -> list[str]:
            found = [f"{pid} {line(pid)[:80]!r}" for pid in self.pids() if self.kit.is_tool(pid)]
            with self.login() as connection:
                found += self.kit.left(connection)
            folder = self.cloud.state.host / "servers" / self.server_id
            ledgers = sorted(path.name for path in folder.glob("attempt-*.log"))
            found += ledgers[1:]
            parts = [*self.made.state_backups.rglob(".part-*"), *folder.rglob("*.part*")]
            return found + [str(path) for path in parts]

        self.cloud.until("nothing of a backup is left", lambda: not left(), lambda: str(left()), 30.0)
        agents = self.agents()
        assert len(agents) == 1, f"there should be one agent, there are {agents}"
        self.made.only_objects_of_complete_backups()
        self.cloud.agree()

    # --- restores

    def restore(self, backup_id: str, name: str = "restored", seconds: float = 240.0) -> Instance:
        made = self.made.create(name, backup_id)
        made.until_healthy(seconds)
        made.address = next(item["address"] for item in made.shown()["addresses"])
        return made

    def delete(self) -> None:
        if self.writer is not None:
            self.writer.end()
        self.let_all_go()
        for each in self.made.backups_of(self.id):
            self.api.ask("DELETE", f"/backups/{each['id']}")
        answer = self.api.cloud.client.delete(f"{self.api.base}/instances/{self.id}")
        assert answer.status_code in (202, 404), answer.text
        self.gone()

    def gone(self) -> None:
        if self.server_id:
            self.cloud.until("no process of it is left", lambda: not self.pids())
            folder = self.cloud.state.host / "servers" / self.server_id
            self.cloud.until("its folder is gone", lambda: not folder.exists())


class DatabaseCloud:
    """A cloud whose backups have short deadlines, and what is in its stores of objects."""

    def __init__(self, cloud: FaultCloud, kit: Kit = KITS["postgresql"]) -> None:
        self.cloud = cloud
        self.kit = kit
        self.instances: list[Instance] = []
        self.forgotten: list[str] = []
        """Backups that the store knows no more, and whose objects are there all the same."""
        self._shared: Instance | None = None

    @property
    def api(self) -> Databases:
        return Databases(self.cloud.cloud)

    @property
    def state_backups(self) -> Path:
        return self.cloud.state.root / "backups"

    def shared(self) -> Instance:
        """An instance that tests use one after the other, as long as they leave it free."""
        if self._shared is None or not self._shared.is_free:
            self._shared = None
            self._shared = self.ready("shop")
        self._shared.is_free = False
        return self._shared

    def shared_is_done(self) -> None:
        """After a test that failed another one is made; this one is in nobody's way."""
        if self._shared is not None and not self._shared.is_free:
            self._shared.let_all_go()
            if self._shared.writer is not None:
                self._shared.writer.end()

    def ready(self, name: str) -> Instance:
        made = self.create(name)
        made.prepare()
        return made

    def create(self, name: str, backup_id: str | None = None, volume: int = 1) -> Instance:
        wanted: dict[str, Any] = {
            "name": name, "flavorRef": self.api.flavor(None, 256), "volume": {"size": volume},
            "access": {"allowed_cidrs": [HERE]},
        }  # fmt: skip
        if backup_id is not None:
            wanted["restorePoint"] = {"backupRef": backup_id}
        else:
            wanted["databases"] = [{"name": "shop"}]
            wanted["users"] = [{"name": USER, "password": PASSWORD, "databases": [{"name": "shop"}]}]
        answer = self.api.ask("POST", "/instances", json={"instance": wanted})
        made = Instance(self, str(answer["instance"]["id"]))
        self.instances.append(made)
        return made

    def backups_of(self, instance_id: str) -> list[dict[str, Any]]:
        return [each for each in self.api.all("backups") if each["instance_id"] == instance_id]

    # --- the operator's settings

    def settings(self, **changes: Any) -> None:
        """Deadlines, and places; read again by what runs."""
        self._write(limits=msgspec.structs.replace(LIMITS, **changes))

    def send_to(self, name: str, where: Location) -> None:
        known = self._known()
        self._write(default=name, stores={**known.stores, name: where})

    def send_home(self) -> None:
        self._write(default=stores.LOCAL)

    def _known(self) -> stores.StoresFile:
        path = self.cloud.state.backup_stores
        return stores.read_file(path) if path.exists() else stores.StoresFile()

    def _write(self, **changes: Any) -> None:
        new = msgspec.structs.replace(self._known(), **changes)
        write_whole(self.cloud.state.backup_stores, msgspec.json.encode(new))

    # --- objects

    def objects(self, where: Location | None = None) -> Objects:
        if where is None:
            return FolderObjects(self.state_backups)
        return open_objects(where)

    def entries(self, where: Location | None = None) -> list[Entry]:
        return self.objects(where).list("backups")

    def only_objects_of_complete_backups(
        self, name: str = stores.LOCAL, where: Location | None = None, seconds: float = 90.0
    ) -> None:
        """In a store: what a completed backup names, and nothing else."""
        complete = [
            each["locationRef"].partition("/")[2]
            for each in self.api.all("backups")
            if each["status"] == "COMPLETED" and each["unstuck"]["location"] == name
        ] + [f"backups/{backup}" for backup in self.forgotten]

        def strange() -> list[str]:
            found = [entry.key for entry in self.entries(where)]
            return [key for key in found if not any(key.startswith(prefix + "/") for prefix in complete)]

        self.cloud.until("no object is left over", lambda: not strange(), lambda: str(strange()), seconds)


@contextlib.contextmanager
def database_cloud(
    root: Path, image: Path, datastore: str = "postgresql", *, base_seconds: float = 1e9,
    archive_seconds: int = 60,
) -> Iterator[DatabaseCloud]:  # fmt: skip
    """Control plane and host agent run; whatever still runs in the end is ended."""
    with cloud_in(root) as cloud:
        made = DatabaseCloud(cloud, KITS[datastore])
        cloud.environment["UNSTUCK_TRASH_SECONDS"] = "0"
        # Bases that make themselves are what other tests are about; here they would be in the way.
        cloud.environment["UNSTUCK_BASE_SECONDS"] = str(base_seconds)
        cloud.environment["UNSTUCK_ARCHIVE_SECONDS"] = str(archive_seconds)
        made.settings()
        try:
            cloud.start("control")
            with connect(cloud.state) as admin:
                register(admin, image)
            cloud.start("host")
            yield made
        finally:
            for instance in made.instances:
                instance.let_all_go()
                if instance.writer is not None:
                    instance.writer.end()
            with contextlib.suppress(BaseException):
                cloud.kill_anyhow("host")
            mine = boxes.places(cloud.state)
            if mine is not None:
                cgroups.thaw(mine.group)
            for guest in boxes.running(cloud.state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(guest.pid, signal.SIGKILL)
            asyncio.run(boxes.end_all(cloud.state, 5.0))


def spin(cloud: FaultCloud, what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """For moments that last only milliseconds."""
    over = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > over:
            cloud.fail(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.001)
