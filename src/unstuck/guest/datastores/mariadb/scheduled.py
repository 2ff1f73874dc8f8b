"""Scheduled events in a log that is applied: whether each is to run.

A replica disables every scheduled event that it is told of, because its source runs it. Data that was
restored has no source: they are as their statements said.
"""

from __future__ import annotations

import mmap
import re
from typing import Final

from unstuck.guest.datastores.mariadb.binlog import statements
from unstuck.guest.datastores.mariadb.session import Session
from unstuck.guest.datastores.mariadb.words import literal

_IDENTIFIER: Final = r"(`(?:[^`]|``)+`|[\w$]+)"
_USER: Final = r"(?:`(?:[^`]|``)*`|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|[\w$]+)"
_COMMENT: Final = r"/\*(?:[^*]|\*(?!/))*\*/"
_NOTES: Final = rf"(?:\s|{_COMMENT}|--\s[^\n]*\n|#[^\n]*\n)"
_CLAUSES: Final = 64 << 10
"""Characters in front of its body that are looked at."""
_STATEMENT: Final = re.compile(
    rf"{_NOTES}*(CREATE|ALTER){_NOTES}+(?:OR{_NOTES}+REPLACE{_NOTES}+)?"
    rf"(?:DEFINER\s*=\s*{_USER}(?:\s*@\s*{_USER}|\s*\(\s*\))?{_NOTES}+)?"
    rf"EVENT{_NOTES}+(?:IF{_NOTES}+(?:NOT{_NOTES}+)?EXISTS{_NOTES}+)?"
    rf"{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})?(.*)",
    re.IGNORECASE | re.DOTALL,
)
_TEXTS: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|" + _COMMENT, re.DOTALL)
_BODY: Final = re.compile(r"\bDO\b", re.IGNORECASE)
_STATUS: Final = re.compile(r"\b(ENABLE|DISABLE)\b", re.IGNORECASE)
_RENAMED: Final = re.compile(rf"\bRENAME\s+TO\s+{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})?", re.IGNORECASE)


class Scheduled:
    """What was said of each, by the database's and its own name: whether it runs."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], bool] = {}

    def read(self, file: mmap.mmap, start: int, end: int) -> None:
        """All statements of a file of the log, from where an event begins."""
        for database, text in statements(file, start, end):
            if "event" in text[:2000].lower():
                self.heard(database, text)

    def heard(self, database: str, text: str) -> None:
        found = _STATEMENT.match(text)
        if found is None:
            return
        verb, first, second, rest = found.groups()
        name = _named(database, first, second)
        clauses = _BODY.split(_TEXTS.sub(" ", rest[:_CLAUSES]), maxsplit=1)[0]
        status = _STATUS.search(clauses)
        before = self.runs.pop(name, None)
        renamed = _RENAMED.search(clauses)
        if renamed is not None:
            name = _named(database, *renamed.groups())
        if status is not None:
            self.runs[name] = status[1].upper() == "ENABLE"
        elif verb.upper() == "CREATE":
            self.runs[name] = True
        elif before is not None:
            self.runs[name] = before

    def settle(self, session: Session) -> None:
        for (database, name), runs in self.runs.items():
            session.ask(
                f"UPDATE mysql.event SET status = {literal('ENABLED' if runs else 'DISABLED')}"
                f" WHERE db = {literal(database)} AND name = {literal(name)}"
                " AND status = 'SLAVESIDE_DISABLED'"
            )


def _named(database: str, first: str, second: str | None) -> tuple[str, str]:
    return (database, _plain(first)) if second is None else (_plain(first), _plain(second))


def _plain(identifier: str) -> str:
    return identifier[1:-1].replace("``", "`") if identifier.startswith("`") else identifier
