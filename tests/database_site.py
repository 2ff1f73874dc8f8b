"""Database instances for tests of the API: a control loop, a host, and guests that see what is wanted.

The host speaks for its guests as a real one does: it registers their agents, reports what they see, and
passes on the requests that the API puts to a database; who answers those is the test's choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tests.compute_fakes import FakeHost, network, settle
from tests.compute_site import add_image
from unstuck.core.agents import Answer
from unstuck.core.instance.control import (
    Apply,
    CancelBackup,
    DeleteServer,
    FailIt,
    FinishDelete,
    GoBack,
    LookAgain,
    Settled,
    Shelve,
    StopServer,
    plan_control,
)
from unstuck.core.instance.requests import (
    DatabaseAnswer,
    DatabaseRequest,
    Describe,
    DisableRoot,
    EnableRoot,
    MoreRequest,
    Ok,
)
from unstuck.core.instance.view import Configured, DatabaseView, GuestStep, ServerState
from unstuck.core.instance.want import DatabaseWant
from unstuck.core.instance.wire import GuestRegister, GuestReport, Who
from unstuck.core.server.data import Power, Thing, Want
from unstuck.store import agents, clock, datastores, flavors, instance_guests, instance_work
from unstuck.store.engine import Store

Answerer = Callable[[DatabaseWant, DatabaseRequest | MoreRequest | Describe], DatabaseAnswer | str | None]
"""What a database says to a request: an answer, any text instead of one, or nothing at all."""

_request: msgspec.json.Decoder[DatabaseRequest | MoreRequest | Describe] = msgspec.json.Decoder(
    DatabaseRequest | MoreRequest | Describe
)


class DatabaseHost(FakeHost):
    """A host whose guests are databases that are up at once."""

    def __init__(self, store: Store, name: str = "host-1") -> None:
        super().__init__(store, name, machines=("container", "vm"))
        self.guests: dict[str, int] = {}
        self.roots: set[str] = set()
        self.asked: list[DatabaseRequest | MoreRequest | Describe] = []
        self.answerer: Answerer = lambda _want, _request: Ok()
        self.silent: set[str] = set()
        """Servers whose guest's agent is not heard."""
        self.views: dict[str, dict[str, Any]] = {}
        """What a server's guest sees other than what is wanted."""
        self.sees: dict[str, Any] = {}
        """The same, of all."""
        self.wake: Callable[[str], None] = lambda _key: None

    def work(self) -> None:
        for want in self.wants().values():
            self.claim(want)
            self.report(want)
            if want.database is not None and want.power is Power.ON and not want.gone:
                self.look(want, want.database)

    def look(self, want: Want, database: DatabaseWant) -> None:
        """The guest's agent comes, and says what it sees."""
        who = Who(incarnation=self.incarnation, server_id=want.server_id, fence=want.fence)
        start = f"{want.server_id[:8]}-{want.edge}"
        made = self.store.transact(instance_guests.guest_register, self.id, GuestRegister(who, start, 1))
        self.guests[want.server_id] = made.incarnation
        seen: dict[str, Any] = {
            "generation": database.generation, "data": Thing.PRESENT, "server": ServerState.UP,
            "step": GuestStep.READY, "applied": True, "restart": database.restart,
            "root_enabled": want.server_id in self.roots, "volume_used_mb": 100, "volume_size_mb": 1000,
            "configured": Configured(dict(database.parameters)),
            **self.sees, **self.views.get(want.server_id, {}),
        }  # fmt: skip
        who = msgspec.structs.replace(who, guest=made.incarnation)
        alive = want.server_id not in self.silent
        report = GuestReport(who, self.next(), alive, DatabaseView(**seen))
        self.store.transact(instance_guests.guest_report, self.id, report)

    def wants(self) -> dict[str, Want]:
        """The world; questions in it are answered on the way."""
        world = self.store.transact(agents.world, self.id, self.incarnation, -1)
        found = {want.server_id: want for want in world.wants}
        for ask in world.asks:
            want = found.get(ask.server_id)
            if ask.kind != "guest" or want is None or want.database is None:
                continue
            request = _request.decode(ask.argument)
            self.asked.append(request)
            said = self.answerer(want.database, request)
            if isinstance(request, EnableRoot):
                self.roots.add(ask.server_id)
            if isinstance(request, DisableRoot):
                self.roots.discard(ask.server_id)
            if said is None:
                continue
            text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
            answer = Answer(self.incarnation, text)
            self.store.transact(agents.answer_ask, self.id, self.incarnation, ask.id, answer.text)
            self.wake(f"ask:{ask.id}")
        return found


def control_instances(store: Store) -> None:
    """One round of the control loop over instances."""
    for instance_id in store.transact(instance_work.due_instances, 1000):
        facts = store.transact(instance_work.instance_facts, instance_id)
        assert facts is not None
        match plan_control(facts.instance, facts.now):
            case Apply():
                store.transact(instance_work.apply_pending, instance_id)
            case GoBack():
                store.transact(instance_work.go_back, instance_id)
            case CancelBackup():
                store.transact(instance_work.cancel_for_pending, instance_id)
            case FailIt(code, reason, remedy):
                store.transact(instance_work.fail_instance, instance_id, code, reason, remedy)
            case StopServer():
                store.transact(instance_work.stop_trashed, instance_id)
            case Shelve():
                store.transact(instance_work.shelve, instance_id)
            case DeleteServer():
                store.transact(instance_work.delete_instance_server, instance_id)
            case FinishDelete():
                store.transact(instance_work.finish_instance, instance_id)
            case LookAgain() | Settled():
                store.transact(instance_work.review_instance, instance_id)


class DatabaseSite:
    """A network, flavors, a datastore whose version has an image, and a host."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.transact(flavors.ensure_default_flavors)
        store.transact(datastores.ensure_datastores)
        self.network = network(store)
        self.image = store.transact(add_image, "postgresql-17")
        self.version = "5b1f4ad1-46a5-4d75-8a3f-6b8f0f3d4d17"
        store.transact(
            datastores.register_version, version_id=self.version, datastore_id=datastores.POSTGRESQL,
            datastore="postgresql", name="17", manager="postgresql", version="17", image_id=self.image,
            active=True, default=True,
        )  # fmt: skip
        self.host = DatabaseHost(store)

    def settle(self, rounds: int = 3) -> None:
        """Let everybody do what is to be done."""
        for _ in range(rounds):
            self.store.transact(clock.tick, lease_seconds=30.0)
            control_instances(self.store)
            settle(self.store, self.host)

    @contextmanager
    def running(self) -> Iterator[None]:
        """All the while, in a thread, as the world goes on during a call."""
        stopping = threading.Event()

        def work() -> None:
            while not stopping.wait(0.02):
                self.settle(1)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(20)

    def body(self, **more: Any) -> dict[str, Any]:
        """A create request; ``None`` takes a key away."""
        instance = {"name": "shop", "flavorRef": "3", "volume": {"size": 1}, **more}
        return {"instance": {key: value for key, value in instance.items() if value is not None}}
