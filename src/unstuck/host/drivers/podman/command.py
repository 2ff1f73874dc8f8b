"""The words of ``podman run`` for a guest: a pure function of what is wanted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unstuck.core.server.data import Want
from unstuck.host.drivers.podman.engine import Abilities
from unstuck.host.drivers.podman.places import Places, container_name
from unstuck.host.networks.netns import netns_path

FIRST_ID = 0x7000_0000
"""The host's number of a guest's root, where guests have users of their own: nobody on any host."""
_IDS = 65536
INIT = "/usr/lib/unstuck/init"
VOLUME = "/var/lib/unstuck"
CHANNEL = "/run/unstuck-host"
LOG_LIMIT = 4 << 20
"""Bytes of a console log before it begins anew."""
_PIDS = 2048
# What process 1 needs to end processes of other users, to become one, and to hand them their folders.
_CAPABILITIES = "SETUID,SETGID,KILL,CHOWN,DAC_OVERRIDE,FOWNER,FSETID"


class Limits(msgspec.Struct, frozen=True):
    """This process's own hard limits, which nobody can raise for a guest, and the machine's CPUs."""

    files: int
    processes: int
    cpus: int


def owner(abilities: Abilities) -> int:
    """Who owns the top folder of a volume, by the host's number: the guest's root."""
    return FIRST_ID if abilities.users else 0


def run_words(
    want: Want, places: Places, abilities: Abilities, limits: Limits, cidfile: Path, console: Path
) -> list[str]:
    """What follows ``podman run``."""
    mine = places.guest(want.server_id)
    flavor = want.spec.flavor
    return [
        *("--detach", "--name", container_name(want.server_id), "--cidfile", str(cidfile)),
        *("--label", f"unstuck.edge={want.edge}", f"--hostname={want.spec.hostname}"),
        *_network(want),
        *("--no-hosts", "--http-proxy=false", "--systemd=false", "--restart=no"),
        *_users(abilities),
        *("--cap-drop", "all", "--cap-add", _CAPABILITIES, "--security-opt", "no-new-privileges"),
        *("--security-opt", "mask=/sys/fs/cgroup", "--cgroupns", "private"),
        *("--cgroup-parent", f"/{places.guest_group(want.server_id)}/{want.edge}"),
        *_limits(abilities, limits, flavor.ram_mb, flavor.vcpus),
        # Not --read-only-tmpfs=false, with which podman 5 takes /dev/shm away, too.
        *("--read-only", "--workdir", "/"),
        *_in_memory(),
        *("--mount", f"type=bind,src={mine.volume},dst={VOLUME}"),
        *("--mount", f"type=bind,src={mine.channel},dst={CHANNEL},ro"),
        *("--log-driver", "k8s-file", "--log-opt", f"path={console}", "--log-opt", f"max-size={LOG_LIMIT}"),
        *("--rootfs", str(mine.root), INIT),
    ]


def _network(want: Want) -> tuple[str, ...]:
    if not want.spec.nics:
        return ("--network", "none")
    return ("--network", f"ns:{netns_path(want.server_id)}", "--dns", "none")


def _in_memory() -> list[str]:
    """What can be written besides the volume: small, and gone with the container."""
    words = []
    for place, mode in (("/run", "755"), ("/tmp", "1777"), ("/var/tmp", "1777")):  # noqa: S108
        words += ["--tmpfs", f"{place}:rw,nosuid,nodev,mode={mode},size=64m,notmpcopyup"]
    return words


def _users(abilities: Abilities) -> tuple[str, ...]:
    if not abilities.users:
        return ()
    ids = f"0:{FIRST_ID}:{_IDS}"
    return ("--uidmap", ids, "--gidmap", ids)


def _limits(abilities: Abilities, limits: Limits, ram_mb: int, vcpus: int) -> list[str]:
    words = ["--shm-size", f"{max(ram_mb // 4, 64)}m"]
    words += ["--ulimit", f"nofile={limits.files}:{limits.files}"]
    words += ["--ulimit", f"nproc={limits.processes}:{limits.processes}", "--ulimit", "core=0:0"]
    if abilities.memory:
        words += ["--memory", f"{ram_mb}m", "--memory-swap", f"{ram_mb}m"]
    words += ["--pids-limit", str(_PIDS) if abilities.pids else "0"]
    if abilities.cpu:
        words += ["--cpus", str(min(vcpus, limits.cpus))]
    return words
