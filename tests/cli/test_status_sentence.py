"""The one sentence of `unstuck status`."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.cli.status import sentence

UP, AWAY = {"state": "up"}, {"state": "down"}
WEB = {"status": "ACTIVE", "task": None}


@pytest.mark.parametrize(
    ("servers", "hosts", "tombstones", "said"),
    [
        ([], [], 0, "No host has registered yet: nothing can run."),
        ([WEB], [UP], 0, "1 server on 1 host, all as they should be."),
        ([WEB, WEB], [UP, AWAY], 0, "2 servers on 2 hosts, 1 host is away."),
        ([], [AWAY, AWAY], 0, "0 servers on 2 hosts, 2 hosts are away."),
        ([], [UP], 1, "1 deleted server still holds room and address until its host was seen without it."),
        (
            [],
            [UP],
            2,
            "hold room and address until their host was seen without them.",
        ),
    ],
)
def test_what_is_said(
    servers: list[dict[str, Any]], hosts: list[dict[str, Any]], tombstones: int, said: str
) -> None:
    assert sentence(servers, hosts, tombstones).endswith(said)


WELL = {"status": "ACTIVE", "operating_status": "HEALTHY", "trash_until": None}
MADE = {"status": "BUILD", "operating_status": "", "trash_until": None}
LOST = {"status": "ERROR", "operating_status": "ERROR", "trash_until": None}
THROWN = {"status": "SHUTDOWN", "operating_status": "", "trash_until": "2026-12-08T09:21:49"}


@pytest.mark.parametrize(
    ("databases", "said"),
    [
        ([WELL, THROWN], "2 servers (1 of them for databases) on 1 host, all as they should be."),
        ([THROWN], "2 servers on 1 host, all as they should be."),
        (
            [WELL, MADE],
            "2 servers (2 of them for databases) on 1 host, 1 database not healthy "
            "(unstuck explain instance NAME says why).",
        ),
        (
            [LOST, LOST],
            "2 servers (2 of them for databases) on 1 host, 2 databases failed "
            "(unstuck explain instance NAME says why).",
        ),
    ],
)
def test_databases_are_part_of_it_but_those_in_the_trash(databases: list[dict[str, Any]], said: str) -> None:
    assert sentence([WEB, WEB], [UP], databases=databases) == said


def test_damaged_backups_and_logs_that_wait_are_part_of_it() -> None:
    said = sentence([WEB], [UP], protection={"damaged": 2, "lag_seconds": 400.0})
    assert "2 backups damaged (unstuck explain instance NAME says which)" in said
    assert "the log of a database waits since 400 s to be kept" in said
    assert sentence([WEB], [UP], protection={"damaged": 0, "lag_seconds": 20.0}).endswith(
        "all as they should be."
    )
