"""Managed databases in the simulated cloud: what is inside the guests, the blob store, and who serves them.

The loops are the product's own: ``guest/agent.py`` in each guest, ``host/guests.py`` beside each host's
agent, ``control/instances.py`` and ``control/backups.py`` in the control plane.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import sqlalchemy as sa

from unstuck.blobs import keys
from unstuck.blobs.keyring import FORMAT, CloudKeys, Keyring
from unstuck.blobs.objects import sha256
from unstuck.control.archives import ArchiveController
from unstuck.control.backup_blobs import ThreadedBlobs, ThreadedLogs
from unstuck.control.backups import BackupController
from unstuck.control.instances import WAKE, InstanceController
from unstuck.control.schedules import ScheduleController
from unstuck.control.scrub import ScrubController, ThreadedScrubs
from unstuck.control.verifications import VerificationController
from unstuck.core.agents import World
from unstuck.core.backup.data import Phase
from unstuck.core.image import Data, Image
from unstuck.host.agent import Agent
from unstuck.host.guests import GuestService
from unstuck.sim.blobs import SimBlobs, SimLanes, SimPieces, SimStores
from unstuck.sim.database_invariants import DatabaseTruth, unsettled
from unstuck.sim.datastore import PIECE, Volume
from unstuck.sim.engine import Process
from unstuck.sim.guest import Inside
from unstuck.sim.guestcontrol import SimDatabaseControl
from unstuck.sim.schedule_scenarios import SCHEDULE_SCENARIOS
from unstuck.sim.scrub_scenarios import AFTER as SCRUB_AFTER
from unstuck.sim.scrub_scenarios import SCRUB_SCENARIOS
from unstuck.sim.verify_scenarios import VERIFY_SCENARIOS
from unstuck.sim.world import SimGuest, SimHost, SimStore
from unstuck.store import cloud_keys, datastores, flavors, images
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow
from unstuck.store.schema.identity import projects

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser
    from unstuck.sim.runner import Run

TICK: Final = 4.0
FLAVORS: Final = {"small": 256, "large": 512}


@functools.cache
def keyring() -> Keyring:
    """The simulated cloud's keys: real ones, made once per process."""
    root, signer = keys.new_identity(), keys.Signer.new()
    recovery = keys.recipient_of(keys.new_identity())
    public = CloudKeys(FORMAT, "cloud", keys.recipient_of(root), signer.public, recovery)
    return Keyring(public, root, signer)


@functools.cache
def host_signer(host_id: str) -> keys.Signer:  # noqa: ARG001
    """In a file of the host's state folder, in production: it outlives its agents."""
    return keys.Signer.new()


def populate(tx: Tx) -> None:
    """What a cloud with databases begins with."""
    for name, ram_mb in FLAVORS.items():
        flavors.create_flavor(tx, FlavorRow(id=name, name=name, vcpus=1, ram_mb=ram_mb, disk_gb=1))
    kernel = _add_image(tx, "kernel")
    system = _add_image(tx, "system", kernel_id=kernel)
    datastores.ensure_datastores(tx)
    datastores.register_version(
        tx, version_id="v15", datastore_id="unused", datastore="postgresql", name="15", manager="postgresql",
        version="15.14", image_id=system, active=True, default=True,
    )  # fmt: skip
    for name, version in (("new", "15.16"), ("bad", "15.99")):
        image = _add_image(tx, f"system-{name}", kernel_id=kernel)
        datastores.register_version(
            tx, version_id=name, datastore_id="unused", datastore="postgresql", name=name,
            manager="postgresql", version=version, image_id=image, active=True, default=False,
        )  # fmt: skip
    cloud_keys.agree_on_keys(tx, keyring().public, "folder")
    cloud_keys.ensure_project_key(tx, "p", keyring())


def _add_image(tx: Tx, name: str, **properties: str) -> str:
    assert tx.execute(sa.select(projects.c.id)).first() is not None
    row = Image(
        id=name, project_id="p", created=0.0, updated=0.0, name=name, visibility="public", disk_format="raw",
        container_format="bare", properties=properties,
    )  # fmt: skip
    images.create_image(tx, row, most=10)
    images.claim_upload(tx, name, project_id="p", admin=True, nonce="n", seconds=60.0)
    data = Data(name=f"{name}.n", size=1, virtual_size=1, checksum="c" * 32, sha512="a" * 128)
    images.finish_upload(tx, name, nonce="n", disk_format="raw", data=data)
    return name


