"""What the tests of images share: requests in short, and a small qcow2 to break."""

from __future__ import annotations

import struct
from typing import Any

from api_cloud import Cloud

from unstuck.api.context import Settings
from unstuck.blobs import images as files

IMAGES = "/image/v2/images"
PATCH = {"content-type": "application/openstack-images-v2.1-json-patch"}
OCTETS = {"content-type": "application/octet-stream"}
RAW = b"a small disk " * 1000
K64 = 1 << 16


def make(cloud: Cloud, **fields: Any) -> dict[str, Any]:
    body = {"name": "i", "disk_format": "raw", "container_format": "bare", **fields}
    answer = cloud.ask("POST", IMAGES, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def put(cloud: Cloud, image: dict[str, Any], data: Any = RAW) -> Any:
    return cloud.ask("PUT", f"{IMAGES}/{image['id']}/file", content=data, headers=OCTETS)


def patch(cloud: Cloud, image: dict[str, Any], *operations: Any) -> Any:
    return cloud.ask("PATCH", f"{IMAGES}/{image['id']}", json=list(operations), headers=PATCH)


def show(cloud: Cloud, image: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = cloud.get(f"{IMAGES}/{image['id']}").json()
    return shown


def names(cloud: Cloud, query: str = "") -> list[str]:
    answer = cloud.get(IMAGES + query)
    assert answer.status_code == 200, answer.text
    return [image["name"] for image in answer.json()["images"]]


def on_disk(settings: Settings) -> list[str]:
    place = files.folder(settings.state_dir)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def qcow2(**changes: int) -> bytes:
    """A small valid qcow2: header, refcounts, L1 and L2 tables and one data cluster of 64 KiB each."""
    field = {
        "version": 3,
        "backing": 0,
        "bits": 16,
        "virtual": 1 << 20,
        "crypt": 0,
        "l1_size": 1,
        "l1": 3 * K64,
        "refcounts": K64,
        "refcount_clusters": 1,
        "features": 0,
        "l2": 4 * K64,
        "data": 5 * K64,
        "snapshots": 0,
        "snapshots_at": 0,
        "order": 4,
        "header": 104,
        "extension": 0,
        **changes,
    }
    header = struct.pack(
        ">4sIQIIQIIQQIIQQQQIIII",
        b"QFI\xfb",
        field["version"],
        field["backing"],
        0,
        field["bits"],
        field["virtual"],
        field["crypt"],
        field["l1_size"],
        field["l1"],
        field["refcounts"],
        field["refcount_clusters"],
        field["snapshots"],
        field["snapshots_at"],
        field["features"],
        0,
        0,
        field["order"],
        field["header"],
        0,
        field["extension"],
    )
    disk = bytearray(6 * K64)
    disk[: len(header)] = header
    struct.pack_into(">Q", disk, K64, 2 * K64)
    for index in range(6):
        struct.pack_into(">H", disk, 2 * K64 + 2 * index, 1)
    struct.pack_into(">Q", disk, 3 * K64, (1 << 63) | field["l2"])
    struct.pack_into(">Q", disk, 4 * K64, (1 << 63) | field["data"])
    return bytes(disk)
