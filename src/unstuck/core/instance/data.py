"""A database instance as the store knows it: intent, what its guest and its server were seen to be. Frozen.

An instance is its row, the server that it lives in (with facts of its own, ``core/server``), and the backup
that runs in it, if one does. Times are lease time in seconds unless their name ends in ``wall``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.core.instance.view import DatabaseView
from unstuck.core.server.data import BootImage, Failure, Flavor, Server

SERVICE_PROJECT = "d6b7a1f00c1d4e0fa4b0e3a5d1c52f77"
"""The project that instances' servers are in: no tenant's, so that none sees them in the compute API."""
TRASH = 7 * 86400.0
"""Seconds for which a deleted instance's volume is kept."""


class PendingKind(StrEnum):
    """A request that takes a while to come about, and the datastore down with it."""

    RESTART = "restart"
    RESIZE = "resize"
    RESIZE_VOLUME = "resize-volume"
    REBUILD = "rebuild"
    UPGRADE = "upgrade"


class Former(msgspec.Struct, frozen=True):
    """What an instance is made of before a resize."""

    flavor_id: str
    ram_mb: int
    volume_gb: int


class System(msgspec.Struct, frozen=True):
    """What an instance boots, and the datastore version that this is."""

    version_id: str
    image_id: str
    images: tuple[BootImage, ...]


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request that has not come about yet; there is one at a time.

    ``patience``: until when a backup that runs is waited for. ``deadline``: when it counts as failed.
    ``applied``: since when host and guest were told; None while it waits. ``guest``: the agent's number at
    that time, where a new guest process is to come.
    ``flavor`` (with the volume's size as its disk) and ``images`` are what the server is to be made of then,
    ``flavor_copy`` is that flavor as the compute API shows it. ``former``: what counts again if it fails
    before anybody was told.
    ``system``: the version of an upgrade; ``before``: the one that it goes back to where that fails.
    ``back``: why it goes back; empty while it goes forward.
    """

    kind: PendingKind
    since: float
    patience: float
    deadline: float
    request_id: str
    user_id: str
    applied: float | None = None
    guest: int = -1
    flavor: Flavor | None = None
    flavor_copy: str = ""
    images: tuple[BootImage, ...] = ()
    image_id: str = ""
    former: Former | None = None
    system: System | None = None
    before: System | None = None
    back: str = ""


class LiveBackup(msgspec.Struct, frozen=True):
    """The backup of the instance that has not ended. ``heard``: the last word of the agent that has taken it,
    None while nobody has, and once the agent has said how it ended. ``cancelled``: it was told to stop."""

    id: str
    heard: float | None
    cancelled: bool


class Instance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that decides what comes next, and what is shown. ``server`` None: there is no row of it (any more).

    ``launched_wall``: when it could be used for the first time. ``room_mb``: memory that its host keeps for
    it. ``guest``: the number of its agent's present process, 0 before the first.
    """

    id: str
    created: float
    generation: str
    restart: int
    data_recorded: bool
    deleted: bool
    removed: bool
    server: Server | None
    protected: bool = False
    trash_until_wall: float | None = None
    pending: Pending | None = None
    launched_wall: float | None = None
    restores: str | None = None
    seen: DatabaseView | None = None
    alive: bool = False
    seen_at: float = 0.0
    guest: int = 0
    backup: LiveBackup | None = None
    failure: Failure | None = None
    room_mb: int = 0
    unreadable: tuple[str, ...] = ()
    """Columns of its row that cannot be read."""
