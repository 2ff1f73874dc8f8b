"""Runs a program on a leash: when whoever holds the other end lets go, it ends with all that it started.

``python -I -S -c <this file's text> DESCRIPTOR PROGRAM ARGUMENT…``, started in a session of its own. The
descriptor is the reading end of a pipe whose writing end its master holds, and only it: the kernel lets go
for a master that was killed. It needs nothing but the standard library, whoever's user it runs under.
No parent-death signal: that is bound to the thread that started it, and not inherited.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def children() -> list[int]:
    """Living and dead ones; orphans below us have become ours."""
    mine, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == mine:
                    found.append(int(name))
    return found


def end_all() -> None:
    """Kill and reap until nobody is left: what a killed one leaves behind comes to us."""
    while pids := children():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def main(descriptor: int, command: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    program = os.fork()
    if program == 0:
        try:
            os.close(descriptor)
            os.setpgid(0, 0)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    # What the program writes to must end when it does.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    handle = os.pidfd_open(program)
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    waiter.register(handle, select.POLLIN)
    ended = False
    while not ended:
        ready = {found for found, _ in waiter.poll()}
        if descriptor in ready and handle not in ready:
            end_all()
            return 137
        ended = handle in ready
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    end_all()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2:]))
