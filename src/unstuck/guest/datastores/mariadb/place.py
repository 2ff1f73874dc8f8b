"""Where a backup belongs in the server's logs, as one text.

``checkpoint``: what changed after it comes with a child. ``lsn``: all before it is in the copy once that has
been prepared. ``file`` and ``at``: the same moment in the binary log, ``gtid`` the last transaction there.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_FORM: Final = re.compile(
    r"([0-9]{1,20}),([0-9]{1,20}),([A-Za-z0-9._-]{0,100}):([0-9]{0,20}),([0-9,-]{0,300})"
)


class Place(msgspec.Struct, frozen=True):
    checkpoint: int
    lsn: int
    file: str = ""
    at: int = 0
    gtid: str = ""

    @property
    def text(self) -> str:
        return f"{self.checkpoint},{self.lsn},{self.file}:{self.at},{self.gtid}"


def place_of(text: str) -> Place:
    """Raises :class:`ValueError`."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no place in MariaDB's logs")
    return Place(int(found[1]), int(found[2]), found[3], int(found[4] or 0), found[5])
