"""The frozen data of a server, shared by the store, the controllers and the host agents.

``Want`` is what the store tells a host about one server; ``View`` is what the host sees of it; an
``Observation`` is what the host reports back. All three go over the wire as JSON.

Frozen data has no cycles: what lists make thousands of, the garbage collector does not watch (``gc=False``).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.core.generation import Dispute
from unstuck.core.instance.want import DatabaseWant


class Power(StrEnum):
    """What the user wants of the guest: to run, to stand still, to wait on the disk, or not to be there."""

    ON = "on"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    OFF = "off"


class Thing(StrEnum):
    """The three values of an observation (law 4). Absent is a complete, positive answer."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Fence(msgspec.Struct, frozen=True, order=True, gc=False):
    """One grant of a server to a host: the store's generation, then the server's epoch in it."""

    generation: int
    epoch: int


class Flavor(msgspec.Struct, frozen=True, gc=False):
    """What a guest gets: virtual CPUs, MiB of memory, GiB of root disk (0: as large as the image)."""

    vcpus: int
    ram_mb: int
    disk_gb: int


class Shelf(StrEnum):
    """Where a shelved server is: with all of its room kept, or with its CPUs and memory given up."""

    KEPT = "kept"
    OFFLOADED = "offloaded"


class Former(msgspec.Struct, frozen=True, gc=False):
    """The flavor before a resize, to which it can be taken back: its id, and its copy in the server's row
    as JSON."""

    flavor_id: str
    flavor: str
    size: Flavor


class ImageRole(StrEnum):
    DISK = "disk"
    KERNEL = "kernel"
    RAMDISK = "ramdisk"
    ROOT = "root"
    """A read-only system tree, the same for every guest that boots from it."""


class BootImage(msgspec.Struct, frozen=True, gc=False):
    """An image that a guest boots from, fixed by digest: sha512 in hex, size in bytes."""

    id: str
    role: ImageRole
    sha512: str
    size: int
    disk_format: str


class Nic(msgspec.Struct, frozen=True, gc=False):
    """A port as the guest has it. ``gateway`` is None where the network has none."""

    port_id: str
    network_id: str
    mac: str
    address: str
    prefix: int
    gateway: str | None
    mtu: int = 1500


class Machine(StrEnum):
    """What runs a guest. People's own images run in virtual machines only."""

    VM = "vm"
    CONTAINER = "container"


class Access(msgspec.Struct, frozen=True):
    """Who may open connections to a guest: these ports (TCP), from these IPv4 networks, nothing else.

    ``cidrs`` are peers' real addresses; the guest's own network and its host are among them only if named.
    """

    ports: tuple[int, ...]
    cidrs: tuple[str, ...]


class Spec(msgspec.Struct, frozen=True):
    """What a guest is made of. ``user_data`` is base64, ``keys`` maps a key's name to its public half.

    ``data``: its disk is a volume for data alone, made empty and formatted once, ``flavor.disk_gb`` large;
    the system comes read-only from the image of role root, and its agent talks to the host's over a channel.
    ``access``: None where the port is open to its network (an ordinary server).
    """

    name: str
    hostname: str
    project_id: str
    availability_zone: str
    flavor: Flavor
    images: tuple[BootImage, ...]
    nics: tuple[Nic, ...] = ()
    metadata: dict[str, str] = {}
    keys: dict[str, str] = {}
    user_data: str | None = None
    machine: Machine = Machine.VM
    data: bool = False
    access: Access | None = None


class Want(msgspec.Struct, frozen=True):
    """What the store wants of one server on one host.

    ``intent`` numbers the user's intents; ``edge`` is the least number that a living guest process must
    carry; ``soft`` says that the way there asks the guest first, for ``patience`` more seconds.
    ``disk_recorded``: the store knows that the disk was made once, so from then on its absence is a
    fault that is shown (law 3). ``mark``: the operator's latest; what was counted before it counts no more.
    ``nonce`` names the disk; ``replaced`` are the names of those that a rebuild has it take the place of.
    ``capture`` is the id of an image that is to be made of the disk.
    """

    server_id: str
    fence: Fence
    nonce: str
    version: int
    intent: int
    power: Power
    edge: int
    soft: bool
    patience: float
    gone: bool
    disk_recorded: bool
    spec: Spec
    mark: int = 0
    replaced: tuple[str, ...] = ()
    capture: str = ""
    database: DatabaseWant | None = None
    """What is wanted of the database instance in it."""


