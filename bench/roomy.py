"""The host agent as it is, on a host that says it is large: guests that are files need no room."""

from __future__ import annotations

from unittest.mock import patch

import msgspec

from unstuck.core.agents import HostFacts
from unstuck.host import main as host


def roomy(*words: object) -> HostFacts:
    """This host's facts, but its sizes."""
    return msgspec.structs.replace(_facts(*words), vcpus=10_000, ram_mb=1 << 30, disk_gb=1 << 30)  # type: ignore[arg-type]


_facts = host.facts

if __name__ == "__main__":
    with patch.object(host, "facts", roomy):
        raise SystemExit(host.main())
