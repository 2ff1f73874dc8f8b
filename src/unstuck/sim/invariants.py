"""What must hold after every step, and what must hold when everything has come to rest."""

from __future__ import annotations

import hashlib

import msgspec
import sqlalchemy as sa

from unstuck.core.server.control import satisfied
from unstuck.core.server.data import Flavor, Power, Running, Server, Shelf, Spec, Want
from unstuck.core.server.status import status
from unstuck.sim.world import STRANGER, SimFolder, SimGuest, SimHost, Watch
from unstuck.store.engine import Store, Tx
from unstuck.store.prepared import Prepared
from unstuck.store.rows import load_server
from unstuck.store.schema.compute import hosts as host_table
from unstuck.store.schema.compute import operations, placements, servers
from unstuck.store.schema.database import instances
from unstuck.store.schema.images import images
from unstuck.store.schema.network import ports


class Truth(Watch):
    """Checks every effect on a host against the store's intent at that very moment."""

    def __init__(self, store: Store, hosts: list[SimHost]) -> None:
        self._store = store
        self._hosts = hosts
        self.violations: list[str] = []
        self.wishes: dict[str, list[tuple[float, str]]] | None = None
        """What users asked for and when, where the store itself cannot be asked: it may be an old copy."""
        self.late = 0.0
        """How long a host may go without hearing of a wish: wake-ups are lost in some runs."""
        self.had_data: set[str] = set()

    def fail(self, text: str) -> None:
        self.violations.append(text)

    def started(self, host: SimHost, want: Want) -> None:
        """One guest per server in the whole cloud, and none that the store no longer grants."""
        for other in self._hosts:
            if want.server_id in other.guests:
                self.fail(f"second guest of {want.server_id} on {host.id}: one lives on {other.id}")
        self.had_data.add(want.server_id)
        if self.wishes is not None:
            return  # what was granted before the store was set back may still be begun
        server = self._server(want.server_id)
        if server is None or server.place is None or server.place.fence != want.fence:
            self.fail(f"{want.server_id} started under {want.fence}, which the store does not grant")
        folder = host.folders.get(want.server_id)
        if folder is not None and not want.disk_recorded:
            self.fail(f"{want.server_id} started before its disk was recorded")
        if folder is not None and folder.size < want.spec.flavor.disk_gb:
            self.fail(f"{want.server_id} started on a disk that is too small")
        taken = [guest.flavor.ram_mb for guest in host.guests.values() if guest.flavor is not None]
        if sum(taken) + want.spec.flavor.ram_mb > host.facts().ram_mb:
            self.fail(f"{want.server_id} started on {host.id}, which has not that much memory")

    def quitting(self, host: SimHost, server_id: str, guest: SimGuest) -> None:
        """A guest that its user wants running is never ended."""
        if server_id == STRANGER:
            self.fail("an unknown guest was ended")
            return
        if self.wishes is not None:
            if not self._asked(server_id, guest.since):
                self.fail(f"the guest of {server_id} was ended, and nobody asked for that since it started")
            return
        server = self._server(server_id)
        wanted = server is not None and not server.deleted and server.power is not Power.OFF
        alive = guest.state in ("running", "paused", "io-error")
        folder = host.folders.get(server_id)
        saved = folder is not None and folder.memory == (guest.edge, folder.writes)
        if server is not None and server.power is Power.SUSPENDED and saved:
            return
        if wanted and server is not None and guest.edge >= server.edge and alive:
            self.fail(f"the healthy guest of {server_id} was ended")

    def stopping(self, host: SimHost, server_id: str, guest: SimGuest) -> None:
        """A guest that its user wants running never stands still by our doing."""
        server = self._server(server_id)
        if server is None or server.deleted or guest.edge < server.edge:
            return
        if server.power is Power.ON:
            self.fail(f"the guest of {server_id} was paused, and nobody wants that")

    def continuing(self, host: SimHost, server_id: str, guest: SimGuest) -> None:
        """Nor does one go on that is to stand still. One that is to end may: its host may not have heard of
        that yet, and a guest that stands still cannot end by itself."""
        server = self._server(server_id)
        if server is None or server.power not in (Power.ON, Power.OFF):
            self.fail(f"the guest of {server_id} was continued, and nobody wants that")

    def disk_made(self, host: SimHost, want: Want) -> None:
        """Data only once (law 3)."""
        if self.wishes is not None:
            if want.server_id in self.had_data and not self._asked(want.server_id, 0.0, "delete"):
                self.fail(f"the disk of {want.server_id}, which had data, was made again, empty")
            for other in self._hosts:
                folder = other.folders.get(want.server_id)
                if other is not host and folder is not None and folder.disk:
                    self.fail(f"server on two hosts: {want.server_id} on {host.id}, and it is on {other.id}")
            return
        server = self._server(want.server_id)
        same = server is not None and server.place is not None and server.place.nonce == want.nonce
        if server is not None and same and server.disk_recorded:
            self.fail(f"the recorded disk of {want.server_id} was made again, empty")

    def loaded(self, host: SimHost, want: Want) -> None:
        """A memory only ever comes back to the very disk that it left."""
        folder = host.folders[want.server_id]
        if folder.memory is None or folder.memory[1] != folder.writes:
            self.fail(f"an old memory of {want.server_id} was loaded over a disk that has moved on")

    def forgetting(self, host: SimHost, want: Want) -> None:
        """Saved memory goes only while a guest has it in its process (or the server is deleted)."""
        server = self._server(want.server_id)
        if want.server_id not in host.guests and server is not None and not server.deleted:
            self.fail(f"the only memory of {want.server_id} was dropped")

    def dropping(self, host: SimHost, want: Want) -> None:
        """An old disk goes only when the store knows the one that replaces it, and no guest is on it."""
        server = self._server(want.server_id)
        if server is None or server.place is None or want.server_id in host.guests:
            self.fail(f"a disk of {want.server_id} was dropped under its guest, or nobody's")
        elif server.deleted:
            return
        elif server.place.nonce != want.nonce or not server.disk_recorded:
            self.fail(f"the old disk of {want.server_id} was dropped before the new one was recorded")

    def growing(self, host: SimHost, want: Want) -> None:
        """A disk grows under no guest, and only once it is recorded."""
        if want.server_id in host.guests or not want.disk_recorded:
            self.fail(f"the disk of {want.server_id} was grown under its guest, or before it was recorded")

    def removing(self, host: SimHost, want: Want) -> None:
        """Only what its user deleted is removed, and never under a living guest."""
        if want.server_id in host.guests:
            self.fail(f"the folder of {want.server_id} was removed under its living guest")
        if self.wishes is not None:
            kept = host.folders.get(want.server_id)
            data = kept is not None and kept.disk
            if data and not self._asked(want.server_id, 0.0, "delete"):
                self.fail(f"the disk of {want.server_id} was removed, and its user never deleted it")
            return
        server, folder = self._server(want.server_id), host.folders.get(want.server_id)
        if server is not None and server.deleted:
            return
        if server is None or not _moved(server, host):
            self.fail(f"the folder of {want.server_id} was removed although nobody deleted it")
        elif folder is not None and folder.data:
            self.fail(f"{want.server_id} was placed anew, and a guest of it has run on {host.id}")

    def nics_made(self, host: SimHost, want: Want) -> None:
        """An address is used by one server in the whole cloud."""
        mine = {nic.address for nic in want.spec.nics}
        for other in self._hosts:
            for server_id, addresses in other.taps.items():
                if server_id != want.server_id and mine.intersection(addresses):
                    self.fail(f"address given to two: {want.server_id} has the one of {server_id}")

    def _asked(self, server_id: str, since: float, *kinds: str) -> bool:
        """A user asked for something that ends a guest, after ``since``."""
        allowed = kinds or ("stop", "reboot", "delete", "power-off")
        wishes = (self.wishes or {}).get(server_id, [])
        return any(kind in allowed and (kind == "delete" or at >= since - self.late) for at, kind in wishes)

    def _server(self, server_id: str) -> Server | None:
        loaded = self._store.read(load_server, server_id)
        return None if loaded is None else loaded.server


