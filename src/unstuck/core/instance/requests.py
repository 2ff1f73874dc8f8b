"""What the API asks of a running database through its guest agent: databases, users, root.

A user is a name and a host that it comes from; where a datastore knows no hosts, that is always ``%``.

Nothing of this is kept in the store: the database is where users and databases are, so it is asked itself,
each request within a deadline and harmless when repeated. What is not answered in time is refused with that
reason; whether it was done then shows in the next list.
"""

from __future__ import annotations

import msgspec

from unstuck.core.instance.want import WantedDatabase, WantedUser


class DatabaseInfo(msgspec.Struct, frozen=True):
    name: str


class UserInfo(msgspec.Struct, frozen=True):
    name: str
    databases: tuple[str, ...]
    host: str = "%"


class ListDatabases(msgspec.Struct, frozen=True, tag="list-databases"):
    """Answered with ``Ok.databases``, by name, ``limit`` after ``after``; without the datastore's own."""

    limit: int
    after: str = ""


class CreateDatabases(msgspec.Struct, frozen=True, tag="create-databases"):
    """All or none where one cannot be made; ``exists`` where one is there."""

    databases: tuple[WantedDatabase, ...]


class DropDatabase(msgspec.Struct, frozen=True, tag="drop-database"):
    name: str


class ListUsers(msgspec.Struct, frozen=True, tag="list-users"):
    """Without the datastore's own users and ours; ``after`` is a name, or ``name@host`` where users have
    hosts."""

    limit: int
    after: str = ""


class GetUser(msgspec.Struct, frozen=True, tag="get-user"):
    name: str
    host: str = "%"


class CreateUsers(msgspec.Struct, frozen=True, tag="create-users"):
    users: tuple[WantedUser, ...]


class ChangeUser(msgspec.Struct, frozen=True, tag="change-user"):
    """None: leave as it is."""

    name: str
    new_name: str | None = None
    verifier: str | None = None
    host: str = "%"
    new_host: str | None = None


class DropUser(msgspec.Struct, frozen=True, tag="drop-user"):
    name: str
    host: str = "%"


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    name: str
    databases: tuple[str, ...]
    host: str = "%"


class Revoke(msgspec.Struct, frozen=True, tag="revoke"):
    name: str
    database: str
    host: str = "%"


class EnableRoot(msgspec.Struct, frozen=True, tag="enable-root"):
    """A bounded administrator (``root``): may make databases and roles, never reads the server's files."""

    verifier: str


class DisableRoot(msgspec.Struct, frozen=True, tag="disable-root"):
    pass


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Read what is there, and let the owner's own statement say whether it is right.

    Reads every row of every table, as far as ``seconds`` go. ``query``: one statement, run read-only as a
    role that may read and nothing else, in ``database`` ("": the first one); its first value has to be true
    (not false, 0, empty or NULL). Answered with ``Ok.checked``; ``Failed`` with code ``wrong`` says that the
    data is not as it should be.
    """

    seconds: float
    database: str = ""
    query: str = ""


DatabaseRequest = (
    ListDatabases
    | CreateDatabases
    | DropDatabase
    | ListUsers
    | GetUser
    | CreateUsers
    | ChangeUser
    | DropUser
    | Grant
    | Revoke
    | EnableRoot
    | DisableRoot
    | Check
)


class ReadLog(msgspec.Struct, frozen=True, tag="read-log"):
    """A part of the server's log: at most ``most`` bytes from position ``after``; -1: the last ones.

    Answered with ``Ok.log``, whether the server runs or not.
    """

    most: int
    after: int = -1


class ListExtensions(msgspec.Struct, frozen=True, tag="list-extensions"):
    """Answered with ``Ok.extensions``: all that may be had in this database."""

    database: str


class EnableExtension(msgspec.Struct, frozen=True, tag="enable-extension"):
    """Harmless where it is there."""

    database: str
    name: str


class DisableExtension(msgspec.Struct, frozen=True, tag="disable-extension"):
    """Refused while anything in the database needs it."""

    database: str
    name: str


class Lend(msgspec.Struct, frozen=True, tag="lend"):
    """A user for one task, which cannot log in after so many ``seconds`` and is removed some time later.

    ``write``: what it makes is the database's owner's; else it reads all there is.
    """

    name: str
    verifier: str
    database: str
    seconds: float
    write: bool


class EndLoan(msgspec.Struct, frozen=True, tag="end-loan"):
    """Remove a user that was lent, and its sessions."""

    name: str


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """What the agent itself is and has. Answered with ``Ok.agent``, whatever its datastore does."""


MoreRequest = ReadLog | ListExtensions | EnableExtension | DisableExtension | Lend | EndLoan
"""What not every datastore offers."""


class ExtensionInfo(msgspec.Struct, frozen=True):
    """``version``: the enabled one; empty where it is not."""

    name: str
    version: str = ""
    offered: str = ""


class LogPart(msgspec.Struct, frozen=True):
    """``after``: where the next part begins; ``size``: of the log now. A log that is shorter than ``after``
    was begun anew."""

    text: str
    after: int
    size: int


class Checked(msgspec.Struct, frozen=True):
    """What was read. ``value``: the first one that the owner's statement gave, as text."""

    databases: int = 0
    tables: int = 0
    tables_read: int = 0
    rows: int = 0
    value: str = ""


class AgentProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's process, and what its guest has. Sizes in KiB."""

    version: str
    threads: int
    fd_size: int
    vm_size: int
    vm_peak: int
    vm_rss: int
    vm_hwm: int
    mem_total: int
    cpus: int


class Ok(msgspec.Struct, frozen=True, tag="ok"):
    databases: tuple[DatabaseInfo, ...] = ()
    users: tuple[UserInfo, ...] = ()
    more: bool = False
    """There is more after the last one."""
    extensions: tuple[ExtensionInfo, ...] = ()
    log: LogPart | None = None
    checked: Checked | None = None
    agent: AgentProcess | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """``code``: not-found, exists, invalid, unready (the server does not answer), refused, wrong
    (data that cannot be read, or that its owner does not want so). ``field``: which
    part of the request, by its name in it."""

    code: str
    message: str
    field: str = ""


DatabaseAnswer = Ok | Failed
