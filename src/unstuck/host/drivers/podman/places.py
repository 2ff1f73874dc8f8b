"""Where a host's containers are on the machine: derived from the host's id and the boot (law 3).

All of it is gone with the machine's boot, as containers are: podman's own records too, so that none ever
tells of a container that a reboot has ended.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from unstuck.host.drivers.folder import boot_id

RUN = Path("/run/unstuck")
GROUP = "unstuck"
"""The control group above all of ours."""


def container_name(server_id: str) -> str:
    return f"unstuck-{server_id}"


class GuestPlaces:
    """Mount points of one guest. Outside of the state folder, because the guest's root, who is nobody on the
    host, has to come through to them."""

    def __init__(self, base: Path) -> None:
        self.path = base
        self.root = base / "root"
        self.volume = base / "volume"
        self.channel = base / "channel"

    @property
    def all(self) -> tuple[Path, ...]:
        return self.root, self.volume, self.channel


class Places:
    """One host's, in this boot."""

    def __init__(self, host_id: str, boot: str | None = None) -> None:
        self.key = hashlib.sha256(f"{host_id}/{boot or boot_id()}".encode()).hexdigest()[:12]
        self.path = RUN / self.key
        self.guests = self.path / "guests"
        self.podman = self.path / "podman"
        self.settings = self.path / "containers.conf"
        self.storage = self.path / "storage.conf"
        self.group = f"{GROUP}/{self.key}"

    def guest(self, server_id: str) -> GuestPlaces:
        return GuestPlaces(self.guests / server_id)

    def guest_group(self, server_id: str) -> str:
        """The control group of all starts of one server."""
        return f"{self.group}/{server_id}"

    def ensure(self) -> None:
        RUN.mkdir(mode=0o711, parents=True, exist_ok=True)
        for folder in (self.path, self.guests):
            folder.mkdir(mode=0o711, exist_ok=True)
            folder.chmod(0o711)  # whatever the umask is
        RUN.chmod(0o711)
        self.podman.mkdir(mode=0o700, exist_ok=True)
