"""Users of the simulated cloud: scripts that ask the store functions which the APIs call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid, NotFound, Unavailable
from unstuck.core.server.data import Flavor, Power, Spec
from unstuck.core.server.status import status
from unstuck.sim.invariants import differences
from unstuck.store import (
    captures,
    host_loss,
    networks,
    server_actions,
    server_rebuild,
    server_resize,
    server_shelve,
    servers,
)
from unstuck.store.engine import Tx
from unstuck.store.flavors import FlavorRow, create_flavor
from unstuck.store.rows import load_server
from unstuck.store.schema.compute import servers as server_table
from unstuck.store.schema.images import images

if TYPE_CHECKING:
    from unstuck.sim.runner import Run

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 1800.0
"""Virtual seconds after which a user's script that still waits counts as a violation."""


class SimUser:
    """A user with the compute API; requests go to the store functions that the API calls."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process = run.engine.process("user")
        self._process.faultable = False
        self._requests = 0
        self._scripts: list[Coroutine[Any, Any, None]] = []
        self._lost = ""
        self._before: dict[str, str] = {}
        """What a server that was resized is shown as when that is over."""

    def abandon(self) -> None:
        """Whoever was at work finds that the cloud has forgotten things, and gives up."""
        self._process.kill()
        self.close()
        self._process = self._run.engine.process("user")
        self._process.faultable = False
        self._run.scripts = 0
        self._run.expected.clear()

    def close(self) -> None:
        """Scripts that never began would warn of it when they are collected."""
        for script in self._scripts:
            script.close()
        self._scripts.clear()

    def transact(self, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run.store.transact(tx, *args, **kwargs)

    def log(self, text: str) -> None:
        self._run.engine.log(text)

    def fail(self, text: str) -> None:
        self._run.truth.fail(text)

    async def quiet(self) -> None:
        """Until everything that is not in dispute has come to rest."""
        quiet = 0
        for _ in range(150):
            quiet = quiet + 1 if self._run.quiet() else 0
            if quiet == 2:
                return
            await self.wait(2.0)
        self.fail(f"not quiet within 300 s: {self._run._unsettled()} rows")

    async def delete_all(self) -> None:
        for name in self.transact(_names):
            await self.delete(name)

    async def check_nothing_lost(self) -> None:
        """Every disk with data is still there, unless its user deleted it."""
        held = {name for host in self._run.hosts for name, folder in host.folders.items() if folder.disk}
        for name in self._run.truth.had_data - held:
            if not self._run.truth._asked(name, 0.0, "delete"):
                self.fail(f"the data of {name} is gone, and its user never deleted it")

    async def check_agreement(self) -> None:
        """After the accepted diff the store and the world say the same."""
        for text in self.transact(differences, self._run.hosts, {}):
            self.fail(f"after the accepted diff: {text}")

    def beside(self, script: Coroutine[Any, Any, None]) -> None:
        self._run.scripts += 1
        self._scripts.append(script)
        self._process.spawn("script", self._counted(script))

    async def _counted(self, script: Coroutine[Any, Any, None]) -> None:
        await script
        self._run.scripts -= 1

    async def wait(self, seconds: float) -> None:
        await self._process.port.pause(seconds, "never")

    def _caller(self) -> servers.Caller:
        self._requests += 1
        return servers.Caller(f"req-{self._requests}", "u", "p")

    async def _request(
        self, name: str, tx: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """One request, repeated while the control plane is down or says that it has to wait."""
        while True:
            if self._run.control is not None:

                async def work() -> T:
                    return self._run.store.transact(tx, *args, **kwargs)

                try:
                    answer = await self._process.port.effect(f"api.{name}", work)
                except (servers.Conflict, Unavailable) as error:
                    self._run.engine.log(f"{error.status}: {error}")
                except servers.NotFound:
                    return None
                else:
                    self._run.wake("control")
                    self._run.notify(f"host:{answer}")
                    return answer
            await self.wait(1.0)

    async def create(self, name: str) -> None:
        caller = self._caller()
        await self._request("create", _create, name, caller)
        self._run.expected[name] = "ACTIVE"

    def _wish(self, name: str, kind: str) -> None:
        if self._run.truth.wishes is not None:
            self._run.truth.wishes.setdefault(name, []).append((self._run.engine.now, kind))

    async def delete(self, name: str) -> None:
        self._wish(name, "delete")
        await self._request("delete", servers.delete_server, name, self._caller())
        self._run.expected[name] = "DELETED"

    async def stop(self, name: str) -> None:
        self._wish(name, "stop")
        await self._request("stop", servers.stop_server, name, self._caller())
        self._run.expected[name] = "SHUTOFF"

    async def start(self, name: str) -> None:
        await self._request("start", servers.start_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def reboot(self, name: str, *, soft: bool) -> None:
        self._wish(name, "reboot")
        await self._request("reboot", servers.reboot_server, name, self._caller(), soft=soft)
        self._run.expected[name] = "ACTIVE"

    async def break_image(self) -> None:
        """It is whole and has the right digest, and no disk can be made of it."""
        for host in self._run.hosts:
            host.image_usable = False

    async def pause(self, name: str) -> None:
        await self._request("pause", server_actions.pause_server, name, self._caller())
        self._run.expected[name] = "PAUSED"

    async def unpause(self, name: str) -> None:
        await self._request("unpause", server_actions.unpause_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def suspend(self, name: str) -> None:
        await self._request("suspend", server_actions.suspend_server, name, self._caller())
        self._run.expected[name] = "SUSPENDED"

    async def resume(self, name: str) -> None:
        await self._request("resume", server_actions.resume_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def suspended(self, name: str) -> bool:
        """Wait for the end of a suspend; where the guest died first, do as the remedy says."""
        await self.until(name, "SUSPENDED", "ERROR")
        if self._status(name) == "SUSPENDED":
            return True
        await self.reboot(name, soft=False)
        return False

    async def rebuild(self, name: str) -> None:
        expected = self._run.expected[name]
        await self._request("rebuild", _rebuild, name, self._run.engine.nonce(), self._caller())
        self._run.expected[name] = "SHUTOFF" if expected == "SHUTOFF" else "ACTIVE"

    async def resize(self, name: str, *, ram_mb: int = 128, disk_gb: int = 2) -> bool:
        """False where there is no room for it."""
        self._wish(name, "reboot")
        flavor = FlavorRow(id=f"f-{ram_mb}-{disk_gb}", name="f", vcpus=1, ram_mb=ram_mb, disk_gb=disk_gb)
        expected = self._run.expected[name]
        try:
            await self._request("resize", _resize, name, self._caller(), flavor)
        except Invalid as error:
            self.log(f"refused: {error}")
            return False
        self._run.expected[name] = "VERIFY_RESIZE"
        self._before[name] = expected
        return True

    async def confirm(self, name: str) -> None:
        await self._request("confirm", server_resize.confirm_resize, name, self._caller())
        self._run.expected[name] = self._before[name]

    async def revert(self, name: str) -> None:
        self._wish(name, "reboot")
        await self._request("revert", server_resize.revert_resize, name, self._caller())
        self._run.expected[name] = self._before[name]

    async def create_image(self, name: str, image: str) -> None:
        self._run.images[image] = True
        asked = captures.Capture(image_id=image, name=image, properties={}, most=100)
        await self._request("create_image", captures.create_image_of, name, None, asked, self._caller())

    async def image_ends(self, image: str) -> bool:
        """Wait until it is active, or gone; which."""
        for _ in range(900):
            state = self._run.store.read(_image_state, image)
            if state != "waiting":
                return state == "active"
            await self.wait(1.0)
        self.fail(f"image {image} came to no end")
        return False

    async def delete_image(self, image: str) -> None:
        self._run.images[image] = False
        await self._request("delete_image", _delete_image, image)

    async def shelve(self, name: str) -> None:
        self._wish(name, "stop")
        await self._request("shelve", server_shelve.shelve_server, name, self._caller())
        self._run.expected[name] = "SHELVED"

    async def offload(self, name: str) -> None:
        await self._request("offload", server_shelve.offload_server, name, self._caller())
        self._run.expected[name] = "SHELVED_OFFLOADED"

    async def unshelve(self, name: str) -> None:
        """Tried again while there is no room for it."""
        await self._request("unshelve", server_shelve.unshelve_server, name, self._caller())
        self._run.expected[name] = "ACTIVE"

    async def lose_disk(self, name: str) -> None:
        """Somebody removes the disk (and ends the guest) behind our back."""
        for host in self._run.hosts:
            host.guests.pop(name, None)
            if name in host.folders:
                host.folders[name].disk = False
            self._run.agents[host.id].wake(name)

    async def reset(self, name: str) -> None:
        await self._request("reset", server_actions.reset_state, name, "active", self._caller())
        self._run.expected[name] = "ACTIVE"

    async def disk_full(self, name: str, *, full: bool) -> None:
        """The hosts' disks are full (or not any more); guests that run stop at their next write."""
        for host in self._run.hosts:
            host.full = full
            guest = host.guests.get(name)
            if full and guest is not None and guest.state == "running" and not guest.forked:
                guest.state = "io-error"
            self._run.agents[host.id].wake(name)
        if full:
            return
        for _ in range(600):
            guests = [host.guests.get(name) for host in self._run.hosts]
            if any(guest is not None and guest.state == "running" for guest in guests):
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the guest of {name} was not continued")

    async def break_starts(self, *, broken: bool) -> None:
        for host in self._run.hosts:
            host.broken = broken

    async def power_off_inside(self, name: str) -> None:
        self._wish(name, "power-off")
        self._run.expected[name] = "SHUTOFF"
        for _ in range(600):
            for host in self._run.hosts:
                guest = host.guests.get(name)
                if guest is not None and guest.state == "running" and not guest.forked:
                    guest.state = "off"
            if self._status(name) == "SHUTOFF":
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the power-off of {name} was not respected")

    async def power_off_resized(self, name: str) -> None:
        """The same before its user has confirmed or taken back a resize: that is still to be done then."""
        self._wish(name, "power-off")
        for _ in range(600):
            for host in self._run.hosts:
                guest = host.guests.get(name)
                if guest is not None and guest.state == "running" and not guest.forked:
                    guest.state = "off"
            if self._run.store.read(_wanted, name) is Power.OFF:
                self._before[name] = "SHUTOFF"
                return
            await self.wait(1.0)
        self._run.truth.fail(f"the power-off of {name} was not respected")

    async def host_dies(self, seconds: float) -> None:
        """The agents end; their guests run on; ``seconds`` later the agents are started again."""
        run = self._run
        for host in run.hosts:
            run.host_down(host, seconds)

    async def host_of_dies(self, name: str, seconds: float) -> None:
        """The agent of the server's host ends, as soon as it has one; it is started again later."""
        run = self._run
        while (host_id := run.store.read(_host_of, name)) is None:
            await self.wait(0.5)
        self._lost = host_id
        run.host_down(next(host for host in run.hosts if host.id == host_id), seconds)

    async def lose(self) -> None:
        await self._request("lose", host_loss.force_down, self._lost, down=True)

    async def strike(self) -> None:
        await self._request("strike", _strike_once, self._lost)

    async def join_again(self, name: str) -> None:
        """The host that was struck off joins with a token, and gets back what nobody has deleted."""
        self._requests += 1
        token, host = f"token-{self._requests}", self._lost
        await self._request("token", host_loss.make_token, token, 1e9)
        await self._request(
            "join", host_loss.join, token, host_id=host, hostname=host, secret_hash=host, machine_id=host
        )

    def _status(self, name: str) -> str:
        return self._run.store.read(_shown, name)

    async def until(self, name: str, *statuses: str) -> None:
        began = self._run.engine.now
        while self._run.engine.now < began + 600.0 + self._run.patience - PATIENCE:
            if self._status(name) in statuses:
                return
            await self.wait(2.0)
        self._run.truth.fail(f"{name} did not become {'/'.join(statuses)} in time, but {self._status(name)}")


