"""The guest agent's process. It may die at any moment; its database does not notice."""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import secrets
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from unstuck.guest.agent import Agent
from unstuck.guest.asking_init import INIT, InitTools
from unstuck.guest.channel import Channel
from unstuck.guest.control import GuestControl
from unstuck.guest.datastore import Datastore
from unstuck.guest.describe import describe
from unstuck.guest.init import SOCKETS
from unstuck.guest.tools import DirectTools, Tools
from unstuck.guest.volume import Volume
from unstuck.guest.wire import Superseded
from unstuck.runtime import logs
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import EXIT_SUPERSEDED, AsyncPort

EXIT_PLACES: Final = 78

log = structlog.get_logger(__name__)


class Settings(argparse.Namespace):
    """Where things are in this guest."""

    volume: Path
    run: Path
    programs: Path | None
    datastore: str
    user: str | None
    init: Path | None
    mounted: bool
    channel: Path | None


def newest_programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = sorted(found, key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0)
    return newest[-1].parent if newest else None


def sockets_of(settings: Settings, tools: Tools) -> Path:
    """The folder of the datastore's sockets: the agent's, and open to the datastore's group."""
    sockets = settings.run / SOCKETS
    sockets.mkdir(mode=0o770, parents=True, exist_ok=True)
    group = pwd.getpwnam(tools.user).pw_gid
    if sockets.stat().st_gid != group:
        os.chown(sockets, -1, group)
    if sockets.stat().st_mode & 0o7777 != 0o2770:
        sockets.chmod(0o2770)
    return sockets


def postgresql(settings: Settings, tools: Tools, port: AsyncPort) -> Datastore:
    """Raises :class:`OSError`."""
    from unstuck.guest.datastores.postgresql.config import Places
    from unstuck.guest.datastores.postgresql.datastore import PostgreSQL

    programs = settings.programs or newest_programs()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL server is installed")
    volume = Volume(settings.volume, tools.user, mounted=settings.mounted)
    me = pwd.getpwuid(os.geteuid()).pw_name
    places = Places(volume.database, sockets_of(settings, tools), (me, tools.user))
    return PostgreSQL(volume, places, programs, tools, port.clock, lambda: port.wake("look"))


def mariadb(settings: Settings, tools: Tools, port: AsyncPort) -> Datastore:
    """Raises :class:`OSError`."""
    from unstuck.guest.datastores.mariadb.config import Places
    from unstuck.guest.datastores.mariadb.datastore import MariaDB
    from unstuck.guest.datastores.mariadb.server import PROGRAM

    if not Path(PROGRAM).exists():
        raise FileNotFoundError("no MariaDB server is installed")
    volume = Volume(settings.volume, tools.user, mounted=settings.mounted)
    me = pwd.getpwuid(os.geteuid()).pw_name
    places = Places(volume.database, sockets_of(settings, tools), me, tools.user)
    return MariaDB(volume, places, tools, port.clock, lambda: port.wake("look"), port.spawn)


DATASTORES: Final = {"postgresql": postgresql, "mariadb": mariadb}
USERS: Final = {"postgresql": "postgres", "mariadb": "mysql"}
"""Who the datastore runs as, where there is the choice."""


async def work(control: GuestControl | None, settings: Settings, tools: Tools) -> int:
    """Run one process of the agent; its exit code."""
    works: dict[str, Coroutine[Any, Any, None]] = {}
    if control is None:
        if settings.channel is None:
            raise FileNotFoundError("no way to the host was named (--channel)")
        control = channel = Channel(settings.channel)
        works["channel"] = channel.run()
    port = AsyncPort(Barriers.from_environment(settings.run), {Superseded: EXIT_SUPERSEDED})
    datastore = DATASTORES[settings.datastore](settings, tools, port)
    agent = Agent(
        port, control, datastore, secrets.token_hex(16), asyncio.to_thread, settings.volume, describe=describe
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, port.end, 0)
    log.info("guest agent starts", volume=str(settings.volume))
    works["agent"] = agent.run()
    code = await port.run(works)
    log.info("guest agent ends; the database goes on running")
    return code


def parse(argv: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="unstuck-guest", description="The agent of a database's guest.")
    parser.add_argument("--volume", type=Path, default=Path("/var/lib/unstuck"), help="the data's volume")
    parser.add_argument("--run", type=Path, default=Path("/run/unstuck"), help="for sockets")
    parser.add_argument("--channel", type=Path, default=None, help="the way to the host: a socket, or a port")
    parser.add_argument("--programs", type=Path, default=None, help="folder of the datastore's programs")
    parser.add_argument("--datastore", choices=DATASTORES, default="postgresql")
    parser.add_argument("--user", default=None, help="the datastore's user, where there is the choice")
    given = os.environ.get(INIT)
    init = None if given is None else Path(given)
    parser.add_argument("--init", type=Path, default=init, help="PID 1's socket, where it starts programs")
    parser.add_argument("--mounted", action="store_true", help="the volume has to be a mount point")
    return parser.parse_args(argv, Settings())


def make_tools(settings: Settings) -> Tools:
    """Under PID 1 of ours it starts programs; else the agent does."""
    user = settings.user or USERS[settings.datastore]
    return DirectTools(user) if settings.init is None else InitTools(settings.init, user)


def run(control: GuestControl | None, settings: Settings) -> int:
    """Over this way to the host, or over the channel; returns the process's exit code."""
    os.umask(0o027)
    try:
        return asyncio.run(work(control, settings, make_tools(settings)))
    except OSError as error:
        logs.refuse("guest", "guest agent cannot start", str(error))
        return EXIT_PLACES


def main(argv: list[str] | None = None) -> NoReturn:
    settings = parse(argv)
    logs.set_up("guest")
    code = run(None, settings)
    # Threads that wait for a server that is frozen must not keep a process that has ended.
    sys.stderr.flush()
    os._exit(code)
