"""The control plane within its process: the APIs and the controllers over one store."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import structlog
import uvicorn

from unstuck.api import backups as api_backups
from unstuck.api.agents.hosts import polls
from unstuck.api.app import SERVICES, all_routes, create_app
from unstuck.api.connections import Gate, behind, end_when_deaf, raise_limit, sockets_behind
from unstuck.api.console.meet import consoles
from unstuck.api.context import Settings
from unstuck.api.notify import Notifier
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.api.sockets import all_sockets
from unstuck.api.upgraded import SETTINGS
from unstuck.blobs.site import BackupSite
from unstuck.control.archives import BASE_DELAY, TIMEOUT, ArchiveController
from unstuck.control.archives import WAKE as ARCHIVES
from unstuck.control.backup_blobs import ThreadedBlobs, ThreadedLogs
from unstuck.control.backups import WAKE as BACKUPS
from unstuck.control.backups import BackupController
from unstuck.control.collect import collect_forever, count_disputed
from unstuck.control.instances import WAKE, InstanceController
from unstuck.control.keys import set_up_backups
from unstuck.control.loop import Controller
from unstuck.control.schedules import WAKE as SCHEDULES
from unstuck.control.schedules import ScheduleController
from unstuck.control.scrub import RATE, ScrubController, ThreadedScrubs
from unstuck.control.setup import set_up
from unstuck.control.verifications import WAKE as VERIFICATIONS
from unstuck.control.verifications import VerificationController
from unstuck.core.backup.scrub import EVERY, FIRST
from unstuck.core.instance.data import TRASH
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.files import write_whole
from unstuck.runtime.marks import MarkFile, Marks
from unstuck.runtime.metrics import Metrics
from unstuck.runtime.port import AsyncPort, at_once
from unstuck.runtime.processes import myself
from unstuck.runtime.service import Service
from unstuck.runtime.state import State, StateError
from unstuck.store.engine import Store
from unstuck.store.migrate import alone, ensure_schema_apart

log = structlog.get_logger(__name__)


class Ready(msgspec.Struct, frozen=True):
    """``run/control.json``: the control plane answers at this URL."""

    pid: int
    start: int
    url: str


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: this process has more to end than a web server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def health(_call: Call) -> Reply:
    """Answers whenever the process does; says which process it is."""
    return Reply({"status": "ok", "pid": os.getpid()})


def routes() -> list[Route]:
    """The whole route table of this process."""
    table = all_routes(list(dict.fromkeys([*SERVICES, "unstuck.api.agents"])))
    return [*table, route("GET", "/healthz", health, "public")]


def sockets() -> list[Route]:
    """The WebSockets of this process."""
    return all_sockets([*SERVICES, "unstuck.api.agents"])


class ControlPlane:
    """Everything of one control process between its set-up and its end."""

    def __init__(
        self, store: Store, settings: Settings, port: AsyncPort, listener: socket.socket, marks: Marks,
        site: BackupSite,
    ) -> None:  # fmt: skip
        self._port = port
        self._listener = listener
        self._store = store
        self._state_dir = settings.state_dir
        self._notifier = Notifier()
        self._metrics = Metrics()
        self._extra: dict[str, Any] = {"metrics": self._metrics, api_backups.NAME: site}
        app = create_app(
            store, settings, notifier=self._notifier, routes=routes(), sockets=sockets(), extra=self._extra
        )
        self._polls, self._consoles = polls(app.app.extra), consoles(app.app.extra)
        gate = Gate()
        config = uvicorn.Config(
            app, loop="none", http=behind(gate), ws=sockets_behind(gate), lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_graceful_shutdown=3, timeout_keep_alive=75,
            **SETTINGS,
        )  # fmt: skip
        self._server = Server(config)
        self._controller = Controller(
            port, store, self._notifier.wake, watch=self._metrics, together=at_once, marks=marks,
            disputed_files=lambda: count_disputed(store, settings.state_dir),
        )  # fmt: skip
        self._backups: BackupController | None = None
        self._scrubs: ScrubController | None = None
        self._archives: ArchiveController | None = None
        self._schedules: ScheduleController | None = None
        if site.found is not None:
            blobs = ThreadedBlobs(site.stores, site.found)
            every = scrub_seconds(os.environ.get(SCRUB_VARIABLE))
            self._backups = BackupController(
                port, store, blobs, self._notifier.wake, scrub_after=min(FIRST, every), watch=self._metrics
            )
            if every:
                self._scrubs = ScrubController(
                    port, store, ThreadedScrubs(site.stores, site.found.public.signing), self._notifier.wake,
                    rate=scrub_rate(os.environ.get(SCRUB_RATE_VARIABLE)), every=every, watch=self._metrics,
                )  # fmt: skip
            self._archives = ArchiveController(
                port, store, ThreadedLogs(site.stores), self._notifier.wake, keyring=site.found,
                places=site.stores.places, base_delay=base_seconds(os.environ.get(BASE_VARIABLE)),
                timeout=archive_seconds(os.environ.get(ARCHIVE_VARIABLE)),
                watch=self._metrics,
            )  # fmt: skip
            self._schedules = ScheduleController(
                port, store, site.found, site.stores.places, self._notifier.wake, watch=self._metrics
            )
        self._verifications = VerificationController(port, store, self._notifier.wake, watch=self._metrics)
        self._instances = InstanceController(
            port, store, self._notifier.wake, watch=self._metrics, together=at_once
        )

    async def run(self, service: Service) -> int:
        """Serve until the port is told to end; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._port.end, 0)
        web = loop.create_task(self._server.serve([self._listener]))
        web.add_done_callback(lambda _: self._port.end(1))
        works = {
            "tick": self._controller.tick_forever(),
            "servers": self._controller.servers_forever(),
            "instances": self._instances.instances_forever(),
            "wake": self._pass_wakes("control", WAKE, BACKUPS, ARCHIVES, SCHEDULES, VERIFICATIONS),
            "deaf": end_when_deaf(self._port, self._listener.getsockname()),
            "watchdog": service.watch(self._port),
            "collect": collect_forever(self._port, self._store, self._state_dir),
        }
        if self._backups is not None:
            works["backups"] = self._backups.run_forever()
        if self._scrubs is not None:
            works["scrub"] = self._scrubs.run_forever()
        if self._archives is not None:
            works["archives"] = self._archives.run_forever()
        if self._schedules is not None:
            works["schedules"] = self._schedules.schedules.run_forever()
            works["verifications"] = self._verifications.loop.run_forever()
            works["retention"] = self._schedules.retention.run_forever()
        code = await self._port.run(works)
        await self._close(web)
        return code

    async def _pass_wakes(self, key: str, *others: str) -> None:
        """What API calls wake, the controllers hear, each under a key of its own."""
        seen = self._notifier.version(key)
        while True:
            await self._notifier.wait(key, 3600.0, since=seen)
            seen = self._notifier.version(key)
            for one in (key, *others):
                self._port.wake(one)

    async def _close(self, web: asyncio.Task[None]) -> None:
        self._polls.closing = True
        self._consoles.close()
        self._server.should_exit = True
        for host_id in list(self._polls.hosts):
            self._notifier.wake(f"host:{host_id}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await web


async def run(
    state: State, store: Store, port: AsyncPort, listener: socket.socket, settings: Settings, url: str,
    site: BackupSite,
) -> int:  # fmt: skip
    plane = ControlPlane(store, settings, port, listener, MarkFile(state.store_mark, ticks=1), site)
    me = myself()
    ready = Ready(me.pid, me.start, url)
    # The socket listens already: whoever connects from here on is answered.
    write_whole(state.control_ready, msgspec.json.encode(ready), durable=False)
    log.info("control plane is ready", url=url)
    service = Service.of_this_process()
    service.say("READY=1", f"STATUS=answers at {url}")
    try:
        return await plane.run(service)
    finally:
        service.say("STOPPING=1")
        log.info("control plane ends; guests go on running")


def _settings(state: State, public_url: str | None) -> Settings:
    return Settings(
        state_dir=state.root, public_url=public_url, metrics_token=state.metrics_token(),
        database_trash_seconds=trash_seconds(os.environ.get(TRASH_VARIABLE)),
        database_superuser=superuser(os.environ.get(SUPERUSER_VARIABLE)),
        database_schedules=schedules_on(os.environ.get(SCHEDULES_VARIABLE)),
    )  # fmt: skip


TRASH_VARIABLE = "UNSTUCK_TRASH_SECONDS"
SUPERUSER_VARIABLE = "UNSTUCK_DATABASE_SUPERUSER"


def superuser(given: str | None) -> bool:
    """Whether databases' roots may be superusers. Raises :class:`StateError` for what is neither 0 nor 1."""
    if given not in (None, "", "0", "1"):
        raise StateError(f"{SUPERUSER_VARIABLE}: {given!r} is neither 0 nor 1")
    return given == "1"


SCHEDULES_VARIABLE = "UNSTUCK_BACKUP_SCHEDULES"


def trash_seconds(given: str | None) -> float:
    """How long deleted databases are kept. Raises :class:`StateError` for what is no number of seconds."""
    return _seconds(TRASH_VARIABLE, given, TRASH)


BASE_VARIABLE = "UNSTUCK_BASE_SECONDS"


def base_seconds(given: str | None) -> float:
    """How old a new database is when its first base is made by itself. Raises :class:`StateError`."""
    return _seconds(BASE_VARIABLE, given, BASE_DELAY)


ARCHIVE_VARIABLE = "UNSTUCK_ARCHIVE_SECONDS"


def archive_seconds(given: str | None) -> int:
    """After how long a part of a log leaves its guest that is not full. Raises :class:`StateError`."""
    return max(1, round(min(_seconds(ARCHIVE_VARIABLE, given, TIMEOUT), 86400.0)))


SCRUB_VARIABLE = "UNSTUCK_SCRUB_SECONDS"


def scrub_seconds(given: str | None) -> float:
    """How often the pieces of a stored backup are read again; 0: never. Raises :class:`StateError`."""
    return _seconds(SCRUB_VARIABLE, given, EVERY)


SCRUB_RATE_VARIABLE = "UNSTUCK_SCRUB_MB_PER_SECOND"


def scrub_rate(given: str | None) -> float:
    """Bytes a second that are read for that at most, on the average. Raises :class:`StateError`."""
    megabytes = _seconds(SCRUB_RATE_VARIABLE, given, RATE / (1 << 20))
    if megabytes == 0:
        raise StateError(f"{SCRUB_RATE_VARIABLE}: 0 is no rate; {SCRUB_VARIABLE}=0 ends the reading")
    return megabytes * (1 << 20)


def _seconds(name: str, given: str | None, otherwise: float) -> float:
    try:
        seconds = otherwise if given is None else float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise StateError(f"{name}: {given!r} is not a number of seconds from 0 on")
    return seconds


def schedules_on(given: str | None) -> bool:
    """Whether new databases are backed up daily. Raises :class:`StateError` for any other word."""
    if given not in (None, "on", "off"):
        raise StateError(f"{SCHEDULES_VARIABLE}: {given!r} is neither on nor off")
    return given != "off"


def _collect_less() -> None:
    """What is loaded by now stays: the garbage collector looks at it never again, and at the rest less often.

    A list of a thousand servers makes tens of thousands of objects, none of which is part of a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def serve(
    state: State, listener: socket.socket, *, store_url: str, url: str, public_url: str | None, network: str
) -> int:
    """Open the store, make it complete, and run until told to end."""
    raise_limit()
    barriers = Barriers.from_environment(state.run)
    store = Store(store_url, barrier=barriers.check)
    try:
        with alone(store):
            ensure_schema_apart(store, store_url)
            set_up(store, state, network=network)
            site = set_up_backups(store, state)
        port = AsyncPort(barriers)
        _collect_less()
        work = run(state, store, port, listener, _settings(state, public_url), url, site)
        try:
            import uvloop
        except ImportError:
            return asyncio.run(work)
        return int(uvloop.run(work))
    finally:
        store.close()