class Databases:
    """All that a run with databases has beside servers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.engine = run.engine
        self.store = run.store
        self.keyring = keyring()
        self.blobs = SimBlobs(run.engine)
        self.stores = SimStores(self.blobs)
        self.truth = DatabaseTruth(self, run.truth)
        self.blobs.written = self.truth.object_written
        self.blobs.removing = self.truth.object_removed
        self.volumes: dict[tuple[str, str, str], Volume] = {}
        """By host, server and the disk's own name."""
        self.insides: dict[tuple[str, str], Inside] = {}
        self.without_agent: set[str] = set()
        """Servers whose guests have no agent (any more)."""
        self.other_version: set[str] = set()
        """Servers whose agents speak another version of the protocol."""
        self.hangs: dict[str, Phase] = {}
        """Where the backup tool hangs, by server."""
        self.cutting = False
        self.folder = Path(tempfile.mkdtemp(prefix="unstuck-sim-", dir=_memory()))
        """For what is really kept in files: a host's ledgers of attempts."""
        self.damaged: set[str] = set()
        """Backups that somebody has spoiled since they were complete."""
        self.archiving = False
        """Logs are kept, and bases make themselves."""
        self.patient = False
        """Also what only waits for late uploads is waited for."""
        self.user: DatabaseUser
        self._services: dict[str, tuple[Process, GuestService]] = {}
        self._timelines = 0

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_timeline(self) -> int:
        self._timelines += 1
        return self._timelines

    # --- processes

    def boot_control(self, process: Process) -> None:
        """The loops that a control plane with backups has besides."""
        store = SimStore(self.store)
        notify = self._run.notify
        instances = InstanceController(process.port, store, notify, tick=TICK)
        blobs = ThreadedBlobs(self.stores, self.keyring, SimLanes(self.blobs))
        backups = BackupController(process.port, store, blobs, notify, tick=TICK, scrub_after=SCRUB_AFTER)
        process.spawn("instances", instances.instances_forever())
        process.spawn("backups", backups.run_forever())
        logs = ArchiveController(
            process.port, store, ThreadedLogs(self.stores, SimLanes(self.blobs)), notify,
            keyring=self.keyring, places=self.stores.places, base_delay=10.0, tick=TICK,
        )  # fmt: skip
        process.spawn("archives", self._archives_forever(process, logs))
        if self._run.scenario in SCRUB_SCENARIOS:
            pieces = ThreadedScrubs(self.stores, self.keyring.public.signing, SimLanes(self.blobs))
            scrubs = ScrubController(process.port, store, pieces, notify, every=SCRUB_AFTER, tick=TICK)
            process.spawn("scrub", scrubs.run_forever())
        if self._run.scenario in VERIFY_SCENARIOS:
            verifications = VerificationController(process.port, store, notify, tick=TICK)
            process.spawn("verifications", verifications.loop.run_forever())
        if self._run.scenario in SCHEDULE_SCENARIOS:
            # Elsewhere it would only make every run longer.
            schedules = ScheduleController(
                process.port, store, self.keyring, self.stores.places, notify, tick=TICK
            )
            process.spawn("schedules", schedules.schedules.run_forever())
            process.spawn("retention", schedules.retention.run_forever())

    async def _archives_forever(self, process: Process, logs: ArchiveController) -> None:
        """Only where a scenario is about it: elsewhere a backup that nobody asked for would be in the way."""
        while not self.archiving:
            await process.port.pause(5.0, "archiving")
        await logs.run_forever()

    def serve(self, process: Process, agent: Agent, host: SimHost) -> None:
        """The service for the guests' agents, in the process of the host's agent."""
        folder = self.folder / host.id
        folder.mkdir(exist_ok=True)

        def folder_of(server_id: str) -> Path:
            found = folder / server_id
            found.mkdir(exist_ok=True)
            return found

        async def digest(data: bytes) -> str:
            return sha256(data)

        def make() -> GuestService:
            made = GuestService(
                process.port, SimDatabaseControl(self, host.id), agent, host_signer(host.id),
                lambda _: SimPieces(self.blobs), folder_of, digest_of=digest,
            )  # fmt: skip
            self._services[host.id] = (process, made)
            return made

        agent.serve(make)

    def service(self, host_id: str) -> tuple[Process, GuestService] | None:
        """Who is at the other end of the channels of this host's guests."""
        found = self._services.get(host_id)
        return None if found is None or found[0].dead else found

    def control_up(self) -> bool:
        return self._run.control_up()

    def wake(self, *names: str) -> None:
        """What the API's handlers wake."""
        for name in names:
            if name.startswith("host:"):
                self._run.notify(name)
            elif name == "control":
                self._run.wake(name)
                self._run.wake(WAKE)
            else:
                self._run.wake(name)

    # --- judging

    async def audit_forever(self, process: Process) -> None:
        while True:
            await process.port.pause(5.0, "audit")
            control, since = self._run.control, self._run.control_since
            up = control is not None and control.frozen_until <= self.engine.now
            if control is not None:
                since = max(since, control.frozen_until)
            self.store.read(self.truth.audit, since if up else None, self._run.jumped_at)

    def unsettled(self) -> int:
        return self.store.read(functools.partial(unsettled, patient=self.patient))

    def quiet(self) -> bool:
        """Nobody in a guest is at work on a backup, or has yet to sweep up after one."""
        return not any(inside.tools or (inside.slots and inside.is_new) for inside in self.insides.values())

    def differences(self) -> list[str]:
        return self.store.read(self.truth.differences, self.user.asked, self.user.written)

    # --- the insides of guests

    def sync(self) -> None:
        """After each step: a guest that runs has an inside, one that has gone has none."""
        for key in list(self.insides):
            host = next(host for host in self._run.hosts if host.id == key[0])
            if host.guests.get(key[1]) is not self.insides[key].guest:
                self.insides.pop(key).die()
        for host in self._run.hosts:
            for server_id, guest in host.guests.items():
                self._sync(host, server_id, guest)

    def _sync(self, host: SimHost, server_id: str, guest: SimGuest) -> None:
        folder = host.folders.get(server_id)
        if folder is None or folder.want is None or folder.want.database is None:
            return
        inside = self.insides.get((host.id, server_id))
        if guest.state == "off":
            if inside is not None and not inside.dead:
                inside.die()
            return
        if inside is None:
            if guest.forked:
                return
            volume = self.volumes.setdefault((host.id, server_id, folder.nonce), Volume())
            self.insides[host.id, server_id] = Inside(
                self, host.id, server_id, guest, volume, folder.want.spec.images[0].id
            )
            return
        inside.keep()
        inside.stand_still(still=guest.state != "running")

    def gap_folder(self, inside: Inside) -> Path:
        """Where a guest's volume is, as far as it has files."""
        found = self.folder / f"volume-{inside.server_id}-{id(inside.volume)}"
        found.mkdir(exist_ok=True)
        return found

    def inside_of(self, server_id: str) -> Inside | None:
        return next((found for key, found in self.insides.items() if key[1] == server_id), None)

    def volume_of(self, server_id: str) -> Volume | None:
        """Of the disk that is there."""
        for host in self._run.hosts:
            folder = host.folders.get(server_id)
            if folder is not None and folder.disk:
                return self.volumes.get((host.id, server_id, folder.nonce))
        return None


def small_pieces(world: World) -> World:
    """The simulated cloud's pieces are small: nothing else about them is simulated."""
    wants = []
    for want in world.wants:
        database = want.database
        if database is not None and database.backup is not None:
            backup = msgspec.structs.replace(database.backup, chunk_size=PIECE)
            database = msgspec.structs.replace(database, backup=backup)
        wants.append(msgspec.structs.replace(want, database=database))
    return msgspec.structs.replace(world, wants=tuple(wants))


def _memory() -> str | None:
    """Where files cost no disk, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