def _moved(server: Server, host: SimHost) -> bool:
    return server.place is None or server.place.host_id != host.id


_UNSETTLED = Prepared(
    sa.select(
        sa.select(sa.func.count()).where(sa.not_(servers.c.settled)).scalar_subquery()
        + sa.select(sa.func.count())
        .where(
            operations.c.state == "open",
            # What is in dispute counts as settled, with a condition.
            operations.c.resource_id.not_in(sa.select(servers.c.id).where(servers.c.disputed.is_not(None))),
            operations.c.resource_id.not_in(
                sa.select(instances.c.id)
                .join(servers, servers.c.id == instances.c.server_id)
                .where(servers.c.disputed.is_not(None))
            ),
        )
        .scalar_subquery()
        + sa.select(sa.func.count()).where(placements.c.state == "tombstone").scalar_subquery()
    )
)


_ROWS = Prepared(
    sa.select(
        servers.c.id,
        servers.c.power,
        servers.c.intent,
        servers.c.edge,
        servers.c.deleted,
        servers.c.removed,
        servers.c.mark,
        servers.c.marked_wall,
        servers.c.seen,
        servers.c.disk_id,
        servers.c.replaced,
        servers.c.before,
        servers.c.shelved,
        servers.c.capture,
        servers.c.settled,
        servers.c.lease_incarnation,
        placements.c.state,
        operations.c.id.label("operation"),
        ports.c.address,
    )
    .outerjoin(placements, placements.c.server_id == servers.c.id)
    .outerjoin(operations, sa.and_(operations.c.resource_id == servers.c.id, operations.c.state == "open"))
    .outerjoin(ports, ports.c.server_id == servers.c.id)
    .order_by(servers.c.id)
)
_HEARD = Prepared(sa.select(host_table.c.id, host_table.c.seen, host_table.c.incarnation))


