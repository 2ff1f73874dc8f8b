"""MariaDB's backups: an agent's rate beside ``mariadb-backup`` with the same packing, and the restore beside
``mbstream`` and its ``--prepare``. As ``guestbackup.py`` does it for PostgreSQL."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
from tests.guest.guest import PASSWORD, anna, folder

from bench.figure import Figure, figure
from bench.guestbackup import Bench, rates
from bench.house import House
from unstuck.core.instance.native import verifier
from unstuck.core.instance.want import Origin, WantedDatabase
from unstuck.guest.datastores.mariadb.server import PROGRAM

SIZE_MB = int(os.environ.get("UNSTUCK_BENCH_MARIADB_MB", "400"))
SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop", verifier=verifier(PASSWORD)),))
_ROWS = 50_000
"""Of one statement: some 50 MB."""


class Plainly:
    """Implements :class:`bench.guestbackup.Plain`."""

    def settle(self, house: House) -> None:
        _ask(house, "FLUSH LOCAL TABLES")

    def copy(self, house: House) -> list[str | Path]:
        conf = house.folder / "volume" / "database" / "conf" / "server.cnf"
        return ["mariadb-backup", f"--defaults-file={conf}", "--backup", "--stream=mbstream", "--user=root",
                f"--socket={house.sockets / 'mariadb.sock'}", f"--datadir={house.data}",
                f"--target-dir={house.folder / 'none'}"]  # fmt: skip

    def unpack(self, target: Path) -> list[str | Path]:
        return ["mbstream", "-x", "-C", target]

    def prepare(self, target: Path) -> list[str | Path]:
        return ["mariadb-backup", "--no-defaults", "--prepare", f"--target-dir={target}", "--use-memory=64M"]


def _ask(house: House, statement: str) -> None:
    socket = str(house.sockets / "mariadb.sock")
    with (
        pymysql.connect(unix_socket=socket, user="root", ssl_disabled=True, autocommit=True) as line,
        line.cursor() as cursor,
    ):
        cursor.execute(statement)


def mariadb() -> Iterator[Figure]:
    """A database, backed up and restored while it is empty and when it is large."""
    if not Path(PROGRAM).exists() or os.geteuid() != 0:
        yield Figure("mariadb: backup", None, "skipped", note="it needs MariaDB's programs, and root")
        return
    with folder() as root, tempfile.TemporaryDirectory(prefix="unstuck-bench-") as store:
        with House(root / "one", Path(store), origin=SHOP, datastore="mariadb").open() as one:
            one.start()
            one.ready()
            bench = Bench(root, Path(store), one, Plainly())
            empty = bench.back_up(), bench.restore()
            _fill(one.connect())
            copied = bench.back_up()
            yield from rates("mariadb: backup", "mariadb-backup, packed alike", empty[0], copied)
            yield Figure("mariadb: backup: of so much", round(copied.ours[0].size), "MB",
                         note=f"{bench.packed:.0f} MB packed")  # fmt: skip
            restored = bench.restore()
        yield from rates("mariadb: restore", "opening, mbstream, --prepare, synced", empty[1], restored)
        for what, found in bench.grown.items():
            yield figure(f"mariadb: agent's memory, {what}", max(found), "MiB", 80, f"{len(found)} looks")


def _fill(connection: Any) -> None:
    """Rows of some 930 bytes that pack to about a quarter."""
    with connection as line, line.cursor() as cursor:
        cursor.execute("CREATE TABLE t (n int PRIMARY KEY, x varchar(1000)) CHARACTER SET ascii")
        words = ", ".join(f"md5(seq + 0.{part})" for part in range(1, 13))
        for first in range(1, SIZE_MB * 1000, _ROWS):
            last = min(first + _ROWS, SIZE_MB * 1000)
            cursor.execute(
                f"INSERT INTO t SELECT seq, concat({words}, repeat(md5(seq DIV 8), 16))"
                f" FROM seq_{first}_to_{last - 1}"
            )
