"""Small words of the commands, and words of others made harmless.

Names, reasons, consoles and even log lines hold what strangers sent: a terminal must not obey them.
"""

from __future__ import annotations

import sys


def counted(number: int, thing: str) -> str:
    """``1 server``, ``2 servers``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def plain(text: object) -> str:
    """One line of text in which every character can be seen: ``\\x1b`` for an escape, ``\\n`` for a new line.

    Also what turns the direction of writing around is shown as its number.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text)
    )


def plain_lines(text: str) -> str:
    """The same for text of several lines, which stay lines."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(plain(part) for part in line.split("\t")) for line in lines)


def for_terminal(text: str) -> str:
    """As it is for a file or a pipe; harmless for a terminal."""
    return plain_lines(text) if sys.stdout.isatty() else text
