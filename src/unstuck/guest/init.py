"""PID 1 of a database's guest: keeps the agent running, starts the datastore for it, ends all in order.

It is what must not fail, so it does little: the standard library only, no threads, nothing kept but its
children. The agent and the datastore are its children side by side under users of their own; the agent's
death, or its replacement, leaves the datastore alone. Only the agent's user may ask, over a unix socket: one
packet with the command and its descriptors, one answer with the pid, one with the exit code.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import selectors
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

PR_SET_CHILD_SUBREAPER: Final = 36
MESSAGE: Final = 128 << 10
FIRST: Final = 0.5
MOST: Final = 30.0
LASTED: Final = 60.0
"""Seconds: the first and the longest wait before the agent is started again; what counts as a good run."""
SOCKETS: Final = "pg"
"""The folder of the datastore's sockets: an agent of any version finds there what another started."""
ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
AGENT_ENVIRONMENT: Final = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_ARENA_MAX": "2"}
"""Pieces of a backup go back to the system at once: the heap would keep the largest there ever were."""
_PASSED: Final = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "UNSTUCK_LOG",
    "UNSTUCK_STOP_AT",
)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"init: {text}\n".encode())


class User:
    def __init__(self, name: str) -> None:
        found = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, found.pw_uid, found.pw_gid


