"""The control plane is killed at each effect of an instance's life, before it or with its answer lost: the
next one goes on from what is written, and everything comes about that was asked for."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.store.instance_play import Databases, caller
from tests.stores import opened
from unstuck.control.instances import InstanceController
from unstuck.core.instance.control import LookAgain, Settled, plan_control
from unstuck.core.server.data import Gone, Power, Running, Step, Thing
from unstuck.runtime.barriers import Barriers
from unstuck.runtime.port import AsyncPort
from unstuck.store import instance_work, instances
from unstuck.store.engine import Store

T = TypeVar("T")
ROUNDS = 12


class Killed(Exception):
    pass


class Mortal(AsyncPort):
    """A port whose process dies at its ``at``-th effect, once."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__(Barriers("", Path("/nonexistent")))
        self.at = at
        self.after = after
        self.count = 0
        self.died: list[str] = []

    async def effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        self.count += 1
        dies = self.count == self.at
        if dies and not self.after:
            self.died.append(name)
            raise Killed(name)
        answer = await super().effect(name, work)
        if dies:
            self.died.append(f"{name}+")
            raise Killed(name)
        return answer


class Life:
    """One instance, its host and guest, and a control plane that dies once."""

    def __init__(self, cloud: Databases, port: Mortal) -> None:
        self.cloud = cloud
        self.port = port
        self.edge = 0

    def step(self) -> bool:
        """The control plane's next step; whether it had one."""
        found = self.cloud.store.read(instance_work.instance_facts, "db")
        assert found is not None
        loop = InstanceController(self.port, self.cloud.store, lambda _: None)
        try:
            asyncio.run(loop.step("db"))
        except Killed:
            return True
        return not isinstance(plan_control(found.instance, found.now), LookAgain | Settled)

    def world(self) -> None:
        """Host and guest do what is wanted of them."""
        want = self.cloud.wants().get("server-db")
        if want is None:
            return
        if want.gone:
            self.cloud.report(Gone(), "server-db", step=Step.REMOVED, disk=Thing.ABSENT)
        elif want.power is Power.OFF:
            self.cloud.report(Gone(), "server-db")
        else:
            if not want.disk_recorded:
                self.cloud.report(Gone(), "server-db", step=Step.DISK, disk_id="volume")
            self.cloud.report(Running(want.edge), "server-db")
            if want.edge != self.edge:
                self.edge = want.edge
                self.cloud.hello()
            assert want.database is not None
            self.cloud.see(self.cloud.view(restart=want.database.restart))

    def come_about(self) -> None:
        """Rounds of both, until nobody has anything left to do."""
        for _ in range(ROUNDS):
            while self.step():
                pass
            self.world()
            self.cloud.pass_time(1)
            if self.cloud.settled():
                return


def live(cloud: Databases, port: Mortal) -> None:
    life = Life(cloud, port)
    cloud.create_db()
    cloud.place("server-db")
    life.come_about()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    cloud.act(instances.restart_instance)
    life.come_about()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.instance().restart == 1
    cloud.act(instances.resize_volume, "db", 2)
    life.come_about()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    assert cloud.wants()["server-db"].spec.flavor.disk_gb == 2
    cloud.act(instances.delete_instance)
    life.come_about()
    assert cloud.wants()["server-db"].power is Power.OFF
    assert cloud.instance().room_mb == 0
    cloud.store.transact(instances.undelete_instance, "db", "p", caller())
    life.come_about()
    assert cloud.shown() == ("ACTIVE", "HEALTHY")
    cloud.act(instances.delete_instance, force=True)
    life.come_about()
    assert cloud.instance().removed
    assert cloud.wants() == {}


def test_a_life_without_kills_has_this_many_effects(store: Store) -> None:
    port = Mortal(0, after=False)
    live(Databases(store), port)
    assert port.died == []
    assert port.count == EFFECTS


EFFECTS = 48
"""Of the life below: each of them is a kill of its own."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_killed_at_any_effect_it_comes_about_all_the_same(
    sqlite_template: Path, tmp_path: Path, part: int, after: bool
) -> None:
    for at in range(1 + part, EFFECTS + 1, 4):
        port = Mortal(at, after=after)
        shutil.copyfile(sqlite_template, tmp_path / f"{at}.db")
        own = opened(f"sqlite:///{tmp_path}/{at}.db")
        live(Databases(own), port)
        own.close()
        assert len(port.died) == 1
