"""The driver for virtual machines: plain QEMU, controlled over QMP (design/guests.md)."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable
from pathlib import Path

from unstuck.core.agents import Holding
from unstuck.core.server.data import (
    FetchFailed,
    Guest,
    Images,
    Missing,
    Mute,
    Off,
    Paused,
    Running,
    Thing,
    Unclear,
    View,
    Want,
)
from unstuck.host.driver import DriverError, words
from unstuck.host.drivers import disk, memory, volume
from unstuck.host.drivers.captures import Captures, ImageSink
from unstuck.host.drivers.command import Machine, guest_name
from unstuck.host.drivers.folder import (
    FolderError,
    ServerFolder,
    check_identity,
    holdings,
    knows,
    server_ids,
)
from unstuck.host.drivers.guests import Guests
from unstuck.host.drivers.process import Process, identify
from unstuck.host.drivers.qmp import Monitors, QmpError, QmpSilence
from unstuck.host.drivers.sight import STARTING, Sight, alive, inspect
from unstuck.host.images import Barrier, ImageCache, ImageSource, Wanted, no_barrier
from unstuck.host.networks.bridge import NEEDS_ROOT, NEEDS_ROOT_REMEDY, Bridges, tap_names

GUEST_USER = "unstuck-guest"
_WAKING = frozenset({"SHUTDOWN", "RESET", "STOP", "RESUME", "BLOCK_IO_ERROR", "EOF"})
"""Not POWERDOWN: it only says that the button was pressed, by us, and the next look would press it again."""
_LOOK_DEADLINE = 10.0


def guest_user() -> str | None:
    """The user that guests run as: the dedicated one where there is one and we may become it."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(GUEST_USER).pw_name
    except KeyError:
        return None


