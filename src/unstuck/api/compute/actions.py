"""Actions on servers: pause, suspend, lock, and the operator's mark."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from unstuck.api.compute.common import BASE, as_text, caller, gate, handing_on, scope, wake
from unstuck.api.errors import bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions
from unstuck.store import server_actions as store


class Lock(Body, frozen=True, kw_only=True):
    locked_reason: str | UnsetType = UNSET


class State(Body, frozen=True, kw_only=True):
    state: Literal["active", "error"]


pause = handing_on(store.pause_own)
unpause = handing_on(store.unpause_own)
suspend = handing_on(store.suspend_own)
resume = handing_on(store.resume_own)


async def lock(call: Call) -> Reply:
    """Action ``lock``; with a reason from 2.73 on."""
    reason = UNSET if call.body is None else call.body.locked_reason
    gate(call, "locked_reason", reason, (2, 73))
    if reason == "":
        raise bad_request("Invalid input for field locked_reason: it is empty.")
    text = None if isinstance(reason, UnsetType) else as_text(reason, "locked_reason")
    await call.store.run(store.lock_server, call.params["id"], scope(call), caller(call), text)
    return Reply()


async def unlock(call: Call) -> Reply:
    """Action ``unlock``."""
    await call.store.run(store.unlock_server, call.params["id"], scope(call), caller(call))
    return Reply()


async def reset_state(call: Call) -> Reply:
    """Action ``os-resetState``: writes no status, but has the host look anew (docs/design/actions.md)."""
    host = await call.store.run(store.reset_state, call.params["id"], call.body.state, caller(call))
    wake(call, host, control=True)
    return Reply()


ROUTES: list[Route] = [
    *actions(
        f"{BASE}/servers/{{id}}/action",
        [
            Act(name="pause", handler=pause, rule="member"),
            Act(name="unpause", handler=unpause, rule="member"),
            Act(name="suspend", handler=suspend, rule="member"),
            Act(name="resume", handler=resume, rule="member"),
            Act(name="lock", handler=lock, rule="member", body=Lock | None),
            Act(name="unlock", handler=unlock, rule="member"),
            Act(name="os-resetState", handler=reset_state, rule="admin", body=State),
        ],
    ),
]
