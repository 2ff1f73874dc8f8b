"""PostgreSQL's configuration as a function of what is wanted.

It lies beside the data and not in it, so that a backup holds no address, port or size of another instance.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import sys
from pathlib import Path
from typing import Final

import msgspec

from unstuck.core.instance.want import DatabaseWant

ADMIN: Final = "postgres"
"""The agent's role: no password, so nobody gets in as it but over the socket and as the right user."""
SLOT: Final = "unstuck_backup_"
SLOT_KEEP_MB: Final = 4096
"""WAL that a backup's slot may hold back before the server lives on without it."""

LOG_KEEP_MB: Final = 256
"""WAL that stays on the volume after the server needs it no more: incremental backups come from there."""

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
_OURS: Final = frozenset({
    "archive_cleanup_command", "archive_command", "archive_library", "archive_mode", "archive_timeout",
    "bonjour", "bonjour_name", "cluster_name", "config_file", "data_directory", "data_sync_retry",
    "dynamic_library_path", "event_source", "external_pid_file", "fsync", "full_page_writes", "hba_file",
    "ident_file", "jit_provider", "listen_addresses", "local_preload_libraries", "log_destination",
    "log_directory", "log_file_mode", "log_filename", "logging_collector", "max_replication_slots",
    "max_slot_wal_keep_size", "max_wal_senders", "password_encryption", "port", "promote_trigger_file",
    "recovery_end_command", "restore_command", "session_preload_libraries", "shared_preload_libraries",
    "superuser_reserved_connections", "unix_socket_directories", "unix_socket_group",
    "unix_socket_permissions", "wal_keep_size", "wal_level", "zero_damaged_pages", "ignore_checksum_failure",
    "allow_system_table_mods", "include", "include_dir", "include_if_exists", "stats_temp_directory",
})  # fmt: skip
_OUR_KINDS: Final = (
    "ssl",
    "krb_",
    "gss_",
    "unstuck.",
    "primary_",
    "recovery_target",
    "unix_socket",
    "syslog",
)


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


def refused(settings: dict[str, str]) -> str | None:
    """Why these cannot be set; names are the operator's business to allow, these would break promises."""
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            return f"{name[:80]!r} is not a parameter's name"
        if name in _OURS or name.startswith(_OUR_KINDS):
            return f"{name} is set by Unstuck"
        if "\n" in value or "\r" in value or "\0" in value:
            return f"{name} has a value of several lines"
    return None


def files(want: DatabaseWant, places: Places, *, own: bool = True) -> Files:
    """``own``: with the settings that the instance's owner chose."""
    chosen = dict(want.settings) if own and refused(want.settings) is None else {}
    values = {**_sizes(want.ram_mb), **chosen, **_fixed(want, places)}
    settings = "".join(f"{name} = {_quoted(value)}\n" for name, value in sorted(values.items()))
    hba, ident = _clients(want.cidrs), _users(places.users)
    digest = hashlib.sha256("\0".join((settings, hba, ident)).encode()).hexdigest()[:16]
    return Files(f"{settings}unstuck.config = '{digest}'\n", hba, ident, digest)


def _sizes(ram_mb: int) -> dict[str, str]:
    """A quarter of the memory for shared buffers, as PostgreSQL's manual advises."""
    return {
        "shared_buffers": f"{max(16, ram_mb // 4)}MB",
        "effective_cache_size": f"{max(32, ram_mb // 2)}MB",
        "maintenance_work_mem": f"{min(max(16, ram_mb // 16), 1024)}MB",
        "max_connections": str(min(max(25, ram_mb // 8), 500)),
        "max_wal_size": "1GB",
        "min_wal_size": "80MB",
        "wal_compression": "on",
    }


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
    }


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
