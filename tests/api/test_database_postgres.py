"""The way of an instance and of a backup once more, with the store on PostgreSQL."""

from __future__ import annotations

import pytest
from test_database_backups import (
    instance,
    site,
    test_a_backup_says_how_it_goes_until_it_is_complete,
    test_cancelled_and_tried_again,
    test_lists_are_filtered_and_in_pages,
    test_where_backups_go,
)
from test_database_instances import (
    test_a_create_beyond_the_quota_is_refused,
    test_a_project_may_go_while_its_last_instances_are_in_the_trash,
    test_an_instance_is_built_shown_and_deleted,
    test_instances_come_in_pages,
    test_out_of_the_trash_with_all_that_it_had,
    test_restart_and_resize_come_about,
    test_what_operators_do,
)

from unstuck.store.engine import Store

__all__ = [
    "instance",
    "site",
    "test_a_backup_says_how_it_goes_until_it_is_complete",
    "test_a_create_beyond_the_quota_is_refused",
    "test_a_project_may_go_while_its_last_instances_are_in_the_trash",
    "test_an_instance_is_built_shown_and_deleted",
    "test_cancelled_and_tried_again",
    "test_instances_come_in_pages",
    "test_lists_are_filtered_and_in_pages",
    "test_out_of_the_trash_with_all_that_it_had",
    "test_restart_and_resize_come_about",
    "test_what_operators_do",
    "test_where_backups_go",
]


@pytest.fixture
def store(postgres_store: Store) -> Store:
    return postgres_store
