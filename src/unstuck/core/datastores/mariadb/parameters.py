"""MariaDB's parameters that an instance's owner may set (10.11 and 11).

None of them names a file, a program, an address or a plugin, and none weakens what backups and crash safety
rest on (the binary log and its sync, doublewrite, file layout and names' case are ours). Sizes are written in
bytes, durations in their variable's own unit.
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
    switch,
    whole,
)

_SHARE: Final = 0.75
"""The part of the memory that the buffer pool may take."""
_MB: Final = 1 << 20
_GB: Final = 1 << 30

_LIST = listed(
    # Sessions and memory.
    whole("max_connections", 20, 10000),
    whole("max_user_connections", 0, 10000),
    whole("max_connect_errors", 1, 2**31 - 1),
    whole("back_log", 1, 65535, restart=True),
    whole("thread_cache_size", 0, 16384),
    whole("innodb_buffer_pool_size", 5 * _MB, 1024 * _GB, "B"),
    whole("sort_buffer_size", 1024, _GB, "B"),
    whole("join_buffer_size", 128, _GB, "B"),
    whole("read_buffer_size", 8192, _GB, "B"),
    whole("read_rnd_buffer_size", 1024, _GB, "B"),
    whole("tmp_table_size", 1024, 64 * _GB, "B"),
    whole("max_heap_table_size", 16384, 64 * _GB, "B"),
    whole("max_allowed_packet", 1024, _GB, "B"),
    whole("table_open_cache", 10, 524288),
    whole("table_definition_cache", 400, 524288),
    whole("query_cache_size", 0, _GB, "B"),
    choice("query_cache_type", "off", "on", "demand"),
    whole("group_concat_max_len", 4, _GB, "B"),
    # InnoDB.
    whole("innodb_log_file_size", 4 * _MB, 64 * _GB, "B", restart=True),
    whole("innodb_log_buffer_size", 2 * _MB, 2 * _GB, "B", restart=True),
    whole("innodb_io_capacity", 100, 1000000),
    whole("innodb_io_capacity_max", 100, 1000000),
    whole("innodb_read_io_threads", 1, 64, restart=True),
    whole("innodb_write_io_threads", 1, 64, restart=True),
    whole("innodb_lock_wait_timeout", 0, 100000000, "s"),
    whole("innodb_thread_concurrency", 0, 1000),
    real("innodb_max_dirty_pages_pct", 0, 99),
    choice("innodb_flush_neighbors", "0", "1", "2"),
    choice("innodb_autoinc_lock_mode", "0", "1", "2", restart=True),
    whole("innodb_ft_min_token_size", 0, 16, restart=True),
    switch("innodb_print_all_deadlocks"),
    switch("innodb_stats_on_metadata"),
    switch("innodb_strict_mode"),
    # Limits of sessions.
    whole("wait_timeout", 1, 31536000, "s"),
    whole("interactive_timeout", 1, 31536000, "s"),
    whole("connect_timeout", 2, 3600, "s"),
    whole("net_read_timeout", 1, 31536000, "s"),
    whole("net_write_timeout", 1, 31536000, "s"),
    whole("lock_wait_timeout", 1, 31536000, "s"),
    real("max_statement_time", 0, 31536000, "s"),
    # What statements mean.
    choice(
        "sql_mode", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "ERROR_FOR_DIVISION_BY_ZERO",
        "NO_AUTO_CREATE_USER", "NO_ENGINE_SUBSTITUTION", "NO_ZERO_DATE", "NO_ZERO_IN_DATE",
        "ONLY_FULL_GROUP_BY", "ANSI_QUOTES", "PIPES_AS_CONCAT", "IGNORE_SPACE", "NO_BACKSLASH_ESCAPES",
        "NO_AUTO_VALUE_ON_ZERO", "PAD_CHAR_TO_FULL_LENGTH", "HIGH_NOT_PRECEDENCE", several=True,
    ),
    choice("collation_server", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin"),
    switch("event_scheduler"),
    whole("auto_increment_increment", 1, 65535),
    whole("auto_increment_offset", 1, 65535),
    whole("div_precision_increment", 0, 30),
    whole("default_week_format", 0, 7),
    # What is logged, and counted.
    switch("slow_query_log"),
    real("long_query_time", 0, 31536000, "s"),
    whole("min_examined_row_limit", 0, 2**31 - 1),
    switch("log_queries_not_using_indexes"),
    switch("performance_schema", restart=True),
)  # fmt: skip


def _suffix(number: Fraction, _unit: str) -> str:
    return plain(number)


def defaults(ram_mb: int, _volume_mb: int | None) -> dict[str, str]:
    """A third of the memory for the buffer pool: what sessions take comes on top of it."""
    return {
        "innodb_buffer_pool_size": str(max(16, ram_mb // 3) * _MB),
        "innodb_log_file_size": str(min(max(16, ram_mb // 8), 1024) * _MB),
        "max_connections": str(min(max(25, ram_mb // 8), 500)),
    }


def _unfit(texts: Mapping[str, str], ram_mb: int) -> BadValue | None:
    pool = texts.get("innodb_buffer_pool_size", "0")
    most = int(ram_mb * _SHARE)
    if pool.isdigit() and int(pool) > most << 20:
        return BadValue(
            "innodb_buffer_pool_size",
            f"{int(pool) >> 20} MiB is too much for {ram_mb} MiB of memory; at most {most} MiB",
        )
    return None


ALLOWED: Final = Allowed(_LIST, _suffix, defaults, _unfit)
