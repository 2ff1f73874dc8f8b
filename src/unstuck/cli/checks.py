"""What a machine needs to run Unstuck, one check each; a failed one says what to do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from unstuck.runtime.locks import holder
from unstuck.runtime.state import State

Level = Literal["ok", "note", "fault"]
FREE_MIN = 1 << 30


class Check(msgspec.Struct, frozen=True):
    """``note``: works, with less; ``fault``: does not work."""

    name: str
    level: Level
    detail: str
    remedy: str = ""


def machine(state: State, driver: str) -> list[Check]:
    """All checks that need no cloud."""
    checks: list[Callable[[State], Check]] = [_python, _sqlite, _folder, _space, _port]
    if driver == "qemu":
        checks += [_qemu, _qemu_img, _kvm, _root, _network_tools]
    checks.append(_containers)
    return [check(state) for check in checks]


def _python(_state: State) -> Check:
    return Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _sqlite(_state: State) -> Check:
    import pysqlite3

    version = str(pysqlite3.sqlite_version)
    if tuple(int(part) for part in version.split(".")) < (3, 50, 0):
        return Check("sqlite", "note", version, "Install pysqlite3 anew: this SQLite can corrupt its WAL.")
    return Check("sqlite", "ok", version)


def _folder(state: State) -> Check:
    if not state.root.exists():
        return Check("state folder", "note", f"{state.root} is not there yet", "`unstuck up` makes it.")
    info = state.root.stat()
    if info.st_uid != os.geteuid():
        return Check("state folder", "fault", f"{state.root} belongs to another user", "Run as that user.")
    if info.st_mode & 0o077:
        remedy = f"chmod 700 {state.root}"
        return Check("state folder", "fault", f"others may enter {state.root}", remedy)
    return Check("state folder", "ok", str(state.root))


def _space(state: State) -> Check:
    place = state.root
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / (1 << 30):.1f} GiB free in {place}"
    if free < FREE_MIN:
        return Check("disk space", "fault", detail, "Make room, or choose another folder with --state.")
    return Check("disk space", "ok", detail)


def _port(state: State) -> Check:
    if not state.prepared():
        return Check("port", "ok", "chosen by `unstuck up`")
    found = state.read()
    where = f"{found.address}:{found.port}"
    if holder(state.control_lock) is not None:
        return Check("port", "ok", f"{where} (control plane runs)")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((found.address, found.port))
        except OSError as error:
            return Check("port", "fault", f"{where}: {error.strerror}", "unstuck up --port N takes another.")
    return Check("port", "ok", f"{where} is free")


def _version(command: str) -> str | None:
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\n")[0]


def _qemu(_state: State) -> Check:
    found = _version("qemu-system-x86_64")
    if found is None:
        return Check("qemu", "fault", "qemu-system-x86_64 is missing", "apt-get install qemu-system-x86")
    return Check("qemu", "ok", found)


def _qemu_img(_state: State) -> Check:
    found = _version("qemu-img")
    if found is None:
        return Check("qemu-img", "fault", "qemu-img is missing", "apt-get install qemu-utils")
    return Check("qemu-img", "ok", found)


def _kvm(_state: State) -> Check:
    from unstuck.host.kvm import KvmState, probe_kvm

    report = probe_kvm()
    level: Level = "ok" if report.state is KvmState.USABLE else "note"
    return Check("kvm", level, f"{report.state.value}: {report.detail}", report.remedy)


def _root(_state: State) -> Check:
    if os.geteuid() == 0:
        return Check("root", "ok", "servers get real networks")
    return Check(
        "root", "note", "not root: servers get no networks of their own", "Run `unstuck up` as root."
    )


def _network_tools(_state: State) -> Check:
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool, path=_paths()) is None]
    if missing:
        remedy = "apt-get install iproute2 nftables"
        return Check("networks", "fault", f"{' and '.join(missing)} missing", remedy)
    if os.geteuid() != 0:
        return Check("networks", "ok", "ip and nft are there")
    if not Path("/dev/net/tun").exists():
        return Check("networks", "fault", "/dev/net/tun does not exist", "modprobe tun")
    done = subprocess.run(
        ["nft", "list", "tables"], capture_output=True, text=True, timeout=10, check=False,
        env={**os.environ, "PATH": _paths()},
    )  # fmt: skip
    if done.returncode:
        return Check("networks", "fault", f"nft: {done.stderr.strip()[:200]}", "modprobe nf_tables")
    return Check("networks", "ok", "bridges, taps and nftables")


def _paths() -> str:
    """Users often have no sbin in their path, and the tools lie there."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _containers(_state: State) -> Check:
    """What databases run in where there is no usable virtualisation."""
    from unstuck.host.drivers.podman.engine import abilities, unfit

    why = unfit()
    if why:
        return Check("containers", "note", "databases run in virtual machines only", why)
    found = _version("podman") or "podman"
    able = abilities()
    if able.missing:
        remedy = "Containers are weaker walls so; a host for others' databases should have all of it."
        return Check("containers", "note", f"{found} with {able.runtime}, without {able.missing}", remedy)
    return Check("containers", "ok", f"{found} with {able.runtime}")
