"""An instance with its guest for the store's tests: short words for what the real ones send."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from tests.compute_site import add_image
from tests.store.play import Cloud, facts
from unstuck.control.instances import InstanceController
from unstuck.core.agents import Register
from unstuck.core.instance import status as words
from unstuck.core.instance.control import plan_control
from unstuck.core.instance.data import Instance
from unstuck.core.instance.view import DatabaseView, GuestStep, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.instance.wire import GuestRegister, GuestReport, Who
from unstuck.core.server.data import Gone, Power, Running, Step, Thing, Trouble
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.store import agents, datastores, flavors, identity, instance_work, instances
from unstuck.store.engine import Store, Tx
from unstuck.store.identity import Project
from unstuck.store.instance_guests import Noted, guest_register, guest_report
from unstuck.store.instance_rows import load_instance
from unstuck.store.instances import AskedInstance, NewIds
from unstuck.store.schema.clock import clock
from unstuck.store.schema.database import instances as table
from unstuck.store.servers import Caller

_numbers = itertools.count(1)


def caller(project: str = "p", *, admin: bool = False) -> Caller:
    return Caller(f"req-db-{next(_numbers)}", "u", project, admin)


def furnish(tx: Tx) -> None:
    """Two projects, flavors, and a datastore with a version whose image has a kernel."""
    for name in ("p", "q"):
        identity.create_project(tx, Project(id=name, name=name))
    flavors.ensure_default_flavors(tx)
    datastores.ensure_datastores(tx)
    root = add_image(tx, "root", properties={"kernel_id": add_image(tx, "kernel")})
    datastores.register_version(
        tx, version_id="v15", datastore_id="unused", datastore="postgresql", name="15", manager="postgresql",
        version="15.14", image_id=root, active=True, default=True,
    )  # fmt: skip


class Databases(Cloud):
    """A cloud with one host ``h`` and what instances need."""

    def __init__(self, store: Store, *, ram_mb: int = 4096) -> None:
        super().__init__(store)
        self.host(ram_mb=ram_mb)
        store.transact(furnish)
        port = AsyncPort(Barriers("", Path("/nonexistent")))
        self.woken: list[str] = []
        self.loop = InstanceController(port, store, self.woken.append)
        self.guests: dict[str, int] = {}

    def machines(self, *machines: str, host_id: str = "h", ram_mb: int = 4096) -> None:
        """The host's agent is started anew, and says what it runs guests in."""
        before = self.agents[host_id].incarnation
        told = msgspec.structs.replace(facts(ram_mb), machines=machines)
        start = f"anew-{next(_numbers)}"
        self.agents[host_id] = self.store.transact(agents.register, host_id, Register(start, told, before))
        self.tell(host_id)

    def ask(self, name: str = "db", **more: object) -> AskedInstance:
        plain = AskedInstance(name=name, flavor_id="3", volume_gb=1)
        return msgspec.structs.replace(plain, **more)

    def create_db(self, name: str = "db", *, project: str = "p", **more: object) -> str:
        ids = NewIds(name, f"server-{name}", f"port-{name}", f"generation-{name}")
        return self.store.transact(instances.create_instance, self.ask(name, **more), ids, caller(project))

    def instance(self, name: str = "db") -> Instance:
        loaded = self.store.read(load_instance, name)
        assert loaded is not None
        return loaded.instance

    def settled(self, name: str = "db") -> bool:
        loaded = self.store.read(load_instance, name)
        assert loaded is not None
        return loaded.settled

    def settled_server(self, server_id: str) -> bool:
        return super().settled(server_id)

    def shown(self, name: str = "db") -> tuple[str, str]:
        def look(tx: Tx) -> tuple[str, str]:
            loaded = load_instance(tx, name)
            assert loaded is not None
            found = words.status(loaded.instance, tx.now)
            return found.status, found.operating_status

        return self.store.read(look)

    def db_want(self, name: str = "db") -> DatabaseWant | None:
        return self.wants()[f"server-{name}"].database

    def who(self, name: str = "db", *, guest: int | None = None, incarnation: int | None = None) -> Who:
        return Who(
            incarnation=incarnation or self.agents["h"].incarnation, server_id=f"server-{name}",
            fence=self.wants()[f"server-{name}"].fence,
            guest=self.guests.get(name, 0) if guest is None else guest,
        )  # fmt: skip

    def hello(self, name: str = "db", start: str | None = None, *, guest: int | None = None) -> int:
        """A process of the guest agent says hello."""
        start = start or f"guest-{next(_numbers)}"
        ask = GuestRegister(self.who(name, guest=guest), start, 1)
        number = self.store.transact(guest_register, "h", ask).incarnation
        self.guests[name] = number
        return number

    def view(self, name: str = "db", **more: object) -> DatabaseView:
        plain = DatabaseView(
            generation=f"generation-{name}", data=Thing.PRESENT, server=ServerState.UP,
            step=GuestStep.READY, applied=True,
        )  # fmt: skip
        return msgspec.structs.replace(plain, **more)

    def see(
        self, view: DatabaseView | None, name: str = "db", *, alive: bool = True, sequence: int | None = None,
        guest: int | None = None, incarnation: int | None = None, who: Who | None = None,
    ) -> Noted:  # fmt: skip
        """The host passes on what the guest sees."""
        number = next(self.sequence) if sequence is None else sequence
        who = who or self.who(name, guest=guest, incarnation=incarnation)
        return self.store.transact(guest_report, "h", GuestReport(who, number, alive, view))

    def up(self, name: str = "db") -> None:
        """Its server is placed, made and runs."""
        server = f"server-{name}"
        assert self.place(server)
        self.claim(server)
        self.report(Gone(), server, step=Step.DISK, disk_id="volume")
        self.report(Running(self.wants()[server].edge), server)

    def again(self, name: str = "db") -> None:
        """The server gets the guest process that is wanted, or none; its agent says hello."""
        server = f"server-{name}"
        want = self.wants()[server]
        if want.power is Power.OFF:
            self.report(Gone(), server)
            return
        self.report(Running(want.edge), server)
        self.hello(name)

    def active_db(self, name: str = "db", **more: object) -> None:
        """Create an instance that can be used."""
        self.create_db(name, **more)
        self.up(name)
        self.hello(name)
        self.see(self.view(name), name)

    def trouble(self, code: str = "no", *, final: bool = True) -> Trouble:
        return Trouble(code, "it does not work", "do something", final)

    def step(self, name: str = "db") -> str:
        """One step of the control loop for the instance; what it was."""
        found = self.store.read(instance_work.instance_facts, name)
        assert found is not None
        asyncio.run(self.loop.step(name))
        return type(plan_control(found.instance, found.now)).__name__

    def steps(self, name: str = "db") -> list[str]:
        """Steps until somebody else has the next one."""
        done: list[str] = []
        while (one := self.step(name)) not in ("LookAgain", "Settled"):
            done.append(one)
            assert len(done) < 10
        return done

    def act(self, action: Any, name: str = "db", *args: object, project: str = "p", **more: object) -> Any:
        """A request of the instance's user."""
        return self.store.transact(action, name, project, *args, caller(project), **more)

    def pass_time(self, seconds: float, *, beat: bool = True) -> None:
        """Lease time goes on, and hosts beat (or are silent); what is in the trash grows older by as much."""

        def later(tx: Tx) -> None:
            tx.execute(sa.update(clock).values(lease=clock.c.lease + seconds))
            older = table.c.trash_until_wall - seconds
            tx.execute(sa.update(table).values(trash_until_wall=older))

        self.store.transact(later)
        for host_id in self.agents if beat else ():
            self.beat(host_id)
