"""A backup, and another instance made from it."""

from __future__ import annotations

from collections.abc import Callable

from tests.guest.guest import Guest, anna
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


def test_a_backup_is_restored_into_another_instance(guests: Callable[[], Guest]) -> None:
    guest = guests()
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        connection.execute("CREATE TABLE goods AS SELECT n, md5(n::text) FROM generate_series(1, 50000) n")
    content = guest.back_up("n1")
    assert content.size == sum(chunk.length for chunk in content.chunks)
    other = guests()
    other.host.source = guest.source("n1")
    other.host.wants(other.want(generation="generation-2", origin=Origin(backup_id="backup-1")))
    other.start()
    view = other.ready()
    assert view.facts["system_identifier"] == content.system_identifier
    with other.connect() as connection:
        assert connection.execute("SELECT count(*) FROM goods").fetchone() == (50000,)
