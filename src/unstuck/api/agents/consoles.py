"""The stream that a host's agent brings: the other end of a console that a user waits at."""

from __future__ import annotations

from unstuck.api.agents.guard import Refusal, guarded
from unstuck.api.console.meet import consoles
from unstuck.api.routes import Call, Reply, Route
from unstuck.api.sockets import FAILED, SocketCall, socket_route
from unstuck.store import agents


@guarded
async def stream(call: Call, host_id: str) -> Reply:
    """404 where nobody waits for it (any more), or at another control plane."""
    assert isinstance(call, SocketCall)
    given = call.http.query_params.get("incarnation", "")
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise Refusal(400, "invalid", "Invalid input: `incarnation` must be a number.")
    await call.store.run_read(agents.check_incarnation, host_id, int(given))
    meeting = consoles(call.app.extra).waiting(call.params["ask_id"], host_id)
    if meeting is None:
        raise Refusal(404, "not-here", "Nobody waits for this console here.")
    await call.socket.accept()
    if meeting.host is not None or meeting.over.is_set():
        await call.socket.close(FAILED, "nobody waits for this console any more")
        return Reply()
    meeting.host = call.socket
    call.app.notifier.wake(f"ask:{call.params['ask_id']}")
    await meeting.over.wait()
    return Reply()


SOCKETS: list[Route] = [socket_route("/agents/v1/hosts/{host_id}/consoles/{ask_id}", stream)]
