"""Waiting for the answer to a question that was put to a host, without a thread or a connection."""

from __future__ import annotations

from collections.abc import Callable

from unstuck.api.routes import Call
from unstuck.core.server.status import host_status
from unstuck.store import asks
from unstuck.store.server_lists import Shown


async def answer_to(
    call: Call, ask_id: str, seconds: float, *, until: Callable[[], bool] = lambda: False
) -> str | None:
    """The answer, or None after ``seconds`` or as soon as ``until`` holds.

    Woken by the agent's call in this process (``ask:<id>``), else looking ever more seldom."""
    waited, pause = 0.0, 0.05
    while waited < seconds and not until():
        since = call.app.notifier.version(f"ask:{ask_id}")
        text = await call.store.run_read(asks.read_answer, ask_id)
        if text is not None or until():
            return text
        await call.app.notifier.wait(f"ask:{ask_id}", pause, since=since)
        waited += pause
        pause = min(pause * 1.5, 0.5)
    return None if until() else await call.store.run_read(asks.read_answer, ask_id)


def silence(shown: Shown, seconds: float) -> str:
    """Why there is no answer from a server's host after ``seconds``."""
    away = host_status(shown.item.facts, shown.now) in ("DOWN", "UNKNOWN")
    return f"host {shown.item.host} " + (
        "has been silent" if away else f"did not answer within {seconds:.0f} seconds"
    )
