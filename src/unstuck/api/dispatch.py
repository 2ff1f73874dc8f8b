"""The dispatcher: one ASGI app that finds the route, checks what the table says, and writes the answer."""

from __future__ import annotations

import errno
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import sqlalchemy as sa
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from unstuck.api import errors, microversions
from unstuck.api.context import HOST, App, Token
from unstuck.api.errors import ApiError, Renderer
from unstuck.api.inputs import choose_action, decode_body, decode_query, drain, path_parts, read_body
from unstuck.api.policy import enforce
from unstuck.api.routes import Call, Entry, Reply, Route, Table, at_version
from unstuck.api.sockets import FAILED, Gone, Socket, SocketCall, SocketRequest, Sockets, body_of
from unstuck.api.vouch import vouch
from unstuck.core.errors import Refused
from unstuck.runtime.metrics import Metrics
from unstuck.store.engine import Store, StoreUnavailable

log = structlog.get_logger()

Authenticate = Callable[[Call], Awaitable[Token]]
"""Turns the request's X-Auth-Token into a token, or raises 401."""

RENDERERS: Final[dict[str, Renderer]] = {
    "identity": errors.render_identity,
    "image": errors.render_image,
    "compute": errors.render_compute,
    "networking": errors.render_network,
    "database": errors.render_database,
}
_STRICT: Final = (b"/compute/", b"/image/", b"/database/")
_JSON: Final = "application/json"
_RACED: Final = ("23505", "23503")
"""PostgreSQL: not unique, or the other row is gone. What was checked first can only happen by a race."""


_SHORTAGES: Final = {
    errno.EMFILE: "file descriptor", errno.ENFILE: "file descriptor", errno.ENOMEM: "memory",
    errno.ENOSPC: "disk space", errno.EDQUOT: "disk space",
}  # fmt: skip


