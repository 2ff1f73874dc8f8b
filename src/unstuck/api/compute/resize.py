"""The actions ``resize``, ``confirmResize`` and ``revertResize``."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from unstuck.api.compute.common import BASE, caller, handing_on, scope, wake
from unstuck.api.compute.create import as_disk_config, flavor_of
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions
from unstuck.store import server_resize as store


class Resize(Body, frozen=True, kw_only=True):
    flavor_ref: str | int = field(name="flavorRef")
    disk_config: str | UnsetType = field(name="OS-DCF:diskConfig", default=UNSET)


async def resize(call: Call) -> Reply:
    """Action ``resize``: 400 where its host has no room for the flavor, and nothing is changed then."""
    body: Resize = call.body
    disk = None if isinstance(body.disk_config, UnsetType) else as_disk_config(body.disk_config)
    host = await call.store.run(
        store.resize_server,
        call.params["id"],
        scope(call),
        caller(call),
        flavor_id=flavor_of(body.flavor_ref),
        disk_config=disk,
    )
    wake(call, host)
    return Reply()


confirm = handing_on(store.confirm_own)
revert = handing_on(store.revert_own)

ROUTES: list[Route] = [
    *actions(
        f"{BASE}/servers/{{id}}/action",
        [
            Act(name="resize", handler=resize, rule="member", body=Resize),
            Act(name="confirmResize", handler=confirm, rule="member", status=204),
            Act(name="revertResize", handler=revert, rule="member"),
        ],
    ),
]
