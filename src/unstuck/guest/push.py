"""PostgreSQL's ``archive_command`` and ``restore_command``: asks the agent, and waits for it.

``python -I -S push.py SOCKET NAME [TARGET]``, run by the server in its data folder. Without a target the
agent is to keep that piece of the log; with one it is to hand it out, and it is written there. The standard
library only, and little of it: it is started for each piece.
It waits for an agent that is away instead of failing: after three failures PostgreSQL waits for a minute.
It fails at once when the server is told to stop, and when the agent says that there is no such piece.
"""

import os
import socket
import sys
import time

AGAIN = 0.3
STOPPING = "stopping"


def stops() -> bool:
    """Whether the server is shutting down, by its own word."""
    try:
        with open("postmaster.pid") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() == STOPPING


def ask(path: str, line: str, target: str) -> str:
    """The agent's first word; a piece is written behind it. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(120)
        way.connect(path)
        way.sendall(line.encode() + b"\n")
        with way.makefile("rb") as answer:
            word, _, size = answer.readline().decode().strip().partition(" ")
            if word == "OK" and target:
                data = answer.read(int(size))
                if len(data) != int(size):
                    raise OSError("the agent went away")
                with open(target, "wb") as file:  # noqa: PTH123
                    file.write(data)
                    os.fsync(file.fileno())
            return word


def main(path: str, name: str, target: str = "") -> int:
    while True:
        verb = "get" if target else "last" if stops() else "keep"
        line = f"{verb} {name}"
        try:
            word = ask(path, line, target)
        except (OSError, ValueError):
            word = ""
        if word == "OK":
            return 0
        if word == "FAIL":
            return 200  # the server ends its recovery by it
        if word == "NO" or verb == "last":
            return 1
        time.sleep(AGAIN)


if __name__ == "__main__":
    # As the server's own files: it uses this one again for log of its own, which the agent has to read.
    os.umask(0o027)
    sys.exit(main(*sys.argv[1:]))
