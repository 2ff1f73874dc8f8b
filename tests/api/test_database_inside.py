"""Databases, users and root: what the API asks of the database itself, and what it says to its answers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.api.database import guest
from unstuck.core.instance import requests as ask
from unstuck.core.instance.requests import DatabaseInfo, Failed, Ok, UserInfo
from unstuck.core.instance.want import WantedDatabase

ANNA = UserInfo("anna", ("shop", "stock"))


@pytest.fixture
def one(trove: Trove, site: DatabaseSite) -> str:
    """The path of an instance that is up."""
    key = trove.post("/instances", site.body(), 200)["instance"]["id"]
    site.settle(4)
    return f"/instances/{key}"


def says(site: DatabaseSite, answer: Any) -> None:
    site.host.answerer = lambda _want, _request: answer


def asked(site: DatabaseSite) -> Any:
    """The last request that came to the database."""
    return site.host.asked[-1]


def test_databases_are_made_listed_and_dropped(trove: Trove, site: DatabaseSite, one: str) -> None:
    with site.running():
        body = {"databases": [{"name": "shop"}, {"name": "stock", "character_set": "UTF8", "collate": "C"}]}
        trove.post(f"{one}/databases", body)
        assert asked(site) == ask.CreateDatabases(
            (WantedDatabase("shop"), WantedDatabase("stock", "UTF8", "C"))
        )
        says(site, Ok(databases=(DatabaseInfo("shop"), DatabaseInfo("stock")), more=True))
        answer = trove.get(f"{one}/databases?limit=2&marker=a")
        assert answer["databases"] == [{"name": "shop"}, {"name": "stock"}]
        assert answer["links"][0]["href"].endswith("limit=2&marker=stock")
        assert asked(site) == ask.ListDatabases(2, "a")
        says(site, Ok())
        assert trove.get(f"{one}/databases") == {"databases": []}
        assert trove.ask("DELETE", f"{one}/databases/shop%2ebackup").status_code == 202
        assert asked(site) == ask.DropDatabase("shop.backup")
        assert "not offered" in trove.bad("GET", f"{one}/databases/shop")


def test_users_are_made_with_verifiers_and_never_with_passwords(
    trove: Trove, site: DatabaseSite, one: str
) -> None:
    user = {"name": "anna", "password": "a secret", "host": "%", "databases": [{"name": "shop"}]}
    with site.running():
        trove.post(f"{one}/users", {"users": [user]})
    [made] = asked(site).users
    assert (made.name, made.databases, made.host) == ("anna", ("shop",), "%")
    assert made.verifier.startswith("SCRAM-SHA-256$4096:")
    assert "a secret" not in str(site.host.asked)


def test_users_are_shown_changed_and_dropped(trove: Trove, site: DatabaseSite, one: str) -> None:
    with site.running():
        says(site, Ok(users=(ANNA,)))
        shown = {"name": "anna", "host": "%", "databases": [{"name": "shop"}, {"name": "stock"}]}
        assert trove.get(f"{one}/users")["users"] == [shown]
        for path in ("anna", "anna@%25", "anna@"):
            assert trove.get(f"{one}/users/{path}")["user"] == shown
        assert trove.get(f"{one}/users/anna/databases")["databases"] == shown["databases"]
        trove.missing("GET", f"{one}/users/anna@10.0.0.1")
        trove.missing("GET", f"{one}/users/bert")
        trove.ask("PUT", f"{one}/users/anna", json={"user": {"name": "annette", "password": "new"}})
        change = asked(site)
        assert (change.name, change.new_name) == ("anna", "annette")
        assert change.verifier.startswith("SCRAM-SHA-256$")
        trove.ask("PUT", f"{one}/users", json={"users": [{"name": "anna", "password": "other"}]})
        assert (asked(site).name, asked(site).new_name) == ("anna", None)
        grant = {"databases": [{"name": "shop"}, {"name": "shop"}, {"name": "stock"}]}
        assert trove.ask("PUT", f"{one}/users/anna/databases", json=grant).status_code == 202
        assert asked(site) == ask.Grant("anna", ("shop", "stock"))
        assert trove.ask("DELETE", f"{one}/users/anna/databases/shop").status_code == 202
        assert asked(site) == ask.Revoke("anna", "shop")
        assert trove.ask("DELETE", f"{one}/users/a%2eb").status_code == 202
        assert asked(site) == ask.DropUser("a.b")


def test_of_several_passwords_the_first_that_fails_is_named(
    trove: Trove, site: DatabaseSite, one: str
) -> None:
    def answer(_want: Any, request: Any) -> Any:
        return Failed("not-found", "there is no user bert") if request.name == "bert" else Ok()

    site.host.answerer = answer
    users = [{"name": name, "password": "x"} for name in ("anna", "bert", "carl")]
    with site.running():
        message = trove.missing("PUT", f"{one}/users", json={"users": users})
    assert "bert" in message
    assert "anna" in message
    assert [request.name for request in site.host.asked] == ["anna", "bert"]


def test_root_is_enabled_shown_and_disabled(trove: Trove, site: DatabaseSite, one: str) -> None:
    with site.running():
        assert trove.get(f"{one}/root") == {"rootEnabled": False}
        trove.missing("DELETE", f"{one}/root")
        made = trove.ask("POST", f"{one}/root").json()["user"]
        assert made["name"] == "root"
        assert len(made["password"]) >= 20
        assert trove.get(f"{one}/root") == {"rootEnabled": True}
        answer = trove.ask("DELETE", f"{one}/root")
        assert (answer.status_code, answer.content) == (204, b"")
        assert trove.get(f"{one}/root") == {"rootEnabled": False}
        again = trove.ask("POST", f"{one}/root", json={}).json()["user"]
        assert again["password"] != made["password"]
        named = trove.ask("POST", f"{one}/root", json={"password": "my own"}).json()["user"]
        assert named["password"] == "my own"
        assert "colour" in trove.bad("POST", f"{one}/root", json={"colour": "red"})
    assert made["password"] not in str(site.host.asked)


@pytest.mark.parametrize(
    ("answer", "status", "kind", "word"),
    [
        (Failed("exists", "shop is there", "databases[0].name"), 400, "badRequest", "databases[0].name"),
        (Failed("invalid", "bad collation"), 400, "badRequest", "bad collation"),
        (Failed("refused", "it is ours"), 400, "badRequest", "it is ours"),
        (Failed("not-found", "no such user"), 404, "itemNotFound", "no such user"),
        (Failed("unready", "it starts"), 422, "unprocessableEntity", "it starts"),
        (Failed("of its own", "\x1b[31m" + "x" * 5000), 422, "unprocessableEntity", "[31mx"),
        (Failed("invalid", ""), 400, "badRequest", "without a reason"),
        ("no json", 422, "unprocessableEntity", "cannot be understood"),
        ('{"type": "ok", "users": 7}', 422, "unprocessableEntity", "cannot be understood"),
    ],
)
def test_what_a_database_refuses_is_said_in_the_apis_form(
    trove: Trove, site: DatabaseSite, one: str, answer: Any, status: int, kind: str, word: str
) -> None:
    says(site, answer)
    with site.running():
        body = {"databases": [{"name": "shop"}]}
        message = trove.refused("POST", f"{one}/databases", status, kind, json=body)
    assert word in message
    assert message.isprintable()
    assert len(message) < 1000


def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(
    trove: Trove, site: DatabaseSite, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest.Budget.__init__, "__defaults__", (0.5,))
    says(site, None)
    with site.running():
        message = trove.refused(
            "POST", f"{one}/databases", 422, "unprocessableEntity", json={"databases": [{"name": "shop"}]}
        )
    assert "did not answer" in message
    assert "Nothing is known to have changed" in message
    says(site, Ok())
    with site.running():
        trove.post(f"{one}/databases", {"databases": [{"name": "shop"}]})


def test_one_that_cannot_answer_is_not_asked(trove: Trove, site: DatabaseSite, one: str) -> None:
    built = trove.post("/instances", site.body(name="new"), 200)["instance"]["id"]
    body = {"databases": [{"name": "shop"}]}
    message = trove.refused("POST", f"/instances/{built}/databases", 409, "conflict", json=body)
    assert "built" in message
    site.host.silent |= set(site.host.guests)
    site.settle(2)
    message = trove.refused("POST", f"{one}/databases", 409, "conflict", json=body)
    assert "silent" in message
    trove.missing("POST", f"/instances/{uuid.uuid4()}/databases", json=body)
    assert site.host.asked == []


REFUSED: list[tuple[str, str, Any, str]] = [
    ("POST", "databases", {"databases": []}, "databases"),
    ("POST", "databases", {"databases": [{"name": "template1"}]}, "databases[0].name"),
    ("POST", "databases", {"databases": [{"name": "a b", "colour": 1}]}, "colour"),
    ("POST", "databases", {"databases": [{"name": 'a"; DROP'}]}, "databases[0].name"),
    ("POST", "databases", {"databases": [{"name": "x" * 64}]}, "databases[0].name"),
    ("POST", "databases", {"databases": [{"name": f"d{n}"} for n in range(101)]}, "databases"),
    ("POST", "databases", {"databases": "shop"}, "databases"),
    ("POST", "databases", {}, "databases"),
    ("DELETE", "databases/postgres", None, "name"),
    ("POST", "users", {"users": []}, "users"),
    ("POST", "users", {"users": [{"name": "anna"}]}, "password"),
    ("POST", "users", {"users": [{"name": "a@b", "password": "x"}]}, "users[0].name"),
    ("POST", "users", {"users": [{"name": "postgres", "password": "x"}]}, "users[0].name"),
    ("POST", "users", {"users": [{"name": "u", "password": "x"}] * 2}, "users[1].name"),
    ("PUT", "users", {"users": []}, "users"),
    ("PUT", "users", {"users": [{"name": "u", "password": ""}]}, "users[0].password"),
    ("PUT", "users/anna", {"user": {}}, "nothing to change"),
    ("PUT", "users/anna", {"user": {"name": "root"}}, "user.name"),
    ("PUT", "users/anna", {"user": {"host": "10.0.0.1"}}, "user.host"),
    ("PUT", "users/anna", {"user": {"shoe_size": 43}}, "shoe_size"),
    ("PUT", "users/anna/databases", {"databases": []}, "databases"),
    ("DELETE", "users/postgres", None, "name"),
]


@pytest.mark.parametrize(("method", "path", "body", "word"), REFUSED)
def test_what_a_database_would_never_take_is_not_asked_of_it(
    trove: Trove, site: DatabaseSite, one: str, method: str, path: str, body: Any, word: str
) -> None:
    more = {} if body is None else {"json": body}
    assert word in trove.bad(method, f"{one}/{path}", **more)
    assert site.host.asked == []