class Running(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The guest process lives, is ours, and its CPUs run."""

    edge: int


class Paused(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The guest process lives and is ours; its CPUs stand still.

    ``reason``: why, where nobody asked for it (a write that failed, an emulation error).
    """

    edge: int
    reason: str = ""


class Off(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The guest powered itself off; its process still holds, so that this can be seen."""

    edge: int


class Mute(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The guest process certainly lives and is ours, but does not answer."""

    edge: int
    reason: str = ""


class Gone(msgspec.Struct, frozen=True, tag="Absent", gc=False):
    """No guest process, for certain. ``starts``: how often this edge was started lately, without luck."""

    starts: int = 0
    last_error: str = ""


class Unclear(msgspec.Struct, frozen=True, tag="Unknown", gc=False):
    """Nothing can be said of the guest. Never leads to an act, nor to a worse status (law 4)."""

    reason: str


Guest = Running | Paused | Off | Mute | Gone | Unclear


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Every image the guest boots from is in the host's cache, complete and verified."""


class Missing(msgspec.Struct, frozen=True, tag=True):
    """At least one image has to be fetched, and nobody fetches it now."""


class Fetching(msgspec.Struct, frozen=True, tag=True):
    """An image is on its way: bytes done, bytes in all."""

    done: int
    total: int


class FetchFailed(msgspec.Struct, frozen=True, tag=True):
    """The last fetch failed; ``final`` when no retry can help (the image is gone or differs).

    ``tries``: how many have failed in a row.
    """

    reason: str
    final: bool
    tries: int = 1
    remedy: str = "none: it is tried again by itself"


Images = Ready | Missing | Fetching | FetchFailed


class Copying(msgspec.Struct, frozen=True, tag=True):
    """An image is being made of the disk, or is on its way to the image service: bytes done, bytes in all."""

    done: int
    total: int


class CopyFailed(msgspec.Struct, frozen=True, tag=True):
    """The last try to make an image failed; ``final`` when no further one can help.

    ``tries``: how many have failed in a row.
    """

    reason: str
    final: bool
    tries: int = 1


class Delivered(msgspec.Struct, frozen=True, tag=True):
    """The image service has taken the image."""


Copy = Copying | CopyFailed | Delivered


class View(msgspec.Struct, frozen=True):
    """Everything a host sees of one server, in one look."""

    guest: Guest
    images: Images
    disk: Thing
    nics: Thing
    folder: Thing
    reason: str = ""
    remedy: str = ""
    replaced: Thing = Thing.ABSENT
    """Disks that the wanted one takes the place of."""
    memory: Thing = Thing.ABSENT
    """The memory of the wanted edge, whole on the disk: no CPU of it has run since it was saved."""
    short: bool = False
    """The wanted disk is there, and smaller than its flavor asks for."""
    copy: Copy | None = None
    """How far the image is that is wanted of the disk; None: nobody is at it."""
    copies: Thing = Thing.ABSENT
    """Files of images that were made of the disk, or begun."""


class Step(StrEnum):
    """Where a host is with a server; a word for people and for the task state, never a lock."""

    CLAIMED = "claimed"
    FETCHING = "fetching"
    DISK = "disk"
    NETWORK = "network"
    STARTING = "starting"
    PAUSING = "pausing"
    SAVING = "saving"
    CAPTURING = "capturing"
    STOPPING = "stopping"
    REMOVING = "removing"
    AT_REST = "at-rest"
    WAITING = "waiting"
    REMOVED = "removed"


class Trouble(msgspec.Struct, frozen=True, gc=False):
    """Why a host does not get on: a code, a sentence, a remedy; ``final`` when waiting cannot help."""

    code: str
    reason: str
    remedy: str
    final: bool = False


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What a host reports of a server. ``intent`` is the intent it acted on."""

    intent: int
    guest: Guest
    disk: Thing
    step: Step
    trouble: Trouble | None = None
    memory: Thing = Thing.ABSENT


class Place(msgspec.Struct, frozen=True, gc=False):
    """A server's assignment to a host, with the nonce that names what is made there."""

    host_id: str
    fence: Fence
    nonce: str


class HostSeen(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a host: ``seen`` is the lease time of its last word."""

    id: str
    hostname: str
    seen: float
    incarnation: int
    enabled: bool
    lost: bool = False
    """An operator has declared it lost."""


class OperationKind(StrEnum):
    CREATE = "create"
    STOP = "stop"
    START = "start"
    REBOOT = "reboot"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    SUSPEND = "suspend"
    RESUME = "resume"
    REBUILD = "rebuild"
    RESIZE = "resize"
    CONFIRM = "confirmResize"
    REVERT = "revertResize"
    SHELVE = "shelve"
    OFFLOAD = "shelveOffload"
    UNSHELVE = "unshelve"
    IMAGE = "createImage"
    LOCK = "lock"
    UNLOCK = "unlock"
    RESET = "resetState"
    READDRESS = "readdress"
    DELETE = "delete"


class Operation(msgspec.Struct, frozen=True, gc=False):
    """An accepted request that is still open. ``deadline`` is lease time."""

    id: str
    kind: OperationKind
    edge: int
    soft: bool
    since: float
    deadline: float


class Lock(msgspec.Struct, frozen=True, gc=False):
    """Its user, or an administrator, protects a server from all actions of members."""

    by_admin: bool
    reason: str | None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a server is in ERROR, since when (wall time), and what helps."""

    code: str
    reason: str
    remedy: str
    since: float


class Server(msgspec.Struct, frozen=True, gc=False):
    """All that the store knows of a server: intent, assignment, observation. Times are lease time
    unless their name ends in ``wall``."""

    id: str
    created: float
    power: Power
    intent: int
    edge: int
    deleted: bool
    removed: bool
    place: Place | None
    host: HostSeen | None
    seen: Observation | None
    seen_at: float
    disk_recorded: bool
    launched_wall: float | None
    lease_incarnation: int | None
    work_deadline: float | None
    operation: Operation | None
    failure: Failure | None
    disputed: Dispute | None = None
    unreadable: tuple[str, ...] = ()
    """Columns of its row that cannot be read."""
    waiting: float | None = None
    """Since when it waits for a host, where that is not since it was created."""
    marked_wall: float | None = None
    """When an operator marked it as failed."""
    locked: Lock | None = None
    replaced: tuple[str, ...] = ()
    """Nonces of the disks that its present one takes the place of."""
    before: Former | None = None
    """What it was before a resize that its user has neither confirmed nor taken back."""
    shelved: Shelf | None = None
    capture: str | None = None
    """The image that is to be made of its disk."""
