"""``/instances/{id}/root``: a bounded administrator of the database server."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from unstuck.api.database.common import BASE, caller, object_id
from unstuck.api.database.guest import Budget, ask, naming_of
from unstuck.api.database.instances import shown
from unstuck.api.database.names import password_verifier
from unstuck.api.errors import not_found
from unstuck.api.inputs import checked, read_body
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.instance.requests import DisableRoot, EnableRoot
from unstuck.store.instance_root import note_root

ROOT: Final = "root"
SEEN_SECONDS: Final = 5.0
"""How long a change is waited for to show in what the agent sees, so that the next call shows it."""


class EnableBody(Body, frozen=True, kw_only=True):
    password: str | None = None


_body = msgspec.json.Decoder(EnableBody)


async def _enabled(call: Call) -> bool:
    seen = (await shown(call)).item.facts.seen
    return seen is not None and seen.root_enabled


async def _until_seen(call: Call, wanted: bool) -> None:
    budget = Budget(SEEN_SECONDS)
    while budget.left > 0:
        found = await shown(call)
        seen = found.item.facts.seen
        if seen is not None and seen.root_enabled is wanted:
            return
        key = f"server:{found.item.server_id}"
        await call.app.notifier.wait(key, 0.1, since=call.app.notifier.version(key))


async def show(call: Call) -> Reply:
    """``GET``: whether it is enabled, as the instance's agent saw it last."""
    return Reply({"rootEnabled": await _enabled(call)})


async def enable(call: Call) -> Reply:
    """``POST``, with a password or without a body: again sets another password. Shown here, kept nowhere.

    That it was asked for is written down before, for ``/mgmt/instances/{id}/root``.
    """
    data = await read_body(call.http, call.app.settings)
    given = checked(lambda: _body.decode(data), data) if data.strip() else EnableBody()
    key = object_id(call.params["id"], "Instance")
    await shown(call)
    await call.store.run(note_root, key, caller(call))
    password = given.password or secrets.token_urlsafe(18)
    await ask(call, EnableRoot(password_verifier(password, "password", await naming_of(call))))
    await _until_seen(call, True)
    return Reply({"user": {"name": ROOT, "password": password}})


async def disable(call: Call) -> Reply:
    """``DELETE``: 404 where it is not enabled."""
    if not await _enabled(call):
        raise not_found(f"Root of instance {call.params['id']} is not enabled.")
    await ask(call, DisableRoot())
    await _until_seen(call, False)
    return Reply()


_ROOT: Final = f"{BASE}/instances/{{id}}/root"

ROUTES: list[Route] = [
    route("GET", _ROOT, show, "reader"),
    route("POST", _ROOT, enable, "member", body=EnableBody, raw=True),
    route("DELETE", _ROOT, disable, "member", status=204),
]
