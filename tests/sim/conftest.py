"""At the end of a run it is printed which invariant caught which planted fault."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    caught = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "caught"
    ]
    if caught:
        terminalreporter.section(f"{len(caught)} planted faults, each caught")
        for line in sorted(caught):
            terminalreporter.write_line(str(line))
