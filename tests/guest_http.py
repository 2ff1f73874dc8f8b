"""The control plane's routes for guests over HTTP, with the rules of :class:`GuestCloud` behind them.

For host agents that are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.guest_cloud import HOST, GuestCloud
from unstuck.blobs.objects import BlobError, Conflict
from unstuck.core.instance.wire import (
    AskGrant,
    EndAttempt,
    GuestRegister,
    GuestReport,
    RenewAttempt,
    TakeAttempt,
)
from unstuck.host.control import Refused


def _error(status: int, kind: str, message: str) -> Response:
    body = {"error": {"code": status, "type": kind, "message": message}}
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _post(kind: Any, work: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        ask = msgspec.json.decode(await request.body(), type=kind)
        try:
            return Response(msgspec.json.encode(work(ask)), media_type="application/json")
        except Refused as error:
            return _error(410, "stale", str(error))

    return answer


def app_for(cloud: GuestCloud) -> Starlette:
    async def put(request: Request) -> Response:
        data, key = await request.body(), request.path_params["key"]
        try:
            await asyncio.to_thread(cloud.objects.put_new, key, data)
        except BlobError as error:
            return _error(503, f"store-{error.problem}", error.reason)
        except Conflict as error:
            return _error(409, "conflict", str(error))
        return Response(status_code=204)

    async def get(request: Request) -> Response:
        found = await asyncio.to_thread(cloud.objects.get, request.path_params["key"])
        return _error(404, "no-object", "not there") if found is None else Response(found)

    base = f"/agents/v1/hosts/{HOST}"
    posts = {
        "guests/register": _post(GuestRegister, cloud.register),
        "guests/reports": _post(GuestReport, cloud.report),
        "attempts/take": _post(TakeAttempt, cloud.take),
        "attempts/renew": _post(RenewAttempt, cloud.renew),
        "attempts/end": _post(EndAttempt, cloud.end),
        "restores/grant": _post(AskGrant, cloud.grant),
    }
    routes = [Route(f"{base}/{path}", handler, methods=["POST"]) for path, handler in posts.items()]
    routes += [
        Route(f"{base}/objects/{{key:path}}", put, methods=["PUT"]),
        Route(f"{base}/objects/{{key:path}}", get, methods=["GET"]),
    ]
    return Starlette(routes=routes)


@contextlib.contextmanager
def served(cloud: GuestCloud) -> Iterator[str]:
    """Its URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app_for(cloud), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(10.0)
