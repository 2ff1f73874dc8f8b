"""Routes of host agents: register, heartbeat, world, claims, reports, answers, images."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec

from unstuck.api.agents.captures import CaptureQuery, deliver
from unstuck.api.agents.guard import Refusal, body, guarded, refuse_protocol
from unstuck.api.agents.images import image
from unstuck.api.context import Settings
from unstuck.api.routes import Call, Query, Reply, Route, route
from unstuck.core.agents import (
    PROTOCOL,
    Answer,
    Claim,
    Heartbeat,
    Holdings,
    Register,
    Report,
    Terms,
    World,
    speaks,
)
from unstuck.core.server.data import Observation, Off, Step
from unstuck.store import agents
from unstuck.store.engine import Tx
from unstuck.store.holdings import tell

WAIT_MAX: Final = 60.0
RECHECK: Final = 5.0
"""Seconds after which a long poll looks by itself: a wake-up may be lost, or happen in another process."""
TEXT_MAX: Final = 512 * 1024
UNKNOWN_MAX: Final = 10_000
ID_MAX: Final = 64

_register = msgspec.json.Decoder(Register)
_heartbeat = msgspec.json.Decoder(Heartbeat)
_holdings = msgspec.json.Decoder(Holdings)
_claim = msgspec.json.Decoder(Claim)
_report = msgspec.json.Decoder(Report)
_answer = msgspec.json.Decoder(Answer)


class WorldQuery(Query, frozen=True, kw_only=True):
    """``since``: the version the agent knows, -1 for none, in the ``history`` that it knows it from.
    ``wait``: how long the call may take."""

    incarnation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    since: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1
    history: str = ""
    wait: float = 0.0


class Polls:
    """The long polls of this process; ``close`` lets all of them answer, so that the process can end."""

    def __init__(self) -> None:
        self.closing = False
        self.hosts: dict[str, int] = {}

    def enter(self, host_id: str) -> None:
        self.hosts[host_id] = self.hosts.get(host_id, 0) + 1

    def leave(self, host_id: str) -> None:
        left = self.hosts[host_id] - 1
        if left:
            self.hosts[host_id] = left
        else:
            del self.hosts[host_id]


def polls(extra: dict[str, Any]) -> Polls:
    found: Polls = extra.setdefault("agents.polls", Polls())
    return found


@guarded
async def register(call: Call, host_id: str) -> Reply:
    ask = await body(call, _register)
    facts = ask.facts
    if facts.protocol not in speaks(PROTOCOL):
        raise refuse_protocol(f"version {facts.protocol}", facts.protocol, host_id)
    if not 0 < len(ask.start) <= ID_MAX:
        raise Refusal(400, "invalid", "Invalid input: `start` must have 1 to 64 characters.")
    if (
        min(facts.vcpus, facts.ram_mb, facts.disk_gb) < 0
        or max(facts.vcpus, facts.ram_mb, facts.disk_gb) >= 2**31
    ):
        raise Refusal(400, "invalid", "Invalid input: sizes of a host must be numbers from 0 to 2147483647.")
    known = await call.store.run_read(machine_of, host_id)
    if known != facts.machine_id:
        raise Refusal(
            403,
            "machine",
            "This host's state folder belongs to another machine (it was copied, or the machine's id has "
            "changed): let the host join anew with a folder of its own.",
        )
    answer = await call.store.run(agents.register, host_id, ask)
    call.app.notifier.wake("control")
    call.app.notifier.wake(f"host:{host_id}")  # a predecessor that waits is to hear of it now
    return Reply(answer)


def machine_of(tx: Tx, host_id: str) -> str:
    """The machine that a host's identity was given to. Raises :class:`UnknownHost`."""
    import sqlalchemy as sa

    from unstuck.store.schema.compute import hosts

    found = tx.execute(sa.select(hosts.c.machine_id).where(hosts.c.id == host_id)).scalar_one_or_none()
    if found is None:
        raise agents.UnknownHost(host_id)
    return str(found)


@guarded
async def heartbeat(call: Call, host_id: str) -> Reply:
    beat = await body(call, _heartbeat)
    if len(beat.unknown) > UNKNOWN_MAX or any(len(item) > ID_MAX for item in beat.unknown):
        raise Refusal(400, "invalid", "Invalid input: `unknown` holds too much.")
    terms: Terms = await call.store.run(agents.heartbeat, host_id, beat)
    return Reply(terms)


@guarded
async def holdings(call: Call, host_id: str) -> Reply:
    given = await body(call, _holdings)
    if len(given.held) > UNKNOWN_MAX or any(len(item.server_id) > ID_MAX for item in given.held):
        raise Refusal(400, "invalid", "Invalid input: `held` holds too much.")
    answer = await call.store.run(tell, host_id, given)
    call.app.notifier.wake("control")
    return Reply(answer)


