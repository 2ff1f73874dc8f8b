"""Which addresses a cloud's first network has. Two clouds on one machine must not share a range: each has
bridges of its own, and the kernel would send a guest's packets to either.

What is in use shows in the kernel; what another cloud will use, as soon as it has a server, is noted in
``/run``. A note is worth what the state folder that it names still says; a restart clears them.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from unstuck.cli.errors import CliError
from unstuck.runtime.files import private_folder, write_whole
from unstuck.runtime.state import State, StateError

Net = ipaddress.IPv4Network
NOTES = Path("/run/unstuck/ranges")
WIDEST, NARROWEST = 8, 28


def parse(text: str) -> Net:
    """What somebody gave with ``--network``. Raises :class:`CliError`."""
    try:
        net = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise CliError(f"--network {text}: {error}.", 2) from None
    if not WIDEST <= net.prefixlen <= NARROWEST:
        raise CliError(f"--network {text}: the prefix is /{WIDEST} to /{NARROWEST}.", 2)
    return net


def choose(state: State, given: str | None, notes: Path = NOTES) -> str:
    """The range of a cloud that is being made: what was given, or the first free one; it is noted.

    Raises :class:`CliError` where it, or every one, is in use.
    """
    with _only_one(notes):
        picks = [parse(given)] if given else [Net(f"10.77.{number}.0/24") for number in range(256)]
        reason = None
        for net in picks:
            reason = _user_of(net, state, notes)
            if reason is None:
                _note(net, state, notes)
                return str(net)
    words = f"--network {given}" if given else "10.77.0.0/16"
    raise CliError(f"{words} is in use by {reason}: choose a free range with --network CIDR.")


def keep(state: State, notes: Path = NOTES) -> None:
    """Note the range of a cloud that was made before. Raises :class:`CliError` if another has it now."""
    net = parse(state.read().network)
    with _only_one(notes):
        other = _noted(net, state, notes)
        if other is not None:
            raise CliError(
                f"The addresses of this cloud ({net}) are those of {other} too, on one machine: run one of "
                "them somewhere else, or remove one and make it anew with another range (--network CIDR)."
            )
        _note(net, state, notes)


@contextlib.contextmanager
def _only_one(notes: Path) -> Iterator[None]:
    private_folder(notes)
    descriptor = os.open(notes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _here() -> str:
    """Ranges are those of a network namespace."""
    return str(Path("/proc/self/ns/net").stat().st_ino)


def _note(net: Net, state: State, notes: Path) -> None:
    name = f"{_here()}-{net}".replace("/", "_")
    write_whole(notes / name, str(state.root).encode(), durable=False)


def _user_of(net: Net, state: State, notes: Path) -> str | None:
    """Who uses these addresses already; None for nobody."""
    other = _noted(net, state, notes)
    if other is not None:
        return f"the cloud in {other}"
    for name, used in _links():
        if used.overlaps(net):
            return f"the network link {name}"
    return None


def _noted(net: Net, state: State, notes: Path) -> Path | None:
    for note in notes.glob(f"{_here()}-*"):
        noted, other = Net(note.name.partition("-")[2].replace("_", "/")), Path(note.read_text())
        if noted.overlaps(net) and other != state.root and _still(other, noted):
            return other
    return None


def _still(root: Path, net: Net) -> bool:
    """Whether that folder still holds a cloud with this range; one that is just being made does."""
    if not root.exists():
        return False
    try:
        other = State(root)
        return not other.prepared() or other.read().network == str(net)
    except StateError:
        return True


def _links() -> list[tuple[str, Net]]:
    """Addresses and routes of this machine, but for the default route."""
    found = []
    for what in (("addr",), ("route", "show", "table", "all")):
        for entry in _ip(*what):
            texts = [f"{item['local']}/{item['prefixlen']}" for item in entry.get("addr_info", ())]
            texts += [entry["dst"]] if "dst" in entry else []
            for text in texts:
                with contextlib.suppress(ValueError):  # "default"
                    found.append((str(entry.get("ifname") or entry.get("dev")), Net(text, strict=False)))
    return [(name, net) for name, net in found if net.prefixlen]


def _ip(*words: str) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            ["ip", "-4", "-j", *words], capture_output=True, timeout=10, check=True, stdin=subprocess.DEVNULL
        )
        return msgspec.json.decode(done.stdout or b"[]", type=list[dict[str, Any]])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError):
        return []  # doctor says what is missing; making the bridge looks again
