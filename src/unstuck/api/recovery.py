"""``/unstuck/v1/recovery``: what is in dispute after the store was set back, and an operator's acceptance."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.blobs.images import Disputed, disputed, set_aside
from unstuck.core.guard import Allowed, Suspended
from unstuck.store import images
from unstuck.store.clock import allow_destruction, may_destroy
from unstuck.store.disputes import Diff, Files, accept, diff
from unstuck.store.servers import Caller

BASE = "/unstuck/v1/recovery"


class Accept(Body, frozen=True, kw_only=True):
    """``id``: of the diff as it was shown. ``project``: for servers whose project the store does not know.
    ``give_up``: ids of unknown servers that are to be deleted."""

    id: str
    project: str | None = None
    give_up: tuple[str, ...] = ()


async def _files(call: Call) -> Files:
    def look() -> Disputed:
        return disputed(call.app.settings.state_dir, call.store.read(images.files_in_use))

    found = await asyncio.to_thread(look)
    return Files(found.files, found.missing)


def _shown(found: Diff) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(found)
    return {
        "id": told["id"],
        "generation": told["generation"],
        "since": found.recovery.wall,
        "why": found.recovery.why,
        "waiting_for": told["waiting"],
        "items": told["items"],
    }


async def show(call: Call) -> Reply:
    """The diff, and whether time may destroy anything now."""
    files = await _files(call)
    found = await call.store.run_read(diff, files)
    guard = await call.store.run_read(may_destroy)
    match guard:
        case Allowed(limit):
            words: dict[str, Any] = {"allowed": True, "limit": limit}
        case Suspended(reason):
            words = {"allowed": False, "reason": reason}
    return Reply({"recovery": None if found is None else _shown(found), "destruction_by_time": words})


async def accept_one(call: Call) -> Reply:
    """Settle everything in the diff as it says. Files are moved first: once nobody disputes them, a sweep
    would remove them."""
    asked: Accept = call.body
    files = await _files(call)
    found = await call.store.run_read(diff, files)
    if found is not None and found.id == asked.id and not found.waiting:
        for name in files.unnamed:
            await asyncio.to_thread(set_aside, call.app.settings.state_dir, name)
    who = Caller(call.request_id, call.token.user_id, call.token.project_id or "")
    hosts = await call.store.run(
        accept, asked.id, files, who, project=asked.project, give_up=frozenset(asked.give_up)
    )
    for host_id in hosts:
        call.app.notifier.wake(f"host:{host_id}")
    call.app.notifier.wake("control")
    assert found is not None
    return Reply({"accepted": msgspec.to_builtins(found.items)})


async def allow(call: Call) -> Reply:
    """An operator has looked at the clock's last jump: what is destroyed by age may be destroyed again."""
    await call.store.run(allow_destruction)
    return Reply(status=204)


ROUTES: list[Route] = [
    route("GET", BASE, show, "admin"),
    route("POST", f"{BASE}/accept", accept_one, "admin", body=Accept),
    route("POST", f"{BASE}/allow-destruction", allow, "admin", status=204),
]
