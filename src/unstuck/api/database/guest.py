"""What only the database itself can answer: asked through its host and guest, within a deadline."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from unstuck.api.database.common import object_id, scope
from unstuck.api.errors import ApiError, bad_request, not_found
from unstuck.api.routes import Call
from unstuck.core.instance.naming import NAMINGS, Naming
from unstuck.core.instance.requests import (
    DatabaseAnswer,
    DatabaseRequest,
    Describe,
    Failed,
    MoreRequest,
    Ok,
    ReadLog,
)
from unstuck.store import asks
from unstuck.store.instance_asks import ask_instance, manager_of

SECONDS: Final = 15.0
"""How long a call waits for the database, all its requests together."""
_MESSAGE_MAX: Final = 500
_answer = msgspec.json.Decoder(DatabaseAnswer)


def unprocessable(message: str) -> ApiError:
    """422: Trove's word for an instance that cannot do it now."""
    return ApiError(422, message)


class Budget:
    """The time that is left for all requests of one call."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


async def naming_of(call: Call) -> Naming:
    """What the datastore of the instance that the path names makes of names."""
    instance_id = object_id(call.params["id"], "Instance")
    return NAMINGS[await call.store.run_read(manager_of, instance_id, scope(call))]


async def ask(
    call: Call, request: DatabaseRequest | MoreRequest | Describe, budget: Budget | None = None
) -> Ok:
    """Ask the instance that the path names, and wait for it without a thread or a connection.

    404 where it, or what is asked about, is not there; 400 for what its database refuses; 422 where it cannot
    be asked now, or does not answer.
    """
    instance_id = object_id(call.params["id"], "Instance")
    budget = budget or Budget()
    ask_id = call.new_id()
    argument = msgspec.json.encode(request).decode()
    host_id = await call.store.run(
        ask_instance,
        instance_id,
        scope(call),
        ask_id=ask_id,
        argument=argument,
        seconds=max(budget.left, 0.0),
        agent_only=isinstance(request, ReadLog | Describe),
    )
    call.app.notifier.wake(f"host:{host_id}")
    try:
        text = await _wait(call, ask_id, budget)
    finally:
        await call.store.run(asks.drop_ask, ask_id)
    if text is None:
        raise unprocessable(
            f"The agent of instance {instance_id} did not answer within {SECONDS:.0f} seconds. Nothing is "
            "known to have changed; a list shows what is there. Try again."
        )
    return _understood(text, instance_id)


async def _wait(call: Call, ask_id: str, budget: Budget) -> str | None:
    """Woken by the agent's call in this process, else looking ever more seldom."""
    pause = 0.05
    while budget.left > 0:
        since = call.app.notifier.version(f"ask:{ask_id}")
        text = await call.store.run_read(asks.read_answer, ask_id)
        if text is not None:
            return text
        await call.app.notifier.wait(f"ask:{ask_id}", min(pause, max(budget.left, 0.01)), since=since)
        pause = min(pause * 1.5, 0.5)
    return await call.store.run_read(asks.read_answer, ask_id)


def _understood(text: str, instance_id: str) -> Ok:
    """The answer, or its refusal as an error. A guest is its tenant: nothing it says is trusted."""
    try:
        said = _answer.decode(text)
    except msgspec.DecodeError:
        raise unprocessable(
            f"The agent of instance {instance_id} gave an answer that cannot be understood."
        ) from None
    if isinstance(said, Ok):
        return said
    raise _refusal(said, instance_id)


def _refusal(said: Failed, instance_id: str) -> ApiError:
    words = "".join(char for char in said.message if char.isprintable())[:_MESSAGE_MAX]
    words = words or "the database refused it without a reason."
    match said.code:
        case "not-found":
            return not_found(words)
        case "exists" | "invalid" | "refused":
            field = "".join(char for char in said.field if char.isprintable())[:100]
            return bad_request(f"Invalid input for field {field}: {words}" if field else words)
        case _:
            return unprocessable(f"The database of instance {instance_id} is not ready: {words}")
