"""The faults: what is done, how it ends, and when its effect is over. Each is one of a lane's choices."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from unstuck.cli.chaos.load import Writer
from unstuck.cli.chaos.world import ChaosWorld, Held
from unstuck.runtime.processes import ProcessId, end, lives

KILL_PATIENCE: Final = 10.0
LAST_WORDS: Final = 0.5
"""Seconds in which sessions that are about to be ended may still acknowledge rows."""


class Skipped(Exception):
    """There was nothing to do it to at that moment; the message says what."""


class Done(msgspec.Struct, frozen=True):
    """What was done. ``over``: whether its effect is over, looked at again and again; ``kills``: how many
    processes it ended with SIGKILL."""

    what: str
    over: Callable[[], bool]
    seen: str
    """What ``over`` waits for, in words."""
    kills: int = 0


Fault = Callable[[], Done]
"""Does it, and heals what would not heal by itself before it returns. Raises :class:`Skipped`."""


def kill_control(world: ChaosWorld) -> Done:
    process = _process(world, "control plane")
    _kill(process)
    return Done(f"kill -9 of the control plane, process {process.pid}", world.answers, "it answers", 1)


def kill_agent(world: ChaosWorld) -> Done:
    process = _process(world, "host agent")
    _kill(process)
    return Done(
        f"kill -9 of the host's agent, process {process.pid}", lambda: world.registered(process.pid),
        "the next one has registered", 1,
    )  # fmt: skip


def kill_both(world: ChaosWorld) -> Done:
    found = world.processes()
    both = [found[name] for name in ("control plane", "host agent") if name in found]
    if not both:
        raise Skipped("neither runs")
    for process in both:
        _kill(process)
    pids = [process.pid for process in both]
    return Done(
        f"kill -9 of control plane and agent at once, processes {pids}",
        lambda: world.answers() and world.registered(pids[-1]), "both are of use", len(both),
    )  # fmt: skip


def freeze_process(world: ChaosWorld, name: str, rng: random.Random) -> Done:
    process, seconds = _process(world, name), rng.uniform(3.0, 12.0)
    held = Held(process.pid)
    time.sleep(seconds)
    held.go_on()
    over = world.answers if name == "control plane" else lambda: world.registered(0)
    return Done(f"SIGSTOP of the {name} for {seconds:.1f} s, then SIGCONT", over, "it goes on")


def kill_guest_agent(writer: Writer) -> Done:
    database = writer.database
    pid = database.agent()
    if pid is None:
        raise Skipped("it has no agent just now")
    _signal(pid, signal.SIGKILL)
    return Done(
        f"kill -9 of the agent in {database.name}, process {pid}",
        lambda: database.agent() not in (None, pid), "the next one runs", 1,
    )  # fmt: skip


def freeze_guest_agent(writer: Writer, rng: random.Random) -> Done:
    database, seconds = writer.database, rng.uniform(3.0, 12.0)
    pid = database.agent()
    if pid is None:
        raise Skipped("it has no agent just now")
    held = Held(pid)
    time.sleep(seconds)
    held.go_on()
    return Done(
        f"SIGSTOP of the agent in {database.name} for {seconds:.1f} s, then SIGCONT",
        lambda: database.agent() is not None, "it runs",
    )  # fmt: skip


def kill_guest(world: ChaosWorld, turn: Iterator[str]) -> Done:
    """Of one server after the other: each may be started so many times in ten minutes, and no more."""
    name = next(turn)
    server_id = world.servers[name]
    pids = world.guest_pids(server_id)
    if not pids:
        raise Skipped("it is off, or just being started")
    _signal(pids[0], signal.SIGKILL)

    def over() -> bool:
        return world.guest_pids(server_id) not in ([], pids[:1]) or world.status(server_id) == "SHUTOFF"

    return Done(
        f"kill -9 of the guest of {name}, process {pids[0]}", over, "it runs again, or its user stopped it", 1
    )


def kill_database(writer: Writer) -> Done:
    database = writer.database
    pid = database.server()
    if pid is None:
        raise Skipped("its server does not run just now")
    _signal(pid, signal.SIGKILL)
    return Done(
        f"kill -9 of the database server of {database.name}, process {pid}", _anew(writer, pid),
        "the next row is acknowledged", 1,
    )  # fmt: skip


def kill_helper(writer: Writer, rng: random.Random) -> Done:
    database = writer.database
    helpers = database.helpers()
    if not helpers:
        raise Skipped("its server does not run just now")
    pid = rng.choice(helpers)
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:60]
        _signal(pid, signal.SIGKILL)
        time.sleep(LAST_WORDS)
        return Done(
            f"kill -9 within {database.name}: {name.strip()}", _goes_on(writer),
            "the next row is acknowledged", 1,
        )  # fmt: skip
    raise Skipped("it ended by itself")


def block(rule: str, what: str, over: Callable[[], bool], seen: str, seconds: float) -> Done:
    """Drop what matches the rule, on its way out of this machine's processes."""
    table = "add table inet chaos; add chain inet chaos out { type filter hook output priority -10; }; "
    _nft(f"{table} add rule inet chaos out {rule} drop")
    time.sleep(seconds)
    _nft("delete table inet chaos")
    return Done(f"{what} blocked for {seconds:.1f} s", over, seen)


