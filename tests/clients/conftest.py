"""A running cloud for the stock clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openstack
import pytest
from running import Running

from unstuck.store.engine import Store


@pytest.fixture
def cloud(store: Store, tmp_path: Path) -> Iterator[Running]:
    running = Running(store, tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def sdk(cloud: Running) -> Iterator[openstack.connection.Connection]:
    with openstack.connect(
        **cloud.auth(), region_name="RegionOne", load_yaml_config=False, load_envvars=False
    ) as made:
        yield made
