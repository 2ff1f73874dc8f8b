"""A host, an agent and a user for the store's tests: short words for what the real ones send."""

from __future__ import annotations

import itertools

from unstuck.core.agents import (
    Claim,
    Heartbeat,
    Holding,
    Holdings,
    HostFacts,
    Register,
    Registered,
    Report,
    Told,
)
from unstuck.core.server.data import (
    Fence,
    Flavor,
    Gone,
    Guest,
    Observation,
    Running,
    Server,
    Spec,
    Step,
    Thing,
    Trouble,
    Want,
)
from unstuck.core.server.status import Status, status
from unstuck.store import agents, networks, servers
from unstuck.store.engine import Store, Tx
from unstuck.store.holdings import tell
from unstuck.store.rows import load_server

_numbers = itertools.count(1)


def caller() -> servers.Caller:
    return servers.Caller(f"req-{next(_numbers)}", "user", "project")


def facts(ram_mb: int = 1024) -> HostFacts:
    return HostFacts("h", "m", "boot", 4, ram_mb, 100, "tcg", "test", "1")


def insert(tx: Tx, name: str, ram_mb: int = 64) -> None:
    spec = Spec(name, name, "project", "nova", Flavor(1, ram_mb, 1), ())
    new = servers.NewServer(
        id=name,
        name=name,
        description=None,
        image_id="image",
        flavor_id="flavor",
        flavor={},
        key_name=None,
        metadata={},
        tags=(),
        requested_zone=None,
        config_drive=True,
        disk_config="MANUAL",
        reservation_id="r",
        launch_index=0,
        access_ipv4="",
        access_ipv6="",
        spec=spec,
    )
    servers.insert_server(tx, new, caller())
    networks.allot_port(tx, port_id=f"port-{name}", server_id=name, project_id="project", network_id=None)


class Cloud:
    """One store with a network and hosts; each host has one agent at a time."""

    def __init__(self, store: Store, *, cidr: str = "10.0.0.0/24") -> None:
        self.store = store
        store.transact(networks.ensure_default_network, project_id="project", cidr=cidr)
        self.agents: dict[str, Registered] = {}
        self.sequence = itertools.count(1)

    def host(self, host_id: str = "h", ram_mb: int = 1024, *, told: bool = True) -> None:
        """A host whose agent has registered and said that it holds nothing (or not yet: ``told``)."""
        self.store.transact(
            agents.add_host, host_id=host_id, hostname=host_id, secret_hash=host_id, machine_id=host_id
        )
        self.register(host_id, ram_mb=ram_mb)
        if told:
            self.tell(host_id)

    def register(self, host_id: str = "h", start: str | None = None, ram_mb: int = 1024) -> Registered:
        start = start or f"start-{next(_numbers)}"
        asked = self.store.transact(agents.register, host_id, Register(start, facts(ram_mb)))
        got = self.store.transact(agents.register, host_id, Register(start, facts(ram_mb), asked.incarnation))
        self.agents[host_id] = got
        return got

    def tell(self, host_id: str = "h", *held: Holding) -> Told:
        given = Holdings(self.agents[host_id].incarnation, next(self.sequence), held)
        return self.store.transact(tell, host_id, given)

    def beat(self, host_id: str = "h") -> None:
        beat = Heartbeat(self.agents[host_id].incarnation, next(self.sequence))
        self.store.transact(agents.heartbeat, host_id, beat)

    def beat_at(self, wall: float, host_id: str = "h") -> None:
        """A heartbeat that says what time it is on the host."""
        beat = Heartbeat(self.agents[host_id].incarnation, next(self.sequence), wall=wall)
        self.store.transact(agents.heartbeat, host_id, beat)

    def create(self, name: str = "a", ram_mb: int = 64) -> None:
        self.store.transact(insert, name, ram_mb)

    def place(self, name: str = "a", host_id: str = "h") -> bool:
        return self.store.transact(servers.place, name, host_id, f"nonce-{next(_numbers)}")

    def wants(self, host_id: str = "h", since: int = -1) -> dict[str, Want]:
        world = self.store.read(agents.world, host_id, self.agents[host_id].incarnation, since)
        return {want.server_id: want for want in world.wants}

    def claim(self, name: str = "a", host_id: str = "h") -> None:
        ask = Claim(self.agents[host_id].incarnation, name, self.wants(host_id)[name].fence)
        self.store.transact(agents.claim, host_id, ask)

    def report(
        self,
        guest: Guest,
        name: str = "a",
        host_id: str = "h",
        *,
        step: Step = Step.AT_REST,
        disk: Thing = Thing.PRESENT,
        disk_id: str | None = None,
        trouble: Trouble | None = None,
        intent: int | None = None,
        fence: Fence | None = None,
        sequence: int | None = None,
        incarnation: int | None = None,
        want: Want | None = None,
        memory: Thing = Thing.ABSENT,
    ) -> None:
        want = want or self.wants(host_id).get(name)
        if fence is None:
            assert want is not None
            fence = want.fence
        if intent is None:
            assert want is not None
            intent = want.intent
        self.store.transact(
            agents.report,
            host_id,
            Report(
                incarnation=incarnation or self.agents[host_id].incarnation,
                sequence=next(self.sequence) if sequence is None else sequence,
                server_id=name,
                fence=fence,
                observation=Observation(intent, guest, disk, step, trouble, memory),
                disk_id=None if disk_id is None or want is None else f"{disk_id}.{want.nonce}",
            ),
        )

    def active(self, name: str = "a", host_id: str = "h") -> None:
        """Create, place and run a server."""
        self.create(name)
        assert self.place(name, host_id)
        self.claim(name, host_id)
        self.report(Gone(), name, host_id, step=Step.DISK, disk_id="disk-1")
        self.report(Running(1), name, host_id)

    def removed(self, name: str = "a", host_id: str = "h") -> None:
        self.report(Gone(), name, host_id, step=Step.REMOVED, disk=Thing.ABSENT)

    def server(self, name: str = "a") -> Server:
        loaded = self.store.read(load_server, name)
        assert loaded is not None
        return loaded.server

    def settled(self, name: str = "a") -> bool:
        loaded = self.store.read(load_server, name)
        assert loaded is not None
        return loaded.settled

    def status(self, name: str = "a") -> Status:
        return self.store.read(shown, name)


def shown(tx: Tx, name: str) -> Status:
    loaded = load_server(tx, name)
    assert loaded is not None
    return status(loaded.server, tx.now)
