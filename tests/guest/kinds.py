"""What tests of guests have to know of each datastore."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from tests.postgres import programs
from unstuck.guest.datastores.mariadb.server import PROGRAM


class Kind:
    """A datastore as tests see it. ``stop`` ends its server in order, ``kill`` at once."""

    name: str
    stop: signal.Signals
    kill: signal.Signals

    def version(self) -> str:
        """The server's own, as a cloud tells it to the agent."""
        raise NotImplementedError

    def options(self) -> list[str]:
        """Of the agent, on a machine that has no user for it."""
        return []

    def server_pid(self, volume: Path) -> int:
        """0: there is none."""
        raise NotImplementedError

    def connect(self, port: int, user: str, database: str, password: str, **more: Any) -> Any:
        raise NotImplementedError


class PostgreSQL(Kind):
    name = "postgresql"
    stop, kill = signal.SIGINT, signal.SIGQUIT

    def version(self) -> str:
        found = programs()
        assert found is not None
        told = subprocess.run([found / "postgres", "--version"], capture_output=True, text=True, check=True)
        return told.stdout.split()[2]

    def server_pid(self, volume: Path) -> int:
        with contextlib.suppress(FileNotFoundError, IndexError):
            return int((volume / "database" / "pg" / "postmaster.pid").read_text().split()[0])
        return 0

    def connect(self, port: int, user: str, database: str, password: str, **more: Any) -> Any:
        return psycopg.connect(
            host="127.0.0.1", port=port, user=user, dbname=database, password=password,
            autocommit=True, sslmode=more.pop("sslmode", "require"), connect_timeout=10, **more,
        )  # fmt: skip


def unchecked() -> ssl.SSLContext:
    """TLS with whoever it is: a server's certificate is its own."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MariaDB(Kind):
    name = "mariadb"
    stop, kill = signal.SIGTERM, signal.SIGKILL

    def version(self) -> str:
        told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        return told.split()[2].partition("-")[0]

    def options(self) -> list[str]:
        return ["--user", "nobody"] if os.geteuid() == 0 else []

    def server_pid(self, volume: Path) -> int:
        mark = os.fsencode(f"--defaults-file={volume / 'database' / 'conf' / 'server.cnf'}")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if words[0] == PROGRAM.encode() and mark in words:
                        return int(entry.name)
        return 0

    def connect(self, port: int, user: str, database: str, password: str, **more: Any) -> Any:
        tls: dict[str, Any] = {} if more.get("ssl_disabled") else {"ssl": unchecked()}
        return pymysql.connect(
            host="127.0.0.1", port=port, user=user, database=database, password=password, autocommit=True,
            connect_timeout=10, read_timeout=30, charset="utf8mb4", **tls, **more,
        )  # fmt: skip


KINDS: dict[str, Kind] = {kind.name: kind for kind in (PostgreSQL(), MariaDB())}