def _strike_once(tx: Tx, host_id: str) -> None:
    """An answer may be lost, and the request repeated."""
    with contextlib.suppress(NotFound):
        host_loss.strike_off(tx, host_id)


def _host_of(tx: Tx, server_id: str) -> str | None:
    loaded = load_server(tx, server_id)
    return None if loaded is None or loaded.server.place is None else loaded.server.place.host_id


def _image_state(tx: Tx, image_id: str) -> str:
    row = tx.execute(
        sa.select(images.c.data_name, images.c.deleted_wall).where(images.c.id == image_id)
    ).one()
    if row.deleted_wall is not None:
        return "gone"
    return "active" if row.data_name is not None else "waiting"


def _delete_image(tx: Tx, image_id: str) -> str | None:
    return captures.delete_image(tx, image_id, project_id="p")[1]


def _wanted(tx: Tx, server_id: str) -> Power:
    loaded = load_server(tx, server_id)
    assert loaded is not None
    return loaded.server.power


def _shown(tx: Tx, server_id: str) -> str:
    loaded = load_server(tx, server_id)
    assert loaded is not None
    return status(loaded.server, tx.now).status


def _names(tx: Tx) -> list[str]:
    return list(tx.execute(sa.select(server_table.c.id).where(sa.not_(server_table.c.removed))).scalars())


