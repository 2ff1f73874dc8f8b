"""An agent makes a database, starts it, serves it, and finds it again."""

from __future__ import annotations

import os
import shutil

import psycopg
import pytest

from tests.guest.guest import Guest, anna
from unstuck.core.instance.view import ServerState
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


def test_an_agent_makes_a_database_and_its_first_user_gets_in(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    view = guest.ready()
    assert view.server is ServerState.UP
    assert view.applied
    assert view.facts["server_version"].startswith(guest.want().version)
    with guest.connect() as connection:
        connection.execute("CREATE TABLE goods (name text)")
        connection.execute("INSERT INTO goods VALUES ('chair')")
        checksums = connection.execute("SHOW data_checksums").fetchone()
        encoding = connection.execute("SHOW server_encoding").fetchone()
    assert checksums == ("on",)
    assert encoding == ("UTF8",)
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
        guest.connect(sslmode="disable")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        guest.connect(password="wrong")
    with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf rejects"):
        guest.connect(user="postgres", database="postgres")


def test_killing_the_agent_harms_no_session_and_the_next_one_adopts_the_server(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    pid = guest.server_pid()
    with guest.connect() as connection:
        guest.kill()
        guest.host.wants(guest.want(origin=SHOP, data_recorded=True))
        guest.host.view = None
        guest.start()
        guest.ready()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert guest.server_pid() == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user")
def test_an_agent_without_privileges_does_it_all_under_its_own_user(guest: Guest) -> None:
    """Where no guest is: on a developer's machine."""
    for place in (guest.volume, guest.run, guest.folder):
        shutil.chown(place, "nobody")
    guest.socket.chmod(0o666)
    guest.host.wants(guest.want(origin=SHOP))
    guest.start(user="nobody")
    guest.ready()
    guest.connect().close()
    assert guest.back_up("n1").size > 1 << 20
    assert (guest.volume / "database/pg").owner() == "nobody"
