"""The inside of simulated guests: PID 1 with the agent and the server that it keeps, and the channel."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import msgspec

from unstuck.core.archive.data import Piece
from unstuck.core.backup.data import Phase
from unstuck.core.instance.guestwire import (
    Done,
    Fetch,
    Finish,
    Hello,
    Look,
    NotNow,
    Refused,
    Renew,
    Request,
    Response,
    Store,
    Take,
    Welcome,
)
from unstuck.core.instance.view import ServerState
from unstuck.guest.agent import Agent
from unstuck.guest.control import Away
from unstuck.host.control import Superseded
from unstuck.sim.datastore import START_SECONDS, SimCopy, SimDatastore, Volume
from unstuck.sim.engine import Engine, NoReply, Process, Reply, sleep

if TYPE_CHECKING:
    from unstuck.host.guests import GuestService
    from unstuck.sim.databases import Databases
    from unstuck.sim.world import SimGuest

P = ParamSpec("P")
T = TypeVar("T")

ARCHIVE_SECONDS: Final = 10.0
ROW_MB: Final = 64
ANSWER: Final = 30.0
"""As in ``guest/channel.py``: seconds for an answer, for large ones, and for that to a hello."""
BULK: Final = 300.0
GREETING: Final = 20.0
FIRST: Final = 0.5
MOST: Final = 30.0
LASTED: Final = 60.0
"""As in ``guest/init.py``: the first and the longest wait before the agent is started again, a good run."""
OTHER_PROTOCOL: Final = 99


async def compute(work: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> T:
    """What only computes takes no time here."""
    return work(*arguments, **named)


class Inside:
    """One guest process from within. It dies with it; its volume does not."""

    def __init__(
        self, world: Databases, host_id: str, server_id: str, guest: SimGuest, volume: Volume, image: str
    ) -> None:
        self.world = world
        self.engine: Engine = world.engine
        self.host_id = host_id
        self.server_id = server_id
        self.guest = guest
        self.volume: Volume = volume
        self.image = image
        """What it was booted from."""
        self.server = ServerState.DOWN
        self.restart = 0
        self.failed = 0
        self.parameters: dict[str, str] = {}
        """What the server runs with."""
        self.up_since = 0.0
        self.tools: list[SimCopy] = []
        self.slots: set[str] = set()
        self.agent: Process | None = None
        self.keep_log: Callable[[str], Awaitable[bool]] | None = None
        self.down_since: float | None = world.engine.now
        """Since when the server does not answer."""
        self._pause = FIRST
        self._started = 0.0
        self._booting = False
        self.dead = False
        self.boot()

    @property
    def hangs(self) -> Phase | None:
        return self.world.hangs.get(self.server_id)

    @property
    def is_new(self) -> bool:
        """Its agent has not had the time to look around."""
        gone = self.agent is None or self.agent.dead
        return gone or self.engine.now - self._started < LASTED

    # --- PID 1

    def boot(self) -> None:
        """Start the agent, unless this guest is to have none."""
        self._booting = False
        if self.dead or self.server_id in self.world.without_agent:
            return
        if self.guest.state != "running":
            self._booting = True
            self.engine.at(1.0, self.boot)  # nothing runs in a guest that stands still
            return
        process = self.agent = self.engine.process(f"guest-{self.server_id}")
        self._started = self.engine.now
        line = Line(self, process)
        agent = Agent(
            process.port, line, SimDatastore(self), line.start, compute, self.world.gap_folder(self)
        )
        self.keep_log = None
        process.spawn("main", agent.run())
        process.spawn("archiver", self._archive_forever(process))

    def keep(self) -> None:
        """The agent has ended: what hung on it ends, and it is started again."""
        if self.dead or self._booting:
            return
        if self.agent is not None and not self.agent.dead:
            return
        for tool in list(self.tools):
            tool.end("its leash was let go")
        if self.server_id in self.world.without_agent:
            return
        self._booting = True
        lasted = self.engine.now - self._started >= LASTED
        self._pause = FIRST if lasted else min(self._pause * 2, MOST)
        self.engine.at(self._pause, self.boot)

    # --- its log

    async def _archive_forever(self, process: Process) -> None:
        """The server's own archiver: one piece after the other, the same one until it may be forgotten."""
        while True:
            await process.port.pause(ARCHIVE_SECONDS, "archiver")
            keep, volume = self.keep_log, self.volume
            if keep is None or self.server is not ServerState.UP or self.dead or volume.timeline == 0:
                continue
            if volume.archived == max(volume.cuts, default=0) and len(volume.rows) > volume.archived:
                volume.cuts.append(len(volume.rows))
            while (cut := min((one for one in volume.cuts if one > volume.archived), default=0)) > 0:
                if not await keep(f"{volume.timeline:06d}-{volume.archived:08d}"):
                    break
                volume.archived = cut

    def log_piece(self, name: str) -> tuple[Piece, bytes]:
        timeline, start = int(name[:6]), int(name[7:])
        stop = min(cut for cut in self.volume.cuts if cut > start)
        data = msgspec.json.encode(self.volume.rows[start:stop])
        places = (f"{start:016X}", f"{stop:016X}")
        piece = Piece(
            name=name, timeline=timeline, start=places[0], stop=places[1], size=len(data), digest=""
        )
        return piece, data

    def log_waiting(self) -> int:
        """MiB, so to speak: a row has many."""
        return (len(self.volume.rows) - self.volume.archived) * ROW_MB

    def stand_still(self, *, still: bool) -> None:
        """Everything in a paused guest stands still, the agent too."""
        if self.agent is None or self.agent.dead:
            return
        if still:
            self.agent.frozen_until = math.inf
        elif self.agent.frozen_until == math.inf:
            self.agent.frozen_until = self.engine.now

    def die(self) -> None:
        self.dead = True
        if self.agent is not None:
            self.agent.kill()
        self.stop_server(ServerState.DOWN)
        self.slots.clear()

    # --- the server

    def start_server(self, restart: int) -> None:
        self.server, self.restart = ServerState.STARTING, restart
        self.engine.at(START_SECONDS, self._up)

    def _up(self) -> None:
        if self.server is ServerState.STARTING and not self.dead:
            self.server, self.failed, self.down_since = ServerState.UP, 0, None
            self.up_since = self.engine.now
            self._wake()

    def stop_server(self, state: ServerState) -> None:
        if self.server is ServerState.UP:
            self.down_since = self.engine.now
        self.server = state
        for tool in list(self.tools):
            tool.end("the server ended")

    def crash_server(self) -> None:
        self.stop_server(ServerState.CRASHED)
        self.failed = min(self.failed + 1, 4)  # as if spread over more than ten minutes
        self._wake()

    def _wake(self) -> None:
        if self.agent is not None:
            self.agent.wake("look")

    def new_timeline(self, rows: list[str]) -> None:
        self.volume.timeline = self.world.next_timeline()
        self.volume.rows = rows
        self.volume.archived = len(rows)
        self.volume.cuts = []
        self.world.truth.timelines[self.volume.timeline] = rows
        self.world.truth.archives.history_begins(self.volume.timeline, self.server_id, len(rows))


