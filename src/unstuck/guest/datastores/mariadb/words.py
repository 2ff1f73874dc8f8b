"""How names and texts are written in a statement, so that none of them can be read as anything else.

Sessions of ours set ``sql_mode`` themselves: quotes and backslashes mean there what they mean here.
"""

from __future__ import annotations


def literal(text: str) -> str:
    """A string. Raises :class:`ValueError` for one that no statement can hold."""
    if "\0" in text:
        raise ValueError("a text with a NUL")
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A database's or table's name."""
    if not name or "\0" in name:
        raise ValueError("no name")
    return "`" + name.replace("`", "``") + "`"


def account(user: str, host: str) -> str:
    """Who logs in from where."""
    return f"{literal(user)}@{literal(host)}"


def pattern(database: str) -> str:
    """A database's name as grants keep it: in them ``_`` and ``%`` stand for others."""
    return database.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")


def database_of(kept: str) -> str:
    """The database's name of a grant's pattern."""
    found, escaped = [], False
    for char in kept:
        if char == "\\" and not escaped:
            escaped = True
            continue
        found.append(char)
        escaped = False
    return "".join(found)
