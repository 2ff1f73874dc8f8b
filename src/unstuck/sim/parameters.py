"""Parameters of simulated databases: a file in the volume, what a server runs with, and one bad value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unstuck.core.instance import trial
from unstuck.core.instance.trial import STEADY, Set
from unstuck.core.instance.view import Configured, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.store.instance_configuration import configuring

if TYPE_CHECKING:
    from unstuck.sim.databases import Databases
    from unstuck.sim.guest import Inside
    from unstuck.store.engine import Tx

WITH_RESTART: Final = frozenset({"max_connections"})
"""Names that a running server does not take."""
TOO_MANY: Final = "9999"
"""So many connections no server comes up with."""


def wanted(want: DatabaseWant) -> Set:
    return Set(dict(want.parameters), want.ram_mb)


def written(inside: Inside, want: DatabaseWant) -> dict[str, str]:
    """What the guest writes into its file now."""
    return trial.chosen(inside.volume.trial, wanted(want)).parameters


def before_start(inside: Inside, want: DatabaseWant) -> bool:
    """The file is written and a server started; whether it comes up."""
    volume = inside.volume
    volume.trial = trial.before_start(volume.trial, wanted(want), want.restart, "no memory")
    inside.parameters = written(inside, want)
    return inside.parameters.get("max_connections") != TOO_MANY


def reload(inside: Inside, want: DatabaseWant) -> None:
    """The running server takes what it can."""
    kept = {name: text for name, text in inside.parameters.items() if name in WITH_RESTART}
    new = {name: text for name, text in written(inside, want).items() if name not in WITH_RESTART}
    inside.parameters = kept | new


def look(inside: Inside, want: DatabaseWant) -> Configured | None:
    """What a server that is up says; parameters that have lasted have worked."""
    if inside.server is not ServerState.UP:
        return None
    volume, found = inside.volume, trial.chosen(inside.volume.trial, wanted(want))
    names = {*inside.parameters, *found.parameters} & WITH_RESTART
    waiting = tuple(
        sorted(name for name in names if inside.parameters.get(name) != found.parameters.get(name))
    )
    lasted = inside.engine.now >= inside.up_since + STEADY
    if lasted and not waiting and inside.parameters == found.parameters:
        volume.trial = trial.proven(volume.trial, wanted(want))
    applied = {name: text for name, text in found.parameters.items() if inside.parameters.get(name) == text}
    return Configured(applied, waiting, found.refused)


def flaw(tx: Tx, world: Databases, instance_id: str) -> str | None:
    """At rest, what a server runs with is what its group says, or the reason why not is shown."""
    found = configuring(tx, instance_id)
    if found is None or found.instance.server is None:
        return None
    inside = world.inside_of(found.server_id)
    seen = found.instance.seen
    if inside is None or inside.server is not ServerState.UP or seen is None or not found.instance.alive:
        return None
    told = seen.configured
    if told is None:
        return f"parameters: {instance_id} says nothing of them"
    if any(inside.parameters.get(name) != text for name, text in told.applied.items()):
        return f"parameters: {instance_id} shows {told.applied}, and runs with {inside.parameters}"
    if told.refused:
        return None
    missing = {
        name: text
        for name, text in found.wanted.items()
        if inside.parameters.get(name) != text and name not in told.waiting
    }
    more = set(inside.parameters) - set(found.wanted) - set(told.waiting)
    if missing or more:
        return f"parameters: {instance_id} runs with {inside.parameters}, wanted {found.wanted}"
    return None
