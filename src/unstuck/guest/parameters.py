"""The owner's parameters in the guest: on trial, and written down beside the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from unstuck.core.datastores import ALLOWED
from unstuck.core.datastores.parameters import BadValue
from unstuck.core.instance import trial
from unstuck.core.instance.trial import STEADY, Chosen, Set, Trial
from unstuck.core.instance.want import DatabaseWant
from unstuck.runtime.files import sweep_halves, write_whole

NAME: Final = "parameters.json"

log = structlog.get_logger(__name__)


class Parameters:
    """``folder`` is the configuration's, which lies beside the data and goes with it. ``clock``: seconds."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._path = folder / NAME
        self._clock = clock
        self._up: tuple[object, float] = (None, 0.0)
        self._trial: Trial | None = None

    def _read(self) -> Trial:
        """What cannot be read is tried anew: nothing but time is lost."""
        if self._trial is None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self._trial = msgspec.json.decode(self._path.read_bytes(), type=Trial)
        return self._trial or Trial()

    def _write(self, before: Trial, after: Trial) -> None:
        if after == before:
            return
        self._trial = after
        try:
            sweep_halves(self._path)
            write_whole(self._path, msgspec.json.encode(after), mode=0o640)
        except OSError as error:  # a full volume: this process knows it all the same
            log.warning("what is known of parameters cannot be written", error=str(error))

    def chosen(self, want: DatabaseWant) -> Chosen:
        """What the server is to be configured with."""
        return trial.chosen(self._read(), _set(want))

    def before_start(self, want: DatabaseWant, why: str) -> None:
        """A start is about to be made; ``why``: what the server said last."""
        found = self._read()
        self._write(found, trial.before_start(found, _set(want), want.restart, why))

    def judge(self, want: DatabaseWant) -> None:
        """Put aside what must not be set, or cannot work with the memory that there is."""
        allowed, wanted, found = ALLOWED[want.datastore], _set(want), self._read()
        if found.refused == wanted:
            return
        try:
            texts = allowed.texts(want.parameters)
        except BadValue as error:
            self._write(found, trial.refuse(found, wanted, str(error)))
            return
        bad = allowed.unfit(texts, want.ram_mb)
        if bad is not None:
            self._write(found, trial.refuse(found, wanted, str(bad)))

    def refuse(self, want: DatabaseWant, why: str) -> None:
        """The datastore's own check refused the file with what is chosen now."""
        found = self._read()
        self._write(found, trial.refuse(found, _set(want), why))

    def up(self, want: DatabaseWant, server: object) -> None:
        """``server``, by whatever tells it from others, runs with all that is wanted: it has worked once that
        has lasted."""
        if self._up[0] != server:
            self._up = (server, self._clock())
        if self._clock() >= self._up[1] + STEADY:
            found = self._read()
            self._write(found, trial.proven(found, _set(want)))


def _set(want: DatabaseWant) -> Set:
    return Set(dict(want.parameters), want.ram_mb)
