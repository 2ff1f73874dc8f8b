"""Ours beside Trove's: a server's log, extensions of a database, users on loan."""

from __future__ import annotations

import pytest
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.core.instance.requests import (
    DisableExtension,
    EnableExtension,
    EndLoan,
    ExtensionInfo,
    Failed,
    Lend,
    ListExtensions,
    LogPart,
    Ok,
    ReadLog,
)


@pytest.fixture
def one(site: DatabaseSite, trove: Trove) -> str:
    key = trove.post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    return f"/instances/{key}"


def test_the_one_log_is_listed_and_read(trove: Trove, site: DatabaseSite, one: str) -> None:
    site.host.answerer = lambda _want, _request: Ok(log=LogPart("a\nb\n", 4, 9))
    with site.running():
        [log] = trove.get(f"{one}/log")["logs"]
        assert (log["name"], log["type"], log["status"], log["pending"]) == ("server", "SYS", "Enabled", 9)
        assert trove.post(f"{one}/log", {"name": "server", "enable": 1}, 200) == {"log": log}
        assert trove.get(f"{one}/log/server")["log"]["text"] == "a\nb\n"
        trove.get(f"{one}/log/server?after=4&bytes=100")
    assert ReadLog(100, 4) in site.host.asked
    for action in ("publish", "discard", "disable"):
        assert "unstuck db logs" in trove.bad("POST", f"{one}/log", json={"name": "server", action: 1})
    trove.missing("POST", f"{one}/log", json={"name": "slow"})
    trove.missing("GET", f"{one}/log/slow")
    for query in ("after=x", "bytes=-1", "bytes=99999999", "after=" + "9" * 30):
        trove.bad("GET", f"{one}/log/server?{query}")


def test_extensions_of_a_database(trove: Trove, site: DatabaseSite, one: str) -> None:
    path = f"{one}/databases/app/extensions"
    offered = (ExtensionInfo("hstore", "", "1.8"), ExtensionInfo("vector", "0.5", "0.5"))
    site.host.answerer = lambda _want, _request: Ok(extensions=offered)
    with site.running():
        assert trove.get(path)["extensions"] == [
            {"name": "hstore", "version": None, "available_version": "1.8"},
            {"name": "vector", "version": "0.5", "available_version": "0.5"},
        ]
        trove.post(path, {"extension": {"name": "hstore"}})
        assert trove.ask("DELETE", f"{path}/hstore").status_code == 202
        site.host.answerer = lambda _want, _request: Failed("not-found", "There is no extension 'x'.", "name")
        trove.missing("POST", path, json={"extension": {"name": "x"}})
        site.host.answerer = lambda _want, _request: Failed("refused", "something needs it", "name")
        assert "needs it" in trove.bad("DELETE", f"{path}/hstore")
    assert site.host.asked[:3] == [
        ListExtensions("app"), EnableExtension("app", "hstore"), DisableExtension("app", "hstore"),
    ]  # fmt: skip
    for body in ({}, {"extension": {}}, {"extension": {"name": ""}}, {"extension": {"name": "x", "y": 1}}):
        trove.bad("POST", path, json=body)


def test_a_user_is_lent_for_one_task(trove: Trove, site: DatabaseSite, one: str) -> None:
    with site.running():
        loan = trove.post(f"{one}/loans", {"loan": {"database": "app", "seconds": 60}}, 200)["loan"]
        assert trove.ask("DELETE", f"{one}/loans/{loan['user']}").status_code == 202
    asked, ended = site.host.asked
    assert isinstance(asked, Lend)
    assert (asked.name, asked.database, asked.seconds, asked.write) == (loan["user"], "app", 60.0, False)
    assert loan["password"] not in asked.verifier
    assert ended == EndLoan(loan["user"])
    app = {"database": "app"}
    for body in (
        {"database": "postgres"},
        app | {"seconds": 0},
        app | {"seconds": 10**6},
        {},
        app | {"x": 1},
    ):
        trove.bad("POST", f"{one}/loans", json={"loan": body})
    trove.missing("DELETE", f"{one}/loans/anna")
