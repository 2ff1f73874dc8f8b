"""What strangers may take before anybody knows them: raw bytes against the control plane's own server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from api_cloud import ADMIN_HASH, DEMO_HASH, app_over
from hypothesis import given
from hypothesis import strategies as st

from unstuck.api import connections
from unstuck.api.app import SERVICES
from unstuck.api.connections import Gate, Rank, behind, end_when_deaf
from unstuck.api.context import Settings
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import EXIT_BUG, AsyncPort
from unstuck.store import identity
from unstuck.store.engine import Store

PATIENCE = 20.0
GET = b"GET /identity HTTP/1.1\r\nHost: a\r\n"


class Served:
    """A real server on the loop that production uses, in a thread."""

    def __init__(self, store: Store, folder: Path, gate: Gate) -> None:
        store.transact(
            identity.bootstrap, admin_password_hash=ADMIN_HASH, demo_password_hash=DEMO_HASH,
            token_key=b"k" * 32, ids=lambda: uuid.uuid4().hex,
        )  # fmt: skip
        self.gate = gate
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = self.listener.getsockname()
        app = app_over(store, Settings(state_dir=folder), SERVICES)
        config = uvicorn.Config(
            app, loop="uvloop", http=behind(gate), ws="none", lifespan="off", log_config=None,
            access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def connect(self) -> socket.socket:
        made = socket.create_connection(self.address, timeout=PATIENCE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def client(self) -> httpx2.Client:
        url = f"http://{self.address[0]}:{self.address[1]}"
        return httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def token(self, client: httpx2.Client) -> str:
        who = {"name": "demo", "password": "demo-secret", "domain": {"id": "default"}}
        scope = {"project": {"name": "demo", "domain": {"id": "default"}}}
        auth = {"identity": {"methods": ["password"], "password": {"user": who}}, "scope": scope}
        return str(client.post("/identity/v3/auth/tokens", json={"auth": auth}).headers["x-subject-token"])

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        self.listener.close()


Serve = Callable[[Gate], Served]


@pytest.fixture
def serve(store: Store, tmp_path: Path) -> Iterator[Serve]:
    made: list[Served] = []

    def begin(gate: Gate) -> Served:
        made.append(Served(store, tmp_path, gate))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve(Gate())


def everything(connection: socket.socket) -> bytes:
    """Until the other side closes; however it does."""
    out = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            out += piece
    return out


def ask(served: Served, data: bytes) -> bytes:
    with served.connect() as connection:
        connection.sendall(data)
        return everything(connection)


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def endless_value(_: int) -> bytes:
    return b"a" * 65536


def many_fields(number: int) -> bytes:
    return b"".join(b"x-%d-%d: a\r\n" % (number, field) for field in range(4000))


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (GET + b"X: ", endless_value),
        (GET, many_fields),
        (b"GET /identity?", endless_value),
        (b"", lambda _: b"\r\n" * 30000),
    ],
    ids=["one header", "many headers", "address", "empty lines"],
)
def test_a_head_without_end_is_answered_and_cut_and_stops_nobody(
    served: Served, begin: bytes, more: Callable[[int], bytes]
) -> None:
    """400 MiB of one header were taken and copied again and again, and every agent lost its lease."""
    sent = 0
    with served.connect() as connection, served.client() as other:
        connection.sendall(begin)
        with contextlib.suppress(ConnectionError):
            for number in range(400):
                piece = more(number)
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 16 << 20  # what we are rid of before the other side has cut: its and our buffers
        assert other.get("/identity").status_code == 300
    with served.connect() as connection:
        connection.sendall(begin + more(0) + more(1))
        status, headers, body = parsed(everything(connection))
    assert (status, headers["connection"]) == (431, "close")
    assert body["error"]["request_id"] == headers["x-openstack-request-id"]
    assert "65536" in body["error"]["message"]


def test_a_head_in_drops_has_the_same_limit(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(GET + b"X: ")
        for _ in range(66):
            connection.sendall(b"a" * 1000)
        assert parsed(everything(connection))[0] == 431


@pytest.mark.parametrize(
    "trailer", [b"x: a\r\n" * 10000, b"x: " + b"a" * 65536], ids=["many", "one that is long"]
)
def test_trailers_without_end_are_cut(served: Served, trailer: bytes) -> None:
    head = b"POST /identity/v3/auth/tokens HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served.connect() as connection, pytest.raises(ConnectionError):  # noqa: PT012 (cut while we send)
        connection.sendall(head + b"2\r\n{}\r\n0\r\n")
        for _ in range(1000):
            connection.sendall(trailer)


def test_what_is_allowed_passes(served: Served) -> None:
    large = b"X: " + b"a" * 60000 + b"\r\n"
    answer = ask(served, GET + large + b"\r\n" + GET + large + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 300") == 2  # also one behind the other
    with served.client() as client:
        headers = {"x-auth-token": served.token(client)}
        image = client.post(
            "/image/v2/images", headers=headers,
            json={"name": "x", "disk_format": "raw", "container_format": "bare"},
        ).json()  # fmt: skip
        data = os.urandom(5 << 20)
        put = {**headers, "content-type": "application/octet-stream"}
        path = f"/image/v2/images/{image['id']}/file"
        assert client.put(path, headers=put, content=data).status_code == 204
        assert client.get(path, headers=headers).content == data


def test_a_chunked_body_is_a_body(served: Served) -> None:
    with served.client() as client:
        headers = {"x-auth-token": served.token(client), "content-type": "application/json"}
        pieces = [b'{"keypair"', b': {"name": "in ', b'pieces"}}']
        made = client.post("/compute/v2.1/os-keypairs", headers=headers, content=iter(pieces))
        assert made.status_code == 200, made.text
        assert made.json()["keypair"]["name"] == "in pieces"
        again = b"".join(b"%x\r\n%s\r\n" % (1, bytes([byte])) for byte in b'{"keypair": {"name": "b"}}')
        head = b"POST /compute/v2.1/os-keypairs HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Auth-Token: "
        head += headers["x-auth-token"].encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert b"HTTP/1.1 200" in ask(served, head + again + b"0\r\n\r\n")
        found = client.get("/compute/v2.1/os-keypairs", headers=headers).json()["keypairs"]
        assert sorted(one["keypair"]["name"] for one in found) == ["b", "in pieces"]


MALFORMED = [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}garbage\r\n", b"-1\r\n", b"2\r\n{}\r\n\r\n"]


@pytest.mark.parametrize("chunks", MALFORMED)
def test_a_body_in_malformed_chunks_is_refused_in_the_form_of_its_api(served: Served, chunks: bytes) -> None:
    with served.client() as client:
        token = served.token(client).encode()
        for path, form in {
            b"/compute/v2.1/os-keypairs": ("badRequest",),
            b"/identity/v3/auth/tokens": ("error",),
            b"/image/v2/images": ("message", "code", "title"),
        }.items():
            head = b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nX-Auth-Token: " + token
            head += b"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            with served.connect() as connection:
                connection.sendall(head)
                time.sleep(0.05)  # so that its handler waits for the body already
                connection.sendall(chunks)
                status, _, body = parsed(everything(connection))
            assert status == 400, path
            assert tuple(body)[: len(form)] == form
            assert status == parsed(ask(served, head + chunks))[0]
        assert client.get("/compute/v2.1/os-keypairs", headers={"x-auth-token": token}).json() == {
            "keypairs": []
        }


def test_what_was_answered_before_its_body_was_here_is_not_answered_once_more(served: Served) -> None:
    head = b"POST /compute/v2.1/os-keypairs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        connection.sendall(MALFORMED[0])
        assert b"HTTP" not in everything(connection)


def test_an_upload_that_ends_in_a_malformed_chunk_is_refused_and_leaves_nothing(served: Served) -> None:
    with served.client() as client:
        headers = {"x-auth-token": served.token(client)}
        image = client.post(
            "/image/v2/images", headers=headers,
            json={"name": "x", "disk_format": "raw", "container_format": "bare"},
        ).json()  # fmt: skip
        head = f"PUT /image/v2/images/{image['id']}/file HTTP/1.1\r\nHost: a\r\nX-Auth-Token: "
        head += f"{headers['x-auth-token']}\r\nContent-Type: application/octet-stream\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        answer = ask(served, head.encode() + b"5\r\nhello\r\nnot a length\r\n")
        assert parsed(answer)[0] == 400
        shown = client.get(f"/image/v2/images/{image['id']}", headers=headers).json()
        assert shown["status"] == "queued"


def test_a_head_that_does_not_come_in_time_is_not_waited_for(serve: Serve) -> None:
    served = serve(Gate(head_seconds=0.5))
    with served.connect() as silent, served.connect() as slow, served.connect() as between:
        between.sendall(GET + b"\r\n")
        assert between.recv(65536).startswith(b"HTTP/1.1 300")
        slow.sendall(GET)
        assert everything(silent) == b""
        assert parsed(everything(slow))[0] == 408
        # Between two requests it may be silent for longer: the connection is kept.
        between.sendall(GET + b"\r\n")
        assert between.recv(65536).startswith(b"HTTP/1.1 300")
        between.sendall(b"\r\n")  # an empty line is no request, and no reason to stay for ever
        assert parsed(everything(between))[0] == 408


def test_a_body_may_take_longer_than_a_head(serve: Serve) -> None:
    served = serve(Gate(head_seconds=0.2))
    head = (
        b"POST /identity/v3/auth/tokens HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    )
    with served.connect() as connection:
        connection.sendall(head)
        time.sleep(0.6)
        connection.sendall(b"{}")
        assert parsed(everything(connection))[0] == 400


def test_what_is_no_request_is_refused_in_a_form_that_can_be_read(served: Served) -> None:
    status, headers, body = parsed(ask(served, b"\0\1\2\r\n\r\n"))
    assert (status, headers["content-type"]) == (400, "application/json")
    assert body["error"]["code"] == 400


@pytest.mark.parametrize(
    "line", [b"GET /compute/v2.1/servers/a%0ab", b"OPTIONS *", b"GET /%0a", b"GET /nowhere", b"PUT //"]
)
def test_every_path_gets_the_answer_of_the_api(served: Served, line: bytes) -> None:
    """A newline in a path once got the plain text of a router that no client knows."""
    status, headers, body = parsed(ask(served, line + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
    assert status in (401, 404, 405)
    assert headers["content-type"] == "application/json"
    assert headers["x-openstack-request-id"].startswith("req-")
    assert next(iter(body.values()))["code"] == status


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    head = b"POST /identity/v3/auth/tokens HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n{}"
    with served.connect() as connection:
        connection.settimeout(connections.LINGER_SECONDS + 2.0)
        connection.sendall(head)
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(65536)
        status, headers, _ = parsed(answer)
        assert (status, headers["connection"]) == (413, "close")
        connection.settimeout(PATIENCE)
        assert everything(connection) == b""


def test_whoever_has_shown_a_credential_stays_when_strangers_fill_all(serve: Serve) -> None:
    served = serve(Gate(lambda: 8))
    with served.client() as client, contextlib.ExitStack() as stack:
        headers = {"x-auth-token": served.token(client)}
        assert client.get("/compute/v2.1/servers", headers=headers).status_code == 200
        port = client._transport._pool.connections[0]  # type: ignore[attr-defined]
        strangers = [stack.enter_context(served.connect()) for _ in range(40)]
        for stranger in strangers[-3:]:
            stranger.sendall(b"GET /identity HTTP/1.1\r\nX: ")
        assert client.get("/compute/v2.1/servers", headers=headers).status_code == 200
        assert client._transport._pool.connections[0] is port  # type: ignore[attr-defined]
        with served.client() as newcomer:
            assert newcomer.get("/identity").status_code == 300
        assert served.gate.count() <= 8
        assert everything(strangers[0]) == b""  # who came first and showed nothing went first


class Fake:
    """A connection as the gate sees it."""

    def __init__(self, idle: bool) -> None:
        self.idle = idle
        self.cuts = 0

    def cut(self) -> None:
        self.cuts += 1


@given(
    st.lists(st.tuples(st.sampled_from(Rank), st.booleans()), max_size=60),
    st.integers(min_value=8, max_value=20),
)
def test_there_is_always_room_for_an_agent(before: list[tuple[Rank, bool]], most: int) -> None:
    """However many come and whatever they show: never too many, and a quarter is for agents only."""
    gate = Gate(lambda: most)
    made: list[tuple[Rank, Any]] = []
    for rank, idle in before:
        connection: Any = Fake(idle)
        gate.enter(connection)
        gate.vouch(connection, rank)
        made.append((rank, connection))
        assert gate.count() <= most
        assert gate.count() == sum(not one.cuts for _, one in made)
        assert all(one.cuts <= 1 for _, one in made)
    agents = gate.count(Rank.AGENT)
    newcomer: Any = Fake(idle=False)
    gate.enter(newcomer)
    if agents < most // 4:
        assert not newcomer.cuts
    if agents <= most // 4:
        assert gate.count(Rank.AGENT) == agents


def test_a_limit_that_falls_while_it_runs_is_kept() -> None:
    limit = [20]
    gate = Gate(lambda: limit[0])
    made: list[Any] = [Fake(idle=True) for _ in range(20)]
    for connection in made:
        gate.enter(connection)
    limit[0] = 8
    last: Any = Fake(idle=True)
    gate.enter(last)
    assert gate.count() == 8
    assert [one.cuts for one in made] == [1] * 13 + [0] * 7


def test_a_process_that_nobody_can_reach_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "DEAF_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        async def main() -> tuple[bool, int]:
            port = AsyncPort(Barriers("", tmp_path))
            running = asyncio.ensure_future(port.run({"deaf": end_when_deaf(port, address)}))
            await asyncio.sleep(0.3)
            early = running.done()
            listener.close()
            async with asyncio.timeout(PATIENCE):
                return early, await running

        assert asyncio.run(main()) == (False, EXIT_BUG)
