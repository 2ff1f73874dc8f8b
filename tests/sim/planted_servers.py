"""Faults that are planted in how servers are looked after; the simulator has to notice each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unstuck.core.agents import Register, Registered
from unstuck.core.server.data import Gone, Observation, Unclear, View, Want
from unstuck.core.server.host import Act, Decision, Do, plan_host
from unstuck.host import agent as agent_module
from unstuck.host.agent import Agent
from unstuck.sim.world import SimHost
from unstuck.store import agents, rows, servers

Monkey = pytest.MonkeyPatch


def unknown_is_read_as_absent(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        if isinstance(view.guest, Unclear):
            view = msgspec.structs.replace(view, guest=Gone())
        return plan_host(want, view)

    patch.setattr(agent_module, "plan_host", plan)


def the_disk_is_not_recorded_before_the_start(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        return plan_host(msgspec.structs.replace(want, disk_recorded=True), view)

    patch.setattr(agent_module, "plan_host", plan)


def a_recorded_disk_that_is_missing_is_made_again(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        decision = plan_host(msgspec.structs.replace(want, disk_recorded=False), view)
        recorded = isinstance(decision, Act) and decision.do is Do.RECORD_DISK and want.disk_recorded
        return plan_host(want, view) if recorded else decision

    patch.setattr(agent_module, "plan_host", plan)
    reboot = SimHost.reboot

    def reboot_without_mount(self: SimHost) -> None:
        reboot(self)
        for folder in self.folders.values():
            folder.disk = False

    patch.setattr(SimHost, "reboot", reboot_without_mount)


def the_next_look_is_left_out(patch: Monkey) -> None:
    patch.setattr(rows, "next_look", lambda _plan, _now: (True, None))


def registration_without_compare_and_swap(patch: Monkey) -> None:
    register = agents.register

    def always(tx: Any, host_id: str, ask: Register) -> Registered:
        asked = register(tx, host_id, msgspec.structs.replace(ask, after=-1))
        if asked.granted:
            return asked
        return register(tx, host_id, msgspec.structs.replace(ask, after=asked.incarnation))

    patch.setattr(agents, "register", always)


def a_lost_report_counts_as_sent(patch: Monkey) -> None:
    send = Agent._send

    async def forgetful(
        self: Agent, want: Want, observation: Observation, word: str, disk: str | None
    ) -> None:
        self._reported[want.server_id] = (want.fence, observation)
        await send(self, want, observation, word, disk)

    patch.setattr(Agent, "_send", forgetful)


def the_build_overtakes_the_delete(patch: Monkey) -> None:
    def plan(want: Want, view: View) -> Decision:
        building = want.gone and not isinstance(view.guest, Gone | Unclear)
        return plan_host(msgspec.structs.replace(want, gone=False) if building else want, view)

    patch.setattr(agent_module, "plan_host", plan)


def the_address_is_freed_before_the_host_is_clean(patch: Monkey) -> None:
    finish = servers.finish_delete_locked

    def early(tx: Any, server: Any, *, tombstone: bool) -> None:
        finish(tx, server, tombstone=False)

    patch.setattr(servers, "finish_delete_locked", early)


def notifications_carry_the_work(patch: Monkey) -> None:
    """Nobody looks unless told: a lost wake-up is lost work."""
    patch.setattr(servers, "due_servers", lambda _tx, _limit: [])
