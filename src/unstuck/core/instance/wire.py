"""What a host agent and the control plane say to each other about the database instances on the host.

As in ``core/agents.py``: each call may be repeated, each is fenced by the server's grant and by both
incarnations, the host agent's and its guest's.
"""

from __future__ import annotations

import msgspec

from unstuck.core.archive.data import Kept, LogSeen, Piece
from unstuck.core.backup.content import Chunk, Content, Frame
from unstuck.core.backup.data import Done, Gave
from unstuck.core.instance.view import DatabaseView
from unstuck.core.server.data import Fence


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """The host's incarnation, the server's grant, and the guest agent's incarnation (0: none yet)."""

    incarnation: int
    server_id: str
    fence: Fence
    guest: int = 0


class GuestRegister(msgspec.Struct, frozen=True):
    """A guest agent's process said hello; the same ``start`` gets the same number.

    ``sequence`` counts as in reports: a hello that was overtaken by a later one's ends nobody. 0: not told.
    """

    who: Who
    start: str
    protocol: int
    agent_version: str = ""
    sequence: int = 0


class GuestRegistered(msgspec.Struct, frozen=True):
    incarnation: int


class GuestReport(msgspec.Struct, frozen=True):
    """``alive``: the guest agent was heard of within a lease (the host's word). ``sequence`` counts per host
    incarnation. ``view`` None: it has said nothing yet. ``log``: how its log went on from the last report on
    that was taken, the oldest first; nothing from a host that keeps no account of it."""

    who: Who
    sequence: int
    alive: bool
    view: DatabaseView | None
    log: tuple[LogSeen, ...] = ()


class TakeAttempt(msgspec.Struct, frozen=True):
    """``signing_key``: the public half of the key that this host will sign the manifest with, base64."""

    who: Who
    backup_id: str
    nonce: str
    signing_key: str


class Place(msgspec.Struct, frozen=True):
    """Where a host reads and writes objects by itself: S3 and its kind. Credentials stay in memory."""

    url: str
    endpoint: str
    region: str
    access_key: str
    secret_key: str


class Taken(msgspec.Struct, frozen=True):
    """``prefix``: where its objects go. ``place`` None: through the control plane. ``certificate``: the
    cloud's word for this host's signing key, JSON as ``blobs.keys.Certificate``."""

    frame: Frame
    prefix: str
    certificate: str
    place: Place | None = None


class RenewAttempt(msgspec.Struct, frozen=True):
    """As the guest's ``Renew`` (``guestwire.py``)."""

    who: Who
    backup_id: str
    nonce: str
    phase: str
    size: int
    idle: float
    put_off: str = ""


class Renewed(msgspec.Struct, frozen=True):
    stop: str | None = None


class EndAttempt(msgspec.Struct, frozen=True):
    """How it ended. With ``Done``: the manifest is written."""

    who: Who
    backup_id: str
    nonce: str
    said: Done | Gave


class AskGrant(msgspec.Struct, frozen=True):
    """For the backup that the instance on this server is to be made from (``above`` 0), for its parent (1),
    for that one's parent (2), and so on."""

    who: Who
    above: int = 0


class RestoreGrant(msgspec.Struct, frozen=True):
    """``identity``: the backup's private key. The reader's lease is renewed by the instance's reports.

    ``parents``: how many backups are above this one, each to be asked for by itself.
    """

    backup_id: str
    prefix: str
    content: Content
    identity: str
    place: Place | None = None
    parents: int = 0


class BeginPiece(msgspec.Struct, frozen=True):
    """A guest wants a piece of its log to be kept; ``tag`` names this try."""

    who: Who
    archive_id: str
    piece: Piece
    tag: str
    signing_key: str


class BegunPiece(msgspec.Struct, frozen=True):
    """``known``: it is there already, with the same data. ``diverged``: with other data; the archive ends.

    Else it goes below ``prefix``, with a manifest that says what is in ``kept``."""

    known: bool = False
    diverged: bool = False
    prefix: str = ""
    kept: Kept | None = None
    certificate: str = ""
    place: Place | None = None


class EndPiece(msgspec.Struct, frozen=True):
    """It is kept: its manifest is written."""

    who: Who
    archive_id: str
    name: str
    tag: str
    chunks: tuple[Chunk, ...]


class AskLog(msgspec.Struct, frozen=True):
    """For the log up to the point that the instance on this server is made from; ``after`` this piece."""

    who: Who
    after: str = ""


class LogPart(msgspec.Struct, frozen=True):
    """A piece of it. Its objects lie below ``prefix``."""

    name: str
    size: int
    prefix: str
    chunks: tuple[Chunk, ...]


class LogGrant(msgspec.Struct, frozen=True):
    """``identity``: the archive's private key. ``more``: ask again, after the last one."""

    identity: str
    parts: tuple[LogPart, ...]
    more: bool = False
    place: Place | None = None
