"""Keys: who can read a backup, and who may say what it consists of.

Reading: every backup has an age key pair of its own. Its private half is in its manifest, encrypted to the
project's key and to the recovery key. Project keys are encrypted to the cloud's root key, which lies
outside the database; the recovery key's private half lies in the recovery file alone.
Writing: a host signs manifests (Ed25519) with a key that the cloud's key has certified; the cloud's
public half is in the recovery file too, so that a forged backup is known from the bucket alone.
All private values are strings or bytes in memory: they never enter a log, an argument or an error.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unstuck.blobs.age import BadKey, new_identity, recipient_of, seal, unseal

__all__ = [
    "BadKey", "Certificate", "Recovery", "Signer", "check", "check_certificate",
    "new_identity", "recipient_of", "seal", "unseal", "unwrap", "wrap",
]  # fmt: skip

FORMAT: Final = 1
_CERTIFIES: Final = b"unstuck host signing key 1\0"


class Recovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recovery file: with it and the bucket, everything can be restored on an empty machine."""

    format: int
    cloud_id: str
    identity: str
    cloud_key: str
    """The public half of the cloud's signing key, base64."""


class Certificate(msgspec.Struct, frozen=True):
    """The cloud's word that this signing key is this host's. All base64 but the id."""

    host_id: str
    public: str
    signature: str


def wrap(secret: str, recipients: list[str]) -> str:
    """A private key, encrypted to these, as text for JSON."""
    return base64.b64encode(seal(secret.encode(), recipients)).decode()


def unwrap(wrapped: str, identity: str) -> str:
    """The private key again. Raises :class:`BadKey`."""
    try:
        data = base64.b64decode(wrapped, validate=True)
    except ValueError as error:
        raise BadKey("not a wrapped key") from error
    return unseal(data, identity).decode()


class Signer:
    """A private signing key."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)

    @classmethod
    def new(cls) -> Signer:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def private(self) -> bytes:
        """32 bytes, to be kept."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> str:
        """base64."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, data: bytes) -> str:
        """base64."""
        return base64.b64encode(self._key.sign(data)).decode()

    def certify(self, host_id: str, public: str) -> Certificate:
        """As the cloud's key: this public key is that host's."""
        return Certificate(host_id, public, self.sign(_certified(host_id, public)))


def _certified(host_id: str, public: str) -> bytes:
    return _CERTIFIES + msgspec.json.encode([host_id, public])


def check_public(public: str) -> None:
    """Raise :class:`BadKey` unless it is a public signing key."""
    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    except ValueError as error:
        raise BadKey("not a public signing key") from error


def check(data: bytes, signature: str, public: str) -> None:
    """Raise :class:`BadKey` unless this key signed this."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(signature, validate=True), data)
    except (InvalidSignature, ValueError) as error:
        raise BadKey("the signature does not fit") from error


def check_certificate(certificate: Certificate, cloud_key: str) -> None:
    """Raise :class:`BadKey` unless the cloud's key certified it."""
    check(_certified(certificate.host_id, certificate.public), certificate.signature, cloud_key)
