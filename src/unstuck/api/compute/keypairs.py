"""Key pairs: imported, or (before 2.92) generated here; the private half is shown once and never kept."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

import msgspec

from unstuck.api.compute.common import BASE, gate, page_limit
from unstuck.api.errors import bad_request, forbidden
from unstuck.api.pages import cut, next_url
from unstuck.api.routes import Body, Call, Query, Reply, Route, route
from unstuck.core.time import iso_micros
from unstuck.store import keypairs as store
from unstuck.store.keypairs import Keypair

_NAME = re.compile(r"[a-zA-Z0-9_ -]{1,255}")
_NAME_292 = re.compile(r"[a-zA-Z0-9_ @.-]{1,255}")


class NewKeypair(Body, frozen=True, kw_only=True):
    name: str
    public_key: str | None = None
    type: str | msgspec.UnsetType = msgspec.UNSET
    user_id: str | msgspec.UnsetType = msgspec.UNSET


class CreateBody(Body, frozen=True, kw_only=True):
    keypair: NewKeypair


class UserQuery(Query, frozen=True, kw_only=True):
    user_id: str | None = None
    marker: str | None = None


def _owner(call: Call) -> str:
    """Whose keys: the caller's own, or (for administrators, from 2.10) anybody's."""
    asked: str | None = call.query.user_id if call.version >= (2, 10) else None
    return _checked_owner(call, asked)


def _checked_owner(call: Call, asked: str | None) -> str:
    if asked is None or asked == call.token.user_id:
        return call.token.user_id
    if not call.is_admin:
        raise forbidden("Policy does not allow this request: only an administrator sees others' key pairs.")
    return asked


def fingerprint_of(public_key: str) -> str:
    """The MD5 fingerprint of an OpenSSH public key; raises 400 for what is none."""
    bad = bad_request(
        "Invalid input for field public_key: Keypair data is invalid: not an OpenSSH public key."
    )
    parts = public_key.split()
    if len(parts) < 2 or "\n" in public_key.strip():
        raise bad
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        raise bad from None
    kind = parts[0].encode("ascii", "replace")
    if len(blob) < len(kind) + 8 or blob[: 4 + len(kind)] != len(kind).to_bytes(4, "big") + kind:
        raise bad
    digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    return ":".join(digest[index : index + 2] for index in range(0, 32, 2))


def _generate() -> tuple[str, str]:
    """A fresh ed25519 key: (private, public), both in OpenSSH's form."""
    from cryptography.hazmat.primitives import serialization  # takes a while, and is seldom needed
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} Generated-by-Unstuck"


def _check(call: Call, new: NewKeypair) -> None:
    gate(call, "type", new.type, (2, 2))
    gate(call, "user_id", new.user_id, (2, 10))
    allowed = _NAME_292 if call.version >= (2, 92) else _NAME
    if not allowed.fullmatch(new.name) or new.name != new.name.strip():
        raise bad_request(
            "Invalid input for field name: Keypair data is invalid: Keypair name contains unsafe characters "
            "or is not 1 to 255 characters long."
        )
    if new.type not in (msgspec.UNSET, "ssh"):
        raise bad_request(f"Invalid input for field type: {new.type!r} key pairs are not there, only 'ssh'.")
    if new.public_key is None and call.version >= (2, 92):
        raise bad_request("Invalid input for field public_key: it is required from microversion 2.92 on.")


async def create(call: Call) -> Reply:
    """``POST /os-keypairs``."""
    new: NewKeypair = call.body.keypair
    _check(call, new)
    owner = _checked_owner(call, None if isinstance(new.user_id, msgspec.UnsetType) else new.user_id)
    private, public = (None, new.public_key) if new.public_key is not None else _generate()
    made = await call.store.run(
        store.add_keypair,
        Keypair(owner, new.name, "ssh", public.strip(), fingerprint_of(public)),
        call.project_id,
    )
    shown = {**_view(call, made), "user_id": made.user_id}
    if private is not None:
        shown["private_key"] = private
    return Reply({"keypair": shown}, status=201 if call.version >= (2, 2) else 200)


def _view(call: Call, item: Keypair) -> dict[str, Any]:
    shown = {"name": item.name, "public_key": item.public_key, "fingerprint": item.fingerprint}
    if call.version >= (2, 2):
        shown["type"] = item.type
    return shown


async def list_all(call: Call) -> Reply:
    """``GET /os-keypairs``."""
    found = await call.store.run_read(store.list_keypairs, _owner(call))
    paged = call.version >= (2, 35)
    limit, marker = (page_limit(call), call.query.marker) if paged else (len(found), None)
    page = cut(found, limit, marker, key=lambda item: item.name)
    if page is None:
        raise bad_request(f"marker [{marker}] not found")
    body: dict[str, Any] = {"keypairs": [{"keypair": _view(call, item)} for item in page[0]]}
    if page[1] and paged:
        target = next_url(call.url(call.path()), call.query_params.multi_items(), page[0][-1].name)
        body["keypairs_links"] = [{"rel": "next", "href": target}]
    return Reply(body)


async def show(call: Call) -> Reply:
    """``GET /os-keypairs/{name}``."""
    item = await call.store.run_read(store.get_keypair, _owner(call), call.params["name"])
    extra = {
        "user_id": item.user_id,
        "created_at": iso_micros(item.created_wall),
        "updated_at": None,
        "deleted": False,
        "deleted_at": None,
        "id": int.from_bytes(hashlib.sha256(f"{item.user_id}/{item.name}".encode()).digest()[:4], "big") >> 1,
    }
    return Reply({"keypair": {**_view(call, item), **extra}})


async def delete(call: Call) -> Reply:
    """``DELETE /os-keypairs/{name}``."""
    await call.store.run(store.delete_keypair, _owner(call), call.params["name"])
    return Reply(status=204 if call.version >= (2, 2) else 202)


ROUTES: list[Route] = [
    route("GET", f"{BASE}/os-keypairs", list_all, "reader", query=UserQuery),
    route("POST", f"{BASE}/os-keypairs", create, "member", body=CreateBody),
    route("GET", f"{BASE}/os-keypairs/{{name}}", show, "reader", query=UserQuery),
    route("DELETE", f"{BASE}/os-keypairs/{{name}}", delete, "member", query=UserQuery),
]