def _create(tx: Tx, name: str, caller: servers.Caller) -> None:
    if load_server(tx, name) is not None:
        return
    spec = Spec(
        name=name, hostname=name, project_id="p", availability_zone="nova", flavor=Flavor(1, 64, 1), images=()
    )
    new = servers.NewServer(
        id=name,
        name=name,
        description=None,
        image_id="i",
        flavor_id="f",
        flavor={"vcpus": 1, "ram": 64, "disk": 1},
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
    servers.insert_server(tx, new, caller)
    nic = networks.allot_port(tx, port_id=f"port-{name}", server_id=name, project_id="p", network_id=None)
    made_of = msgspec.json.encode(msgspec.structs.replace(spec, nics=(nic,))).decode()
    tx.execute(sa.update(server_table).where(server_table.c.id == name).values(spec=made_of))


def _rebuild(tx: Tx, name: str, nonce: str, caller: servers.Caller) -> str:
    """As the API's, without an image to look up."""
    return server_rebuild.replace_disk(tx, name, lambda _row, _server: {}, nonce, caller)


def _resize(tx: Tx, name: str, caller: servers.Caller, flavor: FlavorRow) -> str:
    """As the API's, with a flavor that is made on the way."""
    with contextlib.suppress(Conflict):
        create_flavor(tx, flavor)
    return server_resize.resize_server(tx, name, None, caller, flavor_id=flavor.id)
