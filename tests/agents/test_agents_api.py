"""The agents' API: a real agent works over it, and whoever should not is told why."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import httpx2
import msgspec
import pytest
import sqlalchemy as sa
from agents_site import HOST, SECRET, Site, facts

from unstuck.core.agents import Answer, Claim, Heartbeat, Register, Registered, Report
from unstuck.core.server.data import BootImage, Fence, Gone, ImageRole, Observation, Step, Thing
from unstuck.host.client import HttpControl, Rejected
from unstuck.host.control import Incompatible, Refused, Superseded, Unreachable
from unstuck.host.driver import DriverError
from unstuck.host.drivers.instant import InstantDriver
from unstuck.host.images import FetchError
from unstuck.store import agents, servers
from unstuck.store.schema.compute import hosts


async def register(control: HttpControl, start: str, machine: str = "machine") -> Registered:
    asked = await control.register(Register(start, facts(machine)))
    return await control.register(Register(start, facts(machine), asked.incarnation))


def report(incarnation: int, server_id: str) -> Report:
    seen = Observation(1, Gone(), Thing.ABSENT, Step.WAITING)
    return Report(incarnation, 1, server_id, Fence(1, 7), seen)


def test_a_server_lives_from_create_to_delete(site: Site) -> None:
    async def main() -> None:
        port = site.control_port()
        plane = site.control(port)
        agent = site.agent()
        server_id = await site.create()
        await site.until(server_id, "active")
        host = await site.store.run(servers.stop_server, server_id, site.user())
        site.notifier.wake(f"host:{host}")
        await site.until(server_id, "stopped")
        await site.store.run(servers.delete_server, server_id, site.user())
        site.notifier.wake(f"host:{host}")
        await site.until(server_id, "gone")
        assert not (site.folder / "servers" / server_id).exists()
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())


def test_the_next_agent_adopts_and_the_last_one_ends(site: Site) -> None:
    async def main() -> None:
        port = site.control_port()
        plane = site.control(port)
        first = site.agent()
        server_id = await site.create()
        await site.until(server_id, "active")
        marker = site.folder / "servers" / server_id / "guest.json"
        before = marker.stat().st_mtime_ns
        second = site.agent()
        assert await asyncio.wait_for(first.task, 20) == 75
        await first.control.close()
        await site.store.run(servers.stop_server, server_id, site.user())
        site.notifier.wake(f"host:{HOST}")
        await site.until(server_id, "stopped")
        assert not marker.exists() or marker.stat().st_mtime_ns != before
        assert await second.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())


def test_a_host_is_given_nothing_until_it_can_see_what_it_holds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, goes on with what it has, and says it again with its heartbeats."""
    seen = asyncio.Event()

    async def holdings(driver: InstantDriver) -> Any:
        if not seen.is_set():
            raise DriverError("the folder cannot be read")
        return ()

    monkeypatch.setattr(InstantDriver, "holdings", holdings)
    monkeypatch.setattr(agents, "HEARTBEAT", 0.05)
    site.store.transact(lambda tx: tx.execute(sa.update(hosts).values(told_session="the last one")))

    async def main() -> None:
        port = site.control_port()
        plane = site.control(port)
        agent = site.agent()
        server_id = await site.create()
        async with asyncio.timeout(20):
            while not agent.agent.caught_up:  # noqa: ASYNC110 (an agent sets no event)
                await asyncio.sleep(0.01)
        assert not await site.store.run(servers.place, server_id, HOST, "nonce")
        seen.set()
        await site.until(server_id, "active")
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())


def test_a_long_poll_is_answered_by_a_wake(site: Site) -> None:
    async def main() -> None:
        control = site.client(wait=20.0)
        mine = await register(control, "s")
        world = await control.world(mine.incarnation, -1)
        poll = asyncio.ensure_future(control.world(mine.incarnation, world.version))
        server_id = await site.create()
        await asyncio.sleep(0.1)
        assert not poll.done()
        began = time.monotonic()
        assert await site.store.run(servers.place, server_id, HOST, "nonce")
        site.notifier.wake(f"host:{HOST}")
        news = await poll
        assert time.monotonic() - began < 3.0  # well before it would have looked by itself
        assert [want.server_id for want in news.wants] == [server_id]
        await control.close()

    asyncio.run(main())


