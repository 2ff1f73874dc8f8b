"""A guest agent's process for tests: ``python -m tests.guest.agent_process SOCKET ARGUMENT…``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.guest.host_double import SocketControl
from unstuck.guest.main import parse, run
from unstuck.runtime import logs

if __name__ == "__main__":
    logs.set_up("guest")
    raise SystemExit(run(SocketControl(Path(sys.argv[1])), parse(sys.argv[2:])))
