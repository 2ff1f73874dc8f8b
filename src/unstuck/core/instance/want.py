"""What the store wants of a database instance: from the store to its host, and from there to its guest.

It reaches the guest whole and in the newest form only; the guest's planner (``guest.py``) compares it with
what it sees. Nothing in it is a secret that opens anything later: passwords are verifiers.
"""

from __future__ import annotations

import msgspec

from unstuck.core.archive.data import ArchiveWant, Point
from unstuck.core.backup.content import Content, Parent


class WantedDatabase(msgspec.Struct, frozen=True):
    """A database to be made when the instance is. Empty: the datastore's default."""

    name: str
    character_set: str = ""
    collate: str = ""


class WantedUser(msgspec.Struct, frozen=True):
    """A user to be made when the instance is. ``verifier`` is what the datastore stores of a password
    (PostgreSQL: ``SCRAM-SHA-256$…``), so that nobody else ever keeps one."""

    name: str
    verifier: str
    databases: tuple[str, ...] = ()
    host: str = "%"


class Origin(msgspec.Struct, frozen=True):
    """Where the data comes from: from nothing, or out of a backup.

    ``backup_id``: fetched piece by piece under a grant that the guest asks for (``wire.RestoreGrant``).
    ``point``: with the log after it, up to there.
    """

    databases: tuple[WantedDatabase, ...] = ()
    users: tuple[WantedUser, ...] = ()
    backup_id: str | None = None
    point: Point | None = None


class BackupWant(msgspec.Struct, frozen=True):
    """The attempt that is offered, or runs. ``recipient``: the public half of the backup's own key.

    ``stop``: why it is to be stopped; None while it is to go on. ``stall`` seconds that each phase may stand
    still, by its name: the guest ends what hangs before it is given up. ``generation`` names the
    data. ``since``: the parent of an
    incremental one, and ``since_content`` what is in that, without its pieces.
    """

    backup_id: str
    attempt: int
    nonce: str
    recipient: str
    chunk_size: int
    stalls: dict[str, float]
    stop: str | None = None
    generation: str = ""
    since: Parent | None = None
    since_content: Content | None = None


class DatabaseWant(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    ``generation`` names the data: written into the volume when it is made, so that other data is never taken
    for it. ``data_recorded``: it was made once, so its absence is a fault that is shown and never mended by
    making it empty (law 3). ``restart``: the least restart number that the running server must carry.
    ``ram_mb``: what the datastore may size its caches by. ``cidrs``: who may come in, for the server's own
    list of clients (the packet filter is the host's). ``parameters``: what
    its owner set beyond the defaults, as texts for the server's file (``core/datastores``).
    ``archive``: where its log goes; None: nowhere.
    ``superuser``: the operator lets the tenant's root be a true superuser.
    """

    instance_id: str
    datastore: str
    version: str
    generation: str
    data_recorded: bool
    origin: Origin
    port: int
    cidrs: tuple[str, ...]
    ram_mb: int
    restart: int = 0
    parameters: dict[str, str] = {}
    backup: BackupWant | None = None
    archive: ArchiveWant | None = None
    superuser: bool = False
