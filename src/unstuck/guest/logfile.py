"""A datastore server's log, a bounded part at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from unstuck.core.instance.requests import DatabaseAnswer, Failed, LogPart, Ok, ReadLog

MOST: Final = 64 << 10
"""Bytes of one part."""


def read_log(path: Path, asked: ReadLog) -> DatabaseAnswer:
    """Whole lines, where there is one in the part."""
    most = min(max(asked.most, 1), MOST)
    try:
        size = path.stat().st_size
        begin = max(size - most, 0) if asked.after < 0 else asked.after
        if begin > size:  # it was begun anew
            begin = 0
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(most)
    except FileNotFoundError:
        return Ok(log=LogPart("", 0, 0))
    except OSError as error:
        return Failed("unready", f"the log cannot be read: {error.strerror}")
    if asked.after < 0 and begin > 0:
        cut = data.find(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = data.rfind(b"\n") + 1
    if 0 < end < len(data):
        data = data[:end]
    return Ok(log=LogPart(data.decode(errors="replace"), begin + len(data), size))
