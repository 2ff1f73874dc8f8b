"""The tiny guest image: found where it was built, uploaded once, as anybody would upload theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx2

from unstuck.cli.cloud import Cloud, sentence
from unstuck.cli.errors import CliError
from unstuck.runtime.state import State

NAME = "tiny"
_ROLES = ("kernel", "ramdisk", "disk")


def places(state: State) -> list[Path]:
    """Where a built image may lie: said so, in the state folder, or in the source tree."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    found = [state.root / "tiny", cache / "unstuck" / "images" / "tiny", Path("/usr/share/unstuck/tiny")]
    root = Path(__file__).parents[3]
    if (root / "pyproject.toml").exists():
        found += [root / "build" / "tiny", root / "images" / "tiny" / "build"]
    given = os.environ.get("UNSTUCK_TINY")
    return [Path(given), *found] if given else found


def built(state: State) -> Path | None:
    """The folder of a finished image."""
    return next((place for place in places(state) if (place / "manifest.json").is_file()), None)


def upload(cloud: Cloud, folder: Path) -> bool:
    """Kernel, ramdisk and disk, each once; true if anything was uploaded.

    An image that a killed upload left without data is used again, so that repeating ends in the same three.
    """
    from unstuck.host.tinyimage import read_manifest

    known = named(cloud, NAME)
    if known is not None and known["status"] == "active":
        return False
    manifest = read_manifest(folder)
    if manifest is None:
        raise CliError(f"The image in {folder} is damaged; build it again: unstuck image build.")
    ids: dict[str, str] = {}
    for role in _ROLES:
        entry = manifest["files"][role]
        name = NAME if role == "disk" else f"{NAME}-{role}"
        more: dict[str, Any] = {}
        if role == "disk":
            more = {
                "kernel_id": ids["kernel"], "ramdisk_id": ids["ramdisk"],
                "os_command_line": manifest["cmdline"], "min_ram": manifest["min_ram"],
            }  # fmt: skip
        ids[role] = upload_one(cloud, name, entry, folder / entry["name"], more)
    return True


def named(cloud: Cloud, name: str, visibility: str = "public") -> dict[str, Any] | None:
    images = cloud.get("/image/v2/images", params={"name": name, "visibility": visibility})["images"]
    return next(iter(images), None)


def upload_one(
    cloud: Cloud,
    name: str,
    entry: dict[str, Any],
    file: Path,
    more: dict[str, Any],
    visibility: str = "public",
) -> str:
    """The id of the image of this name, made and filled where it is not; one left without data is used."""
    found = named(cloud, name, visibility)
    if found is None:
        body = {
            "name": name, "visibility": visibility, "disk_format": entry["disk_format"],
            "container_format": entry["container_format"], **more,
        }  # fmt: skip
        found = cloud.ask("POST", "/image/v2/images", json=body).json()
    image_id = str(found["id"])
    if found["status"] != "active":
        with file.open("rb") as data:
            headers = {"content-type": "application/octet-stream"}
            answer = cloud.client.put(f"/image/v2/images/{image_id}/file", content=data, headers=headers)
        if not answer.is_success:
            raise CliError(f"The image {name} could not be uploaded: {_why(answer)}")
    return image_id


def _why(answer: httpx2.Response) -> str:
    return sentence(answer)
