"""A server as tests of the drivers want it."""

from __future__ import annotations

import hashlib
from typing import Any

from unstuck.core.server.data import BootImage, Fence, Flavor, ImageRole, Nic, Power, Spec, Want

SERVER = "11111111-2222-4333-8444-555555555555"
NIC = Nic(
    "port-1", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", "52:54:00:aa:bb:cc", "10.7.0.5", 24, "10.7.0.1", 1450
)


def boot_image(name: str, content: bytes, role: ImageRole = ImageRole.DISK) -> BootImage:
    return BootImage(name, role, hashlib.sha512(content).hexdigest(), len(content), "raw")


def make_spec(**changed: Any) -> Spec:
    fields = {
        "name": "web",
        "hostname": "web",
        "project_id": "p1",
        "availability_zone": "nova",
        "flavor": Flavor(2, 192, 1),
        "images": (),
    }
    return Spec(**{**fields, **changed})


def make_want(**changed: Any) -> Want:
    fields: dict[str, Any] = {
        "server_id": SERVER,
        "fence": Fence(1, 3),
        "nonce": "n0nce",
        "version": 1,
        "intent": 1,
        "power": Power.ON,
        "edge": 7,
        "soft": False,
        "patience": 0.0,
        "gone": False,
        "disk_recorded": False,
        "spec": make_spec(),
    }
    return Want(**{**fields, **changed})
