"""Plays the control loop and a host agent against the store's functions, so that servers get somewhere."""

from __future__ import annotations

import uuid
from typing import Any

from unstuck.core.agents import Answer, Ask, Claim, Heartbeat, Holdings, HostFacts, Register, Report
from unstuck.core.console import SERIAL
from unstuck.core.image import Data
from unstuck.core.server.control import EndCapture, FailIt, FinishDelete, PlaceIt, plan_control
from unstuck.core.server.data import Gone, Observation, Paused, Power, Running, Step, Thing, Want
from unstuck.store import agents, captures, networks, servers
from unstuck.store.engine import Store
from unstuck.store.holdings import tell

LOG = "line 1\nline 2\nline 3\n"


class FakeHost:
    """One host that obeys at once."""

    def __init__(self, store: Store, name: str = "host-1", *, ram_mb: int = 1 << 20, **facts: Any) -> None:
        self.store = store
        self.id = f"00000000-0000-4000-8000-{abs(hash(name)) % 10**12:012d}"
        self.name = name
        self.sequence = 0
        store.transact(agents.add_host, host_id=self.id, hostname=name, secret_hash="x", machine_id=name)
        self.ram_mb = ram_mb
        self.serial: str | None = '{"serial": true}'
        """What it says of its guests' serial ports; None: nothing."""
        self.asked: list[Ask] = []
        self.incarnation = 0
        self.register(**facts)
        self.tell()

    def register(self, **more: Any) -> None:
        """A new agent, which may find another machine than the last one did."""
        facts = HostFacts(
            self.name, self.name, "boot", 64, self.ram_mb, 10_000, "none", "fake", "1", "10.0.0.1", **more
        )
        ask = Register(f"start-{self.incarnation}", facts, self.incarnation)
        self.incarnation = self.store.transact(agents.register, self.id, ask).incarnation

    def tell(self) -> None:
        """What it holds: nothing. Asked of it whenever the store was opened anew."""
        self.store.transact(tell, self.id, Holdings(self.incarnation, self.next(), ()))

    def next(self) -> int:
        self.sequence += 1
        return self.sequence

    def beat(self, unknown: tuple[str, ...] = ()) -> None:
        self.store.transact(agents.heartbeat, self.id, Heartbeat(self.incarnation, self.next(), unknown))

    def wants(self) -> dict[str, Want]:
        world = self.store.transact(agents.world, self.id, self.incarnation, -1)
        for ask in world.asks:
            if ask.kind == SERIAL:
                self.asked.append(ask)
                if self.serial is not None:
                    self.store.transact(agents.answer_ask, self.id, self.incarnation, ask.id, self.serial)
                continue
            lines = LOG.splitlines(keepends=True)
            text = LOG if ask.lines is None else "".join(lines[-ask.lines :])
            answer = Answer(self.incarnation, text)
            self.store.transact(agents.answer_ask, self.id, self.incarnation, ask.id, answer.text)
        return {want.server_id: want for want in world.wants}

    def report(self, want: Want, **changes: Any) -> None:
        guests = {Power.ON: Running(want.edge), Power.PAUSED: Paused(want.edge)}
        guest = guests.get(want.power, Gone())
        seen = {
            "intent": want.intent, "guest": guest, "disk": Thing.PRESENT, "step": Step.AT_REST, **changes
        }  # fmt: skip
        if want.power is Power.SUSPENDED and not changes:
            seen["memory"] = Thing.PRESENT
        if want.gone and not changes:
            seen |= {"guest": Gone(), "disk": Thing.ABSENT, "step": Step.REMOVED}
        disk = f"{want.server_id}.{want.nonce}" if seen["disk"] is Thing.PRESENT else None
        report = Report(self.incarnation, self.next(), want.server_id, want.fence, Observation(**seen), disk)
        self.store.transact(agents.report, self.id, report)

    def claim(self, want: Want) -> None:
        self.store.transact(agents.claim, self.id, Claim(self.incarnation, want.server_id, want.fence))

    def deliver(self, want: Want) -> bool:
        """The image that is wanted of a server's disk."""
        nonce = uuid.uuid4().hex
        image, grant = want.capture, (want.server_id, want.fence, want.capture)
        self.store.transact(
            captures.claim_capture, self.id, self.incarnation, *grant, nonce=nonce, seconds=60.0
        )
        data = Data(name=f"{image}.{nonce}", size=5, virtual_size=9, checksum="c" * 32, sha512="a" * 128)
        return self.store.transact(captures.finish_capture, self.id, *grant, nonce=nonce, data=data)

    def work(self) -> None:
        for want in self.wants().values():
            self.claim(want)
            self.report(want)
            if want.capture:
                self.deliver(want)
        for want in self.wants().values():
            self.report(want)


def control(store: Store) -> None:
    """One round of the control loop."""
    for server_id in store.transact(servers.due_servers, 1000):
        facts = store.transact(servers.server_facts, server_id)
        assert facts is not None
        match plan_control(facts.server, facts.now):
            case PlaceIt():
                for host_id in facts.hosts:
                    if store.transact(servers.place, server_id, host_id, f"n-{server_id[:8]}"):
                        break
            case FailIt(code, reason, remedy):
                store.transact(servers.fail_server, server_id, code, reason, remedy)
            case FinishDelete():
                store.transact(servers.finish_delete, server_id)
            case EndCapture():
                store.transact(captures.end_capture, server_id)
            case _:
                store.transact(servers.review_server, server_id)


def settle(store: Store, *hosts: FakeHost) -> None:
    """Place what waits, and let the hosts do all they are told."""
    control(store)
    for host in hosts:
        host.beat()
        host.work()


def network(store: Store, project_id: str = "p") -> str:
    """The default network."""
    return store.transact(networks.ensure_default_network, project_id=project_id, cidr="10.7.0.0/16")
