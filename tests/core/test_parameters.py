"""Parameters that owners may set: every one takes its bounds, refuses what lies outside, and names itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from unstuck.core.datastores import ALLOWED
from unstuck.core.datastores.parameters import BadValue, Kind, Parameter
from unstuck.core.datastores.postgresql.parameters import bytes_of, defaults

EVERY = [(manager, name) for manager, allowed in ALLOWED.items() for name in allowed.parameters]
DANGEROUS = re.compile(
    r"command|_file$|directory|_dir$|path|plugin|library$|socket|listen|^port$|ssl|hba|ident|fsync|full_page"
    r"|wal_level|archive|senders|slots|data_|log_destination|collector|syslog|log_bin|basedir|init_|secure|user$"
    r"|password|role|include|preload_libraries_|zero_damaged|checksum|doublewrite|external|bonjour|krb"
)
JUNK: list[Any] = [None, [], {}, "", " ", "x'y", "a\nb", "\0", "1;drop", "1e9", "NaN", float("nan"),
                   float("inf"), -(10**30), "10 parsecs", "/bin/sh", "a,b", "٣"]  # fmt: skip


@pytest.mark.parametrize(("manager", "name"), EVERY)
def test_a_parameter_takes_its_bounds_and_nothing_beyond(manager: str, name: str) -> None:
    allowed, of = ALLOWED[manager], ALLOWED[manager].parameters[name]
    for good in goods(of):
        text = allowed.text_of(name, good)
        assert allowed.text_of(name, text) == text, (good, text)
        assert not set(text) & set("'\"\\\n\0#")
    for bad in [*bads(of), *JUNK]:
        if of.several and isinstance(bad, str) and not bad.strip():
            continue
        with pytest.raises(BadValue) as error:
            allowed.text_of(name, bad)
        assert str(error.value).startswith(f"{name}: ")


def goods(of: Parameter) -> list[Any]:
    match of.kind:
        case Kind.BOOLEAN:
            return [True, False, "on", "off", 1, 0]
        case Kind.STRING:
            return [*of.choices, *(["", ",".join(of.choices)] if of.several else [])]
        case _:
            return [of.least, of.most, str(int(of.most)), *of.also]


def bads(of: Parameter) -> list[Any]:
    match of.kind:
        case Kind.BOOLEAN:
            return [2, "maybe", 0.5]
        case Kind.STRING:
            return ["nonsense", 12345, f"{of.choices[0]},{of.choices[0]}"]
        case Kind.INTEGER:
            return [*({of.least - 2} - {*of.also}), of.most + 1, True, 1.5]
        case Kind.FLOAT:
            return [*({of.least - 2} - {*of.also}), of.most + 1, True]


def test_none_of_them_names_a_file_a_program_or_an_address_or_weakens_what_backups_need() -> None:
    for _, name in EVERY:
        assert not DANGEROUS.search(name), name


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("work_mem", "4MB", "4096kB"), ("work_mem", 4096, "4096kB"), ("shared_buffers", "64MB", "65536kB"),
        ("shared_buffers", 8192, "65536kB"), ("checkpoint_timeout", "5min", "300s"),
        ("statement_timeout", "2s", "2000ms"), ("statement_timeout", 0, "0ms"),
        ("wal_buffers", -1, "-1"), ("random_page_cost", 1.1, "1.1"), ("random_page_cost", "1.10", "1.1"),
        ("max_connections", "100", "100"), ("jit", False, "off"), ("synchronous_commit", False, "off"),
        ("shared_preload_libraries", "auto_explain, pg_stat_statements", "auto_explain,pg_stat_statements"),
    ],
)  # fmt: skip
def test_values_become_what_postgresql_reads(name: str, value: Any, text: str) -> None:
    assert ALLOWED["postgresql"].text_of(name, value) == text


@pytest.mark.parametrize(
    ("value", "text"), [("128M", "134217728"), ("1GB", "1073741824"), (8388608, "8388608")]
)
def test_sizes_become_bytes_for_mariadb(value: Any, text: str) -> None:
    assert ALLOWED["mariadb"].text_of("innodb_buffer_pool_size", value) == text


@pytest.mark.parametrize("value", ["1.5kB", "5min", "64 parsecs", "MB"])
def test_a_size_of_another_kind_is_no_size(value: str) -> None:
    with pytest.raises(BadValue, match="work_mem"):
        ALLOWED["postgresql"].text_of("work_mem", value)


@pytest.mark.parametrize(
    ("manager", "name"), [("postgresql", "shared_buffers"), ("mariadb", "innodb_buffer_pool_size")]
)
def test_a_cache_that_leaves_no_memory_is_unfit(manager: str, name: str) -> None:
    allowed = ALLOWED[manager]
    for ram_mb in (512, 2048, 65536):
        fits = allowed.texts({name: f"{ram_mb // 2}MB"})
        assert allowed.unfit(fits, ram_mb) is None
        bad = allowed.unfit(fits, ram_mb // 2)
        assert bad is not None
        assert bad.name == name
        assert allowed.unfit({}, ram_mb) is None
        assert allowed.unfit(allowed.defaults(ram_mb, None), ram_mb) is None


def test_what_cannot_be_set_any_more_is_left_out() -> None:
    found = ALLOWED["postgresql"].readable({"work_mem": "4MB", "archive_command": "x", "jit": "maybe"})
    assert found == {"work_mem": "4096kB"}
    assert bytes_of(found["work_mem"]) == 4 << 20


@pytest.mark.parametrize(("volume_gb", "most"), [(0.25, 64), (1, 128), (4, 512), (100, 1024)])
def test_the_log_takes_a_small_part_of_a_volume_before_it_is_let_go(volume_gb: float, most: int) -> None:
    """With PostgreSQL's own 1 GB it filled a volume of 1 GiB under a steady load, and the server ended."""
    assert defaults(512, int(volume_gb * 1024))["max_wal_size"] == f"{most}MB"
