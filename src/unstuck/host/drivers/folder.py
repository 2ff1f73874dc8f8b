"""The layout of a host's state folder, and file writes that survive a power cut.

Everything a driver makes lies in ``servers/<server id>/`` under a name that whoever comes next can
derive (law 3); nothing in there is intent. ``host.json`` says whose folder it is: where it is missing or
names another host, the file system is probably not mounted, and all of the host is unknown (law 4).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from unstuck.core.agents import Holding
from unstuck.core.server.data import BootImage, Fence, Nic, Spec, Thing, Want
from unstuck.host.driver import DriverError
from unstuck.runtime.files import sync_folder, write_whole

FORMAT = 1
CONSOLE_START = 1 << 20
"""A console log longer than this is set aside when the guest is started."""
CONSOLE_MAX = 8 << 20
"""A guest can write to its console for ever; beyond this its older half is given up."""

DISKS = (".qcow2", ".ext4")
"""How the names of finished disks end: over an image, or a volume for data."""

_SERVER_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_IMAGE_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_SHA512 = re.compile(r"[0-9a-f]{128}\Z")
_NONCE = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Identity(msgspec.Struct, frozen=True):
    """``host.json``: written once by the agent, checked at every look."""

    format: int
    host_id: str


class Grant(msgspec.Struct, frozen=True):
    """``grant.json``: what lies in use here, for a recovery that has lost its store. Never intent."""

    generation: int
    epoch: int
    nonce: str
    edge: int
    nics: tuple[Nic, ...] = ()
    images: tuple[str, ...] | None = None
    """Names in the image cache that it boots from; None in the grants of an older version."""
    intent: int = 0
    spec: Spec | None = None
    """What it is made of: a store that was set back makes the server's row anew from this."""


class Starts(msgspec.Struct, frozen=True):
    """``starts.json``: when this edge was started lately, by the clock that counts since the boot."""

    edge: int
    boot_id: str
    times: tuple[float, ...] = ()
    mark: int = 0


class FolderError(Exception):
    """The state folder is not there or not ours; nothing can be said of what is in it."""


def write_identity(host_dir: Path, host_id: str) -> None:
    """Make a state folder this host's own; for the agent's first registration only."""
    host_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(host_dir / "host.json", msgspec.json.encode(Identity(FORMAT, host_id)))


def check_identity(host_dir: Path, host_id: str) -> None:
    """Raise :class:`FolderError` unless the folder is this host's and of a format we know."""
    try:
        identity = msgspec.json.decode((host_dir / "host.json").read_bytes(), type=Identity)
    except FileNotFoundError:
        raise FolderError("the state folder has no identity file; is its file system mounted?") from None
    except (OSError, msgspec.DecodeError) as error:
        raise FolderError(f"the state folder's identity file cannot be read: {error}") from error
    if identity.host_id != host_id:
        raise FolderError("the state folder belongs to another host")
    if identity.format != FORMAT:
        raise FolderError(f"the state folder has format {identity.format}, this version knows {FORMAT}")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cache_name(image: BootImage) -> str:
    """The name of an image in the host's cache: which image, and which content."""
    if not _IMAGE_ID.match(image.id) or not _SHA512.match(image.sha512):
        raise DriverError("the image's id or digest cannot name a file")
    return f"{image.id}.{image.sha512[:16]}"


