"""A second host joins with a one-use token; one is lost, struck off and comes back. Real processes."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes.many import Many, Process
from unstuck.cli.cloud import COMPUTE
from unstuck.runtime.state import State

SERVICES = "/compute/v2.1/os-services"


@pytest.fixture
def second(many: Many) -> Iterator[State]:
    return State(many.state.root.parent / "second")


def token(many: Many) -> str:
    with many.admin() as cloud:
        answer = cloud.ask("POST", "/unstuck/v1/join-tokens").json()
        return str(answer["join_token"]["token"])


def joining(many: Many, second: State, text: str, name: str = "second") -> Process:
    second.logs.mkdir(parents=True, exist_ok=True)
    words = ("--join", text, "--url", many.state.url(), "--name", name)
    return many.start("host", *words, state=second)


def services(many: Many) -> dict[str, dict[str, Any]]:
    with many.admin() as cloud:
        found = cloud.get(SERVICES, headers=COMPUTE)["services"]
    return {item["host"]: item for item in found}


def place_of(many: Many, name: str) -> str:
    with many.admin() as cloud:
        found = cloud.get("/compute/v2.1/servers/detail", headers=COMPUTE)["servers"]
    return str(next(item["OS-EXT-SRV-ATTR:host"] for item in found if item["name"] == name))


def test_a_host_joins_once_with_a_token_and_keeps_its_secret(many: Many, second: State) -> None:
    many.control()
    text = token(many)
    agent = joining(many, second, text)
    many.until("it registers", lambda: many.registered(agent, second))
    assert "second" in services(many)
    for name in ("secret", "host.json"):
        assert stat.S_IMODE((second.host / name).stat().st_mode) == 0o600
    secret = (second.host / "secret").read_text().strip()
    assert secret not in (many.state.store.read_bytes() + agent.log.read_bytes()).decode(errors="replace")
    assert text not in agent.said
    agent.kill()
    again = many.start("host", "--url", many.state.url(), state=second)
    many.until("it needs no token any more", lambda: many.registered(again, second))
    again.kill()
    third = State(second.root.parent / "third")
    refused = joining(many, third, text, "third")
    assert refused.code() == 78
    assert "used already" in refused.said
    refused = joining(many, third, token(many), "second")
    assert refused.code() == 78
    assert "join under another name" in refused.said


@pytest.mark.slow
def test_a_host_is_lost_struck_off_and_back(many: Many, second: State) -> None:
    many.control()
    first = many.agent()
    agent = joining(many, second, token(many))
    many.until("it registers", lambda: many.registered(agent, second))
    home = next(name for name in services(many) if name != "second")
    names = ("a", "b", "c", "d")
    made = {name: many.create(name) for name in names}
    many.until_active(*names)
    on_second = [name for name in names if place_of(many, name) == "second"]
    assert 0 < len(on_second) < len(names), "both hosts have some"
    agent.kill()
    one = f"{SERVICES}/{services(many)['second']['id']}"
    with many.admin() as cloud:
        assert cloud.client.delete(one, headers=COMPUTE).status_code == 409
        cloud.ask("PUT", one, json={"forced_down": True}, headers=COMPUTE)
        assert many.statuses() == dict.fromkeys(names, "ACTIVE"), "being lost is no reason to call it failed"
        cloud.ask("DELETE", one, headers=COMPUTE)
    many.until(
        "those with data there are told",
        lambda: many.statuses() == {name: "ERROR" if name in on_second else "ACTIVE" for name in names},
    )
    assert set(services(many)) == {home}
    back = many.start("host", "--url", many.state.url(), state=second)
    assert back.code() == 77, "it is not let in silently"
    assert "join again" in back.said
    markers = [second.host / "servers" / made[name] / "guest.json" for name in on_second]
    assert all(marker.exists() for marker in markers), "and nothing there is touched"
    deleted = on_second[0]
    with many.admin() as cloud:
        cloud.ask("DELETE", f"/compute/v2.1/servers/{made[deleted]}", headers=COMPUTE)
    agent = joining(many, second, token(many))
    many.until("it registers", lambda: many.registered(agent, second))
    many.until_active(*(name for name in names if name != deleted))
    many.until("it cleans up", lambda: not (second.host / "servers" / made[deleted]).exists())
    assert deleted not in many.statuses()
    assert first.lives
