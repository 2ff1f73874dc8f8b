"""The ``unstuck`` command. What it needs is imported when it is needed, so that it starts fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_PROCESSES = {"serve": "unstuck.control.main", "host": "unstuck.host.main"}
_COMMANDS = {
    "up": ("unstuck.cli.up:up", "Start the cloud on this machine and say how to use it."),
    "down": ("unstuck.cli.down:down", "Stop the control plane and the agent; guests go on running."),
    "status": (
        "unstuck.cli.status:status",
        "How the cloud is, in one sentence; servers, databases, hosts.",
    ),
    "explain": ("unstuck.cli.explain:explain", "Why something is in its state, and what comes next."),
    "logs": ("unstuck.cli.showlogs:logs", "The end of a log: control, host, or a server's console."),
    "console": ("unstuck.cli.console:console", "A server's serial console in this terminal."),
    "doctor": ("unstuck.cli.doctor:doctor", "Check this machine, and the store against what is there."),
    "recover": ("unstuck.cli.recover:recover", "Backups from the store of objects alone, without a cloud."),
    "demo": ("unstuck.cli.demo:demo", "Break a real cloud at the worst moment; watch it mend itself."),
    "chaos": ("unstuck.cli.chaos:chaos", "Hit a real cloud under load from all sides; nothing may be lost."),
    "db": ("unstuck.cli.db:app", "Managed databases: create, connect, back up, restore."),
    "image": ("unstuck.cli.image:app", "Guest images of our own."),
    "serve": ("unstuck.control.main:main", "Run a control plane here (what `up` starts)."),
    "host": ("unstuck.host.main:main", "Run the agent of this host (what `up` starts)."),
    "sim": ("unstuck.sim.cli:main", "The simulator: exhaustive, random, replay."),
}


def main() -> None:
    """Entry point; the process's exit code is the command's."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command; errors are a sentence, never a traceback."""
    from unstuck.cli.errors import CliError
    from unstuck.cli.words import plain_lines

    try:
        if argv and argv[0] in _PROCESSES:
            return _process(argv[0], argv[1:])
        if argv and argv[0] == "sim":
            return _sim(argv[1:])
        return _command(argv)
    except CliError as error:
        print(f"unstuck: {plain_lines(str(error))}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except PermissionError as error:
        if os.environ.get("UNSTUCK_DEBUG"):
            raise
        from unstuck.runtime.state import not_allowed

        print(f"unstuck: {not_allowed(Path(str(error.filename or '.')))}", file=sys.stderr)
        return 1
    except Exception as error:
        if os.environ.get("UNSTUCK_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}"
        print(f"unstuck: this is a bug: {what} (UNSTUCK_DEBUG=1 shows where).", file=sys.stderr)
        return 70


def _process(name: str, argv: list[str]) -> int:
    """A long-running process: with its own small parser, and without what commands need."""
    import importlib

    code: int = importlib.import_module(_PROCESSES[name]).main(argv)
    return code


def _sim(argv: list[str]) -> int:
    import importlib

    from unstuck.cli.errors import CliError

    try:
        module = importlib.import_module("unstuck.sim.cli")
    except ImportError as error:
        raise CliError(f"The simulator's command is not there: {error}.") from None
    return int(module.main(argv) or 0)


def _command(argv: list[str]) -> int:
    from cyclopts import App, CycloptsError

    import unstuck
    from unstuck.runtime.state import StateError

    app = App(
        name="unstuck", version=unstuck.__version__, result_action="return_value",
        help="A small cloud for servers in which nothing gets stuck.",
    )  # fmt: skip
    for name, (target, words) in _COMMANDS.items():
        app.command(target, name=name, help=words)
    try:
        answer: Any = app(argv, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"unstuck: {_first(str(error))} See `unstuck --help`.", file=sys.stderr)
        return 2
    except StateError as error:
        print(f"unstuck: {error}", file=sys.stderr)
        return 1
    return answer if isinstance(answer, int) else 0


def _first(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if line.endswith((".", "?", "!")) else f"{line}."


if __name__ == "__main__":
    main()
