"""What all calls of the compute API share: links, scopes, and reading single values."""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from unstuck.api.errors import ApiError, bad_request, not_found
from unstuck.api.microversions import Version
from unstuck.api.pages import MAX_LIMIT, parse_limit
from unstuck.api.routes import Call, Handler, Reply
from unstuck.store.engine import Tx
from unstuck.store.servers import Caller

BASE: Final = "/compute/v2.1"
_TRUE = {"true", "1", "on", "yes", "t", "y"}
_FALSE = {"false", "0", "off", "no", "f", "n"}


def scope(call: Call) -> str | None:
    """The project that objects are looked up through; an administrator looks through none."""
    return None if call.is_admin else call.project_id


def caller(call: Call) -> Caller:
    """Who asks, as the store writes it down."""
    return Caller(call.request_id, call.token.user_id, call.token.project_id or "", call.is_admin)


def links(call: Call, kind: str, key: str) -> list[dict[str, str]]:
    """The two links of a resource."""
    return [
        {"rel": "self", "href": call.url(f"{BASE}/{kind}/{key}")},
        {"rel": "bookmark", "href": call.url(f"/compute/{kind}/{key}")},
    ]


def bookmark(call: Call, kind: str, key: str) -> list[dict[str, str]]:
    return [{"rel": "bookmark", "href": call.url(f"/compute/{kind}/{key}")}]


def wake(call: Call, host_id: str | None, *, control: bool = False) -> None:
    """Make it faster: tell the host's long poll, and the control loop."""
    if host_id is not None:
        call.app.notifier.wake(f"host:{host_id}")
    if control:
        call.app.notifier.wake("control")


def handing_on(action: Callable[[Tx, str, str | None, Caller], str | None]) -> Handler:
    """The handler of an action that needs nothing but its server, done within the caller's project."""

    async def handler(call: Call) -> Reply:
        wake(call, await call.store.run(action, call.params["id"], scope(call), caller(call)))
        return Reply()

    return handler


def gate(call: Call, field: str, value: Any, since: Version, until: Version = (9, 0)) -> None:
    """400 when a key is given in a microversion that does not have it."""
    if value is not msgspec.UNSET and not since <= call.version <= until:
        raise bad_request(
            f"Invalid input for field {field}: Additional properties are not allowed "
            f"({field!r} was unexpected) in microversion {call.version[0]}.{call.version[1]}."
        )


def as_bool(value: bool | str | int | None, field: str) -> bool:
    """The compute API's many ways to write a truth value; 400 for others."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise bad_request(f"Invalid input for field {field}: {value!r} is not a truth value.")


def as_int(value: int | str, field: str, *, least: int, most: int = 2**31 - 1) -> int:
    """A whole number that may have been written as a string."""
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,12}", text, re.ASCII) or not least <= int(text) <= most:
        raise bad_request(
            f"Invalid input for field {field}: {value!r} is not a number from {least} to {most}."
        )
    return int(text)


def as_name(value: str, field: str, *, most: int = 255) -> str:
    """A name: printable, not empty, without spaces around it."""
    if not value or len(value) > most or value != value.strip() or not value.isprintable():
        raise bad_request(
            f"Invalid input for field {field}: {value[:60]!r} must be 1 to {most} printable characters "
            "without spaces around them."
        )
    return value


def as_text(value: str | None, field: str, *, most: int = 255) -> str | None:
    """A description."""
    if value is not None and (
        len(value) > most or not all(char.isprintable() or char in "\r\n\t" for char in value)
    ):
        raise bad_request(
            f"Invalid input for field {field}: at most {most} printable characters are allowed."
        )
    return value


def as_uuid(value: str, field: str) -> str:
    """A uuid in its usual form."""
    try:
        return str(uuid.UUID(value)) if len(value) in (32, 36) else _not_uuid(value, field)
    except ValueError:
        return _not_uuid(value, field)


def _not_uuid(value: str, field: str) -> str:
    raise bad_request(f"Invalid input for field {field}: {value[:60]!r} is not a uuid.")


def as_wall(value: str | None, field: str) -> float | None:
    """Seconds since the epoch of an ISO 8601 time (UTC, where it names no zone)."""
    if value is None:
        return None
    try:
        parsed = datetime.datetime.fromisoformat(value.replace(" ", "+"))
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=datetime.UTC)
        return parsed.timestamp()
    except (ValueError, OverflowError):
        raise bad_request(
            f"Invalid input for query parameter {field}: {value[:60]!r} is not a time."
        ) from None


def page_limit(call: Call) -> int:
    """The ``limit`` of a list."""
    return parse_limit(call.query_params.get("limit"), most=MAX_LIMIT)


def missing(message: str) -> ApiError:
    return not_found(message)
