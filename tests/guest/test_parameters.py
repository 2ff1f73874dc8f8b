"""Parameters in a real server: applied, waiting for a restart, or put aside; it never stays down."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.guest.guest import Guest
from tests.guest.host_double import wait_for
from tests.guest.test_faults import SHOP, change, holds, serve
from unstuck.core.datastores import ALLOWED
from unstuck.core.datastores.parameters import Kind
from unstuck.core.instance.trial import STEADY
from unstuck.core.instance.view import Configured, DatabaseView

TOO_MUCH = {"max_locks_per_transaction": "100000", "max_connections": "10000"}
"""PostgreSQL's own check takes it; no machine has the memory."""
FEW = {"work_mem": "7MB", "max_connections": "77"}


def configured(guest: Guest) -> Configured:
    found = guest.view().configured
    return Configured() if found is None else found


def shown(guest: Guest, name: str) -> str:
    with guest.connect() as connection:
        row = connection.execute(f"SHOW {name}").fetchone()
    assert row is not None
    return str(row[0])


def restarted(guest: Guest, number: int) -> DatabaseView:
    assert guest.host.want is not None
    change(guest, guest.host.want, restart=number)
    return guest.ready()


def works(guest: Guest, **parameters: str) -> None:
    """The server has these, and has stayed up with them."""
    known = guest.volume / "database" / "conf" / "parameters.json"
    wait_for(lambda: known.exists() and f'"good":{{"parameters":{{{pairs(parameters)}' in known.read_text(),
             STEADY + 30)  # fmt: skip


def pairs(parameters: dict[str, str]) -> str:
    return ",".join(f'"{name}":"{text}"' for name, text in parameters.items())


@pytest.mark.slow
def test_what_a_server_cannot_start_with_is_put_aside_for_what_worked(guest: Guest) -> None:
    """A bad group, and somebody's restart: it is up again with what worked, and says why."""
    want = serve(guest)
    want = change(guest, want, parameters=FEW)
    wait_for(lambda: configured(guest).waiting == ("max_connections",))
    assert configured(guest).applied == {"work_mem": "7MB"}
    restarted(guest, 1)
    assert configured(guest) == Configured(FEW)
    works(guest, **FEW)
    assert guest.host.want is not None
    change(guest, guest.host.want, parameters=TOO_MUCH)
    wait_for(lambda: len(configured(guest).waiting) == 2)
    holds(guest)
    restarted(guest, 2)
    wait_for(lambda: configured(guest).refused)
    assert "did not stay up" in configured(guest).refused
    assert "memory" in configured(guest).refused
    assert configured(guest).applied == FEW
    assert (shown(guest, "work_mem"), shown(guest, "max_connections")) == ("7MB", "77")
    holds(guest)
    # The next agent knows, too, and the next restart tries nothing again.
    guest.kill()
    guest.host.view = None
    guest.start()
    assert guest.ready().configured == configured(guest)
    failed = guest.server_log().count("could not map")
    restarted(guest, 3)
    assert guest.server_log().count("could not map") == failed > 0
    change(guest, guest.host.want, parameters={}, restart=3)
    wait_for(lambda: not configured(guest).refused)
    holds(guest)


@pytest.mark.slow
def test_agents_killed_while_parameters_are_applied_are_followed_by_one_that_finishes(guest: Guest) -> None:
    want = serve(guest)
    guest.kill()
    change(guest, want, parameters=FEW)
    for point in ("reconfigure", "reconfigure+"):
        guest.start(f"guest.{point}")
        guest.stopped()
        guest.kill()
        holds(guest)
    guest.start()
    wait_for(lambda: configured(guest).waiting == ("max_connections",))
    guest.kill()
    assert guest.host.want is not None
    change(guest, guest.host.want, restart=1)
    for point in ("stop", "stop+", "start", "start+"):
        guest.start(f"guest.{point}")
        guest.stopped()
        guest.kill()
    guest.start()
    guest.ready()
    wait_for(lambda: configured(guest) == Configured(FEW))
    assert shown(guest, "max_connections") == "77"
    holds(guest)


@pytest.mark.slow
def test_agents_killed_while_bad_parameters_are_tried_leave_a_server_that_runs(guest: Guest) -> None:
    want = serve(guest)
    change(guest, want, parameters=TOO_MUCH)
    wait_for(lambda: len(configured(guest).waiting) == 2)
    guest.kill()
    assert guest.host.want is not None
    change(guest, guest.host.want, restart=1)
    for _ in range(6):
        guest.start("guest.start+")
        wait_for(lambda: guest.host.view is not None)
        guest.kill()
    guest.host.view = None
    guest.start()
    guest.ready()
    assert configured(guest).refused
    holds(guest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"work_mem": "plenty"}, {"no_such_thing": "1"}, {"archive_command": "true"}, {"a b": "1"},
        {"shared_buffers": "250MB"}, {"wal_compression": "zstd", "shared_preload_libraries": "../evil"},
    ],
)  # fmt: skip
def test_a_bad_parameter_is_told_and_keeps_no_server_down(guest: Guest, parameters: dict[str, str]) -> None:
    guest.host.wants(guest.want(origin=SHOP, parameters=parameters))
    guest.start()
    guest.ready()
    wait_for(lambda: configured(guest).refused)
    guest.connect().close()


@pytest.mark.slow
def test_a_server_that_is_made_with_what_it_cannot_start_with_comes_up_without(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP, parameters=TOO_MUCH))
    guest.start()
    assert guest.ready().applied
    assert configured(guest).refused
    assert configured(guest).applied == {}
    guest.connect().close()


@pytest.mark.slow
def test_a_server_killed_again_and_again_on_trial_is_not_left_down(guest: Guest) -> None:
    """Whatever kills it while parameters are on trial: in the end it runs without them."""
    want = serve(guest)
    change(guest, want, parameters=FEW, restart=1)
    guest.ready()
    for _ in range(3):
        pid = guest.server_pid()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda before=pid: guest.server_pid() not in (0, before))
        wait_for(lambda: up(guest))
    wait_for(lambda: configured(guest).refused)
    holds(guest)


def up(guest: Guest) -> bool:
    try:
        guest.connect().close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_a_real_server_takes_every_parameter_that_is_offered(guest: Guest) -> None:
    """Each at a value inside of its bounds; and it, too, says which of them need a restart."""
    allowed = ALLOWED["postgresql"]
    want = serve(guest)
    with guest.connect() as connection:
        found = dict(connection.execute("SELECT name, context FROM pg_settings").fetchall())
    values: dict[str, object] = {}
    for name, of in allowed.parameters.items():
        if name not in found:
            assert "." in name or name == "shared_preload_libraries"  # not for everybody to see
            continue
        assert (found[name] == "postmaster") is of.restart, name
        match of.kind:
            case Kind.BOOLEAN:
                values[name] = True
            case Kind.STRING:
                values[name] = of.choices[0]
            case _:
                values[name] = max(of.least, min(of.most, 2 * of.least + 8))
    values |= {"shared_buffers": "64MB", "max_connections": 50, "wal_compression": "lz4"}
    change(guest, want, parameters=allowed.texts(values), restart=1)
    guest.ready()
    wait_for(lambda: configured(guest).applied or configured(guest).refused, 30)
    assert configured(guest) == Configured(allowed.texts(values))
    holds(guest)
