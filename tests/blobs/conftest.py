"""What the tests of object stores share."""

from __future__ import annotations

import pytest

from tests.s3_server import free_ports


@pytest.fixture
def unused_port() -> int:
    """A port of this machine at which nobody listens."""
    return free_ports(1)
