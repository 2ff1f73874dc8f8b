"""The guests' protocol: what a guest agent says to its host's agent, and what it hears.

The guest asks, the host answers: one request in flight for each kind, told apart by its number. Who the guest
is follows from the channel (law: identity by channel), so no message says it. Large data travels in a frame's
blob beside the message (``runtime/framing.py``).
"""

from __future__ import annotations

import msgspec

from unstuck.core.archive.data import Piece
from unstuck.core.backup.content import Chunk, Content
from unstuck.core.instance.view import DatabaseView
from unstuck.core.instance.want import DatabaseWant

PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First on every connection. ``start`` is random per process of the agent."""

    start: str
    protocol: int
    agent_version: str = ""


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """``incarnation``: this process's number; older ones are refused from now on. Seconds."""

    incarnation: int
    heartbeat: float
    lease: float


class Look(msgspec.Struct, frozen=True, tag="look"):
    """What is wanted, as soon as it is another version than ``since``, or after ``wait`` seconds."""

    since: int
    wait: float


class GuestAsk(msgspec.Struct, frozen=True):
    """A question or request that only the database can answer. ``argument`` is JSON, by ``kind``
    (``requests.py``); ``seconds`` are left for it."""

    id: str
    argument: str
    seconds: float


class Orders(msgspec.Struct, frozen=True, tag="orders"):
    """The answer to :class:`Look`. ``want`` is None until the store has told the host."""

    version: int
    want: DatabaseWant | None
    asks: tuple[GuestAsk, ...] = ()


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What the guest sees; repeated as a heartbeat even if nothing is new (the host passes only news on).

    ``number`` counts what this process says: an older one than was heard is late, and dropped. ``after``: the
    number up to which it had been answered before it looked, 0: the hello; so its host knows when it cannot
    have looked earlier. ``number`` 0: of an agent that does not count.
    """

    view: DatabaseView
    number: int = 0
    after: int = 0


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The answer to an ask, JSON."""

    ask_id: str
    text: str


class Take(msgspec.Struct, frozen=True, tag="take"):
    """The agent takes the attempt that was offered."""

    backup_id: str
    nonce: str


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """It works on it: ``size`` bytes taken from the tool so far, ``idle`` seconds since its last progress.

    ``put_off``: what the store of objects said last, while it takes nothing.
    """

    backup_id: str
    nonce: str
    phase: str
    size: int
    idle: float
    put_off: str = ""


class Store(msgspec.Struct, frozen=True, tag="store"):
    """A piece; its object is in the frame's blob."""

    nonce: str
    chunk: Chunk


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """All pieces are stored: sign the manifest and write it."""

    nonce: str
    content: Content


class GiveUp(msgspec.Struct, frozen=True, tag="give-up"):
    """The attempt has ended without a backup. ``final``: another would end alike."""

    backup_id: str
    nonce: str
    reason: str
    final: bool = False


class AskRestore(msgspec.Struct, frozen=True, tag="ask-restore"):
    """What is in the backup that this instance is to be made from, and its key.

    ``above``: of how many generations above it: its parent's for 1, that one's parent's for 2.
    """

    above: int = 0


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """``identity``: the backup's private key, for this guest's memory only. ``parents``: how many backups
    are above this one, and have to be restored before it."""

    content: Content
    identity: str
    parents: int = 0


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """One piece's object of the backup that is restored; it comes in the answer's blob. ``above`` as in
    :class:`AskRestore`."""

    index: int
    above: int = 0


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """A piece of the log is to be kept in this archive."""

    archive_id: str
    piece: Piece


class KeepInto(msgspec.Struct, frozen=True, tag="keep-into"):
    """The answer to :class:`Keep` where it is not there yet: send it, under this name of the try."""

    tag: str


class KeepChunk(msgspec.Struct, frozen=True, tag="keep-chunk"):
    """A part of the piece; its object is in the frame's blob."""

    archive_id: str
    name: str
    tag: str
    chunk: Chunk


class KeepEnd(msgspec.Struct, frozen=True, tag="keep-end"):
    """All parts are stored: it counts from now on."""

    archive_id: str
    name: str
    tag: str
    chunks: tuple[Chunk, ...]


class AskLog(msgspec.Struct, frozen=True, tag="ask-log"):
    """The log that this instance is to be made from, after its backup: what comes after this piece."""

    after: str = ""


class LogPart(msgspec.Struct, frozen=True):
    """A piece of the log: ``size`` bytes of plain data in these parts."""

    name: str
    size: int
    chunks: tuple[Chunk, ...]


class Log(msgspec.Struct, frozen=True, tag="log"):
    """``identity``: the archive's private key, for this guest's memory only. ``more``: ask again."""

    identity: str
    parts: tuple[LogPart, ...]
    more: bool = False


class FetchLog(msgspec.Struct, frozen=True, tag="fetch-log"):
    """One part's object of a piece of the log; it comes in the answer's blob."""

    name: str
    index: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is done. ``stop``: why the attempt that was renewed is to be stopped, None to go on."""

    stop: str | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """No, for good: not this agent's, or over. ``code``: superseded, late, protocol, invalid, gone,
    damaged (what is in the blob store is not what was written), diverged (another piece of the log has this
    name)."""

    code: str
    reason: str


class NotNow(msgspec.Struct, frozen=True, tag="not-now"):
    """The host or the blob store could not; ask again after ``seconds``. ``problem`` as ``blobs.Problem``."""

    problem: str
    reason: str
    seconds: float = 1.0


Request = (
    Hello | Look | Seen | Answered | Take | Renew | Store | Finish | GiveUp | AskRestore | Fetch
    | Keep | KeepChunk | KeepEnd | AskLog | FetchLog
)  # fmt: skip
Response = Welcome | Orders | Restore | Done | Refused | NotNow | KeepInto | Log