@guarded
async def world(call: Call, host_id: str) -> Reply:
    """At once when there is news or a question; else when somebody wakes this host, or time is over."""
    open_polls = polls(call.app.extra)
    open_polls.enter(host_id)
    try:
        return Reply(await _wait_for_news(call, host_id, call.query, open_polls))
    finally:
        open_polls.leave(host_id)


async def _wait_for_news(call: Call, host_id: str, query: WorldQuery, open_polls: Polls) -> World:
    clock = asyncio.get_running_loop().time
    end = clock() + min(max(query.wait, 0.0), WAIT_MAX)
    key = f"host:{host_id}"
    while True:
        mark = call.app.notifier.version(key)  # before the look, so that nothing is missed after it
        left = end - clock()
        over = left <= 0 or open_polls.closing
        found = await call.store.run_read(_news, host_id, query, over)
        if found is not None:
            return _with_settings(found, call.app.settings)
        await call.app.notifier.wait(key, min(left, RECHECK), since=mark)


def _with_settings(world: World, settings: Settings) -> World:
    """What guests are told besides what the store wants of them."""
    if not settings.database_superuser:
        return world
    replace = msgspec.structs.replace
    wants = [
        want if want.database is None else replace(want, database=replace(want.database, superuser=True))
        for want in world.wants
    ]
    return replace(world, wants=tuple(wants))


def _news(tx: Tx, host_id: str, query: WorldQuery, over: bool) -> World | None:
    """The world if there is news or a question in it, or if the wait is ``over``; in one transaction."""
    version, asked = agents.world_version(tx, host_id, query.incarnation)
    known = version == query.since and query.history in ("", agents.terms(tx).history)
    if known and not asked and not over:
        return None
    return agents.world(tx, host_id, query.incarnation, query.since, query.history)


@guarded
async def claim(call: Call, host_id: str) -> Reply:
    await call.store.run(agents.claim, host_id, await body(call, _claim))
    return Reply(status=204)


@guarded
async def report(call: Call, host_id: str) -> Reply:
    ask = await body(call, _report)
    if ask.disk_id is not None and len(ask.disk_id) > 128:
        raise Refusal(400, "invalid", "Invalid input: `disk_id` is longer than 128 characters.")
    await call.store.run(agents.report, host_id, ask)
    if _concerns_control(ask.observation):
        call.app.notifier.wake("control")
    call.app.notifier.wake(f"server:{ask.server_id}")
    return Reply(status=204)


def _concerns_control(seen: Observation) -> bool:
    """Whether the control loop may have something to do now: room or addresses are free, or it goes wrong.

    Claims and a build's own progress leave it nothing that would not wait for its next look.
    """
    return seen.trouble is not None or seen.step is Step.REMOVED or isinstance(seen.guest, Off)


@guarded
async def answer(call: Call, host_id: str) -> Reply:
    given = await body(call, _answer)
    if len(given.text) > TEXT_MAX:
        raise Refusal(400, "invalid", f"Invalid input: `text` is longer than {TEXT_MAX} characters.")
    ask_id = call.params["ask_id"]
    await call.store.run(agents.answer_ask, host_id, given.incarnation, ask_id, given.text.replace("\0", ""))
    call.app.notifier.wake(f"ask:{ask_id}")
    return Reply(status=204)


_HOST = "/agents/v1/hosts/{host_id}"

# Their own credential is checked by ``guarded``, hence "public" here; bodies are read after that, hence raw.
ROUTES: list[Route] = [
    route("POST", f"{_HOST}/register", register, "public", body=Register, raw=True),
    route("POST", f"{_HOST}/heartbeat", heartbeat, "public", body=Heartbeat, raw=True),
    route("POST", f"{_HOST}/holdings", holdings, "public", body=Holdings, raw=True),
    route("GET", f"{_HOST}/world", world, "public", query=WorldQuery),
    route("POST", f"{_HOST}/claims", claim, "public", body=Claim, raw=True, status=204),
    route("POST", f"{_HOST}/reports", report, "public", body=Report, raw=True, status=204),
    route("POST", f"{_HOST}/answers/{{ask_id}}", answer, "public", body=Answer, raw=True, status=204),
    route("GET", f"{_HOST}/images/{{image_id}}", guarded(image), "public"),
    route(
        "PUT",
        f"{_HOST}/servers/{{server_id}}/images/{{image_id}}",
        guarded(deliver),
        "public",
        query=CaptureQuery,
        raw=True,
        status=204,
    ),
]