def block_control(world: ChaosWorld, rng: random.Random) -> Done:
    port = world.state.url().rpartition(":")[2]
    return block(
        f"tcp dport {port}", "the control plane's port",
        lambda: world.answers() and world.registered(0), "it answers", rng.uniform(4.0, 15.0),
    )  # fmt: skip


def block_database(writer: Writer, rng: random.Random) -> Done:
    address = writer.database.address
    return block(
        f"ip daddr {address} tcp dport != 7", f"all ports of {writer.database.name}", _goes_on(writer),
        "the next row is acknowledged", rng.uniform(4.0, 12.0),
    )  # fmt: skip


def fill(place: Path, what: str, over: Callable[[], bool], seen: str, seconds: float) -> Done:
    """No byte is left there for a while."""
    path = place / "chaos.filling"
    free = os.statvfs(place)
    try:
        with path.open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize, 1))
        with path.open("ab") as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
        time.sleep(seconds)
    finally:
        path.unlink(missing_ok=True)
    return Done(f"{what} full for {seconds:.1f} s", over, seen)


def fill_store(world: ChaosWorld, rng: random.Random) -> Done:
    return fill(
        world.state.root, "the disk of the control plane's store", world.answers, "it answers",
        rng.uniform(3.0, 10.0),
    )  # fmt: skip


def fill_backups(world: ChaosWorld, rng: random.Random) -> Done:
    return fill(
        world.state.root / "backups", "the disk of the backups", world.answers, "it answers",
        rng.uniform(3.0, 15.0),
    )  # fmt: skip


def _anew(writer: Writer, pid: int) -> Callable[[], bool]:
    """Another server has taken this one's place, and acknowledges rows: what a dead server's last sessions
    acknowledge says nothing of the next one."""
    seen: list[int] = []

    def over() -> bool:
        if writer.database.server() in (None, pid):
            return False
        if not seen:
            seen.append(len(writer.acknowledged))
        return len(writer.acknowledged) > seen[0] + 1

    return over


def _goes_on(writer: Writer) -> Callable[[], bool]:
    known = len(writer.acknowledged)
    return lambda: len(writer.acknowledged) > known + 1


def _process(world: ChaosWorld, name: str) -> ProcessId:
    found = world.processes().get(name)
    if found is None:
        raise Skipped(f"no {name} runs just now")
    return found


def _kill(process: ProcessId) -> None:
    if not end(process, signal.SIGKILL, KILL_PATIENCE) and lives(process):
        raise Skipped(f"process {process.pid} does not die")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Skipped("it ended by itself") from None


def _nft(words: str) -> None:
    done = subprocess.run(["nft", words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"nft: {done.stderr.strip()[:200]}")
