"""Encrypting with age: who can read. Apart from the signing keys, because guests need only this half.

Private values are strings or bytes in memory: they never enter a log, an argument or an error.
"""

from __future__ import annotations

import pyrage


class BadKey(Exception):
    """A key does not fit, or is none."""


def new_identity() -> str:
    """A private age key, in age's own text form."""
    return str(pyrage.x25519.Identity.generate())


def recipient_of(identity: str) -> str:
    """The public half, in age's own text form."""
    return str(_identity(identity).to_public())


def seal(data: bytes, recipients: list[str]) -> bytes:
    """Encrypt to all of these."""
    return bytes(pyrage.encrypt(data, [_recipient(text) for text in recipients]))


def unseal(data: bytes, identity: str) -> bytes:
    """Raises :class:`BadKey` for a wrong key or damaged data."""
    try:
        return bytes(pyrage.decrypt(data, [_identity(identity)]))
    except pyrage.DecryptError as error:
        raise BadKey("the key does not open it, or it is damaged") from error


def _identity(text: str) -> pyrage.x25519.Identity:
    try:
        return pyrage.x25519.Identity.from_str(text.strip())
    except pyrage.IdentityError as error:
        raise BadKey("not a private age key") from error


def _recipient(text: str) -> pyrage.x25519.Recipient:
    try:
        return pyrage.x25519.Recipient.from_str(text.strip())
    except pyrage.RecipientError as error:
        raise BadKey("not a public age key") from error