def test_a_long_poll_that_nobody_wakes_looks_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.api.agents.hosts.RECHECK", 0.05)

    async def main() -> None:
        control = site.client(wait=20.0)
        mine = await register(control, "s")
        world = await control.world(mine.incarnation, -1)
        poll = asyncio.ensure_future(control.world(mine.incarnation, world.version))
        server_id = await site.create()
        assert await site.store.run(servers.place, server_id, HOST, "nonce")
        assert [want.server_id for want in (await poll).wants] == [server_id]
        await control.close()

    asyncio.run(main())


def test_a_long_poll_without_news_ends_in_time(site: Site) -> None:
    async def main() -> None:
        control = site.client(wait=0.1)
        mine = await register(control, "s")
        world = await control.world(mine.incarnation, -1)
        again = await control.world(mine.incarnation, world.version)
        assert (again.version, again.wants) == (world.version, ())
        await control.close()

    asyncio.run(main())


def test_who_was_superseded_is_told_at_every_call(site: Site) -> None:
    async def main() -> None:
        control = site.client(wait=0.0)
        old = (await register(control, "one")).incarnation
        await register(control, "two")
        calls: list[Any] = [
            control.heartbeat(Heartbeat(old, 1)),
            control.world(old, -1),
            control.claim(Claim(old, "s", Fence(1, 1))),
            control.report(report(old, "s")),
            control.answer("ask", Answer(old, "text")),
        ]
        for call in calls:
            with pytest.raises(Superseded, match="superseded by"):
                await call
        await control.close()

    asyncio.run(main())


def test_a_poll_that_waits_is_told_when_it_is_superseded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.api.agents.hosts.RECHECK", 0.05)

    async def main() -> None:
        control = site.client(wait=20.0)
        old = await register(control, "one")
        world = await control.world(old.incarnation, -1)
        poll = asyncio.ensure_future(control.world(old.incarnation, world.version))
        await register(control, "two")
        with pytest.raises(Superseded):  # noqa: PT012
            world = await poll  # asking who is there counts as news; the next poll waits again
            await control.world(old.incarnation, world.version)
        await control.close()

    asyncio.run(main())


def test_a_grant_that_is_no_more_is_refused(site: Site) -> None:
    async def main() -> None:
        control = site.client()
        mine = await register(control, "s")
        with pytest.raises(Refused):
            await control.report(report(mine.incarnation, str(uuid.uuid4())))
        with pytest.raises(Refused):
            await control.claim(Claim(mine.incarnation, str(uuid.uuid4()), Fence(1, 1)))
        await control.close()

    asyncio.run(main())


@pytest.mark.parametrize(("secret", "host"), [("wrong", HOST), (SECRET, "another"), ("", HOST)])
def test_strangers_are_rejected(site: Site, secret: str, host: str) -> None:
    async def main() -> None:
        control = site.client(secret, host)
        with pytest.raises(Rejected, match="credential"):
            await register(control, "s")
        await control.close()

    asyncio.run(main())


def test_a_copied_folder_is_rejected(site: Site) -> None:
    async def main() -> None:
        control = site.client()
        with pytest.raises(Rejected, match="another machine"):
            await register(control, "s", machine="clone")
        await control.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", ["", "2", "x", "-1", "１", "9" * 50])
