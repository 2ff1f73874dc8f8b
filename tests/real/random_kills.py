"""Random kills under load: who kills, who works, and what must be true at the end.

The worker keeps a book. An acknowledged request narrows what a server may be in the end to one status;
a request whose answer was lost widens it by what it may have done. Nothing else is allowed.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx2

from tests.real.fault_cloud import FaultCloud, Role
from unstuck.cli.cloud import COMPUTE, connect

AT_ONCE = 3
"""Servers that the worker keeps; more would only wait for a processor."""
SETTLE = 180.0
"""Seconds after the last fault within which everything is at rest (docs/design/laws.md)."""

RESULT: dict[str, str] = {
    "stop": "SHUTOFF",
    "start": "ACTIVE",
    "soft": "ACTIVE",
    "hard": "ACTIVE",
    "delete": "GONE",
}
BODY: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None},
    "start": {"os-start": None},
    "soft": {"reboot": {"type": "SOFT"}},
    "hard": {"reboot": {"type": "HARD"}},
}


class Killer(threading.Thread):
    """SIGKILL to a process of the cloud at random moments, also while it starts; then it is started again."""

    def __init__(self, cloud: FaultCloud, rng: random.Random, kills: int, every: float) -> None:
        super().__init__(daemon=True)
        self.kills: Counter[str] = Counter()
        self._cloud, self._rng, self._left, self._every = cloud, rng, kills, every
        self.stopping = threading.Event()

    def run(self) -> None:
        while self._left > 0 and not self.stopping.is_set():
            time.sleep(self._rng.uniform(0.2, 2 * self._every))
            victims: list[Role] = self._rng.choice([["host"], ["control"], ["host", "control"]])
            for role in victims:
                self._cloud.kill_anyhow(role)
                self.kills[role] += 1
                self._left -= 1
            time.sleep(self._rng.choice([0.0, 0.0, 0.5, 3.0]))
            for role in victims:
                self._cloud.launch(role)


class Worker(threading.Thread):
    """One user's work, and the book of what was acknowledged."""

    def __init__(self, cloud: FaultCloud, rng: random.Random, order: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._cloud, self._rng, self._order = cloud, rng, order
        self.may_be: dict[str, set[str]] = {}
        self.ids: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(Exception), connect(self._cloud.state, "demo") as cloud:
                self._work(cloud.client)

    def _work(self, client: httpx2.Client) -> None:
        """Until the stop, or an answer is lost: then log in again."""
        while not self.stopping.is_set():
            self._look(client)
            # What is not in the list either was never created: its request was cut off before the commit.
            living = [name for name in self.ids if self.may_be.get(name, {"GONE"}) != {"GONE"}]
            if len(living) < AT_ONCE:
                self._create(client)
            else:
                self._act(client, self._rng.choice(living))
            self.stopping.wait(self._rng.uniform(0.0, 1.5))

    def _look(self, client: httpx2.Client) -> None:
        """Whatever happens, nobody is ever told ERROR; and an id is learnt where its answer was lost."""
        answer = client.get("/compute/v2.1/servers/detail", headers=COMPUTE)
        for server in answer.json()["servers"] if answer.status_code == 200 else ():
            self.ids[server["name"]] = server["id"]
            if server["status"] == "ERROR":
                self.wrong.append(f"{server['name']} was shown in ERROR: {server.get('fault')}")

    def _create(self, client: httpx2.Client) -> None:
        name = f"kill-{len(self.may_be)}"
        self.may_be[name] = {"ACTIVE", "GONE"}
        order = {"server": {**self._order["server"], "name": name}}
        answer = client.post("/compute/v2.1/servers", json=order, headers=COMPUTE)
        self._count("create", answer)
        if answer.status_code == 202:
            self.ids[name] = answer.json()["server"]["id"]
            self.may_be[name] = {"ACTIVE"}
        elif answer.status_code < 500:
            self.may_be[name] = {"GONE"}
            self.wrong.append(f"create answered {answer.status_code}: {answer.text}")

    def _act(self, client: httpx2.Client, name: str) -> None:
        what = self._rng.choices(list(RESULT), [2, 2, 2, 2, 3])[0]
        before, url = set(self.may_be[name]), f"/compute/v2.1/servers/{self.ids[name]}"
        self.may_be[name] = before | {RESULT[what]}  # until it is answered
        if what == "delete":
            answer = client.delete(url, headers=COMPUTE)
        else:
            answer = client.post(f"{url}/action", json=BODY[what], headers=COMPUTE)
        self._count(what, answer)
        if answer.status_code in (202, 204):
            self.may_be[name] = {RESULT[what]}
        elif answer.status_code == 404 and "GONE" in before:
            self.may_be[name] = {"GONE"}
        elif answer.status_code == 409:
            self.may_be[name] = before
        elif answer.status_code < 500:
            self.wrong.append(f"{what} of {name} answered {answer.status_code}: {answer.text}")

    def _count(self, what: str, answer: httpx2.Response) -> None:
        self.asked[f"{what} {answer.status_code}"] += 1


def ends_true(cloud: FaultCloud, worker: Worker) -> None:
    """At rest within the bound, each server as its book allows, and not a thing too much or too little."""
    cloud.wait_ready()
    shown: dict[str, str] = {}

    def at_rest() -> bool:
        servers = cloud.cloud.get("/compute/v2.1/servers/detail", headers=COMPUTE)["servers"]
        shown.clear()
        shown.update({server["name"]: server["status"] for server in servers})
        worker.ids.update({server["name"]: server["id"] for server in servers})
        moving = [
            s["name"]
            for s in servers
            if s["OS-EXT-STS:task_state"] or s["status"] not in ("ACTIVE", "SHUTOFF")
        ]
        return not moving

    cloud.until("everything is at rest", at_rest, lambda: _why(cloud, worker, shown), seconds=SETTLE)
    wrong = list(worker.wrong)
    for name, statuses in worker.may_be.items():
        if shown.get(name, "GONE") not in statuses:
            wrong.append(
                f"{name} is {shown.get(name, 'GONE')}, its user was told {'/'.join(sorted(statuses))}"
            )
    wrong += [f"{name} is there, and nobody asked for it" for name in shown.keys() - worker.may_be.keys()]
    if wrong:
        cloud.fail("\n".join(wrong))
    cloud.until(
        "nothing of the deleted is left", lambda: not cloud.differences(), lambda: str(cloud.differences())
    )
    cloud.agree()
    for name in shown:
        cloud.delete(worker.ids[name])
    for name in shown:
        cloud.agree_gone(worker.ids[name])
    limits = cloud.cloud.get("/compute/v2.1/limits")["limits"]["absolute"]
    if limits["totalInstancesUsed"] or limits["totalRAMUsed"] or limits["totalCoresUsed"]:
        cloud.fail(f"quota is still in use: {limits}")


def _why(cloud: FaultCloud, worker: Worker, shown: dict[str, str]) -> str:
    return "\n".join(str(cloud.explain(worker.ids[name])) for name in shown)


def rampage(cloud: FaultCloud, seed: int, kills: int, every: float) -> tuple[Killer, Worker]:
    """Work and kill until so many kills are done; then everything must become true by itself."""
    cloud.start("control")
    cloud.start("host")
    order = cloud.order("kill")
    killer = Killer(cloud, random.Random(seed), kills, every)
    worker = Worker(cloud, random.Random(seed + 1), order)
    killer.start()
    worker.start()
    killer.join()
    worker.stopping.set()
    worker.join(60.0)
    assert not worker.is_alive(), "a request hangs"
    ends_true(cloud, worker)
    cloud.note(f"seed {seed}: kills {dict(killer.kills)}, {len(worker.may_be)} servers, {dict(worker.asked)}")
    return killer, worker
