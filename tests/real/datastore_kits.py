"""What tests of faults have to know of each datastore: how its rows are written and read, which processes are
its server's and its tools', and how a backup of it is held in a phase."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pymysql

if TYPE_CHECKING:
    from tests.real.database_cloud import Hold, Instance

USER: Final = "anna"
PASSWORD: Final = "secret-1"
BULK: Final = 12
"""MiB of data that does not compress: with what an empty datastore has, more than an agent and the pipes
hold on their way."""

PIECE: Final = 5 << 20
"""Bytes of which an agent makes at least one piece."""


class Kit:
    """``error``: what its client raises. ``tool``: the process that makes a copy."""

    name: str
    error: type[Exception]
    tool: str

    def login(self, address: str, database: str, seconds: int = 5, user: str = USER) -> Any:
        raise NotImplementedError

    def rows(self, connection: Any, statement: str) -> list[Any]:
        raise NotImplementedError

    def prepare(self, connection: Any) -> None:
        """The writer's table, and a bulk of data that does not compress."""
        raise NotImplementedError

    def insert(self, connection: Any, row: int) -> None:
        """Acknowledged when it returns."""
        raise NotImplementedError

    def bulk(self, connection: Any) -> Any:
        """Equal where the bulk is."""
        raise NotImplementedError

    def is_server(self, pid: int) -> bool:
        raise NotImplementedError

    def is_tool(self, pid: int) -> bool:
        """Also what works for a tool in the server."""
        raise NotImplementedError

    def left(self, connection: Any) -> list[str]:
        """What a backup has left in the running server."""
        raise NotImplementedError

    def held(self, instance: Instance, phase: str, name: str) -> tuple[str, list[Hold]]:
        """A backup that stands in this phase while its agent is healthy, and what holds it."""
        raise NotImplementedError


class PostgreSQL(Kit):
    name = "postgresql"
    error = psycopg.Error
    tool = "pg_basebackup"

    def login(self, address: str, database: str, seconds: int = 5, user: str = USER) -> Any:
        words = f"host={address} user={user} password={PASSWORD} dbname={database} connect_timeout={seconds}"
        return psycopg.connect(
            f"{words} tcp_user_timeout=5000 keepalives_idle=2 keepalives_interval=1", autocommit=True
        )

    def rows(self, connection: Any, statement: str) -> list[Any]:
        return list(connection.execute(statement).fetchall())

    def prepare(self, connection: Any) -> None:
        connection.execute("CREATE TABLE ledger (id bigint PRIMARY KEY, word text NOT NULL)")
        connection.execute(
            "CREATE TABLE bulk AS SELECT string_agg(md5(random()::text), '') AS x"
            f" FROM generate_series(1, {BULK * 32768}) n GROUP BY n % {BULK * 64}"
        )

    def insert(self, connection: Any, row: int) -> None:
        connection.execute("INSERT INTO ledger VALUES (%s, md5(%s::text))", [row, row])

    def bulk(self, connection: Any) -> Any:
        return self.rows(connection, "SELECT md5(string_agg(x, '' ORDER BY x)) FROM bulk")

    def is_server(self, pid: int) -> bool:
        return comm(pid) == "postgres" and b"/bin/postgres" in line(pid)

    def is_tool(self, pid: int) -> bool:
        return b"pg_basebackup" in line(pid) or b"walsender" in line(pid)

    def left(self, connection: Any) -> list[str]:
        rows = self.rows(connection, "SELECT slot_name FROM pg_replication_slots")
        return [f"slot {row[0]}" for row in rows]

    def held(self, instance: Instance, phase: str, name: str) -> tuple[str, list[Hold]]:
        from tests.real.database_cloud import spin

        match phase:
            case "starting":
                holds = [instance.hold(instance.one("checkpointer"))]
                backup_id = instance.request(name)
                instance.tool()
            case "copying":
                backup_id, holds = self.held(instance, "starting", name)
                sender, tool = instance.sender(), instance.tool()
                before = written(tool)
                holds[0].go_on()
                spin(instance.cloud, "data flows", lambda: written(tool) > before + PIECE)
                holds = [instance.hold(sender)]
            case "finishing":
                backup_id, holds = self.held(instance, "starting", name)
                sender = instance.sender()
                holds[0].go_on()
                spin(instance.cloud, "the log is sent", lambda: _reads_log(sender))
                holds = [instance.hold(sender)]
            case _:
                raise ValueError(phase)
        return backup_id, holds


