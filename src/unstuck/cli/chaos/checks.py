"""What must be true at the end: all settled, all that was acknowledged there, nothing left over."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from unstuck.cli import boxes, guests
from unstuck.cli.chaos.load import Backups, ServerUser, Writer
from unstuck.cli.chaos.world import ChaosWorld, Database
from unstuck.cli.cloud import COMPUTE, Cloud
from unstuck.cli.dbcalls import Databases
from unstuck.cli.demo_world import Failed, ask, wait_for
from unstuck.cli.errors import CliError

SETTLE: Final = 300.0
"""Seconds after the last fault within which everything is at rest."""
BOOT: Final = 300.0
"""A server that was just started boots; emulated, on a busy machine, in more than a minute."""
BACKUP: Final = 240.0
RESTORE: Final = 300.0

Say = Callable[[str], None]


def patiently(what: str, seconds: float, look: Callable[[], Any]) -> Any:
    """As :func:`wait_for`, where the control plane may be just starting again."""

    def again() -> Any:
        with contextlib.suppress(CliError, OSError, ValueError, KeyError):
            return look()
        return None

    return wait_for(what, seconds, again)


class Checks:
    """Each claim on its own: one that does not hold is written down, and the others are tried as well."""

    def __init__(self, world: ChaosWorld, tell: Say) -> None:
        self.world = world
        self.tell = tell
        self.held: list[str] = []
        self.violations: list[str] = []

    def claim(self, what: str, work: Callable[[], str]) -> None:
        """``work`` returns a figure to go with it, or raises :class:`Failed`."""
        try:
            figure = work()
        except (Failed, CliError, OSError) as error:
            self.violations.append(f"{what}: {error}")
            self.tell(f"VIOLATED: {what}: {error}")
            return
        self.held.append(f"{what}{f' ({figure})' if figure else ''}")
        self.tell(f"ok: {self.held[-1]}")

    # --- after the last fault

    def settled(self) -> str:
        began = time.monotonic()
        patiently("servers and databases are at rest", SETTLE, self._at_rest)
        return f"{time.monotonic() - began:.1f} s after the last fault"

    def _at_rest(self) -> bool:
        with self.world.cloud() as cloud:
            servers = cloud.get("/compute/v2.1/servers/detail", headers=COMPUTE)["servers"]
            moving = [
                server for server in servers
                if server["OS-EXT-STS:task_state"] or server["status"] not in ("ACTIVE", "SHUTOFF")
            ]  # fmt: skip
            api = Databases(cloud)
            unwell = [
                item for item in (api.get(f"/instances/{one.id}")["instance"] for one in self.world.databases)
                if item["operating_status"] != "HEALTHY" or item["unstuck"]["pending"] is not None
            ]  # fmt: skip
            open_ones = [item for item in api.all("backups") if item["status"] not in ("COMPLETED", "FAILED")]
        return not moving and not unwell and not open_ones

    def servers_are_as_told(self, user: ServerUser) -> str:
        wrong = list(user.wrong)
        for name, server_id in self.world.servers.items():
            found = patiently(f"{name} says what it is", 60.0, partial(self.world.status, server_id))
            if found not in user.may_be[name]:
                wrong.append(f"{name} is {found}, its user was told {'/'.join(sorted(user.may_be[name]))}")
        if wrong:
            raise Failed("; ".join(wrong))
        return ", ".join(f"{count} {what}" for what, count in sorted(user.asked.items()))

    def servers_keep_what_they_said(self, user: ServerUser) -> str:
        for name, server_id in self.world.servers.items():
            if self.world.status(server_id) == "SHUTOFF":
                with self.world.cloud() as cloud:
                    path = f"/compute/v2.1/servers/{server_id}/action"
                    cloud.ask("POST", path, json={"os-start": None}, headers=COMPUTE)
                patiently(f"{name} is on", 180.0, partial(self.world.is_active, server_id))
            if name in user.written:
                address = self.world.address(server_id)
                read = wait_for(f"{name} answers", BOOT, partial(ask, address, "read"))
                if not read.isdigit() or not user.written[name] <= int(read) <= user.sent[name]:
                    raise Failed(f"{name} says {read!r}; {user.written[name]} was acknowledged last")
        return f"{sum(user.sent.values())} lines were sent"

    def rows_are_there(self, writer: Writer) -> str:
        return _compare(writer, writer.database, writer.acknowledged)

    def backups_are_over(self, backups: Backups) -> str:
        with self.world.cloud() as cloud:
            found = Databases(cloud).all("backups")
        for item in found:
            backups.ended[item["status"]] += 1
            if item["status"] == "FAILED" and not item["unstuck"]["reason"]:
                raise Failed(f"the backup {item['name']} failed without a reason")
        return ", ".join(f"{count} {status}" for status, count in sorted(backups.ended.items()))

    def restored(self, writer: Writer, backups: Backups) -> str:
        """The last backup under faults that completed, and one that is taken now: each row is in them."""
        fresh = str(patiently("a backup is accepted", 60.0, lambda: backups.one(writer)))
        with self.world.cloud() as cloud:
            api = Databases(cloud)
            ended = patiently("the backup ends", BACKUP, lambda: _over(api.backup(fresh)))
            if ended["status"] != "COMPLETED":
                raise Failed(f"a backup with no fault near it failed: {ended['unstuck']['reason']}")
            under = [
                str(item["id"]) for item in api.all("backups")
                if item["status"] == "COMPLETED" and item["id"] != fresh and item["id"] in backups.least
                and backups.least[item["id"]][0] is writer
            ]  # fmt: skip
            told = [self._restore(api, writer, backups, each) for each in [*under[:1], fresh]]
        return ", ".join(told)

    def _restore(self, api: Databases, writer: Writer, backups: Backups, backup_id: str) -> str:
        made = self.world.create(api, "restored", writer.database.client, backup=backup_id)
        try:
            self.world.ready(api, made, RESTORE)
            least = backups.least[backup_id][1]
            return _compare(writer, made, writer.acknowledged[:least], whole=False)
        finally:
            api.ask("DELETE", f"/instances/{made.id}")

    # --- the end

    def agree(self) -> str:
        """Doctor finds no difference between the store and this machine."""
        patiently("doctor finds no difference", 120.0, lambda: not self._differences())
        return ""

    def _differences(self) -> list[Any]:
        said = json.loads(self.world.unstuck("doctor", "--output", "json", expect=None))
        found: list[Any] = said["differences"]
        if said["recovery"]:
            found = [*found, said["recovery"]]
        return found

    def nothing_left(self) -> str:
        with self.world.cloud() as cloud:
            self._delete_all(cloud)
        state = self.world.state

        def left() -> list[str]:
            found = [f"guest {guest.pid}" for guest in [*guests.running(state), *boxes.running(state)]]
            found += [f"mount of {server}" for server in boxes.left(state)]
            found += [str(path) for path in (state.root / "backups").glob("*/**/*.age")]
            found += [str(path) for path in state.host.rglob("*.part*")]
            return found + [str(path) for path in (state.host / "servers").glob("*")]

        try:
            patiently("nothing is left", 120.0, lambda: not left())
        except Failed:
            raise Failed(f"left over: {', '.join(left()[:10])}") from None
        with self.world.cloud() as cloud:
            used = cloud.get("/compute/v2.1/limits")["limits"]["absolute"]
        if used["totalInstancesUsed"] or used["totalRAMUsed"]:
            raise Failed(f"quota is still in use: {used}")
        return ""

    def _delete_all(self, cloud: Cloud) -> None:
        api = Databases(cloud)
        for item in api.all("instances"):
            api.ask("DELETE", f"/instances/{item['id']}")
        for item in api.all("backups"):
            api.ask("DELETE", f"/backups/{item['id']}")
        for server_id in self.world.servers.values():
            cloud.ask("DELETE", f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)


def _over(backup: dict[str, Any]) -> dict[str, Any] | None:
    return backup if backup["status"] in ("COMPLETED", "FAILED") else None


def _compare(writer: Writer, database: Database, acknowledged: list[int], *, whole: bool = True) -> str:
    """Every acknowledged row is there as it was written, and none that was never sent. Of a backup
    (not ``whole``) besides: what was acknowledged is in it without a gap, up to its last row."""

    def rows() -> list[tuple[int, bool]] | None:
        with (
            contextlib.suppress(OSError),
            contextlib.closing(database.client.connect(database.address)) as one,
        ):
            return one.rows() or [(0, True)]
        return None

    found = wait_for(f"{database.name} lets its user in", 120.0, rows)
    numbers = {number for number, _ in found}
    bad = [number for number, right in found if not right]
    strange = {number for number in numbers if number > writer.sent}
    lost = set(acknowledged) - numbers
    if not whole:
        last = max(numbers)
        lost |= {number for number in writer.acknowledged if number <= last} - numbers
    if lost or bad or strange:
        raise Failed(
            f"of {len(acknowledged)} acknowledged rows {len(lost)} are lost ({sorted(lost)[:5]}), "
            f"{len(bad)} are changed, {len(strange)} were never sent"
        )
    return f"{len(acknowledged)} acknowledged rows"
