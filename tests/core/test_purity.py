"""The core is pure: no clock, chance, I/O or threads; else the simulator would not drive the real thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unstuck.core

FOLDER = Path(unstuck.core.__file__).parent
IMPURE = {
    "asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time",
    "urllib", "uuid",
}  # fmt: skip
READS_THE_CLOCK = {"now", "today", "utcnow"}


def faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in READS_THE_CLOCK:
                owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                if owner.split(".")[-1] in {"datetime", "date"}:
                    yield f"line {node.lineno}: {owner}.{attr}()"
                continue
            case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
                yield f"line {node.lineno}: {name}()"
                continue
            case _:
                continue
        yield from (f"line {node.lineno}: import {name}" for name in modules if name.split(".")[0] in IMPURE)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_core_module_is_pure(path: Path) -> None:
    assert list(faults(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "from time import monotonic",
        "import datetime\ndatetime.datetime.now()",
        "import datetime\ndatetime.datetime.now(datetime.UTC)",
        "from datetime import date\ndate.today()",
        "open('x')",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert list(faults(source))
