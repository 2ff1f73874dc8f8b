"""What each datastore makes of names, hosts and passwords."""

from __future__ import annotations

import pytest

from unstuck.core.instance import native
from unstuck.core.instance.naming import MARIADB, NAMINGS, POSTGRESQL, Naming


def test_a_native_verifier_is_the_servers_own() -> None:
    """As ``SELECT PASSWORD('test')`` says it."""
    assert native.verifier("test") == "*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29"
    one, other = bytes(16), bytes(range(16))
    assert MARIADB.verifier("test", one) == MARIADB.verifier("test", other) == native.verifier("test")
    assert POSTGRESQL.verifier("test", one).startswith("SCRAM-SHA-256$4096:")
    assert POSTGRESQL.verifier("test", one) != POSTGRESQL.verifier("test", other)


@pytest.mark.parametrize("naming", NAMINGS.values(), ids=NAMINGS)
def test_roots_name_is_the_datastores_own(naming: Naming) -> None:
    assert naming.fault_of_user("Root")
    assert naming.fault_of_user("unstuck_x")
    assert naming.fault_of_user("anna") is None
    assert naming.fault_of_database("shop") is None


@pytest.mark.parametrize(
    ("naming", "user", "database"),
    [(POSTGRESQL, "pg_monitor", "template1"), (MARIADB, "mariadb.sys", "MySQL"), (MARIADB, "mysql", "sys")],
)
def test_a_datastores_own_names_are_refused(naming: Naming, user: str, database: str) -> None:
    assert naming.fault_of_user(user)
    assert naming.fault_of_database(database)


def test_a_character_that_a_server_cannot_keep_is_refused() -> None:
    assert MARIADB.fault_of_user("chair\U0001fa91")
    assert POSTGRESQL.fault_of_user("chair\U0001fa91") is None


@pytest.mark.parametrize("host", ["%", "10.0.0.7", "10.0.%", "10.%", "10.%.%.%"])
def test_a_host_is_an_address_whose_end_may_be_open(host: str) -> None:
    assert MARIADB.fault_of_host(host) is None
    assert POSTGRESQL.fault_of_host(host)


@pytest.mark.parametrize(
    "host", ["localhost", "example.org", "::1", "10.0.0.0/8", "%.10", "10.0.0.7.1", "' OR"]
)
def test_a_host_of_another_form_is_refused(host: str) -> None:
    assert MARIADB.fault_of_host(host)
