"""How a host becomes a member: an administrator makes a token, the host joins with it, once."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

from unstuck.api.errors import bad_request
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.store.host_loss import join, make_token

SECONDS: Final = 3600.0
"""How long a token may be used."""
_HOST_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,198}[A-Za-z0-9])?")


class JoinBody(Body, frozen=True, kw_only=True):
    """The host keeps its secret: only the hash of it is told."""

    token: str
    host_id: str
    hostname: str
    machine_id: str
    secret_hash: str


async def new_token(call: Call) -> Reply:
    """``POST /unstuck/v1/join-tokens``: shown once, kept as a hash."""
    token = f"join-{secrets.token_urlsafe(24)}"  # bare, it may begin with a dash and look like an option
    await call.store.run(make_token, _hash(token), SECONDS)
    return Reply({"join_token": {"token": token, "expires_seconds": SECONDS}})


async def join_host(call: Call) -> Reply:
    """``POST /agents/v1/join``: the token is the credential. May be repeated by the same host."""
    asked: JoinBody = call.body
    for field, value, form in (
        ("host_id", asked.host_id, _HOST_ID),
        ("hostname", asked.hostname, _NAME),
        ("secret_hash", asked.secret_hash, _HASH),
    ):
        if form.fullmatch(value) is None:
            raise bad_request(f"Invalid input for field {field}: {value[:80]!r}.")
    if not 0 < len(asked.machine_id) <= 64:
        raise bad_request("Invalid input for field machine_id: 1 to 64 characters.")
    await call.store.run(
        join, _hash(asked.token), host_id=asked.host_id, hostname=asked.hostname,
        secret_hash=asked.secret_hash, machine_id=asked.machine_id,
    )  # fmt: skip
    call.app.notifier.wake("control")
    return Reply({"host": {"id": asked.host_id, "hostname": asked.hostname}})


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


ROUTES: list[Route] = [
    route("POST", "/unstuck/v1/join-tokens", new_token, "admin", status=201),
    route("POST", "/agents/v1/join", join_host, "public", body=JoinBody),
]