def stable(text: str) -> int:
    """A hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def fingerprint(tx: Tx, hosts: list[SimHost]) -> str:
    """Store and world without their times; of a host's silence only how it is judged."""
    lease = tx.now.lease
    heard = [(row.id, row.incarnation, min(int((lease - row.seen) / 30), 2)) for row in _HEARD.all(tx)]
    world = [
        (
            host.boot,
            host.cached,
            (host.full, host.broken),
            sorted(host.taps),
            sorted(map(str, host.folders.items())),
            sorted(map(str, host.guests.items())),
        )
        for host in hosts
    ]
    return repr((_ROWS.all(tx), heard, world))


def unsettled(tx: Tx) -> int:
    """How many rows are not at rest: servers, open operations, tombstones."""
    return int(_UNSETTLED.scalar(tx))


def unfinished_images(tx: Tx) -> list[str]:
    """An image that is made of a disk has its data in the end, or is removed; nobody works on it for ever."""
    rows = tx.execute(sa.select(images).where(images.c.deleted_wall.is_(None), images.c.data_name.is_(None)))
    wanted = tx.execute(sa.select(servers.c.id).where(servers.c.capture.is_not(None))).scalars()
    return [f"image {row.id} came to no end" for row in rows] + [
        f"an image of {server_id} is wanted still" for server_id in wanted
    ]


