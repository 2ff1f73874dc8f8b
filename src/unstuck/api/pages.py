"""Lists in pages: limit, marker, and sort keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

from unstuck.api.errors import bad_request

T = TypeVar("T")

MAX_LIMIT: Final = 1000


def parse_limit(text: str | None, *, most: int = MAX_LIMIT) -> int:
    """The number of items to show: 400 unless a whole number from 0; never more than ``most``."""
    if text is None:
        return most
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise bad_request(f"Invalid input for query parameter limit: {text!r} is not a number from 0 on.")
    return min(int(text), most)


def parse_sort(
    keys: Sequence[str],
    directions: Sequence[str],
    allowed: Collection[str],
    *,
    default: str,
    way: str = "desc",
) -> list[tuple[str, bool]]:
    """Sort keys as (key, descending); 400 for an unknown key or direction, or more directions than keys."""
    if len(directions) > max(len(keys), 1):
        raise bad_request("sort_dir: there are more sort directions than sort keys.")
    for key in keys:
        if key not in allowed:
            raise bad_request(f"sort_key: {key!r} is not one of {', '.join(sorted(allowed))}.")
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise bad_request(f"sort_dir: {direction!r} is neither asc nor desc.")
    names = list(keys) or [default]
    ways = list(directions) or [way]
    ways += [ways[-1]] * (len(names) - len(ways))
    return [(name, direction == "desc") for name, direction in zip(names, ways, strict=True)]


def cut(
    items: Sequence[T], limit: int, marker: str | None, *, key: Callable[[T], str]
) -> tuple[list[T], bool] | None:
    """The page after ``marker`` and whether more follow; ``None`` when no item has that key."""
    start = 0
    if marker is not None:
        for index, item in enumerate(items):
            if key(item) == marker:
                start = index + 1
                break
        else:
            return None
    page = list(items[start : start + limit])
    return page, start + len(page) < len(items) and limit > 0


def encode(params: Sequence[tuple[str, str]]) -> str:
    """A query string."""
    return urlencode(params)


def next_url(path: str, params: Sequence[tuple[str, str]] | Mapping[str, str], marker: str) -> str:
    """The address of the page after ``marker``, with the same filters."""
    pairs = params.items() if isinstance(params, Mapping) else params
    kept = [(name, value) for name, value in pairs if name != "marker"]
    return f"{path}?{urlencode([*kept, ('marker', marker)])}"