def spawn(
    command: list[str], user: User, groups: list[int], descriptors: list[int], environment: dict[str, str]
) -> int:
    """Start it as this user, in a session of its own, with these descriptors as 0, 1, 2, 3."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for kind in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(kind, signal.SIG_DFL)
        os.setsid()
        # Out of the way first: one of them could be another's target.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in descriptors]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, number)
        os.closerange(len(descriptors), 4096)
        os.setgroups(groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
        os.umask(0o077)
        os.chdir("/")
        os.execve(command[0] if "/" in command[0] else which(command[0]), command, environment)
    except BaseException as error:  # nothing of this may go on as a second init
        with contextlib.suppress(OSError):
            os.write(2, f"{command[0]}: {getattr(error, 'strerror', None) or error}\n".encode())
    os._exit(127)


def which(name: str) -> str:
    for folder in ENVIRONMENT["PATH"].split(":"):
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    return name


def start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Init:
    """The whole of it."""

    def __init__(
        self, agent: list[str], agent_user: User, user: User, listener: socket.socket, path: Path,
        stop: signal.Signals = signal.SIGINT,
    ) -> None:  # fmt: skip
        self._path = path
        self._stop = stop
        self._agent = agent
        self._agent_user = agent_user
        self._user = user
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._agent_pid = 0
        self._agent_started = 0.0
        self._agent_due = 0.0
        self._pause = FIRST
        self._askers: dict[int, socket.socket] = {}
        """Who waits for the end of which child."""
        self._kept: set[int] = set()
        self._tools: set[int] = set()
        self._ending = False

    def run(self, patience: float) -> int:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(reading, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        while not self._ending:
            self._keep_agent()
            for key, _ in self._selector.select(self._timeout()):
                if key.fileobj == reading:
                    self._hear(os.read(reading, 4096))
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._serve(key.fileobj)
            self._reap()
        return self._end(patience)

    # --- the agent

    def _keep_agent(self) -> None:
        if self._agent_pid or time.monotonic() < self._agent_due:
            return
        passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        environment = {**ENVIRONMENT, **AGENT_ENVIRONMENT, **passed, "UNSTUCK_INIT": str(self._path)}
        groups = [self._agent_user.gid, self._user.gid]
        self._agent_pid = spawn(self._agent, self._agent_user, groups, [self._nothing, 1, 2], environment)
        self._agent_started = time.monotonic()

    def _timeout(self) -> float | None:
        return None if self._agent_pid else max(0.0, self._agent_due - time.monotonic())

    def _agent_ended(self, code: int) -> None:
        self._agent_pid = 0
        now = time.monotonic()
        self._pause = FIRST if now - self._agent_started >= LASTED else min(self._pause * 2, MOST)
        self._agent_due = now + self._pause
        say(f"the agent ended with {code}; it is started again in {self._pause:.1f} s")

    # --- children

    def _hear(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._ending = True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._ended(pid, code if code >= 0 else 128 - code)

    def _ended(self, pid: int, code: int) -> None:
        self._kept.discard(pid)
        self._tools.discard(pid)
        if pid == self._agent_pid:
            self._agent_ended(code)
        asker = self._askers.pop(pid, None)
        if asker is not None:
            answer(asker, {"code": code})
            self._forget(asker)

    # --- requests

    def _accept(self) -> None:
        asker, _ = self._listener.accept()
        credentials = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (self._agent_user.uid, os.getuid()):
            say(f"user {uid} may not ask")
            asker.close()
            return
        asker.setblocking(False)
        self._selector.register(asker, selectors.EVENT_READ, None)

    def _forget(self, asker: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(asker)
        asker.close()

    def _serve(self, asker: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            text, descriptors = receive(asker)
            if not text:  # it let go: its child goes on, its leash tells a tool
                self._askers = {pid: who for pid, who in self._askers.items() if who is not asker}
                self._forget(asker)
                return
            self._do(asker, json.loads(text), descriptors)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer(asker, {"error": str(error)[:300]})
            self._forget(asker)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _do(self, asker: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
        if request["do"] == "signal":
            self._signal(int(request["pid"]), int(request["start"]), int(request["number"]))
            answer(asker, {})
            self._forget(asker)
            return
        command = [str(word) for word in request["command"]]
        if request["do"] != "start" or not command or len(descriptors) not in (3, 4):
            raise ValueError("no such request")
        pid = spawn(command, self._user, [], descriptors, ENVIRONMENT)
        (self._kept if request.get("kept") else self._tools).add(pid)
        self._askers[pid] = asker
        answer(asker, {"pid": pid})

    def _signal(self, pid: int, start: int, number: int) -> None:
        """Only to a process of the datastore's user, and only to just this one."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if start_time(pid) != start or Path(f"/proc/{pid}").stat().st_uid != self._user.uid:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)

    # --- the end

    def _end(self, patience: float) -> int:
        """The agent first, or it would start the datastore again; tools; then the datastore, in order."""
        say("ends")
        if self._agent_pid:
            self._send([self._agent_pid], signal.SIGTERM)
            self._wait({self._agent_pid}, 5.0)
        self._send(list(self._tools), signal.SIGKILL)
        self._send(list(self._kept), self._stop)
        self._wait(self._kept, patience)
        if self._kept:
            say("the datastore did not end in time: it is ended at once")
            self._send(list(self._kept), signal.SIGQUIT if self._stop is signal.SIGINT else signal.SIGKILL)
            self._wait(self._kept, 5.0)
        return 0

    def _send(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait(self, pids: set[int], seconds: float) -> None:
        """Until these have ended; ``pids`` may be a set that shrinks by itself."""
        end = time.monotonic() + seconds
        while any(Path(f"/proc/{pid}").exists() for pid in list(pids)) and time.monotonic() < end:
            self._reap()
            time.sleep(0.02)
        self._reap()


def receive(asker: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the descriptors that came with it."""
    numbers = array.array("i")
    text, more, flags, _ = asker.recvmsg(MESSAGE, socket.CMSG_LEN(4 * numbers.itemsize))
    for level, kind, data in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for number in numbers:
            os.close(number)
        raise ValueError("the request is too large")
    for number in numbers:
        os.set_inheritable(number, False)
    return text, list(numbers)


def answer(asker: socket.socket, words: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        asker.send(json.dumps(words).encode())


def listen(path: Path, agent: User) -> socket.socket:
    """Whom the socket does not belong to cannot even connect."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind(str(path))
    path.chmod(0o600)
    os.chown(path, agent.uid, agent.gid)
    listener.listen(16)
    return listener


def share(folder: Path, agent: User, user: User, mode: int) -> None:
    """The agent's, and open to the datastore's group."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, agent.uid, user.gid)
    folder.chmod(mode)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="unstuck-init", description="PID 1 of a database's guest.")
    parser.add_argument("--volume", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=Path("/run/unstuck"))
    parser.add_argument("--agent-user", required=True)
    parser.add_argument("--user", required=True, help="the datastore's")
    parser.add_argument("--stop", choices=("INT", "TERM"), default="INT", help="the datastore's end in order")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for the datastore's end")
    parser.add_argument("agent", nargs="+", help="the agent's command")
    told = parser.parse_args(argv)
    agent, user = User(told.agent_user), User(told.user)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # where it is not PID 1
    share(told.run, agent, user, 0o750)
    share(told.run / SOCKETS, agent, user, 0o2770)
    try:
        share(told.volume, agent, user, 0o2770)
    except OSError as error:  # the agent will see it too, and can tell
        say(f"the volume cannot be handed over: {error}")
    path = told.run / "init.sock"
    return Init(told.agent, agent, user, listen(path, agent), path, signal.Signals[f"SIG{told.stop}"]).run(
        told.patience
    )


if __name__ == "__main__":
    sys.exit(main())
