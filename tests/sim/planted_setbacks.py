"""Faults that are planted in what happens after the store was set back; the simulator has to notice each."""

from __future__ import annotations

from typing import Any

import pytest

from unstuck.core.generation import Relation
from unstuck.store import adoption, agents, disputes, generation, holdings, networks, servers

Monkey = pytest.MonkeyPatch


def the_generation_is_not_compared(patch: Monkey) -> None:
    patch.setattr(generation, "relation", lambda _store, _heard: Relation.FITS)
    patch.setattr(agents, "relation", lambda _store, _heard: Relation.FITS)
    patch.setattr(holdings, "_evidence", lambda *_: None)


def addresses_in_use_are_not_held_back(patch: Monkey) -> None:
    """As on a database that was put back while it ran: the session is no other one, only the record tells."""
    nobody_waits_for_what_hosts_say(patch)
    patch.setattr(networks, "may_allot", lambda _tx: None)


def what_a_silent_host_may_hold_is_placed_again(patch: Monkey) -> None:
    patch.setattr(servers, "may_place", lambda _tx, _created: True)


def nobody_waits_for_what_hosts_say(patch: Monkey) -> None:
    patch.setattr(generation, "awaited", lambda _tx: None)
    patch.setattr(servers, "has_told", lambda _tx, _host: True)


def a_newcomer_keeps_an_address_in_use(patch: Monkey) -> None:
    patch.setattr(adoption, "give_way", lambda *_: False)


def what_nobody_was_seen_to_have_is_gone_at_once_when_deleted(patch: Monkey) -> None:
    place = servers.place

    def placed(tx: Any, *args: str) -> bool:
        with patch.context() as inner:
            inner.setattr(servers, "may_place", generation.may_place)
            return place(tx, *args)

    patch.setattr(servers, "may_place", lambda _tx, _created: True)
    patch.setattr(servers, "place", placed)


def a_lost_start_is_not_adopted(patch: Monkey) -> None:
    patch.setattr(holdings, "_adopt_edge", lambda *_: None)


def the_addresses_of_adopted_servers_are_free(patch: Monkey) -> None:
    patch.setattr(adoption, "_take_address", lambda *_: None)


def what_the_store_had_lost_is_deleted_when_accepted(patch: Monkey) -> None:
    settle = disputes._settle

    def harsh(tx: Any, row: Any, owner: str, caller: Any, *, given_up: bool) -> None:
        settle(tx, row, owner, caller, given_up=True)

    patch.setattr(disputes, "_settle", harsh)


def what_the_store_had_lost_is_not_adopted(patch: Monkey) -> None:
    patch.setattr(holdings, "adopt_unknown", lambda *_: None)
