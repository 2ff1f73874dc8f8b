"""Lists of images: filters, order, pages."""

from __future__ import annotations

import csv
import datetime
import operator
from collections.abc import Callable
from typing import Any, Final

import msgspec

from unstuck.api import pages
from unstuck.api.context import Token
from unstuck.api.errors import bad_request
from unstuck.api.image.forms import image_json
from unstuck.api.routes import Call, Query, Reply
from unstuck.core.image import MEMBER_STATUSES, Image
from unstuck.store import images as rows

_SORTABLE: Final = frozenset({
    "id", "name", "status", "container_format", "disk_format", "size", "created_at", "updated_at",
})  # fmt: skip
_DEFAULT_LIMIT: Final = 100
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
    "eq": operator.eq, "neq": operator.ne,
}  # fmt: skip
_CONTROL: Final = frozenset({
    "limit", "marker", "sort", "sort_key", "sort_dir", "tag", "size_min", "size_max", "os_hidden",
    "member_status", "changes-since",
})  # fmt: skip


class Filters(Query, frozen=True):
    """The parameters with a meaning of their own; any other is compared with the field of that name."""

    limit: str | None = None
    marker: str | None = None
    sort: str | None = None
    sort_key: list[str] = []
    sort_dir: list[str] = []
    tag: list[str] = []
    size_min: int | None = None
    size_max: int | None = None
    os_hidden: str | None = None
    member_status: str | None = None


def one_or_many(name: str, text: str) -> list[str]:
    """The values of ``name=x`` or ``name=in:x,"y,z"``."""
    if not text.startswith("in:"):
        return [text]
    try:
        values = next(csv.reader([text[3:]], strict=True), [])
    except csv.Error:
        raise bad_request(f"Invalid input for query parameter {name}: unbalanced quotes.") from None
    if not values or "" in values:
        raise bad_request(f"Invalid input for query parameter {name}: the list has an empty value.")
    return values


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise bad_request(f"Invalid input for query parameter {name}: {text[:40]!r} is neither true nor false.")


def _moment(name: str, text: str) -> Callable[[str], bool]:
    """A test for ``created_at=gte:2026-01-31T00:00:00Z``."""
    operator_name, _, value = text.partition(":")
    if operator_name not in _COMPARE:
        operator_name, value = "eq", text
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise bad_request(f"Invalid input for query parameter {name}: not an ISO 8601 time.") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    compare = _COMPARE[operator_name]
    return lambda shown: bool(compare(datetime.datetime.fromisoformat(shown), moment))


def _matcher(call: Call, filters: Filters) -> Callable[[dict[str, Any]], bool]:
    """A test of the images as users see them."""
    given = {key: text for key, text in call.query_params.items() if key not in _CONTROL}
    moments = [(key, _moment(key, given.pop(key))) for key in ("created_at", "updated_at") if key in given]
    wanted = {key: one_or_many(key, text) for key, text in given.items()}
    hidden = _boolean("os_hidden", filters.os_hidden) if filters.os_hidden is not None else False
    if "protected" in wanted:
        wanted["protected"] = [str(_boolean("protected", wanted["protected"][0]))]
    least, most = filters.size_min, filters.size_max
    if (least is not None and least < 0) or (most is not None and most < 0):
        raise bad_request("Invalid input for query parameters: size_min and size_max are numbers from 0 on.")
    visibility = wanted.get("visibility", [])
    if visibility == ["all"]:
        del wanted["visibility"]

    def matches(item: dict[str, Any]) -> bool:
        size = item["size"]
        return (
            item["os_hidden"] == hidden
            and set(filters.tag) <= set(item["tags"])
            and (least is None or (size is not None and size >= least))
            and (most is None or (size is not None and size <= most))
            and all(test(item[key]) for key, test in moments)
            and all(key in item and str(item[key]) in values for key, values in wanted.items())
            and (item["visibility"] != "community" or bool(visibility) or _own(item, call.token))
        )

    return matches


def _member_status(filters: Filters) -> str:
    wanted = filters.member_status or "accepted"
    if wanted not in (*MEMBER_STATUSES, "all"):
        raise bad_request(f"member_status: {wanted[:40]!r} is not one of {', '.join(MEMBER_STATUSES)}, all.")
    return wanted


def _own(item: dict[str, Any], token: Token) -> bool:
    return bool(item["owner"] == token.project_id)


def _order(filters: Filters) -> list[tuple[str, bool]]:
    if filters.sort is not None:
        if filters.sort_key or filters.sort_dir:
            raise bad_request("sort: it cannot be used together with sort_key and sort_dir.")
        pairs = [part.partition(":") for part in filters.sort.split(",")]
        keys, ways = [p[0].strip() for p in pairs], [p[2].strip() or "desc" for p in pairs]
    else:
        keys, ways = filters.sort_key, filters.sort_dir
    return pages.parse_sort(keys, ways, _SORTABLE, default="created_at")


def _sorted(found: list[tuple[Image, dict[str, Any]]], filters: Filters) -> list[dict[str, Any]]:
    def key(name: str) -> Callable[[tuple[Image, dict[str, Any]]], Any]:
        if name in ("created_at", "updated_at"):  # seconds are too coarse to order by
            return lambda pair: pair[0].created if name == "created_at" else pair[0].updated
        return lambda pair: (pair[1][name] is not None, pair[1][name] or (0 if name == "size" else ""))

    found = sorted(found, key=lambda pair: (pair[0].created, pair[0].id), reverse=True)
    for name, descending in reversed(_order(filters)):
        found = sorted(found, key=key(name), reverse=descending)
    return [item for _, item in found]


async def list_images(call: Call) -> Reply:
    """``GET /v2/images``."""
    filters: Filters = call.query
    limit = pages.parse_limit(filters.limit) if filters.limit is not None else _DEFAULT_LIMIT
    ids, names = call.query_params.get("id"), call.query_params.get("name")
    matches = _matcher(call, filters)
    order = _order(filters)
    found, lease_now = await call.store.run_read(
        rows.list_images, project_id=call.token.project_id, admin=call.is_admin,
        member_status=_member_status(filters),
        ids=None if ids is None else one_or_many("id", ids),
        names=None if names is None else one_or_many("name", names),
    )  # fmt: skip
    shown = [(image, image_json(image, lease_now)) for image in found]
    items = _sorted([pair for pair in shown if matches(pair[1])], filters) if order else []
    cut = pages.cut(items, limit, filters.marker, key=lambda item: str(item["id"]))
    if cut is None:
        raise bad_request(f"marker: there is no image {str(filters.marker)[:64]!r} in this list.")
    page, more = cut
    params = call.query_params.multi_items()
    first = [(name, value) for name, value in params if name != "marker"]
    body: dict[str, Any] = {"images": page, "schema": "/v2/schemas/images"}
    body["first"] = "/v2/images" + (f"?{pages.encode(first)}" if first else "")
    if more:
        body["next"] = pages.next_url("/v2/images", params, page[-1]["id"])
    return Reply(msgspec.json.encode(body))
