"""The furthest that somebody has heard the store go, kept in a file beside what depends on it.

A host keeps one beside what it holds, and a control plane one beside the store: so that a store that was
set back is noticed by whoever comes next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from unstuck.core.generation import Mark, further
from unstuck.runtime.files import sweep_halves, write_whole

TICKS = 60
"""A mark that differs by fewer ticks only is not written anew: a host at rest writes once a minute."""

log = structlog.get_logger(__name__)


class Marks(Protocol):
    """Where a listener keeps its mark."""

    @property
    def mark(self) -> Mark | None: ...

    def hear(self, mark: Mark) -> None:
        """Keep the further one. It is kept before anything is done that the store said then."""
        ...


class Forgetful:
    """Keeps the mark for as long as the process lives."""

    def __init__(self) -> None:
        self.mark: Mark | None = None

    def hear(self, mark: Mark) -> None:
        self.mark = further(self.mark, mark)


class MarkFile:
    """Durable when the generation changes; in between it survives the process but perhaps not the machine,
    which costs a late notice at worst: hosts still say what they hold. A file that cannot be read or
    written is no reason not to look after guests. ``ticks``: see :data:`TICKS`."""

    def __init__(self, path: Path, ticks: int = TICKS) -> None:
        self._path = path
        self._ticks = ticks
        self.mark: Mark | None = None
        self._written: Mark | None = None
        try:
            sweep_halves(path)
            self.mark = self._written = msgspec.json.decode(self._path.read_bytes(), type=Mark)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the mark of the store cannot be read", path=str(self._path), error=str(error))

    def hear(self, mark: Mark) -> None:
        self.mark = further(self.mark, mark)
        old = self._written
        if old is not None and self._alike(old, self.mark):
            return
        durable = old is None or old.generation_id != self.mark.generation_id
        try:
            write_whole(self._path, msgspec.json.encode(self.mark), durable=durable)
        except OSError as error:
            log.warning("the mark of the store cannot be kept", path=str(self._path), error=str(error))
            return
        self._written = self.mark

    def _alike(self, old: Mark, new: Mark) -> bool:
        same = msgspec.structs.replace(new, tick=old.tick) == old
        return same and new.tick - old.tick < self._ticks
