"""What a store or core function raises when it refuses a request. The API turns each into a status.

The message is shown to the user as it is: it names the field or resource and what to do about it.
"""

from __future__ import annotations


class Refused(Exception):
    """A request that cannot be done as asked; nothing was changed."""

    status = 400

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


class Invalid(Refused):
    """The request itself is wrong (400)."""


class Unauthenticated(Refused):
    """Nobody is shown to be behind the request (401)."""

    status = 401


class Forbidden(Refused):
    """The caller may not do this (403)."""

    status = 403


class NotFound(Refused):
    """There is no such thing, or not for this caller (404)."""

    status = 404


class Conflict(Refused):
    """The resource's present state does not allow it (409)."""

    status = 409


class Unavailable(Refused):
    """It cannot be decided now, and can be in a while (503)."""

    status = 503


class TooLarge(Refused):
    """More than a limit allows (413)."""

    status = 413
