"""``unstuck logs``: what the processes wrote, or a server's console."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import Parameter

from unstuck.cli.cloud import COMPUTE, connect, state_of
from unstuck.cli.errors import CliError
from unstuck.cli.explain import find_server
from unstuck.cli.words import for_terminal, plain, plain_lines

PROCESSES = ("control", "host", "supervisor")


def logs(
    what: str = "control",
    *,
    lines: Annotated[int, Parameter(name=["--lines", "-n"])] = 50,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    state: Path | None = None,
) -> None:
    """Show the end of a log.

    Parameters
    ----------
    what
        control, host, supervisor, or a server's id or name (its console).
    lines
        How many lines.
    follow
        Go on showing what is written (not for consoles).
    state
        The state folder.
    """
    found = state_of(state)
    if what not in PROCESSES:
        with connect(found) as cloud:
            server_id = find_server(cloud, what)
            body = {"os-getConsoleOutput": {"length": lines}}
            path = f"/compute/v2.1/servers/{server_id}/action"
            text = cloud.ask("POST", path, json=body, headers=COMPUTE).json()["output"]
        sys.stdout.write(for_terminal(text if text.endswith("\n") or not text else text + "\n"))
        return
    log = found.logs / f"{what}.log"
    try:
        with log.open("rb") as file:
            for line in _tail(file, lines):
                print(readable(line))
            if follow:
                _follow(file)
    except FileNotFoundError:
        raise CliError(f"{log} is not there yet; `unstuck up` starts what writes it.") from None


def _tail(file: BinaryIO, count: int) -> list[bytes]:
    size = file.seek(0, 2)
    file.seek(max(0, size - 4 * 1024 * 1024))
    return file.read().splitlines()[-count:] if count > 0 else []


def _follow(file: BinaryIO) -> None:
    for line in _growing(file):
        print(readable(line), flush=True)


def _growing(file: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while True:
        rest += file.read()
        *whole, rest = rest.split(b"\n")
        yield from whole
        time.sleep(0.25)


def readable(line: bytes) -> str:
    """A JSON line in words; any other line as it is. Nothing in it is obeyed by a terminal."""
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return plain(line.decode(errors="replace"))
    head = [str(found.pop(key, "")) for key in ("timestamp", "level", "process")]
    event = str(found.pop("event", ""))
    trace = str(found.pop("traceback", "") or found.pop("exception", ""))
    found.pop("pid", None)
    more = " ".join(f"{key}={value}" for key, value in found.items())
    text = " ".join(word for word in [head[0][:19], f"{head[1]:<7}", event, more] if word).rstrip()
    return f"{plain(text)}\n{plain_lines(trace)}" if trace else plain(text)