class MariaDB(Kit):
    name = "mariadb"
    error = pymysql.Error
    tool = "mariadb-backup"

    def login(self, address: str, database: str, seconds: int = 5, user: str = USER) -> Any:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return pymysql.connect(
            host=address, user=user, password=PASSWORD, database=database, ssl=context, autocommit=True,
            connect_timeout=seconds, read_timeout=30, write_timeout=30,
        )  # fmt: skip

    def rows(self, connection: Any, statement: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def prepare(self, connection: Any) -> None:
        self.rows(connection, "CREATE TABLE ledger (id bigint PRIMARY KEY, word varchar(40) NOT NULL)")
        self.rows(connection, "CREATE TABLE bulk (n int PRIMARY KEY, x varbinary(1024) NOT NULL)")
        for part in range(BULK):
            first, last = part * 1024 + 1, (part + 1) * 1024
            self.rows(
                connection, f"INSERT INTO bulk SELECT seq, RANDOM_BYTES(1024) FROM seq_{first}_to_{last}"
            )

    def insert(self, connection: Any, row: int) -> None:
        self.rows(connection, f"INSERT INTO ledger VALUES ({row}, md5({row}))")

    def bulk(self, connection: Any) -> Any:
        return self.rows(connection, "SELECT count(*), sum(n), sum(crc32(x)), sum(crc32(md5(x))) FROM bulk")

    def is_server(self, pid: int) -> bool:
        return comm(pid) == "mariadbd" and b"--defaults-file=" in line(pid)

    def is_tool(self, pid: int) -> bool:
        return b"mariadb-backup" in line(pid)

    def left(self, connection: Any) -> list[str]:
        return []  # what a copy holds in the server is its connection, which ends with it

    def held(self, instance: Instance, phase: str, name: str) -> tuple[str, list[Hold]]:
        from tests.real.database_cloud import Other, spin

        match phase:
            case "starting":
                # The same lock as a copy begins with, in another's hand.
                holder = Other(instance.start_inside(_HOLDS_LOCK))
                instance.holds(holder)
                backup_id = instance.request(name)
                instance.tool()
                return backup_id, [holder]
            case "copying":
                backup_id, holds = self.held(instance, "starting", name)
                tool = instance.tool()
                before = written(tool)
                holds[0].go_on()
                spin(instance.cloud, "data flows", lambda: written(tool) > before + PIECE)
            case "finishing":
                backup_id, holds = self.held(instance, "starting", name)
                tool = instance.tool()
                holds[0].go_on()
                spin(instance.cloud, "it locks commits", lambda: b"BACKUP STAGE BLOCK_COMMIT" in _words(tool))
            case _:
                raise ValueError(phase)
        return backup_id, [instance.hold(tool)]


_HOLDS_LOCK: Final = """
import pymysql, sys
line = pymysql.connect(unix_socket="/run/unstuck/pg/mariadb.sock", user="unstuck", ssl_disabled=True)
line.cursor().execute("BACKUP STAGE START")
print("held", flush=True)
sys.stdin.read()
"""

KITS: Final[dict[str, Kit]] = {kit.name: kit for kit in (PostgreSQL(), MariaDB())}


def line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return b""


def comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def written(pid: int) -> int:
    """Bytes that a process has written so far."""
    with contextlib.suppress(OSError):
        for text in Path(f"/proc/{pid}/io").read_text().splitlines():
            if text.startswith("wchar:"):
                return int(text.split()[1])
    return 0


def _words(pid: int) -> bytes:
    """What it has said on its standard error, which is a file."""
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/fd/2").open("rb") as file:
        return file.read()
    return b""


def _reads_log(pid: int) -> bool:
    """It has a segment of the write-ahead log open for reading; for writing it has one all the time."""
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "/pg_wal/0" in str(path.readlink()):
                    words = (path.parents[1] / "fdinfo" / path.name).read_text().split()
                    if int(words[words.index("flags:") + 1], 8) & os.O_ACCMODE == os.O_RDONLY:
                        return True
    return False


def ended(process: subprocess.Popen[str]) -> None:
    """One that goes on for as long as somebody may still write to it."""
    process.communicate(timeout=30)
