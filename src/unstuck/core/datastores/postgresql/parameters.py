"""PostgreSQL's parameters that an instance's owner may set (13 to 18).

None of them names a file, a program, an address or a role, none weakens what backups and crash safety rest on
(fsync, full_page_writes, WAL level and senders are ours), and libraries are loaded by these names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from unstuck.core.datastores.parameters import (
    Allowed,
    BadValue,
    choice,
    listed,
    plain,
    real,
    size_of,
    switch,
    whole,
)

LIBRARIES: Final = ("pg_stat_statements", "auto_explain", "pg_prewarm")
"""What a server may load at its start; all of them are in its own packages."""
OURS: Final = 16
"""Sessions that are kept for the datastore's own work, at the least."""
_SHARE: Final = 0.7
"""The part of the memory that shared buffers may take: the rest is for sessions and the file cache."""

_LIST = listed(
    # Sessions and memory.
    whole("max_connections", OURS + 4, 10000, restart=True),
    whole("shared_buffers", 1024, 2**30 - 1, "8kB", restart=True),
    whole("max_prepared_transactions", 0, 10000, restart=True),
    whole("max_locks_per_transaction", 10, 100000, restart=True),
    whole("max_pred_locks_per_transaction", 10, 100000, restart=True),
    whole("max_files_per_process", 64, 65536, restart=True),
    whole("track_activity_query_size", 100, 2**20, "B", restart=True),
    whole("work_mem", 64, 2**26, "kB"),
    whole("maintenance_work_mem", 1024, 2**26, "kB"),
    whole("autovacuum_work_mem", 1024, 2**26, "kB", -1),
    whole("temp_buffers", 100, 2**26, "8kB"),
    whole("temp_file_limit", 0, 2**31 - 1, "kB", -1),
    whole("effective_cache_size", 1, 2**31 - 1, "8kB"),
    real("hash_mem_multiplier", 1, 1000),
    # Log and checkpoints.
    whole("wal_buffers", 4, 2**17, "8kB", -1, restart=True),
    whole("max_wal_size", 64, 2**20, "MB"),
    whole("min_wal_size", 32, 2**20, "MB"),
    whole("checkpoint_timeout", 30, 86400, "s"),
    real("checkpoint_completion_target", 0, 1),
    choice("wal_compression", "on", "off", "pglz", "lz4", "zstd"),
    whole("wal_writer_delay", 1, 10000, "ms"),
    choice("synchronous_commit", "on", "off", "local"),
    whole("commit_delay", 0, 100000),
    whole("commit_siblings", 0, 1000),
    whole("bgwriter_delay", 10, 10000, "ms"),
    whole("bgwriter_lru_maxpages", 0, 2**30 - 1),
    # Plans.
    real("random_page_cost", 0, 1000000),
    real("seq_page_cost", 0, 1000000),
    whole("effective_io_concurrency", 0, 1000),
    whole("default_statistics_target", 1, 10000),
    whole("from_collapse_limit", 1, 1000),
    whole("join_collapse_limit", 1, 1000),
    switch("jit"),
    whole("max_worker_processes", 8, 1024, restart=True),
    whole("max_parallel_workers", 0, 1024),
    whole("max_parallel_workers_per_gather", 0, 1024),
    whole("max_parallel_maintenance_workers", 0, 1024),
    # Vacuum.
    switch("autovacuum"),
    whole("autovacuum_max_workers", 1, 64, restart=True),
    whole("autovacuum_freeze_max_age", 100000, 2000000000, restart=True),
    whole("autovacuum_naptime", 1, 86400, "s"),
    whole("autovacuum_vacuum_threshold", 0, 2**31 - 1),
    real("autovacuum_vacuum_scale_factor", 0, 100),
    whole("autovacuum_analyze_threshold", 0, 2**31 - 1),
    real("autovacuum_analyze_scale_factor", 0, 100),
    real("autovacuum_vacuum_cost_delay", 0, 100, "ms", -1),
    whole("autovacuum_vacuum_cost_limit", 1, 10000, "", -1),
    whole("vacuum_cost_limit", 1, 10000),
    # Limits of sessions. Backups and the agent's own questions have other ones.
    whole("statement_timeout", 100, 2**31 - 1, "ms", 0),
    whole("lock_timeout", 100, 2**31 - 1, "ms", 0),
    whole("idle_in_transaction_session_timeout", 100, 2**31 - 1, "ms", 0),
    whole("deadlock_timeout", 1, 3600000, "ms"),
    whole("tcp_keepalives_idle", 0, 86400, "s"),
    whole("tcp_keepalives_interval", 0, 86400, "s"),
    whole("tcp_keepalives_count", 0, 1000),
    # What is logged, and counted.
    whole("log_min_duration_statement", 0, 2**31 - 1, "ms", -1),
    choice("log_statement", "none", "ddl", "mod", "all"),
    choice("log_error_verbosity", "terse", "default", "verbose"),
    choice("log_min_messages", "info", "notice", "warning", "error", "log"),
    switch("log_connections"),
    switch("log_disconnections"),
    switch("log_lock_waits"),
    switch("log_checkpoints"),
    whole("log_temp_files", 0, 2**31 - 1, "kB", -1),
    whole("log_autovacuum_min_duration", 0, 2**31 - 1, "ms", -1),
    switch("track_io_timing"),
    choice("track_functions", "none", "pl", "all"),
    choice("shared_preload_libraries", *LIBRARIES, restart=True, several=True),
    choice("pg_stat_statements.track", "none", "top", "all"),
    whole("pg_stat_statements.max", 100, 1000000, restart=True),
    whole("auto_explain.log_min_duration", 0, 2**31 - 1, "ms", -1),
)


