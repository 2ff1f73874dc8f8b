"""The form of a token: a signed claim, safe in a header. Whether it still holds is the store's to say."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

import msgspec

from unstuck.api.errors import unauthorized

_PREFIX = "unstuck1."
_MAX = 2048


class Claim(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What a token says. Roles are not in it: they are looked up when it is used."""

    user_id: str
    epoch: int
    project_id: str | None
    domain_id: str | None
    methods: tuple[str, ...]
    audit_ids: tuple[str, ...]
    issued_at: float
    expires_at: float
    app_credential_id: str | None = None


def new_audit_id() -> str:
    """A random audit id."""
    return secrets.token_urlsafe(16)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    """Only the one way of writing the bytes: a decoder takes others, too, and a token is to have one name."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _b64(data) != text:
        raise ValueError("not canonical")
    return data


def _mac(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, b"unstuck-token\0" + payload, hashlib.sha256)


def sign(key: bytes, claim: Claim) -> str:
    """The token for a claim."""
    payload = msgspec.msgpack.encode(claim)
    return f"{_PREFIX}{_b64(payload)}.{_b64(_mac(key, payload))}"


def verify(key: bytes, token: str) -> Claim:
    """The claim of a token that this cloud has signed; 401 for anything else."""
    body, _, mac = token.removeprefix(_PREFIX).partition(".")
    try:
        if len(token) > _MAX or not token.startswith(_PREFIX) or not token.isascii():
            raise ValueError("not one of ours")
        payload = _unb64(body)
        if not hmac.compare_digest(_mac(key, payload), _unb64(mac)):
            raise ValueError("wrong signature")
        return msgspec.msgpack.decode(payload, type=Claim)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise unauthorized() from None