class Dispatcher:
    """The ASGI app over a route table, and one of WebSockets."""

    def __init__(
        self, store: Store, app: App, table: Table, authenticate: Authenticate,
        sockets: Sequence[Route] = (),
    ) -> None:  # fmt: skip
        self.store = store
        self.app = app
        self.table = table
        self.sockets = Sockets(sockets)
        self.authenticate = authenticate
        self.metrics: Metrics = app.extra["metrics"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._talk(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected scope: {scope['type']}")
        http = Request(scope, receive)
        scope["unstuck.base_url"] = base_url(http, self.app.settings.public_url)
        raw_path = scope.get("raw_path") or scope["path"].encode()
        service = raw_path.lstrip(b"/").partition(b"/")[0].decode("latin-1")
        request_id = f"req-{uuid.uuid4()}"
        began = time.perf_counter()
        call = Call(store=self.store, app=self.app, http=http, request_id=request_id)
        sender = _Sender(send, head=http.method == "HEAD")
        headers = {"x-openstack-request-id": request_id}
        try:
            reply, status = await self._answer(call, raw_path, service)
            headers |= _service_headers(service, call)
            await sender.reply(reply, status, headers)
        except ClientDisconnect:
            log.info("client went away", request_id=request_id, path=raw_path.decode("latin-1"))
        except Exception as raised:
            error = _as_api_error(raised, request_id)
            if sender.started:  # too late for another status: break the connection off
                raise
            headers |= _service_headers(service, call)
            render = RENDERERS.get(service, errors.render_own)
            body = msgspec.json.encode(render(error, request_id))
            # Whoever still sends is answered at once, and cut off only when it had time to read the answer.
            before_end = partial(drain, http) if error.headers.get("connection") == "close" else None
            await sender.reply(Reply(body, headers=error.headers), error.status, headers, before_end)
        finally:
            if sender.status:
                self.metrics.request(
                    http.method if call.route else "", call.route or "none", sender.status,
                    time.perf_counter() - began,
                )  # fmt: skip

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket: a handler that does not accept refuses, as an HTTP answer in the usual form."""
        http, socket = SocketRequest(scope), Socket(scope, receive, send)
        http.scope["unstuck.base_url"] = base_url(http, self.app.settings.public_url)
        request_id = f"req-{uuid.uuid4()}"
        call = SocketCall(socket, store=self.store, app=self.app, http=http, request_id=request_id)
        try:
            found = self.sockets.find(path_parts(scope.get("raw_path") or scope["path"].encode()))
            if found is None:
                raise errors.not_found()
            call.params = dict(zip(found[0].names, found[1], strict=True))
            reply = await found[0].route.handler(call)
        except Gone:
            return
        except Exception as raised:
            error = _as_api_error(raised, request_id)
            if socket.accepted:
                await socket.close(FAILED, error.message)
                return
            reply = Reply(errors.render_own(error, request_id), status=error.status, headers=error.headers)
        if not socket.accepted:
            headers = {"content-type": _JSON, "x-openstack-request-id": request_id, **reply.headers}
            await socket.refuse(reply.status or 404, headers, body_of(reply))

    async def _answer(self, call: Call, raw_path: bytes, service: str) -> tuple[Reply, int]:
        entries, values = self._find(call.http.method, raw_path)
        call.route = entries[0].route.path
        public = any(e.policy.public for e in entries)
        if not public:
            call.identify(await self.authenticate(call))
            vouch(call.http.scope, "user")
        if service == "compute" and not public:
            call.version = microversions.requested(call.http.headers)
        entries = at_version(entries, call.version) if service == "compute" else entries
        if not entries:
            raise errors.not_found("This call does not exist in the requested API version.")
        if entries[0].route.action is not None:
            data = await read_body(call.http, self.app.settings)
            entry, body = choose_action(entries, data)
        else:
            entry, body = entries[0], None
        if not entry.policy.public:
            enforce(entry.policy, call.token)
        call.params = dict(zip(entry.names, values, strict=True))
        call.query = decode_query(entry, call.http)
        if entry.decoder is not None and not entry.route.raw:
            data = body if body is not None else await read_body(call.http, self.app.settings)
            call.body = decode_body(entry, data)
        return await entry.route.handler(call), entry.route.status

    def _find(self, method: str, raw_path: bytes) -> tuple[list[Entry], list[str]]:
        found = self.table.find(path_parts(raw_path))
        if found is None:
            raise errors.not_found()
        methods, values = found
        if raw_path.endswith(b"/") and raw_path.startswith(_STRICT) and not _is_public(methods):
            raise errors.not_found()  # the id at the end is empty: it is not the list that is meant
        entries = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if entries is None:
            raise ApiError(
                405,
                f"The method {method[:20]} is not allowed here.",
                headers={"allow": ", ".join(sorted(methods))},
            )
        return entries, values


def _is_public(methods: Mapping[str, list[Entry]]) -> bool:
    """Version documents are asked for with a slash at the end, and without."""
    return any(entry.policy.public for entries in methods.values() for entry in entries)


def _as_api_error(raised: Exception, request_id: str) -> ApiError:
    """The answer for whatever a handler raised; only what is unexpected is logged with its traceback."""
    if isinstance(raised, ApiError):
        return raised
    if isinstance(raised, Refused):
        return errors.from_refused(raised)
    if isinstance(raised, StoreUnavailable):
        log.warning("store unavailable", request_id=request_id, error=str(raised))
        return ApiError(503, "The database does not answer. Try again.", headers={"retry-after": "5"})
    if isinstance(raised, OSError) and raised.errno in _SHORTAGES:
        log.warning("shortage", request_id=request_id, error=str(raised))
        words = f"This machine has no {_SHORTAGES[raised.errno]} left. Try again."
        return ApiError(503, words, headers={"retry-after": "5"})
    if isinstance(raised, sa.exc.IntegrityError) and getattr(raised.orig, "sqlstate", "") in _RACED:
        return errors.conflict("Another request changed the same thing at the same moment. Try again.")
    # As text: structlog's own renderer would print local variables, and with them passwords and tokens.
    trace = "".join(traceback.format_exception(raised))
    log.error("unexpected error", request_id=request_id, traceback=trace)
    return ApiError(500, f"An unexpected error happened. It was logged under the request id {request_id}.")


def base_url(http: Request, public_url: str | None) -> str:
    """The address of this server as clients see it: the setting, else the request's Host header."""
    if public_url:
        return public_url.rstrip("/")
    host = http.headers.get("host", "")
    if HOST.fullmatch(host) is None:
        name, port = http.scope.get("server") or ("127.0.0.1", 80)
        host = f"{name}:{port}"
    return f"{http.scope['scheme']}://{host}"


def _service_headers(service: str, call: Call) -> dict[str, str]:
    if service == "compute":
        return {"x-compute-request-id": call.request_id, **microversions.echo(call.version)}
    if service == "identity":
        return {"vary": "X-Auth-Token"}
    return {}


class _Sender:
    """Writes one answer, with a length whenever it is known."""

    def __init__(self, send: Send, *, head: bool) -> None:
        self._send = send
        self._head = head
        self.started = False
        self.status = 0

    async def reply(
        self, reply: Reply, status: int, headers: Mapping[str, str],
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """``before_end`` runs when all is written and the answer, or its connection, is not ended yet."""
        status = reply.status or status
        merged = {**headers, **{name.lower(): value for name, value in reply.headers.items()}}
        body = b"" if reply.body is None or status in (204, 304) else _encode(reply.body)
        if reply.stream is None:
            if status not in (204, 304):
                merged.setdefault("content-length", str(len(body)))
            if body:
                merged.setdefault("content-type", _JSON)
        await self._start(status, merged)
        rest = b"" if self._head else body
        if reply.stream is not None and not self._head:
            async for chunk in reply.stream:
                await self._more(chunk)
            rest = b""
        if before_end is not None:
            await self._more(rest)
            await before_end()
            rest = b""
        await self._send({"type": "http.response.body", "body": rest})

    async def _more(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        self.status = status
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})


def _encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)
