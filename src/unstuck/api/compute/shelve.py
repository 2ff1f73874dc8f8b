"""The actions ``shelve``, ``shelveOffload`` and ``unshelve``."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from unstuck.api.compute.common import BASE, as_name, caller, gate, handing_on, scope, wake
from unstuck.api.errors import bad_request, forbidden
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions
from unstuck.store import server_shelve as store
from unstuck.store.server_search import ZONE


class Unshelve(Body, frozen=True, kw_only=True):
    availability_zone: str | UnsetType | None = UNSET
    host: str | UnsetType = UNSET


shelve = handing_on(store.shelve_own)
offload = handing_on(store.offload_own)


async def unshelve(call: Call) -> Reply:
    """Action ``unshelve``; with a zone from 2.77 on, with a host (for administrators) from 2.91 on."""
    body: Unshelve = call.body or Unshelve()
    gate(call, "availability_zone", body.availability_zone, (2, 77))
    gate(call, "host", body.host, (2, 91))
    zone, host = body.availability_zone, body.host
    if zone is None and call.version < (2, 91):
        raise bad_request("Invalid input for field availability_zone: null is not a name before 2.91.")
    if isinstance(zone, str) and as_name(zone, "availability_zone") != ZONE:
        raise bad_request(f"availability_zone: The requested availability zone {zone} is not available.")
    if isinstance(host, str) and not call.is_admin:
        raise forbidden("Policy doesn't allow os_compute_api:os-shelve:unshelve_to_host to be performed.")
    host_id = await call.store.run(
        store.unshelve_own,
        call.params["id"],
        scope(call),
        caller(call),
        zone=isinstance(zone, str),
        host=as_name(host, "host") if isinstance(host, str) else None,
    )
    wake(call, host_id)
    return Reply()


ROUTES: list[Route] = [
    *actions(
        f"{BASE}/servers/{{id}}/action",
        [
            Act(name="shelve", handler=shelve, rule="member"),
            Act(name="shelveOffload", handler=offload, rule="admin"),
            Act(name="unshelve", handler=unshelve, rule="member", body=Unshelve | None),
        ],
    ),
]
