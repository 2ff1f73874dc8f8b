"""Incremental backups of a real server: the log since the parent, replayed when they are restored."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.guest.guest import Guest, anna
from tests.guest.host_double import wait_for
from unstuck.core.backup.content import Content, Parent
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))


def _with_table(guest: Guest) -> None:
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    with guest.connect() as connection:
        connection.execute("CREATE TABLE goods (n int primary key, what text)")


def _add(guest: Guest, first: int, last: int) -> None:
    with guest.connect() as connection:
        connection.execute(
            "INSERT INTO goods SELECT n, md5(n::text) FROM generate_series(%s::int, %s::int) n", [first, last]
        )


def _restored(guests: Callable[[], Guest], guest: Guest, *nonces: str) -> Guest:
    """Another guest that is made from the last of these backups, and of those before it."""
    other = guests()
    other.host.source, *other.host.above = [guest.source(nonce) for nonce in reversed(nonces)]
    other.host.wants(other.want(generation="generation-2", origin=Origin(backup_id="backup-1")))
    other.start()
    return other


def test_a_chain_is_restored_to_the_end_of_its_last_backup(guests: Callable[[], Guest]) -> None:
    guest = guests()
    _with_table(guest)
    _add(guest, 1, 1000)
    full = guest.back_up("n1")
    _add(guest, 1001, 3000)
    first = guest.back_up("n2", since="n1")
    assert (first.start, first.content, first.parent) == (full.stop, "wal", Parent("backup-1", "n1"))
    assert sum(chunk.sealed_length for chunk in first.chunks) < sum(c.sealed_length for c in full.chunks) / 4
    idle = guest.back_up("n3", since="n2")  # nothing has happened since
    _add(guest, 3001, 3500)
    last = guest.back_up("n4", since="n3")
    assert (idle.start, last.start) == (first.stop, idle.stop)
    _add(guest, 3501, 4000)  # in none of them
    other = _restored(guests, guest, "n1", "n2", "n3", "n4")
    view = other.ready()
    assert view.facts["system_identifier"] == full.system_identifier
    with other.connect() as connection:
        assert connection.execute("SELECT count(*), max(n) FROM goods").fetchone() == (3500, 3500)
        connection.execute("INSERT INTO goods VALUES (0, 'new')")
    assert not (other.volume / "database" / "log").exists()
    again = other.back_up("m1")
    assert again.stop.timeline == last.stop.timeline + 1


def test_a_chain_with_a_link_that_is_not_its_own_is_not_begun(guests: Callable[[], Guest]) -> None:
    guest = guests()
    _with_table(guest)
    guest.back_up("n1")
    _add(guest, 1, 10)
    guest.back_up("n2", since="n1")
    _add(guest, 11, 20)
    guest.back_up("n3", since="n2")
    other = _restored(guests, guest, "n1", "n3")
    view = other.trouble("backup-damaged")
    assert view.trouble is not None
    assert "chain does not hold together" in view.trouble.reason
    assert not other.host.fetched


@pytest.mark.slow
def test_a_chain_needs_room_for_all_of_it(guests: Callable[[], Guest]) -> None:
    guest = guests()
    _with_table(guest)
    guest.back_up("n1")
    child = guest.back_up("n2", since="n1")
    huge = msgspec.structs.replace(child.chunks[0], length=1 << 60)
    guest.host.finished["n2"] = msgspec.structs.replace(child, size=1 << 60, chunks=(huge,))
    other = _restored(guests, guest, "n1", "n2")
    view = other.trouble("volume-full")
    assert view.trouble is not None
    assert not other.host.fetched


@pytest.mark.slow
def test_a_parent_that_does_not_fit_ends_the_attempt_for_good(guest: Guest) -> None:
    _with_table(guest)
    content = guest.back_up("n1")
    unfit: list[tuple[dict[str, object], str]] = [
        ({"system_identifier": "7"}, "system 7"),
        ({"stop": {"timeline": 9, "lsn": "0/1"}}, "timeline 9"),
        ({"stop": {"timeline": 1, "lsn": "FF/0"}}, "before that"),
        ({"stop": {"timeline": 1, "lsn": "0/1"}}, "not on the volume any more"),
    ]
    for number, (change, words) in enumerate(unfit):
        nonce = f"child{number}"
        fields = msgspec.to_builtins(content) | {"chunks": ()} | change
        backup = guest.backup_want(
            nonce, generation="generation-1", since=Parent("backup-1", "n1"),
            since_content=msgspec.convert(fields, Content),
        )  # fmt: skip
        assert guest.host.want is not None
        guest.host.wants(msgspec.structs.replace(guest.host.want, backup=backup))
        gave = wait_for(lambda nonce=nonce: guest.host.gave_up.get(nonce), 30)
        assert gave.final
        assert words in gave.reason
