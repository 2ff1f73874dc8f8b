"""MariaDB's configuration as a function of what is wanted.

It lies beside the data and not in it, so that a backup holds no address, port or size of another instance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.datastores.mariadb.parameters import defaults
from unstuck.core.instance.want import DatabaseWant

OURS: Final = 8
"""Connections beyond those that all users of tenants together usually have."""
BINLOG: Final = "binlog"
_SIZE: Final = re.compile(r"([0-9]+)([KMGT]?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRUE: Final = frozenset({"1", "on", "true", "yes"})
_FALSE: Final = frozenset({"0", "off", "false", "no"})
_MB: Final = 1 << 20


class Places(msgspec.Struct, frozen=True):
    """Where things are. ``agent`` and ``owner`` are users of the system: who asks, and who the server is."""

    database: Path
    sockets: Path
    agent: str
    owner: str

    @property
    def data(self) -> Path:
        return self.database / "data"

    @property
    def binlog(self) -> Path:
        return self.database / "binlog"

    @property
    def conf(self) -> Path:
        return self.database / "conf"

    @property
    def file(self) -> Path:
        return self.conf / "server.cnf"

    @property
    def socket(self) -> Path:
        return self.sockets / "mariadb.sock"


def server_id(generation: str) -> int:
    """The server's number in its GTIDs: of this data and no other, so that a restored instance's transactions
    are told from those of the one that was backed up."""
    return int.from_bytes(hashlib.sha256(generation.encode()).digest()[:4], "big") % (2**32 - 2) + 1


def chosen(want: DatabaseWant, parameters: Mapping[str, str]) -> dict[str, str]:
    """What may change while the server runs. ``parameters``: the owner's, of those that may be set."""
    values = {**defaults(want.ram_mb, None), **parameters}
    most = int(values["max_connections"])
    # One user alone does not keep us out. What its owner set shows as it was set.
    if "max_connections" in parameters:
        values.setdefault("max_user_connections", str(most - OURS))
    else:
        values.setdefault("max_user_connections", str(most))
        values["max_connections"] = str(most + OURS)
    return values


def file(want: DatabaseWant, places: Places, parameters: Mapping[str, str]) -> str:
    """The server's configuration file."""
    values = {**chosen(want, parameters), **fixed(want, places)}
    lines = "".join(f"{name} = {_quoted(value)}\n" for name, value in sorted(values.items()))
    return f"[mariadbd]\n{lines}"


def fixed(want: DatabaseWant, places: Places) -> dict[str, str]:
    """What promises rest on, and where things are."""
    tls = places.database / "tls"
    return {
        **_PROMISES,
        "server_id": str(server_id(want.generation)),
        "datadir": str(places.data),
        "log_bin": str(places.binlog / BINLOG),
        "log_bin_index": str(places.binlog / f"{BINLOG}.index"),
        "pid_file": str(places.data / "mariadb.pid"),
        "socket": str(places.socket),
        "port": str(want.port),
        "ssl_cert": str(tls / "server.crt"),
        "ssl_key": str(tls / "server.key"),
    }


_PROMISES: Final = {
    # Crash safety, and a log that can be read from any place in it.
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "gtid_strict_mode": "ON",
    "binlog_checksum": "CRC32",
    # Below the size of a piece of it (``binlog.py``): a transaction is never cut in two. It goes when it is
    # kept, and not because of its age.
    "max_binlog_size": str(15 * _MB),
    "binlog_expire_logs_seconds": "0",
    "innodb_file_per_table": "ON",
    "default_storage_engine": "InnoDB",
    # Who comes in, and how.
    "bind_address": "0.0.0.0",  # noqa: S104
    "require_secure_transport": "ON",
    "tls_version": "TLSv1.2,TLSv1.3",
    "skip_name_resolve": "ON",
    # No data but in the data's folder.
    "symbolic_links": "OFF",
    "local_infile": "OFF",
    "character_set_server": "utf8mb4",
    "key_buffer_size": str(8 * _MB),
    "aria_pagecache_buffer_size": str(8 * _MB),
    "log_warnings": "2",
}


def same(wanted: str, found: str) -> bool:
    """Whether a variable's value is the one that a file would give it."""
    first, second = wanted.strip().lower(), found.strip().lower()
    if first == second:
        return True
    if first in _TRUE | _FALSE and second in _TRUE | _FALSE:
        return (first in _TRUE) == (second in _TRUE)
    numbers = [_number(first), _number(second)]
    return None not in numbers and numbers[0] == numbers[1]


def _number(text: str) -> float | None:
    size = _SIZE.fullmatch(text)
    if size is not None:
        return int(size[1]) * _UNITS[size[2].upper()]
    try:
        return float(text)
    except ValueError:
        return None


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
