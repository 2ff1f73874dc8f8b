"""The guest's planner: an expected decision for every cell of what can be seen."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from unstuck.core.instance.guest import START_BUDGET, Act, Config, Do, Hold, Rest, Sight, plan_guest
from unstuck.core.instance.view import GuestStep, ServerState
from unstuck.core.instance.want import DatabaseWant, Origin
from unstuck.core.server.data import Thing

WANT = DatabaseWant(
    instance_id="i", datastore="postgresql", version="15", generation="g", data_recorded=False,
    origin=Origin(), port=5432, cidrs=(), ram_mb=512,
)  # fmt: skip
RECORDED = msgspec.structs.replace(WANT, data_recorded=True)
FROM_BACKUP = msgspec.structs.replace(WANT, origin=Origin(backup_id="b"))
BOTH = msgspec.structs.replace(RECORDED, origin=Origin(backup_id="b"))
RESTARTED = msgspec.structs.replace(RECORDED, restart=2)
WANTS = {"new": WANT, "recorded": RECORDED, "from-backup": FROM_BACKUP, "both": BOTH, "restarted": RESTARTED}

NOT_THERE = (ServerState.DOWN, ServerState.CRASHED)
LIVING = (ServerState.UP, ServerState.STARTING, ServerState.UNCLEAR)

WHEN_ABSENT = {"new": Do.INIT, "from-backup": Do.RESTORE, "recorded": None, "both": None, "restarted": None}
WHEN_PRESENT = {
    # server, config, applied: what the planner does where no restart is wanted
    **{(s, c, a): Do.START for s in NOT_THERE for c in Config for a in (True, False)},
    **{(ServerState.STARTING, c, a): GuestStep.STARTING for c in Config for a in (True, False)},
    **{(ServerState.UNCLEAR, c, a): "server-mute" for c in Config for a in (True, False)},
    **{(ServerState.UP, Config.OLD, a): Do.RECONFIGURE for a in (True, False)},
    **{(ServerState.UP, Config.UNKNOWN, a): "config-unknown" for a in (True, False)},
    **{(ServerState.UP, c, False): Do.APPLY for c in (Config.CURRENT, Config.PENDING)},
    **{(ServerState.UP, c, True): GuestStep.READY for c in (Config.CURRENT, Config.PENDING)},
}


def told(want: DatabaseWant | None, sight: Sight) -> Do | GuestStep | str:
    """A decision in one word: the act, the trouble it waits for, or the step."""
    match plan_guest(want, sight):
        case Act(do, _):
            return do
        case Hold(step, seconds, trouble):
            assert 0 < seconds <= 30
            return step if trouble is None else trouble.code
        case Rest(step):
            return step


@pytest.mark.parametrize("server", ServerState)
@pytest.mark.parametrize("data", Thing)
def test_nothing_is_done_before_somebody_has_told_what_is_wanted(data: Thing, server: ServerState) -> None:
    assert told(None, Sight(data=data, server=server)) is GuestStep.LOOKING


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("server", ServerState)
@pytest.mark.parametrize(("foreign", "code"), [("", "data-unknown"), ("another's", "data-foreign")])
def test_what_cannot_be_seen_is_left_alone(want: str, server: ServerState, foreign: str, code: str) -> None:
    assert told(WANTS[want], Sight(data=Thing.UNKNOWN, server=server, foreign=foreign)) == code


@pytest.mark.parametrize(("want", "do"), WHEN_ABSENT.items())
@pytest.mark.parametrize("server", ServerState)
def test_data_is_made_once_and_only_where_nothing_is(want: str, do: Do | None, server: ServerState) -> None:
    expected = "data-missing" if do is None or server in LIVING else do
    assert told(WANTS[want], Sight(data=Thing.ABSENT, server=server)) == expected


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("cell", list(itertools.product(ServerState, Config, (True, False))), ids=str)
@pytest.mark.parametrize("carried", [0, 1, 2])
def test_data_that_is_there_is_served(
    want: str, cell: tuple[ServerState, Config, bool], carried: int
) -> None:
    server, config, applied = cell
    sight = Sight(data=Thing.PRESENT, server=server, config=config, applied=applied, restart=carried)
    expected = WHEN_PRESENT[cell]
    if carried < WANTS[want].restart and server in (ServerState.UP, ServerState.UNCLEAR):
        expected = Do.STOP
    assert told(WANTS[want], sight) == expected


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("config", [Config.CURRENT, Config.PENDING])
def test_whoever_may_more_than_is_wanted_is_bounded_again(config: Config, applied: bool) -> None:
    sight = Sight(data=Thing.PRESENT, server=ServerState.UP, config=config, applied=applied, stray=True)
    assert told(RECORDED, sight) is Do.APPLY


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("server", NOT_THERE)
def test_a_server_that_will_not_stay_up_is_left_alone_with_a_reason(want: str, server: ServerState) -> None:
    sight = Sight(data=Thing.PRESENT, server=server, starts=START_BUDGET, reason="no room")
    decision = plan_guest(WANTS[want], sight)
    assert isinstance(decision, Hold)
    assert decision.trouble is not None
    assert decision.trouble.code == "server-keeps-failing"
    assert "no room" in decision.trouble.reason
    assert decision.trouble.final
    fewer = msgspec.structs.replace(sight, starts=START_BUDGET - 1)
    assert told(WANTS[want], fewer) is Do.START


@pytest.mark.parametrize("server", NOT_THERE)
def test_a_server_that_its_full_volume_ends_waits_for_room(server: ServerState) -> None:
    sight = Sight(data=Thing.PRESENT, server=server, full=True, starts=START_BUDGET)
    decision = plan_guest(RECORDED, sight)
    assert isinstance(decision, Hold)
    assert decision.trouble is not None
    assert decision.trouble.code == "volume-full"
    assert not decision.trouble.final, "it goes on by itself"
    assert told(RECORDED, msgspec.structs.replace(sight, full=False, starts=0)) is Do.START
