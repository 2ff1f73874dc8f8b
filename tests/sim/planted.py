"""All planted faults: each would be a bug like one that real systems had, and each names what catches it.

`python -m tests.proof` writes the list into docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.sim import planted_databases as databases
from tests.sim import planted_servers as servers
from tests.sim import planted_setbacks as setbacks
from tests.sim import schedules
from unstuck.sim.cases import Case


class Planted(msgspec.Struct, frozen=True):
    """A change of the product, where it is looked for, and a part of the violation that has to be seen."""

    plant: Callable[[pytest.MonkeyPatch], None]
    where: str
    by: str
    cases: Callable[[str], Iterator[Case]] = schedules.single_faults

    @property
    def name(self) -> str:
        return self.plant.__name__


PLANTED = (
    Planted(servers.unknown_is_read_as_absent, "delete_while_starting", "removed under its living guest"),
    Planted(servers.the_disk_is_not_recorded_before_the_start, "create", "did not become ACTIVE"),
    Planted(servers.a_recorded_disk_that_is_missing_is_made_again, "create", "was made again, empty"),
    Planted(servers.the_next_look_is_left_out, "host_dies_in_delete", "did not become DELETED"),
    Planted(
        servers.registration_without_compare_and_swap,
        "stop_and_start",
        "did not become SHUTOFF",
        schedules.late_registration,
    ),
    Planted(servers.a_lost_report_counts_as_sent, "create", "but BUILD"),
    Planted(servers.the_build_overtakes_the_delete, "create_and_delete", "not at rest"),
    Planted(servers.the_address_is_freed_before_the_host_is_clean, "delete_on_a_dead_host", "left over"),
    Planted(servers.notifications_carry_the_work, "create", "but BUILD"),
    Planted(
        setbacks.the_generation_is_not_compared, "stop_and_start", "address given to two", schedules.fair
    ),
    Planted(
        setbacks.addresses_in_use_are_not_held_back, "create", "address given to two", schedules.in_any_order
    ),
    Planted(
        setbacks.what_a_silent_host_may_hold_is_placed_again,
        "create",
        "was made again, empty",
        schedules.in_any_order,
    ),
    Planted(setbacks.nobody_waits_for_what_hosts_say, "create", "left over", schedules.with_the_record),
    Planted(
        setbacks.a_newcomer_keeps_an_address_in_use,
        "one_after_another",
        "address given to two",
        schedules.with_the_record,
    ),
    Planted(
        setbacks.what_nobody_was_seen_to_have_is_gone_at_once_when_deleted,
        "create",
        "left over",
        schedules.with_the_record,
    ),
    Planted(setbacks.a_lost_start_is_not_adopted, "stop_and_start", "nobody asked for that", schedules.fair),
    Planted(
        setbacks.the_addresses_of_adopted_servers_are_free,
        "one_after_another",
        "address given to two",
        schedules.fair,
    ),
    Planted(
        setbacks.what_the_store_had_lost_is_deleted_when_accepted,
        "one_after_another",
        "nobody asked for that",
        schedules.fair,
    ),
    Planted(
        setbacks.what_the_store_had_lost_is_not_adopted, "one_after_another", "left over", schedules.fair
    ),
    *(
        Planted(plant, where, by, schedules.faults_at_databases)
        for plant, where, by in (
            (
                databases.no_lease_of_an_attempt_is_looked_at,
                "agent_dies_during_the_backup_for_good",
                "claimed without a fact",
            ),
            (
                databases.any_agent_may_go_on_with_an_attempt,
                "agent_dies_during_the_backup",
                "one attempt, two agents",
            ),
            (databases.a_manifest_counts_without_its_pieces, "backup", "COMPLETED is no backup"),
            (databases.lost_data_is_made_again_empty, "volume_lost", "empty again"),
            (
                databases.what_cannot_be_restored_is_made_empty,
                "restore_into_a_new_instance",
                "empty for a backup",
            ),
            (databases.everything_is_collected, "agent_dies_during_the_backup", "live object removed"),
            (
                databases.readers_are_not_counted,
                "delete_a_backup_while_it_is_restored_from",
                "live object removed",
            ),
            (databases.unknown_is_taken_for_absent, "blob_store_fault", "absent without a look"),
            (
                databases.only_the_newest_attempt_is_asked_for,
                "agent_frozen_at_the_end",
                "absent, and it is there",
            ),
            (databases.nobody_looks_again_at_a_backup, "agent_dead_before_the_request", "stuck"),
            (databases.slots_of_dead_attempts_stay, "agent_dies_during_the_backup", "orphans"),
            (
                databases.parameters_on_trial_are_never_given_up,
                "parameters_no_server_starts_with",
                "did not become",
            ),
            (databases.a_failed_upgrade_stays_where_it_is, "upgrade_that_fails", "did not become"),
            (
                databases.a_changed_group_is_told_to_nobody,
                "parameters_of_many",
                "parameters: ",
            ),
        )
    ),
    Planted(
        databases.a_late_word_opens_a_backup_again,
        "cancel_a_backup",
        "final is final",
        schedules.late_copies_at_databases,
    ),
)
