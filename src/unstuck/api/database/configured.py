"""Waiting a moment until a change of parameters shows: who asks the database next finds it there."""

from __future__ import annotations

from typing import Final

from unstuck.api.database.guest import Budget
from unstuck.api.routes import Call
from unstuck.core.instance.control import host_silent
from unstuck.core.instance.view import ServerState
from unstuck.store.instance_configuration import Configuring, configuring

SECONDS: Final = 5.0


async def until_configured(call: Call, instance_ids: list[str]) -> None:
    """At most :data:`SECONDS`, and only for instances whose agent is heard; nothing depends on it."""
    budget = Budget(SECONDS)
    for instance_id in instance_ids:
        while budget.left > 0:
            found = await call.store.run_read(configuring, instance_id)
            if found is None or _seen(found):
                break
            key = f"server:{found.server_id}"
            await call.app.notifier.wait(key, 0.1, since=call.app.notifier.version(key))


def _seen(found: Configuring) -> bool:
    """Nobody is there to say anything, or all has its place: applied, waiting, or refused."""
    seen = found.instance.seen
    if seen is None or not found.instance.alive or host_silent(found.instance, found.now):
        return True
    if seen.server is not ServerState.UP or seen.configured is None:
        return True
    told = seen.configured
    if told.refused:
        return True
    wanted = {name: text for name, text in found.wanted.items() if name not in told.waiting}
    return told.applied == wanted