def _suffix(number: Fraction, unit: str) -> str:
    """PostgreSQL takes units, but none of several blocks."""
    if number < 0 or not unit:
        return plain(number)
    many = int(unit.removesuffix("kB")) if unit[0].isdigit() else 1
    return f"{plain(number * many)}{unit.lstrip('0123456789')}"


def defaults(ram_mb: int, volume_mb: int | None) -> dict[str, str]:
    """A quarter of the memory for shared buffers, as PostgreSQL's manual advises."""
    return {
        "shared_buffers": f"{max(16, ram_mb // 4)}MB",
        "effective_cache_size": f"{max(32, ram_mb // 2)}MB",
        "maintenance_work_mem": f"{min(max(16, ram_mb // 16), 1024)}MB",
        "max_connections": str(min(max(25, ram_mb // 8), 500)),
        "max_wal_size": "1GB" if volume_mb is None else _log_size(volume_mb),
        "min_wal_size": "80MB",
        "wal_compression": "on",
    }


def _log_size(volume_mb: int) -> str:
    """``max_wal_size`` where nobody says anything else: an eighth of the volume, from 64 MiB to 1 GiB.

    A server keeps nearly as much of its log before it ends a checkpoint; with PostgreSQL's own 1 GB it fills
    a volume of 1 GiB, and ends.
    """
    return f"{min(max(64, volume_mb // 8), 1024)}MB"


def _unfit(texts: Mapping[str, str], ram_mb: int) -> BadValue | None:
    buffers = bytes_of(texts.get("shared_buffers", "0kB"))
    most = int(ram_mb * _SHARE)
    if buffers <= most << 20:
        return None
    reason = f"{buffers >> 20} MiB is too much for {ram_mb} MiB of memory; at most {most} MiB"
    return BadValue("shared_buffers", reason)


def bytes_of(text: str) -> int:
    """A size as it stands in the file; 0 for a number that stands for something else."""
    digits = text.rstrip("kMGTB")
    size = size_of(text[len(digits) :])
    return 0 if size is None or not digits.isdigit() else int(digits) * size[1]


ALLOWED: Final = Allowed(_LIST, _suffix, defaults, _unfit)
