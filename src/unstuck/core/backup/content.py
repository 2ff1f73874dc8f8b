"""What a backup consists of, in words that guests, hosts, manifests and the store share."""

from __future__ import annotations

import msgspec


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One piece: lengths in bytes, digests sha256 in hex, of the plain data and of the object."""

    index: int
    length: int
    digest: str
    sealed_length: int
    sealed_digest: str


class Datastore(msgspec.Struct, frozen=True):
    """What the data belongs to. ``server_version`` is the running server's own word."""

    type: str
    version: str
    server_version: str


class Position(msgspec.Struct, frozen=True):
    """A place in a datastore's log: PostgreSQL's timeline and LSN."""

    timeline: int
    lsn: str


class Parent(msgspec.Struct, frozen=True):
    """The backup that an incremental one needs in order to be restored. ``digest``: of its manifest."""

    id: str
    digest: str


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a guest says that it has backed up: untrusted until its host has compared ``chunks`` with what it
    wrote itself. Sizes in bytes.

    ``generation`` names the data that it is of, ``content`` the form of what is in the pieces.
    """

    datastore: Datastore
    system_identifier: str
    start: Position
    stop: Position
    chunk_size: int
    size: int
    chunks: tuple[Chunk, ...]
    content: str = "tar"
    parent: Parent | None = None
    generation: str = ""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of a backup's attempt and its manifest has to say; times wall time in seconds.

    ``key`` is the private half of the backup's own key, wrapped to ``recipients``. ``generation`` names the
    instance's data, ``archive`` the archive that its log goes into.
    """

    cloud_id: str
    project_id: str
    instance_id: str
    instance_name: str
    backup_id: str
    backup_name: str
    attempt: int
    nonce: str
    taken_at: float
    recipients: tuple[str, ...]
    key: str
    parent: Parent | None = None
    generation: str = ""
    archive: str = ""
