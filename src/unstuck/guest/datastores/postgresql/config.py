"""PostgreSQL's configuration as a function of what is wanted.

It lies beside the data and not in it, so that a backup holds no address, port or size of another instance.
"""

from __future__ import annotations

import hashlib
import ipaddress
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.datastores.postgresql.parameters import defaults
from unstuck.core.instance.want import DatabaseWant

ADMIN: Final = "postgres"
"""The agent's role: no password, so nobody gets in as it but over the socket and as the right user."""
SLOT: Final = "unstuck_backup_"
SLOT_KEEP_MB: Final = 4096
"""WAL that a backup's slot may hold back before the server lives on without it."""

LOG_KEEP_MB: Final = 256
"""WAL that stays on the volume after the server needs it no more: incremental backups come from there."""
SYNCS_AT_ONCE: Final = 14
"""The major version since which a server can write out a whole volume at once."""


class Places(msgspec.Struct, frozen=True):
    """Where things are. ``users``: of the system, who may be :data:`ADMIN`."""

    database: Path
    sockets: Path
    users: tuple[str, ...]

    @property
    def data(self) -> Path:
        return self.database / "pg"

    @property
    def conf(self) -> Path:
        return self.database / "conf"

    @property
    def log_socket(self) -> Path:
        """Where the server asks the agent to keep its log, or to hand it out."""
        return self.sockets / "log.sock"

    @property
    def log_program(self) -> Path:
        return self.sockets / "push.py"

    def push(self, words: str) -> str:
        """The command by which it does."""
        python = Path(sys.executable).resolve()
        return f'"{python}" -I -S "{self.log_program}" "{self.log_socket}" {words}'


class Files(msgspec.Struct, frozen=True):
    """The three files, and a digest of them that the running server tells again (``unstuck.config``)."""

    settings: str
    hba: str
    ident: str
    digest: str


def files(want: DatabaseWant, places: Places, parameters: Mapping[str, str]) -> Files:
    """``parameters``: the owner's, of those that may be set."""
    values = {**defaults(want.ram_mb, _volume_mb(want)), **parameters, **_fixed(want, places)}
    settings = "".join(f"{name} = {_quoted(value)}\n" for name, value in sorted(values.items()))
    hba, ident = _clients(want.cidrs), _users(places.users)
    digest = hashlib.sha256("\0".join((settings, hba, ident)).encode()).hexdigest()[:16]
    return Files(f"{settings}unstuck.config = '{digest}'\n", hba, ident, digest)


def _volume_mb(want: DatabaseWant) -> int | None:
    """Known of the volume is what the log may take of it while it waits: a quarter."""
    return None if want.archive is None else want.archive.budget_mb * 4


def _fixed(want: DatabaseWant, places: Places) -> dict[str, str]:
    timeout = 60 if want.archive is None else want.archive.timeout
    return {
        "archive_mode": "on",
        "archive_command": places.push("%f"),
        "archive_timeout": str(timeout),
        "hba_file": str(places.conf / "pg_hba.conf"),
        "ident_file": str(places.conf / "pg_ident.conf"),
        "listen_addresses": "*",
        "port": str(want.port),
        "unix_socket_directories": str(places.sockets),
        "ssl": "on",
        "ssl_cert_file": str(places.database / "tls" / "server.crt"),
        "ssl_key_file": str(places.database / "tls" / "server.key"),
        "ssl_min_protocol_version": "TLSv1.2",
        "password_encryption": "scram-sha-256",
        "wal_level": "replica",
        "max_wal_senders": "4",
        "max_replication_slots": "8",
        "wal_keep_size": f"{LOG_KEEP_MB}MB",
        "max_slot_wal_keep_size": f"{SLOT_KEEP_MB}MB",
        "superuser_reserved_connections": "5",
        "logging_collector": "off",
        "log_destination": "stderr",
        "log_line_prefix": "%m [%p] %q%u@%d ",
        "timezone": "UTC",
        "log_timezone": "UTC",
        **at_once(want.version),
    }


def at_once(version: str) -> dict[str, str]:
    """Before it recovers after a crash, a server writes out the volume, which is its alone, in one go. One by
    one its thousand files take seconds, and on a busy disk minutes."""
    return {"recovery_init_sync_method": "syncfs"} if int(version.split(".")[0]) >= SYNCS_AT_ONCE else {}


def _clients(cidrs: tuple[str, ...]) -> str:
    """Only over TLS and only with a password's proof. Nobody comes in as :data:`ADMIN` from outside."""
    lines = [
        f"local all {ADMIN} peer map=unstuck",
        f"local replication {ADMIN} peer map=unstuck",
        f"host all {ADMIN} all reject",
    ]
    lines += [f"hostssl all all {ipaddress.ip_network(cidr, strict=False)} scram-sha-256" for cidr in cidrs]
    return "\n".join(lines) + "\n"


def _users(users: tuple[str, ...]) -> str:
    return "".join(f'unstuck "{user}" {ADMIN}\n' for user in sorted(set(users)))


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
