"""``/mgmt/instances/{id}/…``: what an operator asks of an instance's agent, and who has had root."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.database.common import BASE, object_id, project
from unstuck.api.database.guest import ask, unprocessable
from unstuck.api.errors import ApiError
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.instance.requests import AgentProcess, Describe
from unstuck.core.time import iso_seconds
from unstuck.store.instance_lists import show_instance
from unstuck.store.instance_root import last_root


async def _described(call: Call) -> AgentProcess:
    """422 from an agent that knows no such request."""
    project(call)
    try:
        said = await ask(call, Describe())
    except ApiError as error:
        if error.status == 400:
            raise unprocessable(
                "The instance's agent is older than this request: rebuild the instance, and ask again."
            ) from None
        raise
    if said.agent is None:
        raise unprocessable("The instance's agent gave no answer to that.")
    return said.agent


async def diagnostics(call: Call) -> Reply:
    """``GET …/diagnostics``: the agent's process; sizes in KiB."""
    found = await _described(call)
    shown: dict[str, Any] = {
        "version": found.version, "threads": found.threads, "fdSize": found.fd_size,
        "vmSize": found.vm_size, "vmPeak": found.vm_peak, "vmRss": found.vm_rss, "vmHwm": found.vm_hwm,
    }  # fmt: skip
    return Reply({"diagnostics": shown})


async def hardware(call: Call) -> Reply:
    """``GET …/hwinfo``: memory in MiB and CPUs, as the guest has them."""
    found = await _described(call)
    return Reply({"hwinfo": {"mem_total": found.mem_total // 1024, "num_cpus": found.cpus}})


async def ping(call: Call) -> Reply:
    """``GET …/rpc_ping``: 204 when its agent has answered just now, whatever it answered."""
    project(call)
    try:
        await ask(call, Describe())
    except ApiError as error:
        if error.status != 400:
            raise
    return Reply()


async def root_history(call: Call) -> Reply:
    """``GET …/root``: when and by whom it was asked last to enable root."""
    project(call)
    key = object_id(call.params["id"], "Instance")
    await call.store.run_read(show_instance, key, None, deleted=None)
    found = await call.store.run_read(last_root, key)
    history = {"id": key, "enabled": "Never", "user": "Nobody"}
    if found is not None:
        history |= {"enabled": iso_seconds(found.wall)[:-1], "user": found.user_id}
    return Reply({"root_history": history})


_ONE: Final = f"{BASE}/mgmt/instances/{{id}}"

ROUTES: list[Route] = [
    route("GET", f"{_ONE}/diagnostics", diagnostics, "admin"),
    route("GET", f"{_ONE}/hwinfo", hardware, "admin"),
    route("GET", f"{_ONE}/rpc_ping", ping, "admin", status=204),
    route("GET", f"{_ONE}/root", root_history, "admin"),
]