def differences(tx: Tx, hosts: list[SimHost], expected: dict[str, str]) -> list[str]:
    """The full diff of store against world, once everything is at rest."""
    wrong: list[str] = []
    living: dict[str, str] = {}
    for server_id in tx.execute(sa.select(servers.c.id)).scalars():
        loaded = load_server(tx, server_id)
        assert loaded is not None
        server = loaded.server
        shown = status(server, tx.now).status
        want = expected.get(server_id)
        if want is not None and shown != want:
            wrong.append(f"{server_id} is {shown}, expected {want}")
        if not loaded.settled:
            wrong.append(f"{server_id} is not settled")
        if server.place is None:
            continue
        living[server_id] = server.place.host_id
        host = next(h for h in hosts if h.id == server.place.host_id)
        guest = host.guests.get(server_id)
        if shown == "ACTIVE" and (guest is None or guest.state != "running"):
            wrong.append(f"{server_id} is shown ACTIVE and no guest runs")
        folder = host.folders.get(server_id)
        wrong += _sizes(tx, server, guest, folder)
        if shown == "SUSPENDED" and (guest is not None or folder is None or folder.memory is None):
            wrong.append(f"{server_id} is shown SUSPENDED and its memory is not just on the disk")
        if shown == "PAUSED" and (guest is None or guest.state != "paused"):
            wrong.append(f"{server_id} is shown PAUSED and no guest stands still")
        if shown in ("SHUTOFF", "SHELVED", "SHELVED_OFFLOADED") and guest is not None:
            wrong.append(f"{server_id} is shown {shown} and its process lives")
        if satisfied(server) and isinstance(server.seen and server.seen.guest, Running) and guest is None:
            wrong.append(f"{server_id} is recorded running and is not")
    return wrong + _leftovers(tx, hosts, living)


def _sizes(tx: Tx, server: Server, guest: SimGuest | None, folder: SimFolder | None) -> list[str]:
    """Guest, disk and the room that is taken are as the server's flavor says."""
    text = tx.execute(sa.select(servers.c.spec).where(servers.c.id == server.id)).scalar_one()
    size, wrong = msgspec.json.decode(text, type=Spec).flavor, []
    room = tx.execute(
        sa.select(placements.c.vcpus, placements.c.ram_mb, placements.c.disk_gb).where(
            placements.c.server_id == server.id, placements.c.state == "live"
        )
    ).one()
    other = size if server.before is None else server.before.size
    if server.shelved is Shelf.OFFLOADED:
        size = other = Flavor(0, 0, size.disk_gb)
    both = (max(size.vcpus, other.vcpus), max(size.ram_mb, other.ram_mb), max(size.disk_gb, other.disk_gb))
    if tuple(room) != both and not _in_trash(tx, server.id):
        wrong.append(f"the room for {server.id} is {tuple(room)}, and should be {both}")
    if guest is not None and guest.flavor != size:
        wrong.append(f"the guest of {server.id} has {guest.flavor}, and should have {size}")
    if folder is not None and folder.disk and folder.size < size.disk_gb:
        wrong.append(f"the disk of {server.id} is too small")
    return wrong


def _in_trash(tx: Tx, server_id: str) -> bool:
    """A deleted database's server keeps no more than its volume's room."""
    query = sa.select(instances.c.deleted).where(instances.c.server_id == server_id)
    return bool(tx.execute(query).scalar_one_or_none())


def _leftovers(tx: Tx, hosts: list[SimHost], living: dict[str, str]) -> list[str]:
    wrong = []
    for host in hosts:
        for name, folder in host.folders.items():
            wrong += [f"the image {image} of {name} is left over" for image in folder.copies]
            wrong += [f"the replaced disk {nonce} of {name} is left over" for nonce in folder.old]
        mine = {server_id for server_id, host_id in living.items() if host_id == host.id}
        for kind, names in (
            ("guest", set(host.guests)),
            ("folder", set(host.folders)),
            ("tap", set(host.taps)),
        ):
            wrong += [
                f"{kind} of {name} is left over on {host.id}" for name in set(names) - mine - {STRANGER}
            ]
        if STRANGER not in host.guests:
            wrong.append(f"the unknown guest on {host.id} was destroyed")
    kept = set(tx.execute(sa.select(ports.c.server_id)).scalars())
    wrong += [f"address of {name} is still taken" for name in kept - set(living)]
    placed = set(tx.execute(sa.select(placements.c.server_id)).scalars())
    wrong += [f"room for {name} is still taken" for name in placed - set(living)]
    return wrong