def read_grant(folder: Path) -> Grant | None:
    """The grant in a server's folder, if it can be read."""
    try:
        return msgspec.json.decode((folder / "grant.json").read_bytes(), type=Grant)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class ServerFolder:
    """The folder of one server. The names in here are the only place that spells them."""

    def __init__(self, host_dir: Path, server_id: str) -> None:
        if not _SERVER_ID.match(server_id):
            raise DriverError(f"not a server id: {server_id[:64]!r}")
        self.server_id = server_id
        self.path = host_dir / "servers" / server_id
        self.lock = self.path / "lock"
        self.pid = self.path / "pid"
        self.sockets = (self.path / "qmp.sock", self.path / "qmp2.sock")
        self.serial = self.path / "serial.sock"
        self.console = self.path / "console.log"
        self.console_old = self.path / "console.log.1"
        self.output = self.path / "qemu.out"
        self.channel = self.path / "channel"
        self.config = self.path / "config.img"

    def disk(self, nonce: str, *, data: bool = False) -> Path:
        """The server's disk: a root disk over an image, or (``data``) a volume with a file system in it."""
        if not _NONCE.match(nonce):
            raise DriverError("the grant's nonce cannot name a disk")
        return self.path / f"disk-{nonce}.{'ext4' if data else 'qcow2'}"

    def disk_of(self, want: Want) -> Path:
        return self.disk(want.nonce, data=want.spec.data)

    def memory(self, edge: int) -> Path:
        """The saved memory of one guest process: by its number, so that no other start can load it."""
        return self.path / f"memory-{edge}"

    def copy(self, image_id: str) -> Path:
        """An image made of the disk, on its way to the image service."""
        if not _IMAGE_ID.match(image_id):
            raise DriverError("the image's id cannot name a file")
        return self.path / f"image-{image_id}.qcow2"

    def has_copies(self) -> bool:
        """Whether any image of the disk is here, whole or begun."""
        return any(entry.name.startswith("image-") for entry in self._entries())

    def drop_copies(self, keep: Path | None = None) -> None:
        """Remove images of the disk that nobody waits for."""
        for path in self.path.glob("image-*"):
            if path != keep:
                path.unlink(missing_ok=True)

    def drop_memories(self, keep: Path | None = None) -> None:
        """Remove saved memory that nobody can want any more."""
        for path in self.path.glob("memory-*"):
            if path != keep:
                path.unlink(missing_ok=True)

    def disks(self) -> list[str]:
        """The names of all finished disks in here, whoever made them."""
        with contextlib.suppress(FileNotFoundError):
            names = (path.name for path in self.path.iterdir())
            return sorted(name for name in names if name.startswith("disk-") and name.endswith(DISKS))
        return []

    def other_disks(self, want: Want) -> list[str]:
        """Finished disks that are neither the wanted one nor one that it replaces."""
        data = want.spec.data
        known = {self.disk(nonce, data=data).name for nonce in (want.nonce, *want.replaced)}
        return [name for name in self.disks() if name not in known]

    def relative(self, path: Path) -> str:
        """A path as seen from in here: what lies in the state folder stays valid where it is moved."""
        return os.path.relpath(path, self.path)

    def ensure(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_folder(self.path.parent)

    def make_channel(self) -> None:
        """The folder of the guest's channel: whoever listens in there opens it to the guest's users."""
        self.channel.mkdir(exist_ok=True)
        self.channel.chmod(0o711)

    def sweep_parts(self) -> None:
        """Remove what helpers left half made when they were killed. Nothing else has such a name."""
        for part in self.path.glob("*.part-*"):
            part.unlink(missing_ok=True)

    def write_grant(self, want: Want, *, durable: bool = True) -> None:
        fence, images = want.fence, tuple(cache_name(image) for image in want.spec.images)
        grant = Grant(
            fence.generation, fence.epoch, want.nonce, want.edge, want.spec.nics, images, want.intent,
            want.spec,
        )  # fmt: skip
        write_whole(self.path / "grant.json", msgspec.json.encode(grant), durable=durable)

    def read_grant(self) -> Grant | None:
        return read_grant(self.path)

    def starts(self) -> Starts | None:
        try:
            return msgspec.json.decode((self.path / "starts.json").read_bytes(), type=Starts)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def record_start(self, want: Want, now: float, window: float) -> None:
        """Count a start before it happens, so that a start that kills its agent is counted too."""
        kept = tuple(t for t in self._counted(want) if now - t < window)
        data = msgspec.json.encode(Starts(want.edge, boot_id(), (*kept, now), want.mark))
        write_whole(self.path / "starts.json", data, durable=False)

    def recent_starts(self, want: Want, now: float, window: float) -> int:
        return sum(1 for t in self._counted(want) if now - t < window)

    def _counted(self, want: Want) -> tuple[float, ...]:
        """The starts of this edge, in this boot, since the operator's latest mark."""
        before = self.starts()
        if before is None or (before.edge, before.mark) != (want.edge, want.mark):
            return ()
        return before.times if before.boot_id == boot_id() else ()

    def forget_starts(self) -> None:
        """The guest ended because it was told to: its starts were no failures."""
        (self.path / "starts.json").unlink(missing_ok=True)

    def last_words(self) -> str:
        """The end of what QEMU itself said, fit for a message."""
        try:
            text = self.output.read_bytes()[-2000:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(line.removeprefix("qemu-system-x86_64: ") for line in lines[-3:])[:500]

    def bound_console(self, limit: int) -> None:
        """Keep the log's newer part. QEMU appends (O_APPEND), so that emptying the file is safe meanwhile."""
        try:
            size = self.console.stat().st_size
        except FileNotFoundError:
            return
        if size <= limit:
            return
        keep = limit // 2
        with self.console.open("r+b") as log, self.console_old.open("wb") as old:
            log.seek(size - keep)
            shutil.copyfileobj(log, old)
            log.truncate(0)

    def console_tail(self, lines: int | None) -> str:
        """The last lines of the console, over the log that was set aside and the present one."""
        data = b""
        for path in (self.console_old, self.console):
            with contextlib.suppress(FileNotFoundError):
                data += path.read_bytes()
        text = data.decode(errors="replace").replace("\r\n", "\n")
        if lines is None:
            return text
        kept = text.splitlines(keepends=True)
        return "".join(kept[len(kept) - lines :]) if lines < len(kept) else text

    def remove(self) -> None:
        """Remove all, the lock last: while any of it is there, the folder is still seen."""
        self.forget_starts()
        for entry in self._entries():
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != "lock":
                Path(entry.path).unlink(missing_ok=True)
        self.lock.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()
            sync_folder(self.path.parent)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                yield from list(entries)
        except FileNotFoundError:
            return


def holdings(host_dir: Path, host_id: str, guest: Callable[[ServerFolder], Thing]) -> tuple[Holding, ...]:
    """What every server's folder tells. One that cannot be read is told of without its grant (law 8).

    Raises :class:`FolderError` and OSError where it is not certain that this is all.
    """
    check_identity(host_dir, host_id)
    return tuple(_holding(ServerFolder(host_dir, name), guest) for name in sorted(server_ids(host_dir)))


def _holding(folder: ServerFolder, guest: Callable[[ServerFolder], Thing]) -> Holding:
    try:
        grant, alive = folder.read_grant(), guest(folder)
        if grant is None:
            return Holding(folder.server_id, alive, Thing.PRESENT if folder.disks() else Thing.ABSENT)
        data = grant.spec is not None and grant.spec.data
        disk = Thing.PRESENT if folder.disk(grant.nonce, data=data).exists() else Thing.ABSENT
        if disk is Thing.ABSENT and folder.disks():
            disk = Thing.UNKNOWN  # a disk of another grant
    except (DriverError, OSError, msgspec.DecodeError):
        return Holding(folder.server_id, Thing.UNKNOWN, Thing.UNKNOWN)
    fence = Fence(grant.generation, grant.epoch)
    return Holding(folder.server_id, alive, disk, fence, grant.nonce, grant.edge, grant.intent, grant.spec)


def sweep_records(host_dir: Path) -> None:
    """Remove what a killed agent left of grants and the like, in every server's folder: a server that rests
    is not touched for long. Only with the host's lock held; what helpers write is swept with their work."""
    for part in (host_dir / "servers").glob("*/.*.json.part-*"):
        part.unlink(missing_ok=True)


def server_ids(host_dir: Path) -> frozenset[str]:
    """The ids of all servers that have a folder on this host."""
    try:
        names = (path.name for path in (host_dir / "servers").iterdir())
        return frozenset(name for name in names if _SERVER_ID.match(name))
    except FileNotFoundError:
        return frozenset()


def knows(host_dir: Path) -> Callable[[str], bool]:
    """Says of an id whether that server has a folder on this host."""

    def known(server_id: str) -> bool:
        return bool(_SERVER_ID.match(server_id)) and (host_dir / "servers" / server_id).is_dir()

    return known
