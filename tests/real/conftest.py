"""Fixtures of the tests on the real thing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.real import fault_cloud


@pytest.fixture
def namespace() -> Iterator[None]:
    """A network namespace of this test's own, for this thread and what it starts."""
    if os.geteuid() != 0:
        pytest.skip("networks need root")
    with fault_cloud.namespace():
        yield