def test_another_protocol_is_refused_with_both_versions(site: Site, version: str) -> None:
    async def main() -> None:
        async with site.raw() as client:
            client.headers.pop("unstuck-protocol")
            headers = {"unstuck-protocol": version.encode()} if version else {}
            answer = await client.get("world", headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "protocol"
        assert "speaks 1" in error["message"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b"\xff", b'{"incarnation":"1","sequence":1}',
     b'{"incarnation":1,"sequence":1e99}',
     b"[" * 10_000, b'{"incarnation":1,"sequence":1,"unknown":["' + b"x" * 100 + b'"]}'],
)  # fmt: skip
@pytest.mark.parametrize("path", ["register", "heartbeat", "claims", "reports", "answers/a"])
def test_bad_input_is_a_400(site: Site, path: str, body: bytes) -> None:
    async def main() -> None:
        async with site.raw() as client:
            answer = await client.post(path, content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"]

    asyncio.run(main())


def test_a_body_that_is_too_large_is_refused(site: Site) -> None:
    async def main() -> None:
        async with site.raw() as client:
            answer = await client.post("heartbeat", content=b" " * (2 << 20))
        assert answer.status_code == 413

    asyncio.run(main())


@pytest.mark.parametrize("query", ["incarnation=x", "wait=nan&incarnation=1", "since=1.5"])
def test_bad_queries(site: Site, query: str) -> None:
    async def main() -> None:
        async with site.raw() as client:
            answer = await client.get(f"world?{query}")
        assert answer.status_code in (400, 412), answer.text

    asyncio.run(main())


def test_what_an_agent_hears_when_nobody_is_there() -> None:
    async def main() -> None:
        control = HttpControl("http://127.0.0.1:9", HOST, SECRET)
        with pytest.raises(Unreachable):
            await control.heartbeat(Heartbeat(1, 1))
        await control.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [(500, "", Unreachable), (503, "", Unreachable), (429, "", Unreachable), (409, "superseded", Superseded),
     (410, "stale", Refused), (401, "unknown-host", Rejected), (400, "protocol", Incompatible),
     (400, "", Rejected), (404, "", Rejected)],
)  # fmt: skip
def test_what_answers_mean(status: int, kind: str, expected: type[Exception]) -> None:
    body = msgspec.json.encode({"error": {"code": status, "type": kind, "message": "why"}})
    transport = httpx2.MockTransport(lambda _: httpx2.Response(status, content=body))

    async def main() -> None:
        control = HttpControl("http://cloud", HOST, SECRET, transport=transport)
        with pytest.raises(expected, match="why"):
            await control.heartbeat(Heartbeat(1, 1))
        await control.close()

    asyncio.run(main())


def test_a_call_has_a_deadline_in_all() -> None:
    async def silent(_: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    async def main() -> None:
        control = HttpControl(
            "http://cloud", HOST, SECRET, transport=httpx2.MockTransport(silent), deadline=0.05
        )
        with pytest.raises(Unreachable, match="in time"):
            await control.heartbeat(Heartbeat(1, 1))
        await control.close()

    asyncio.run(main())


def test_an_image_that_is_not_there_is_final(site: Site) -> None:
    async def main() -> None:
        control = site.client()
        image = BootImage(str(uuid.uuid4()), ImageRole.DISK, "a" * 128, 1, "raw")
        with pytest.raises(FetchError) as caught:
            async for _ in control.open(image):
                pass
        assert caught.value.final
        await control.close()

    asyncio.run(main())


def with_more(data: Any) -> Any:
    """What a later version might answer: every object has a key more (maps of the user's own do not)."""
    if isinstance(data, dict):
        known = {
            key: value if key in ("metadata", "keys") else with_more(value) for key, value in data.items()
        }
        return {**known, "of_the_future": {"a": [1, None]}}
    return [with_more(item) for item in data] if isinstance(data, list) else data


class Later(httpx2.AsyncBaseTransport):
    """A control plane of a later version, and an agent of one: unknown keys in answers and in requests."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self.inner = inner
        self.answers = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = await request.aread()
        if sent:
            sent = msgspec.json.encode(with_more(msgspec.json.decode(sent)))
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        request = httpx2.Request(request.method, request.url, headers=headers, content=sent)
        answer = await self.inner.handle_async_request(request)
        got = await answer.aread()
        if answer.status_code == 200 and got:
            self.answers += 1
            got = msgspec.json.encode(with_more(msgspec.json.decode(got)))
        return httpx2.Response(answer.status_code, content=got)


def test_unknown_keys_change_nothing_in_either_direction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Later(httpx2.ASGITransport(site.app))
    monkeypatch.setattr(
        site, "client", lambda **more: HttpControl("http://cloud", HOST, SECRET, transport=later, **more)
    )

    async def main() -> None:
        port = site.control_port()
        plane = site.control(port)
        agent = site.agent()
        server_id = await site.create()
        await site.until(server_id, "active")
        await site.store.run(servers.delete_server, server_id, site.user())
        site.notifier.wake(f"host:{HOST}")
        await site.until(server_id, "gone")
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())
    assert later.answers > 3


def test_of_several_control_planes_the_next_one_is_asked(site: Site) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.host)
        if request.url.host == "a":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(503 if request.url.host == "b" else 204)

    async def main() -> None:
        control = HttpControl(
            "http://a, http://b/,http://c", HOST, SECRET, transport=httpx2.MockTransport(answer)
        )
        ask = Claim(1, "s", Fence(1, 1))
        for _ in range(2):
            with pytest.raises(Unreachable):
                await control.claim(ask)
        await control.claim(ask)
        await control.claim(ask)
        await control.close()

    asyncio.run(main())
    assert asked == ["a", "b", "c", "c"]
