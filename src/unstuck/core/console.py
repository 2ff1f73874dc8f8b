"""What is said about a guest's serial console between a control plane and a host's agent."""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.core.server.data import Fence

SERIAL: Final = "serial"
"""The kind of the question to a host: :class:`SerialAsk` is its argument, :class:`SerialSaid` its answer."""
MESSAGE_MAX: Final = 64 * 1024
"""Bytes of one message of a stream, whoever sends it."""
PER_SERVER: Final = 4
"""Consoles of one server at a time: they share its one serial port."""
PING: Final = 20.0
"""Seconds between two signs of life of either end of a stream; without an answer for as long it is gone."""


class SerialAsk(msgspec.Struct, frozen=True):
    """``open``: bring the guest's serial port to the control plane that asks; else say whether it can be."""

    fence: Fence
    open: bool = False


class SerialSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``reason``: why it cannot be, for the user; empty where it can."""

    serial: bool
    reason: str = ""


def why_not(answer: str) -> str:
    """The reason in a host's answer; empty where its guest has a serial port that can be opened."""
    try:
        said = msgspec.json.decode(answer, type=SerialSaid)
    except msgspec.DecodeError:
        return "the agent of its host is of a version that cannot open consoles; it has to be upgraded"
    return "" if said.serial else said.reason or "its serial port cannot be opened"
