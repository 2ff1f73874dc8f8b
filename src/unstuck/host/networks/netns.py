"""A container's network namespace: set up before its first process begins, named for its server."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from unstuck.core.server.data import Nic
from unstuck.host.driver import DriverError
from unstuck.host.drivers.process import run

_FOLDER = Path("/run/netns")
_PREFIX = "unstuck-"
_DEADLINE = 10.0


def netns_name(server_id: str) -> str:
    return f"{_PREFIX}{server_id}"


def netns_path(server_id: str) -> Path:
    return _FOLDER / netns_name(server_id)


def is_there(server_id: str) -> bool:
    """Whether the name stands for a namespace; a killed ``ip netns add`` leaves a file that does not."""
    try:
        return netns_path(server_id).stat().st_dev == Path("/proc/self/ns/net").stat().st_dev
    except FileNotFoundError:
        return False


def servers() -> frozenset[str]:
    """All servers, of whatever cloud, that a name is there of."""
    with contextlib.suppress(FileNotFoundError):
        names = (path.name for path in _FOLDER.iterdir())
        return frozenset(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))
    return frozenset()


def is_named(server_id: str) -> bool:
    """Whether anything has the name."""
    return os.path.lexists(netns_path(server_id))


async def ensure(server_id: str) -> None:
    if is_there(server_id):
        return
    netns_path(server_id).unlink(missing_ok=True)
    await run(["ip", "netns", "add", netns_name(server_id)], _DEADLINE)


async def attach(server_id: str, pid: int) -> None:
    """Give the namespace of a living process its name back."""
    netns_path(server_id).unlink(missing_ok=True)
    await run(["ip", "netns", "attach", netns_name(server_id), str(pid)], _DEADLINE)


async def remove(server_id: str) -> None:
    """The name; the namespace itself lives as long as a process is in it."""
    if not is_named(server_id):
        return
    with contextlib.suppress(DriverError):
        await run(["ip", "netns", "del", netns_name(server_id)], _DEADLINE)
    netns_path(server_id).unlink(missing_ok=True)


def pair_line(link: str, server_id: str, index: int, nic: Nic) -> str:
    """A pair in one step, so that no end of it is ever anywhere else."""
    peer = f"peer name eth{index} netns {netns_name(server_id)} address {nic.mac} mtu {nic.mtu}"
    return f"link add name {link} mtu {nic.mtu} type veth {peer}"


async def configure(server_id: str, index: int, nic: Nic) -> None:
    """Address and routes as they should be; repeating changes nothing."""
    lines = [
        f"addr replace {nic.address}/{nic.prefix} dev eth{index}",
        f"link set dev eth{index} addrgenmode none",
        f"link set dev eth{index} up",
    ]
    if nic.gateway is not None:
        lines.append(f"route replace default via {nic.gateway} dev eth{index} metric {index + 1}")
    text = "link set dev lo up\n" + "".join(f"{line}\n" for line in lines)
    await run(["ip", "-n", netns_name(server_id), "-batch", "-"], _DEADLINE, text.encode())
