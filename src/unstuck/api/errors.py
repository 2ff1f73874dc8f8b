"""Errors, and how each service's API writes them down."""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping
from typing import Any, Final

from unstuck.core.errors import Refused


class ApiError(Exception):
    """An answer other than success. ``kind`` overrides the service's own name for the status.

    ``kind`` is the key of the compute API's body (``itemNotFound``) and the type of the network API's
    (``NetworkNotFound``); the other formats ignore it.
    """

    def __init__(
        self, status: int, message: str, *, kind: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.headers = dict(headers or {})


def bad_request(message: str, *, kind: str | None = None) -> ApiError:
    """400: the message names the field."""
    return ApiError(400, message, kind=kind)


def unauthorized(message: str = "The request you have made requires authentication.") -> ApiError:
    """401: no token, or one that is not valid (any more)."""
    return ApiError(401, message)


def forbidden(message: str = "Policy does not allow this request.", *, kind: str | None = None) -> ApiError:
    """403: the caller's roles do not allow it."""
    return ApiError(403, message, kind=kind)


def not_found(message: str = "The resource could not be found.", *, kind: str | None = None) -> ApiError:
    """404: it does not exist, or belongs to another project."""
    return ApiError(404, message, kind=kind)


def conflict(message: str, *, kind: str | None = None) -> ApiError:
    """409: the state does not allow it now."""
    return ApiError(409, message, kind=kind)


def from_refused(error: Refused) -> ApiError:
    """The answer for a refusal by the store or the core."""
    return ApiError(error.status, error.message, kind=error.kind)


Renderer = Callable[[ApiError, str], Any]
"""(error, request id) -> the JSON body."""

_COMPUTE_KINDS: Final = {
    400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
    409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit",
    501: "notImplemented", 503: "serviceUnavailable",
}  # fmt: skip


def title(status: int) -> str:
    """The reason phrase of a status."""
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def render_compute(error: ApiError, _request_id: str) -> Any:
    """``{"itemNotFound": {"code": 404, "message": "…"}}``."""
    kind = error.kind or _COMPUTE_KINDS.get(error.status, "computeFault")
    return {kind: {"code": error.status, "message": error.message}}


_DATABASE_KINDS: Final = _COMPUTE_KINDS | {409: "conflict", 422: "unprocessableEntity"}


def render_database(error: ApiError, _request_id: str) -> Any:
    """The compute API's form, with other words for some statuses."""
    kind = error.kind or _DATABASE_KINDS.get(error.status, "instanceFault")
    return {kind: {"code": error.status, "message": error.message}}


def render_identity(error: ApiError, _request_id: str) -> Any:
    """``{"error": {"code": 401, "message": "…", "title": "Unauthorized"}}``."""
    return {"error": {"code": error.status, "message": error.message, "title": title(error.status)}}


def render_network(error: ApiError, _request_id: str) -> Any:
    """``{"NeutronError": {"type": "…", "message": "…", "detail": ""}}``."""
    kind = error.kind or "HTTP" + title(error.status).replace(" ", "")
    return {"NeutronError": {"type": kind, "message": error.message, "detail": ""}}


def render_image(error: ApiError, _request_id: str) -> Any:
    """The JSON that the image API's middleware writes."""
    name = title(error.status)
    return {"message": error.message, "code": f"{error.status} {name}", "title": name}


def render_own(error: ApiError, request_id: str) -> Any:
    """Our own format: the same for ``/unstuck`` and ``/agents``."""
    body = {"code": error.status, "message": error.message, "request_id": request_id}
    if error.kind is not None:
        body["kind"] = error.kind
    return {"error": body}
