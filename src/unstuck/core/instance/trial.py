"""Which parameters a server is started with: those that are wanted, or the last that worked. Pure.

Parameters are on trial until a server has stayed up with them. Ones with which it does not come up are put
aside, with the reason, until others are wanted, or more memory is there: a bad value never leaves a dead
database. The guest keeps this beside the data, and writes it down before each start.
"""

from __future__ import annotations

from typing import Final

import msgspec

TRIES: Final = 3
"""Starts that did not last, before parameters on trial are put aside."""
STEADY: Final = 20.0
"""Seconds that a server stays up with parameters until they have worked."""


class Set(msgspec.Struct, frozen=True):
    """Parameters, and the memory in MiB that they are for."""

    parameters: dict[str, str] = {}
    ram_mb: int = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """``good``: the last that worked. ``tried``: those on trial, since the restart of this number, and how
    often they were started. ``refused``: those put aside, and why."""

    good: Set = Set()
    tried: Set | None = None
    restart: int = 0
    starts: int = 0
    refused: Set | None = None
    reason: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """``refused``: why they are not the wanted ones; empty where they are."""

    parameters: dict[str, str]
    refused: str = ""


def chosen(trial: Trial, wanted: Set) -> Chosen:
    """What the server is to be configured with. Nothing at all is never on trial."""
    if not wanted.parameters or trial.refused != wanted:
        return Chosen(wanted.parameters)
    good = trial.good.parameters
    # The same ones, with less memory than they worked with: the defaults are left.
    return Chosen({} if good == wanted.parameters else good, trial.reason)


def before_start(trial: Trial, wanted: Set, restart: int, why: str) -> Trial:
    """A start is about to be made. ``why``: what the server said last, for the case that this is once too
    often. Somebody's restart (another number) is no failure of theirs."""
    if not wanted.parameters or wanted in (trial.good, trial.refused):
        return trial
    if trial.tried != wanted or trial.restart != restart:
        return msgspec.structs.replace(trial, tried=wanted, restart=restart, starts=1)
    if trial.starts >= TRIES:
        return refuse(trial, wanted, f"the server did not stay up with them: {why}")
    return msgspec.structs.replace(trial, starts=trial.starts + 1)


def refuse(trial: Trial, wanted: Set, why: str) -> Trial:
    """Put them aside; what worked before counts again. Where that does not work any more either, nothing."""
    if trial.refused == wanted:
        return msgspec.structs.replace(trial, good=Set())
    good = Set() if trial.good == wanted else trial.good
    return msgspec.structs.replace(
        trial, good=good, tried=None, starts=0, refused=wanted, reason=why[:300] or "for no known reason"
    )


def proven(trial: Trial, wanted: Set) -> Trial:
    """A server has stayed up with what is wanted."""
    if trial.refused == wanted or trial.good == wanted:
        return trial
    return Trial(good=wanted)
