"""The demonstration's second half: a database whose backup cannot get stuck."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg

from unstuck.cli import boxes
from unstuck.cli.dbcalls import Databases
from unstuck.cli.demo_teller import Teller
from unstuck.cli.demo_world import Failed, World, wait_for
from unstuck.core.time import iso_seconds
from unstuck.host.drivers.podman import cgroups

PORT: Final = 5432
USER, PASSWORD, DATABASE = "anna", "only-for-the-demonstration", "shop"
FLAVOR: Final = "m1.tiny"
BULK: Final = 240_000
"""Rows, of about 700 bytes that nothing compresses: a backup of them takes long enough to be killed in it."""
QUIET: Final = 10.0
"""Seconds between the last good row and the mistake."""
_ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, what text NOT NULL)"
_FILL = (
    "INSERT INTO orders SELECT i, (SELECT string_agg(md5(random()::text || i || j), '')"
    " FROM generate_series(1, 20) j) FROM generate_series(%s::bigint, %s::bigint) i"
)
_SUM = "SELECT count(*), md5(string_agg(md5(id || what), '' ORDER BY id)) FROM orders WHERE id <= %s"


class DatabaseStory:
    """The steps, in order; each leaves what the next ones need. ``server_at``: the address of a server."""

    def __init__(self, world: World, tell: Teller, server_at: str) -> None:
        self.world = world
        self.tell = tell
        self.server_at = server_at
        self.first = self.second = ""  # ids of instances
        self.backup = ""

    def run(self) -> None:
        with self.world.cloud() as cloud:
            api = Databases(cloud)
            self.create(api)
            self.back_up(api)
            self.kill(api)
            self.restore(api)
            self.go_back(api)
            self.delete(api)

    def create(self, api: Databases) -> None:
        self.tell.step("8  A database, with the stock OpenStack client")
        self.tell.line("$ unstuck image build postgresql --register")
        folder = str(self.world.database_image)
        self.world.unstuck("image", "build", "postgresql", "--folder", folder, "--register")
        began = time.monotonic()
        self.first = self._create("shop-1", "--databases", DATABASE, "--users", f"{USER}:{PASSWORD}")
        self._healthy(api, self.first, "shop-1")
        self.tell.figure("create to a database that answers", f"{time.monotonic() - began:.1f} s")
        with self._connect(self._address(api, self.first)) as db:
            db.execute(_ORDERS)
            db.execute("INSERT INTO orders VALUES (1, 'written from this host')")
            sealed = db.pgconn.ssl_in_use
        self.tell.check("this host wrote a row to it, over TLS", bool(sealed))
        with (
            self._through_server(self._address(api, self.first)) as port,
            self._connect("127.0.0.1", port) as db,
        ):
            db.execute("INSERT INTO orders VALUES (2, 'written from demo-2')")
            peer = _one(db, "SELECT host(inet_client_addr())")
        self.tell.check(
            f"the server demo-2 did too: the database saw {peer[0]}", peer == (self.server_at,), peer
        )

    def back_up(self, api: Databases) -> None:
        self.tell.step("9  A backup")
        self.tell.line("$ openstack database backup create quiet --instance shop-1")
        self.world.openstack("database", "backup", "create", "quiet", "--instance", "shop-1", "-f", "json")
        found = self._ended(api, "quiet")
        self.tell.check("it is COMPLETED", found["status"] == "COMPLETED", found)

    def kill(self, api: Databases) -> None:
        self.tell.step("10  Another one, and kill -9 of the guest agent in the middle of it")
        with self._connect(self._address(api, self.first)) as db:
            db.execute(_FILL, (3, BULK))
            before = _one(db, _SUM, BULK)
        self.tell.line(f"{before[0]} rows are acknowledged")
        self.tell.line("$ openstack database backup create busy --instance shop-1")
        words = ("database", "backup", "create", "busy", "--instance", "shop-1", "-f", "json")
        asking = threading.Thread(target=self.world.openstack, args=words)
        asking.start()  # beside us: the client takes longer to end than a small backup
        found = wait_for("the agent takes it", 60.0, lambda: self._copying(api, "busy"))
        agents = self._agents()
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
        asking.join()
        phase = found["unstuck"]["phase"]
        self.tell.check(
            f"kill -9 of the agent, process {agents}, while the backup is {phase}", len(agents) == 1
        )
        began = time.monotonic()
        with self._connect(self._address(api, self.first)) as db:
            db.execute("INSERT INTO orders VALUES (%s, 'right after the kill')", (BULK + 1,))
        self.tell.check("the database did not notice: the next row is written at once", True)
        self.tell.line("$ unstuck explain backup busy")
        told = self.world.unstuck("explain", "backup", self._backup(api, "busy")["id"])
        self.tell.quote("\n".join(line for line in told.splitlines() if ":" in line)[:600])
        ended = self._ended(api, "busy")
        attempt = ended["unstuck"]["attempt"]
        self.backup = str(ended["id"])
        self.tell.check(
            f"it ended by itself: {ended['status']}, attempt {attempt}",
            ended["status"] == "COMPLETED" and attempt == 2, ended["unstuck"],
        )  # fmt: skip
        self.tell.figure("kill -9 of the agent to the backup COMPLETED", f"{time.monotonic() - began:.1f} s")
        status = api.get(f"/instances/{self.first}")["instance"]["status"]
        self.tell.check("and the instance is ACTIVE, with nobody's help", status == "ACTIVE", status)

    def restore(self, api: Databases) -> None:
        self.tell.step("11  Restored into a new instance")
        began = time.monotonic()
        self.second = self._create("shop-2", "--backup", self.backup)
        self._healthy(api, self.second, "shop-2")
        self.tell.figure("restore to a database that answers", f"{time.monotonic() - began:.1f} s")
        with (
            self._connect(self._address(api, self.first)) as old,
            self._connect(self._address(api, self.second)) as new,
        ):
            was, now = _one(old, _SUM, BULK), _one(new, _SUM, BULK)
        self.tell.check(f"row by row the same: {now[0]} rows, digest {now[1]}", was == now, (was, now))

    def go_back(self, api: Databases) -> None:
        self.tell.step("12  A mistake, and back to the moment before it")
        with self._connect(self._address(api, self.first)) as db:
            db.execute("INSERT INTO orders VALUES (%s, 'the last good one')", (BULK + 2,))
            before = _one(db, _SUM, BULK + 2)
            self.tell.line(f"{before[0]} rows; no backup is made now, and {QUIET:.0f} seconds pass ...")
            time.sleep(QUIET)  # longer than an agent's look at the log: the moment is behind the last row
            moment = iso_seconds(time.time())
            time.sleep(1.0)  # a moment is written in whole seconds
            db.execute("DELETE FROM orders")
            left = _one(db, "SELECT count(*) FROM orders")
            self.tell.line(f"after {moment} somebody empties the table by mistake: {left[0]} rows are left")
        wait_for("the moment can be restored", 180.0, lambda: self._reaches(api, moment))
        began = time.monotonic()
        self.tell.line(f"$ unstuck db restore shop-1 shop-3 --at {moment}")
        self.world.unstuck("db", "restore", "shop-1", "shop-3", "--at", moment)
        self.tell.figure(
            "restore to a moment, to a database that answers", f"{time.monotonic() - began:.1f} s"
        )
        with self._connect(self._address(api, str(api.find("instances", "instance", "shop-3")["id"]))) as db:
            now = _one(db, _SUM, BULK + 2)
        self.tell.check(f"all of it is back: {now[0]} rows, digest {now[1]}", now == before, (before, now))
        with self._connect(self._address(api, self.first)) as db:
            left = _one(db, "SELECT count(*) FROM orders")
        self.tell.check("and shop-1 was left as it is", left == (0,), left)

    def _reaches(self, api: Databases, moment: str) -> bool:
        latest = api.get(f"/instances/{self.first}")["instance"]["unstuck"]["latest_restorable_time"]
        return latest is not None and str(latest) >= moment

    def delete(self, api: Databases) -> None:
        names = ("shop-1", "shop-2", "shop-3")
        self.tell.line("$ " + "; ".join(f"openstack database instance delete {name}" for name in names))
        self.tell.line("(here the trash keeps nothing: UNSTUCK_TRASH_SECONDS=0)")
        for name in names:
            self.world.openstack("database", "instance", "delete", name)
        for backup in api.all("backups"):
            self.world.openstack("database", "backup", "delete", str(backup["id"]))
        state = self.world.state
        wait_for("no container is left", 60.0, lambda: not boxes.running(state) and not boxes.left(state))
        objects = state.root / "backups"
        wait_for("no object of theirs is left", 120.0, lambda: not list(objects.glob("*/**/*.age")))
        self.tell.check("no container, no mount, no piece of a backup or of a log is left", True)

    # --- helpers

    def _create(self, name: str, *more: str) -> str:
        shown = [word if word != f"{USER}:{PASSWORD}" else f"{USER}:…" for word in more]
        words = ("--flavor", FLAVOR, "--size", "1", "--datastore", "postgresql")
        self.tell.line(f"$ openstack database instance create {name} {' '.join((*words, *shown))}")
        made = self.world.openstack("database", "instance", "create", name, *words, *more, "-f", "json")
        return str(made["id"])

    def _healthy(self, api: Databases, instance: str, name: str) -> None:
        def seen() -> bool:
            shown = api.get(f"/instances/{instance}")["instance"]
            if shown["status"] == "ERROR":
                raise Failed(f"{name} is in ERROR: {shown.get('fault')}")
            return bool(shown["status"] == "ACTIVE" and shown["operating_status"] == "HEALTHY")

        wait_for(f"{name} is healthy", 120.0, seen)
        self.tell.check(f"{name} is ACTIVE and HEALTHY", True)

    def _address(self, api: Databases, instance: str) -> str:
        shown = api.get(f"/instances/{instance}")["instance"]
        return str(shown["addresses"][0]["address"])

    @contextlib.contextmanager
    def _connect(self, address: str, port: int = PORT) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(
            host=address, port=port, user=USER, password=PASSWORD, dbname=DATABASE, sslmode="require",
            connect_timeout=10, autocommit=True,
        ) as connection:  # fmt: skip
            yield connection

    @contextlib.contextmanager
    def _through_server(self, address: str) -> Iterator[int]:
        """A port of this host behind which one connection goes by way of the server: its own program makes
        it, so the database sees the server's address."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._relay, args=(listener, address), daemon=True).start()
            yield int(listener.getsockname()[1])

    def _relay(self, listener: socket.socket, address: str) -> None:
        with contextlib.suppress(OSError):
            inner, _ = listener.accept()
            outer = socket.create_connection((self.server_at, 7), timeout=10.0)
            with inner, outer:
                outer.settimeout(None)
                outer.sendall(f"relay {address} {PORT}\n".encode())
                threading.Thread(target=_pump, args=(outer, inner), daemon=True).start()
                _pump(inner, outer)

    def _backup(self, api: Databases, name: str) -> dict[str, Any]:
        return api.backup(name)

    def _copying(self, api: Databases, name: str) -> dict[str, Any] | None:
        found = next((item for item in api.all("backups") if item["name"] == name), None)
        if found is None:
            return None
        if found["status"] in ("COMPLETED", "FAILED"):
            raise Failed(f"the backup {name} was over too soon: {found}")
        return found if found["unstuck"]["claimed"] else None

    def _ended(self, api: Databases, name: str) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            found = self._backup(api, name)
            return found if found["status"] in ("COMPLETED", "FAILED") else None

        return wait_for(f"the backup {name} ends", 180.0, over)

    def _agents(self) -> list[int]:
        """The guest agent's process, by the container that it is in."""
        places = boxes.places(self.world.state)
        if places is None:
            return []
        pids = [
            pid
            for server in cgroups.servers(places.group)
            for pid in cgroups.living(places.guest_group(server))
        ]
        return [pid for pid in pids if _is_agent(pid)]


def _is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
        return words[1:3] == [b"-m", b"unstuck.guest"]
    return False


def _one(db: psycopg.Connection[Any], query: str, *values: object) -> Any:
    return db.execute(query, values or None).fetchone()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
