"""What all calls of the database API share: whose objects they are about, links, pages, single values."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from msgspec import UNSET, UnsetType

from unstuck.api.errors import ApiError, bad_request, forbidden, not_found
from unstuck.api.pages import next_url
from unstuck.api.routes import Call, Handler, Reply
from unstuck.store.servers import Caller

BASE: Final = "/database/v1.0/{project_id}"
PAGE_MAX: Final = 1000
"""Items on a page, also where the client names no limit: the stock client looks names up on the first page
only, so that Trove's 20 would hide the rest from it."""
NAME_MAX: Final = 255
QUERY_MAX: Final = 4000
"""Characters of a statement that a verification runs."""


def project(call: Call) -> str:
    """The project in the path: the token's own; an administrator may name any. Else 403, as Trove."""
    named = call.params["project_id"]
    if named != call.token.project_id and not call.is_admin:
        raise forbidden(
            f"User with project ID {call.token.project_id} cannot access project ID {named[:64]}."
        )
    return named


def scope(call: Call) -> str | None:
    """The project that single objects are looked up through; an administrator looks through none."""
    own = project(call)
    return None if call.is_admin else own


def caller(call: Call) -> Caller:
    """Who asks, as the store writes it down."""
    return Caller(call.request_id, call.token.user_id, project(call), call.is_admin)


def base(call: Call) -> str:
    """The address that paths of this project begin with."""
    return call.url(f"/database/v1.0/{project(call)}")


def links(call: Call, kind: str, key: str) -> list[dict[str, str]]:
    """The two links of a resource."""
    return [
        {"href": f"{base(call)}/{kind}/{key}", "rel": "self"},
        {"href": call.url(f"/database/{kind}/{key}"), "rel": "bookmark"},
    ]


def wake(call: Call, *hosts: str | None) -> None:
    """Make it faster: tell the control loops, and the hosts' long polls."""
    for host_id in hosts:
        if host_id is not None:
            call.app.notifier.wake(f"host:{host_id}")
    for loop in ("control", "instances", "backups", "verifications"):
        call.app.notifier.wake(loop)


def object_id(text: str, what: str) -> str:
    """An id in a path; anything else cannot be one, so there is no such thing (404, also for a name)."""
    try:
        found = str(uuid.UUID(text))
    except ValueError:
        found = ""
    if found != text.lower():
        raise missing(what, text)
    return found


def missing(what: str, key: str) -> ApiError:
    """404 that names what is not there."""
    return not_found(f"{what} {key[:NAME_MAX]} cannot be found.")


def limit(call: Call) -> int:
    """The ``limit`` of a list: a whole number from 1; never more than a page may have."""
    text = call.query_params.get("limit")
    if text is None:
        return PAGE_MAX
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) == 0:
        raise bad_request(
            f"Invalid input for query parameter limit: {text[:60]!r} is not a number from 1 on."
        )
    return min(int(text), PAGE_MAX)


def marker(call: Call) -> str | None:
    """The ``marker`` of a list; an empty one is none."""
    text = call.query_params.get("marker")
    if text is not None and len(text) > NAME_MAX:
        raise bad_request("Invalid input for query parameter marker: it is too long.")
    return text or None


def page(call: Call, key: str, shown: Sequence[Any], following: str | None) -> Reply:
    """A list, with the address of the page after it where there is more."""
    body: dict[str, Any] = {key: shown}
    if following is not None:
        target = next_url(call.url(call.path()), call.query_params.multi_items(), following)
        body["links"] = [{"rel": "next", "href": target}]
    return Reply(body)


def invalid(field: str, why: str) -> NoReturn:
    """400 that names the field."""
    raise bad_request(f"Invalid input for field {field}: {why}")


def text_of(value: str, field: str, *, most: int = NAME_MAX) -> str:
    """A name for people: printable, not empty, without spaces around it."""
    if not value or len(value) > most or value != value.strip() or not value.isprintable():
        invalid(field, f"it must be 1 to {most} printable characters without spaces around them.")
    return value


def description_of(value: str | None, field: str, *, most: int = 2048) -> str | None:
    """A longer text, of several lines if need be."""
    if value is None:
        return None
    if len(value) > most or not all(char.isprintable() or char in "\r\n\t" for char in value):
        invalid(field, f"at most {most} printable characters are allowed.")
    return value


def number(value: int | str | float | None, field: str, *, least: int, most: int = 2**31 - 1) -> int:
    """A whole number that may have been written as a string."""
    if isinstance(value, bool) or value is None:
        invalid(field, f"it must be a whole number from {least} to {most}.")
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,12}", text, re.ASCII) or not least <= int(text) <= most:
        invalid(field, f"{text[:60]!r} is not a whole number from {least} to {most}.")
    return int(text)


def truth(value: Any, field: str) -> bool:
    """A truth value as clients write it in queries: true, false, 1, 0."""
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off", ""):
        return False
    invalid(field, f"{str(value)[:60]!r} is not a truth value.")


def cidrs_of(values: Sequence[str], field: str) -> tuple[str, ...]:
    """Networks that may come in, in their usual form and each once."""
    found: list[str] = []
    if len(values) > 64:
        invalid(field, "at most 64 networks can be named.")
    for value in values:
        try:
            net = ipaddress.ip_network(value, strict=False)
        except ValueError:
            invalid(field, f"{value[:60]!r} is not a network like 10.0.0.0/8.")
        if net.version != 4:
            invalid(field, f"{value[:60]!r}: instances have IPv4 addresses only.")
        if str(net) not in found:
            found.append(str(net))
    return tuple(found)


def refuse_given(given: Any, field: str, why: str) -> None:
    """400 for what Trove knows and this cloud does not offer, unless it is left empty."""
    if given not in (UNSET, None, [], {}, ""):
        raise bad_request(f"{field}: {why}")


def given_or(value: Any | UnsetType, other: Any) -> Any:
    return other if isinstance(value, UnsetType) else value


def not_offered(what: str) -> Handler:
    """The handler of a call that Trove has and this cloud does not: 400 that says so."""

    async def handler(call: Call) -> Reply:
        project(call)
        raise bad_request(f"{what} are not offered by this cloud.")

    return handler


def none_of(key: str) -> Handler:
    """The list of something that is not offered: there are none."""

    async def handler(call: Call) -> Reply:
        project(call)
        return Reply({key: []})

    return handler


def not_there(what: str) -> Handler:
    """One of something that is not offered: it is not there."""

    async def handler(call: Call) -> Reply:
        project(call)
        raise missing(what, call.params["id"])

    return handler
