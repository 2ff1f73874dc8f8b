"""The action ``rebuild``: a new disk from an image, with the keys that each microversion has."""

from __future__ import annotations

import secrets
from typing import Any

from msgspec import UNSET, UnsetType, field

from unstuck.api.compute.common import BASE, as_bool, as_name, as_uuid, caller, gate, scope, wake
from unstuck.api.compute.create import check_hostname, check_metadata, check_user_data, describing
from unstuck.api.compute.views import update_view
from unstuck.api.errors import bad_request
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions
from unstuck.store import server_rebuild as store


class Rebuild(Body, frozen=True, kw_only=True):
    image_ref: str = field(name="imageRef")
    name: str | UnsetType = UNSET
    admin_pass: str | UnsetType = field(name="adminPass", default=UNSET)
    metadata: dict[str, str] | UnsetType = UNSET
    preserve_ephemeral: bool | str | UnsetType = UNSET
    access_ipv4: str | UnsetType = field(name="accessIPv4", default=UNSET)
    access_ipv6: str | UnsetType = field(name="accessIPv6", default=UNSET)
    disk_config: str | UnsetType = field(name="OS-DCF:diskConfig", default=UNSET)
    personality: list[Any] | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    key_name: str | UnsetType | None = UNSET
    user_data: str | UnsetType | None = UNSET
    trusted_certificates: list[str] | UnsetType | None = field(
        name="trusted_image_certificates", default=UNSET
    )
    hostname: str | UnsetType = UNSET


async def rebuild(call: Call) -> Reply:
    """Action ``rebuild``: 202 with the server, and a password that only an agent in the image could set."""
    body: Rebuild = call.body
    _check_version(call, body)
    made = await call.store.run(
        store.rebuild_server,
        call.params["id"],
        scope(call),
        _asked(call, body),
        secrets.token_hex(8),
        caller(call),
    )
    wake(call, made.host_id)
    item = made.shown.item
    server = update_view(call, item, made.shown.now)
    if call.version >= (2, 54):
        server["key_name"] = item.key_name
    if call.version >= (2, 57):
        server["user_data"] = made.user_data
    password = body.admin_pass if isinstance(body.admin_pass, str) else secrets.token_urlsafe(9)
    location = call.url(f"{BASE}/servers/{item.id}")
    return Reply({"server": {**server, "adminPass": password}}, headers={"location": location})


def _check_version(call: Call, body: Rebuild) -> None:
    gate(call, "description", body.description, (2, 19))
    gate(call, "key_name", body.key_name, (2, 54))
    gate(call, "user_data", body.user_data, (2, 57))
    gate(call, "trusted_image_certificates", body.trusted_certificates, (2, 63))
    gate(call, "hostname", body.hostname, (2, 90))
    gate(call, "personality", body.personality, (2, 1), (2, 56))
    if body.personality not in (UNSET, []):
        raise bad_request("personality: files cannot be injected here; use user_data instead.")
    if body.trusted_certificates not in (UNSET, None, []):
        raise bad_request("trusted_image_certificates: signed images are not verified here.")
    if body.preserve_ephemeral is not UNSET and as_bool(body.preserve_ephemeral, "preserve_ephemeral"):
        raise bad_request("preserve_ephemeral: there is no ephemeral disk that could be preserved.")


def _asked(call: Call, body: Rebuild) -> store.Rebuild:
    key = body.key_name
    return store.Rebuild(
        image_id=as_uuid(body.image_ref.rstrip("/").rpartition("/")[2], "imageRef"),
        columns=describing(body),
        name=UNSET if isinstance(body.name, UnsetType) else as_name(body.name, "name"),
        metadata=UNSET if isinstance(body.metadata, UnsetType) else check_metadata(body.metadata),
        key_name=key if isinstance(key, UnsetType) or key is None else as_name(key, "key_name"),
        user_data=UNSET if isinstance(body.user_data, UnsetType) else check_user_data(body.user_data),
        hostname=UNSET if isinstance(body.hostname, UnsetType) else check_hostname(call, body.hostname),
    )


ROUTES: list[Route] = [
    *actions(
        f"{BASE}/servers/{{id}}/action", [Act(name="rebuild", handler=rebuild, rule="member", body=Rebuild)]
    ),
]
