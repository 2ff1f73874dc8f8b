"""What a demonstration prints: its steps, its checks, and the figures at the end."""

from __future__ import annotations

import time

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unstuck.cli.demo_world import Failed
from unstuck.cli.words import plain


class Teller:
    """One line a step with the time since the start; what was measured goes into a table at the end."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.began = time.monotonic()
        self.checks = 0
        self.figures: list[tuple[str, str]] = []

    def step(self, title: str) -> None:
        self.console.print(f"\n[bold]{title}[/bold]")

    def line(self, text: str, style: str = "") -> None:
        self.console.print(f"{self.elapsed():6.1f} s  {plain(text)}", style=style or None, markup=False)

    def quote(self, text: str) -> None:
        for line in text.strip().splitlines():
            if line.strip():
                self.console.print(f"          | {plain(line.rstrip())}", style="dim", markup=False)

    def check(self, what: str, held: bool, found: object = "") -> None:
        """A claim. Raises :class:`Failed` where it does not hold."""
        if not held:
            raise Failed(f"{what} (found: {found})" if found != "" else what)
        self.checks += 1
        self.line(f"ok: {what}", "green")

    def figure(self, name: str, value: str) -> None:
        self.figures.append((name, value))

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def table(self) -> None:
        table = Table("what", "measured", box=box.SIMPLE)
        for name, value in self.figures:
            table.add_row(Text(name), Text(value))
        self.console.print(table)