class QemuDriver:
    """One host's virtual machines. Keeps nothing that matters: a second driver sees the same.

    ``on_event`` is called in the loop's thread with a server's id when a look is worth while; losing it
    only makes things slower (law 1). ``rescue`` is for doctor, beside a living agent.
    """

    def __init__(
        self,
        host_dir: Path,
        host_id: str,
        accelerator: str,
        source: ImageSource,
        *,
        networks: Bridges | None = None,
        cache: ImageCache | None = None,
        on_event: Callable[[str], None] = lambda _: None,
        barrier: Barrier = no_barrier,
        run_as: str | None = "auto",
        qmp_deadline: float = 2.0,
        start_deadline: float = 10.0,
        rescue: bool = False,
        sink: ImageSink | None = None,
    ) -> None:
        self._host_dir = Path(os.path.realpath(host_dir))
        self._host_id = host_id
        self._on_event = on_event
        self._barrier = barrier
        self.networks = networks if networks is not None else Bridges(host_id, knows=knows(self._host_dir))
        self.cache = cache if cache is not None else ImageCache(self._host_dir, source, barrier)
        self._monitors = Monitors(qmp_deadline, self._woken, rescue=rescue)
        self._captures = Captures(sink, self.cache.space, self._monitors, barrier, on_event)
        machine = Machine(accelerator, guest_user() if run_as == "auto" else run_as)
        self._guests = Guests(machine, self.cache, self._monitors, barrier, start_deadline, on_event)

    def _woken(self, server_id: str, event: str) -> None:
        if event in _WAKING:
            self._on_event(server_id)

    def keep(self, wanted: Callable[[], Wanted | None]) -> None:
        """Whom to ask which images have to stay when room is made."""
        self.cache.wanted = wanted

    async def close(self) -> None:
        """Leave all guests running; drop connections and fetches."""
        await self._captures.close()
        await self.cache.close()
        await self._monitors.close()

    # --- looking

    async def look(self, want: Want) -> View:
        try:
            async with asyncio.timeout(_LOOK_DEADLINE):
                return await self._look(want)
        except Exception as error:  # the edge: a look never raises, what cannot be seen is unknown (law 4)
            reason = _reason(error)
            unknown = Thing.UNKNOWN
            return View(Unclear(reason), Missing(), unknown, unknown, unknown, reason)

    async def _look(self, want: Want) -> View:
        folder = ServerFolder(self._host_dir, want.server_id)
        sight = await asyncio.to_thread(inspect, self._host_dir, self._host_id, folder, want)
        guest, (nics, nics_reason) = await asyncio.gather(self._guest(folder, sight), self._look_nics(want))
        images = self._images(want)
        reason = "; ".join(part for part in (sight.reason, nics_reason) if part)
        remedy = NEEDS_ROOT_REMEDY if nics_reason == NEEDS_ROOT else ""
        return View(
            guest, images, sight.disk, nics, sight.folder, reason, remedy, sight.replaced, sight.memory,
            sight.short, self._captures.state(want), sight.copies,
        )  # fmt: skip

    async def _guest(self, folder: ServerFolder, sight: Sight) -> Guest:
        process = sight.process
        if process is None:
            return sight.guest
        try:
            answers = await self._monitors.ask(folder.server_id, folder.sockets, "query-status", "query-name")
        except QmpError as error:
            return await asyncio.to_thread(_unheard, folder, process, error)
        if answers[1].get("name") != guest_name(folder.server_id, process.edge):
            return Unclear("another guest answers on the monitor")
        match answers[0].get("status"):
            case "running" | "suspended":  # the latter: the guest sleeps (ACPI S3), of its own will
                return Running(process.edge)
            case "shutdown":
                return Off(process.edge)
            case "prelaunch" | "inmigrate":
                return Unclear("starting")
            case "io-error" | "internal-error" | "guest-panicked" | "watchdog" as reason:
                return Paused(process.edge, reason)
            case _:
                return Paused(process.edge)

    async def _look_nics(self, want: Want) -> tuple[Thing, str]:
        try:
            return await self.networks.look(want)
        except (DriverError, OSError) as error:
            return Thing.UNKNOWN, _reason(error)

    def _images(self, want: Want) -> Images:
        try:
            return self.cache.state(want.spec.images)
        except (DriverError, OSError) as error:
            return FetchFailed(_reason(error), final=False)

    # --- effects

    async def fetch(self, want: Want) -> None:
        await self._checked(want)
        await self.cache.fetch(want.spec.images)

    async def make_disk(self, want: Want) -> None:
        folder = await self._checked(want)
        if want.spec.data:
            await volume.make_volume(folder, want, self.cache.space, self._barrier, owner=0)
        else:
            await disk.make_disk(folder, want, self.cache, self._barrier)

    async def drop_disks(self, want: Want) -> None:
        await asyncio.to_thread(disk.drop_disks, await self._checked(want), want)

    async def grow_disk(self, want: Want) -> None:
        folder = await self._checked(want)
        if not want.spec.data:
            await disk.grow_disk(folder, want, self._barrier)
        elif await asyncio.to_thread(alive, folder):
            raise DriverError("a guest process of this server lives")
        else:
            await volume.grow_volume(folder.disk_of(want), disk.size_wanted(want), self._barrier)

    async def capture(self, want: Want) -> None:
        await self._captures.begin(await self._checked(want), want)

    async def drop_copies(self, want: Want) -> None:
        await self._captures.drop(await self._checked(want))

    async def make_nics(self, want: Want) -> None:
        await self.networks.make(want)

    async def start(self, want: Want) -> None:
        await self._captures.end(want.server_id)  # a copy of the disk would hold its lock
        folder = await self._checked(want)
        if want.spec.data and not await asyncio.to_thread(alive, folder):
            await volume.check_volume(folder.disk_of(want))
        with self.cache.pinned(want.spec.images):
            await self._guests.start(folder, want, tap_names(want))

    async def pause(self, want: Want) -> None:
        await self._guests.tell(await self._checked(want), "stop")

    async def resume(self, want: Want) -> None:
        await self._guests.resume(await self._checked(want), want)

    async def save(self, want: Want) -> None:
        await self._guests.save(await self._checked(want), want)

    async def drop_memory(self, want: Want) -> None:
        await asyncio.to_thread(memory.drop, await self._checked(want), want)

    async def power_down(self, want: Want) -> None:
        await self._guests.power_down(await self._checked(want))

    async def quit(self, want: Want) -> None:
        await self._guests.quit(await self._checked(want))

    async def remove_nics(self, want: Want) -> None:
        await self.networks.remove(want)

    async def remove_folder(self, want: Want) -> None:
        await self._captures.end(want.server_id)
        await self._guests.remove(await self._checked(want))

    async def found(self) -> frozenset[str]:
        try:
            await asyncio.to_thread(check_identity, self._host_dir, self._host_id)
            folders = await asyncio.to_thread(server_ids, self._host_dir)
        except (FolderError, OSError) as error:
            raise DriverError(_reason(error)) from error
        return folders | await self.networks.servers()

    async def holdings(self) -> tuple[Holding, ...]:
        def guest(folder: ServerFolder) -> Thing:
            return Thing.PRESENT if alive(folder) else Thing.ABSENT

        try:
            return await asyncio.to_thread(holdings, self._host_dir, self._host_id, guest)
        except (FolderError, OSError) as error:
            raise DriverError(_reason(error)) from error

    async def console(self, server_id: str, lines: int | None) -> str:
        folder = ServerFolder(self._host_dir, server_id)
        try:
            return await asyncio.to_thread(folder.console_tail, lines)
        except OSError as error:
            raise DriverError(f"the console log cannot be read: {_reason(error)}") from error

    async def _checked(self, want: Want) -> ServerFolder:
        """No effect in a state folder that is not ours: an unmounted one would be filled with twins."""
        try:
            await asyncio.to_thread(check_identity, self._host_dir, self._host_id)
        except FolderError as error:
            raise DriverError(_reason(error)) from error
        return ServerFolder(self._host_dir, want.server_id)


def _unheard(folder: ServerFolder, process: Process, error: QmpError) -> Guest:
    """The process was certain a moment ago, and its monitor does not answer."""
    now = identify(process.pid, folder.server_id, folder.path)
    if now is None:
        return Unclear("it is just ending")
    if now.stopped:
        return Mute(process.edge, "the guest process was stopped by a signal (SIGSTOP)")
    if not isinstance(error, QmpSilence) and process.age < STARTING:
        return Unclear("starting")
    return Mute(process.edge, f"the guest process does not answer: {error}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the state folder or the network does not answer in time"
    if isinstance(error, OSError):
        return words(error)
    return str(error) or type(error).__name__
