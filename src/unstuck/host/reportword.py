"""What a report says, in one word."""

from __future__ import annotations

from typing import Any

from unstuck.core.server.data import Gone, Mute, Observation, Off, Paused, Running, Step, Thing, Unclear


def report_word(observation: Observation) -> str:
    """A report is named after what it says, so that a kill can be aimed at it."""
    guest: Any = observation.guest
    if observation.step is Step.REMOVED:
        return "removed"
    match guest:
        case Running():
            return "running"
        case Paused():
            return "paused"
        case Off():
            return "off"
        case Mute() | Unclear():
            return "unclear"
        case Gone() if observation.memory is Thing.PRESENT and observation.step is Step.AT_REST:
            return "suspended"
        case Gone() if observation.step is Step.AT_REST and observation.disk is Thing.PRESENT:
            return "stopped"
        case _:
            return "waiting"