class Line:
    """The guest's end of its channel; implements :class:`unstuck.guest.control.GuestControl`.

    It says hello again by itself whenever another process of the host's agent is at the other end.
    """

    def __init__(self, inside: Inside, process: Process) -> None:
        self._inside = inside
        self._engine = inside.engine
        self._process = process
        self.start = self._engine.nonce()
        self._hello: Hello | None = None
        self._refusal: Refused | None = None
        self._session: tuple[GuestService, int] | None = None
        self._bulk: dict[str, list[Reply]] = {}
        """What is on its way for an attempt, by its nonce."""

    def forget(self, nonce: str) -> None:
        for reply in self._bulk.pop(nonce, ()):
            reply.fail(Away("nobody waits for it any more"))

    async def ask(self, request: Request, blob: bytes = b"") -> tuple[Response, bytes]:
        end = self._engine.now + _time_for(request)
        if isinstance(request, Hello):
            self._hello, self._refusal, self._session = request, None, None
            return await self._greet(end, once=True), b""
        while self._refusal is None:
            service = self._inside.world.service(self._inside.host_id)
            if service is not None and self._session is not None and self._session[0] is service[1]:
                return await self._exchange(service, self._session[1], request, blob, end)
            self._session = None
            await self._greet(end, once=False)
        return self._refusal, b""

    async def _greet(self, end: float, *, once: bool) -> Response:
        assert self._hello is not None
        hello = self._hello
        if self._inside.server_id in self._inside.world.other_version:
            hello = msgspec.structs.replace(hello, protocol=OTHER_PROTOCOL)
        while True:
            found = self._inside.world.service(self._inside.host_id)
            if found is None:
                await self._pause(0.5, end)
                continue
            service = found[1]
            reply = self._call(found, "hello", service.hello(self._inside.server_id, hello))
            said: Response = await self._wait(reply, min(end, self._engine.now + GREETING))
            if isinstance(said, Welcome):
                self._session = (service, said.incarnation)
            elif isinstance(said, Refused):
                self._refusal = said
            elif isinstance(said, NotNow) and not once:
                await self._pause(max(said.seconds, 0.1), end)
                continue
            return said

    async def _exchange(
        self, found: tuple[Process, GuestService], incarnation: int, request: Request, blob: bytes, end: float
    ) -> tuple[Response, bytes]:
        inside = self._inside
        name = type(request).__name__
        if isinstance(request, Take | Renew | Store | Finish):
            inside.world.truth.works(inside.server_id)
        reply = self._call(found, name, found[1].answer(inside.server_id, incarnation, request, blob))
        if isinstance(request, Store | Finish):
            self._bulk.setdefault(request.nonce, []).append(reply)
        answer: tuple[Response, bytes] = await self._wait(reply, end)
        said = answer[0]
        if isinstance(said, Refused) and said.code == "superseded":
            self._refusal = said
        if isinstance(said, Done) and isinstance(request, Take | Renew | Store | Finish):
            inside.world.truth.acted(request.nonce, inside.server_id, self.start)
        return answer

    def _call(self, found: tuple[Process, GuestService], name: str, work: Coroutine[Any, Any, Any]) -> Reply:
        """A request arrives at the host's agent, which answers it beside its other work."""
        process, _ = found
        reply = Reply(self._engine)

        def ends() -> None:
            work.close()
            reply.fail(Away("the connection to the host ended"))

        process.on_end.append(ends)
        process.spawn(f"answer {name}", self._serve(name, work, reply))
        return reply

    async def _serve(self, name: str, work: Coroutine[Any, Any, Any], reply: Reply) -> None:
        try:
            answer = await work
        except Superseded:
            reply.fail(Away("the host's agent was superseded"))
            raise
        except Exception as error:
            self._inside.world.truth.fail(f"the host's service failed at {name}: {error!r}")
            reply.fail(Away("fault"))
        else:
            reply.give(answer)

    async def _wait(self, reply: Reply, end: float) -> Any:
        try:
            return await reply.within(max(end - self._engine.now, 0.0))
        except NoReply:
            raise Away("the host did not answer in time") from None

    async def _pause(self, seconds: float, end: float) -> None:
        if self._engine.now + seconds > end:
            raise Away("nobody is at the other end")
        await sleep(seconds)


def _time_for(request: Request) -> float:
    match request:
        case Look():
            return ANSWER + max(request.wait, 0.0)
        case Store() | Finish() | Fetch():
            return BULK
        case _:
            return ANSWER
