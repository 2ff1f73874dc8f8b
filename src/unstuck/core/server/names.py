"""Host names from server names, and the safe part of regular expressions that name filters may use."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECE = re.compile(r"(?:[^\\*+?{}()|\[\]^$]|\\[^a-zA-Z0-9]|\[\^?[^\[\]\\^]+\])*")


def hostname_of(name: str, server_id: str, *, dots: bool = True) -> str:
    """A host name made from a server's name, as the compute API does it (``dots``: before 2.90)."""
    text = re.sub(r"[ _]" if dots else r"[ _.]", "-", name)
    text = re.sub(r"[^a-zA-Z0-9.-]+", "", text).lower().strip(".-")[:63].strip(".-")
    return text or f"server-{server_id}"


def name_filter(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches: as a regular expression without nested repetition, or literally.

    The compute API takes any regular expression here. Pieces of fixed length between ``.*`` are what
    people write, and they are searched in linear time, so no filter can keep a thread busy.
    """
    wanted = _pieces(pattern)
    if wanted is None:
        return lambda name: pattern in name
    start, end, pieces = wanted

    def matches(name: str) -> bool:
        return pattern in name or _search(name, start, end, pieces)

    return matches


def is_literal(pattern: str) -> bool:
    """The pattern means just itself."""
    return re.escape(pattern).replace("\\-", "-").replace("\\ ", " ") == pattern


def _pieces(pattern: str) -> tuple[bool, bool, list[re.Pattern[str]]] | None:
    start, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[1 if start else 0 : len(pattern) - 1 if end else len(pattern)]
    texts = body.split(".*")
    if not all(_PIECE.fullmatch(text) for text in texts):
        return None
    try:
        return start, end, [re.compile(text) for text in texts]
    except re.error:
        return None


def _search(name: str, start: bool, end: bool, pieces: list[re.Pattern[str]]) -> bool:
    at = 0
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        if end and last:
            return _at_end(name, at, piece, fixed=start and index == 0)
        found = piece.match(name, at) if start and index == 0 else piece.search(name, at)
        if found is None:
            return False
        at = found.end()
    return True


def _at_end(name: str, at: int, piece: re.Pattern[str], *, fixed: bool) -> bool:
    if fixed:
        return piece.fullmatch(name, at) is not None
    return any(piece.fullmatch(name, begin) for begin in range(at, len(name) + 1))
