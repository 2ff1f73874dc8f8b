"""What a container's processes said: a log in the form of Kubernetes, bounded by who writes it (conmon)."""

from __future__ import annotations

import re

from unstuck.host.drivers.folder import ServerFolder

_LINE = re.compile(r"^\S+ (?:stdout|stderr) ([FP]) (.*)$")


def plain(text: str) -> str:
    """Without the times and names in front of each line; long lines in one piece again."""
    out = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            out.append(line + "\n")
        else:
            out.append(found[2] + ("\n" if found[1] == "F" else ""))
    return "".join(out)


def console_tail(folder: ServerFolder, lines: int | None) -> str:
    """The last lines, or all that is kept. Blocks."""
    text = plain(folder.console_tail(None))
    if lines is None:
        return text
    kept = text.splitlines(keepends=True)
    return "".join(kept[len(kept) - lines :]) if lines < len(kept) else text


def last_words(folder: ServerFolder) -> str:
    """The end of it, fit for a message."""
    said = [line.strip() for line in console_tail(folder, 3).splitlines() if line.strip()]
    return " | ".join(said)[-500:] or "it said nothing"
