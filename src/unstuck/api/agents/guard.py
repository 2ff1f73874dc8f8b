"""What every agent call passes first: protocol version, credential, and errors in words an agent knows."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog

from unstuck.api.errors import ApiError
from unstuck.api.inputs import checked, read_body
from unstuck.api.routes import Call, Handler, Reply
from unstuck.api.vouch import vouch
from unstuck.core.agents import PROTOCOL, speaks
from unstuck.store import agents
from unstuck.store.agents import Stale, Superseded, UnknownHost
from unstuck.store.generation import Behind
from unstuck.store.instance_guests import GuestSuperseded

T = TypeVar("T")

HEADER: Final = "unstuck-protocol"
_CACHED: Final = 1024
_CACHE_SECONDS: Final = 30.0
"""A credential that was taken away is refused after this time at the latest."""

log = structlog.get_logger(__name__)


class Refusal(Exception):
    """An answer that an agent understands: a status and the type of what is wrong."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Verified:
    """Credentials that were right a moment ago, so that not every call asks the store."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def knows(self, host_id: str, secret_hash: str) -> bool:
        return self._until.get((host_id, secret_hash), 0.0) > time.monotonic()

    def add(self, host_id: str, secret_hash: str) -> None:
        self._until[host_id, secret_hash] = time.monotonic() + _CACHE_SECONDS
        self._until.move_to_end((host_id, secret_hash))
        while len(self._until) > _CACHED:
            self._until.popitem(last=False)


def verified(call: Call) -> Verified:
    """The cache of this process."""
    found: Verified = call.app.extra.setdefault("agents.verified", Verified())
    return found


def guarded(handler: Callable[[Call, str], Awaitable[Reply]]) -> Handler:
    """A route's handler that is called with the id of the host that is certainly asking."""

    async def answer(call: Call) -> Reply:
        try:
            _check_protocol(call)
            return await handler(call, await _authenticate(call))
        except Superseded as error:
            return _error(409, "superseded", str(error))
        except GuestSuperseded as error:
            return _error(410, "guest-superseded", str(error))
        except Stale as error:
            return _error(410, "stale", str(error))
        except Behind as error:
            return _error(412, "behind", str(error))
        except UnknownHost:
            return _error(401, "unknown-host", "No host has this credential; let it join again.")
        except Refusal as error:
            return _error(error.status, error.kind, str(error))
        except ApiError as error:
            return _error(error.status, error.kind or "invalid", error.message, error.headers)

    return answer


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Reply:
    body = {"error": {"code": status, "type": kind, "message": message}}
    return Reply(body, status=status, headers=headers or {})


def _check_protocol(call: Call) -> None:
    given = call.http.headers.get(HEADER, "")
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None
    if number in speaks(PROTOCOL):
        return
    theirs = f"version {given[:20]!r}" if given else "no version (header Unstuck-Protocol)"
    raise refuse_protocol(theirs, number, call.params["host_id"])


def refuse_protocol(theirs: str, number: int | None, host_id: str) -> Refusal:
    """Why an agent of another version is not served, and who has to be upgraded; said to both sides."""
    served = speaks(PROTOCOL)
    spoken = " and ".join(str(version) for version in served)
    remedy = "upgrade the older of the two"
    if number is not None:
        remedy = "upgrade the control plane" if number > served[0] else "upgrade the agent"
    message = (
        f"The agent speaks {theirs} of the agents' protocol, the control plane speaks {spoken}: {remedy}; "
        "until then the host's guests run on, and nothing is changed about them."
    )
    log.warning("an agent is refused", host=host_id, reason=message)
    return Refusal(400, "protocol", message)


async def _authenticate(call: Call) -> str:
    host_id = call.params["host_id"]
    scheme, _, secret = call.http.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret:
        raise Refusal(401, "unknown-host", "The credential of the host is missing.")
    secret_hash = hashlib.sha256(secret.strip().encode()).hexdigest()
    cache = verified(call)
    if not cache.knows(host_id, secret_hash):
        await call.store.run_read(agents.authenticate_host, host_id, secret_hash)
        cache.add(host_id, secret_hash)
    vouch(call.http.scope, "agent")
    return host_id


async def body(call: Call, decoder: msgspec.json.Decoder[T]) -> T:
    """The validated body. It is read after the credential was checked: strangers send nothing large."""
    data = await read_body(call.http, call.app.settings)
    decoded: Any = checked(lambda: decoder.decode(data), data)
    if not _fits(msgspec.to_builtins(decoded)):
        raise Refusal(400, "invalid", "Invalid input: a number needs more than 64 bits.")
    result: T = decoded
    return result


def _fits(value: Any) -> bool:
    """Whether every whole number is one that a database can hold."""
    match value:
        case dict():
            return all(map(_fits, value.values()))
        case list() | tuple():
            return all(map(_fits, value))
        case int():
            return -(2**63) <= value < 2**63
        case _:
            return True
