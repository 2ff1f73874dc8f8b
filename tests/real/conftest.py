"""Fixtures of the tests on the real thing."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator

import pytest

CLONE_NEWNET = 0x40000000


@pytest.fixture
def namespace() -> Iterator[None]:
    """A network namespace of this test's own, for this thread and what it starts."""
    if os.geteuid() != 0:
        pytest.skip("networks need root")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.unshare(CLONE_NEWNET) != 0:
        os.close(before)
        pytest.skip("no network namespaces here")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)
