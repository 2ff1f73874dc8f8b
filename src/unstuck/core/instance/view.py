"""What a guest agent sees of its database instance. Untrusted: a guest is its tenant."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.core.archive.data import LogView
from unstuck.core.server.data import Thing, Trouble


class ServerState(StrEnum):
    """The database server, by asking it; unclear: alive, and no answer in time."""

    UP = "up"
    STARTING = "starting"
    DOWN = "down"
    CRASHED = "crashed"
    UNCLEAR = "unclear"


class GuestStep(StrEnum):
    """Where the agent is; a word for people, never a lock."""

    LOOKING = "looking"
    MAKING = "making"
    RESTORING = "restoring"
    STARTING = "starting"
    APPLYING = "applying"
    READY = "ready"
    RESTARTING = "restarting"
    WAITING = "waiting"


class Configured(msgspec.Struct, frozen=True):
    """The owner's parameters in the running server. ``applied``: those that it runs with, as texts.

    ``waiting``: names that come with its next start, also of what the owner does not set. ``refused``: why
    it is not configured as wanted; it runs with the last parameters that worked then.
    """

    applied: dict[str, str] = {}
    waiting: tuple[str, ...] = ()
    refused: str = ""


class DatabaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One look. ``data``: the data of the wanted generation is there, whole; absent: nothing at all is there.

    ``applied``: initial databases and users are made. ``restart``: the number the running server carries.
    ``done``/``total``: bytes of a restore. Volume sizes are MiB, so that an idle server has no news.
    ``facts``: what else a datastore tells (its server's version, system identifier). ``configured``: None
    where the server does not say. ``log``: how far its log has come, while it runs.
    """

    generation: str
    data: Thing
    server: ServerState
    step: GuestStep
    applied: bool = False
    restart: int = 0
    root_enabled: bool = False
    volume_used_mb: int = 0
    volume_size_mb: int = 0
    done: int = 0
    total: int = 0
    facts: dict[str, str] = {}
    configured: Configured | None = None
    trouble: Trouble | None = None
    log: LogView | None = None
