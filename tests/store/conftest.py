"""The store's tests run on both databases: SQLite, and a PostgreSQL that the tests start themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres as own
from unstuck.store.clock import init_clock
from unstuck.store.engine import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL of our own; its database ``template`` has the schema and a clock."""
    if own.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    with own.server(durable=False) as address:
        made = Store(own.url(address, "postgres"))
        made.create_all()
        made.transact(init_clock, generation_id="0" * 32)
        made.close()
        own.copy(address, "template", "postgres")
        yield address


@pytest.fixture
def postgres_store(postgres: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store on PostgreSQL with its clock."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    own.copy(postgres, name, "template")
    made = Store(own.url(postgres, name))
    yield made
    made.close()
    own.drop(postgres, name)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """The same test on both databases."""
    name = "store" if request.param == "sqlite" else "postgres_store"
    found: Store = request.getfixturevalue(name)
    return found
