"""The agents' protocol: what goes over the wire between a host agent and the control plane.

A field is added with a default and no new number: whoever does not know it leaves it out, and whoever does
not know it skips it. A new number is for what the older side would get wrong (docs/upgrades.md).
"""

from __future__ import annotations

import msgspec

from unstuck.core.generation import Mark
from unstuck.core.server.data import Fence, Observation, Spec, Thing, Want

PROTOCOL = 1
"""What this version speaks: an agent this, a control plane also the one before."""


def speaks(ours: int) -> tuple[int, ...]:
    """The versions that a control plane of version ``ours`` serves, the newest first: N and N - 1."""
    return tuple(version for version in (ours, ours - 1) if version >= 1)


class HostFacts(msgspec.Struct, frozen=True):
    """What a host says of itself when it registers. Sizes in MiB and GiB."""

    hostname: str
    machine_id: str
    boot_id: str
    vcpus: int
    ram_mb: int
    disk_gb: int
    accelerator: str
    driver: str
    driver_version: str
    address: str = "127.0.0.1"
    protocol: int = PROTOCOL
    no_networks: str = ""
    """Why servers on it cannot have networks, with the remedy; empty where they can."""
    machines: tuple[str, ...] = ("vm",)
    """What it runs guests in (``core.server.data.Machine``)."""
    no_containers: str = ""
    """Why it runs none in containers, with the remedy."""


class Register(msgspec.Struct, frozen=True):
    """``start`` is random per process: the same start, asking again, gets the same incarnation.

    ``after`` is the incarnation to follow on, by compare-and-swap; -1 only asks which one that is. So a
    late copy of this message cannot end an agent that came after its sender.
    ``mark`` is the furthest that this host has heard the store go, from its own disk.
    """

    start: str
    facts: HostFacts
    after: int = -1
    mark: Mark | None = None


class Terms(msgspec.Struct, frozen=True):
    """The control plane's answer to every agent call: the store's generation and tick.

    ``session`` is another whenever the store may have been put back (it was opened or started anew):
    then nothing that was said before is certain to be known.
    """

    generation: int
    generation_id: str
    tick: int
    session: str = ""

    @property
    def history(self) -> str:
        """What a version of the world belongs to."""
        return f"{self.generation_id}.{self.session}"


class Registered(msgspec.Struct, frozen=True):
    """``granted``: the incarnation is the asker's; else it is the present one, to be followed on.

    ``protocol``: the newest version that the control plane speaks.
    """

    incarnation: int
    granted: bool
    heartbeat: float
    lease: float
    terms: Terms
    protocol: int = 1


class Heartbeat(msgspec.Struct, frozen=True):
    """``unknown``: ids of what the host has and was never told of; reported, never destroyed (law 7).

    ``wall`` is the host's own clock: only ever a witness to whether the store's jumped (law 9).
    """

    incarnation: int
    sequence: int
    unknown: tuple[str, ...] = ()
    mark: Mark | None = None
    wall: float | None = None


class Holding(msgspec.Struct, frozen=True):
    """What a host has of one server, from its own disk: all that a store may have lost.

    ``fence`` is None where the record of the grant cannot be read; ``guest`` is present from a guest
    process's first moment on.
    """

    server_id: str
    guest: Thing
    disk: Thing
    fence: Fence | None = None
    nonce: str = ""
    edge: int = 0
    intent: int = 0
    spec: Spec | None = None


class Holdings(msgspec.Struct, frozen=True):
    """Everything that a host has. ``complete``: only then is what is not in it certainly not there."""

    incarnation: int
    sequence: int
    held: tuple[Holding, ...]
    complete: bool = True
    mark: Mark | None = None


class Told(msgspec.Struct, frozen=True):
    """``again``: the store cannot go on with this host before it has heard everything."""

    terms: Terms
    again: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A question that only the host can answer (``console``: the end of a console log; ``serial``: see
    ``core/console.py``), or only the agent in a guest (``guest``). ``argument`` is for the latter two, and
    ``seconds`` are left for them."""

    id: str
    server_id: str
    kind: str
    lines: int | None
    argument: str = ""
    seconds: float = 0.0


class World(msgspec.Struct, frozen=True):
    """What the store wants of one host: full snapshots of what changed, and the ids of all."""

    version: int
    ids: tuple[str, ...]
    wants: tuple[Want, ...]
    asks: tuple[Ask, ...]
    terms: Terms


class Claim(msgspec.Struct, frozen=True):
    """The agent begins to work on a server; repeating it changes nothing."""

    incarnation: int
    server_id: str
    fence: Fence


class Report(msgspec.Struct, frozen=True):
    """What the agent sees. ``disk_id`` is set when the disk was made and is to be recorded (law 3)."""

    incarnation: int
    sequence: int
    server_id: str
    fence: Fence
    observation: Observation
    disk_id: str | None = None


class Answer(msgspec.Struct, frozen=True):
    incarnation: int
    text: str
