"""The image of a datastore: found where it was built, uploaded for nobody else to see, and registered."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from unstuck.cli.cloud import Cloud
from unstuck.cli.errors import CliError
from unstuck.cli.tiny import upload_one
from unstuck.runtime.state import State

_PARTS = ("kernel", "ramdisk")


def built(state: State, datastore: str = "postgresql") -> Path | None:
    """The folder of a finished image: said so, in the state folder, or where set-up builds it."""
    from unstuck.host.dbimage import default_folder

    given = os.environ.get("UNSTUCK_DATABASE_IMAGE")
    places = [Path(given)] if given and datastore == "postgresql" else []
    places += [state.root / datastore, default_folder(datastore)]
    return next((place for place in places if (place / "manifest.json").is_file()), None)


def register(cloud: Cloud, folder: Path) -> str:
    """Upload the image unless it is there, and make it the image of its datastore's version; repeating it
    changes nothing. Instances keep the image that they were made of. Returns the version's name."""
    from unstuck.host.dbimage import read_manifest
    from unstuck.host.dbkinds import KINDS

    manifest = read_manifest(folder)
    if manifest is None:
        name = _name_in(folder)
        raise CliError(f"The image in {folder} is damaged; build it again: unstuck image build {name}.")
    datastore, server = str(manifest["datastore"]), str(manifest["version"])
    kind = KINDS[datastore]
    series = kind.series(server)
    files = manifest["files"]
    parts: dict[str, Any] = {}
    for role in _PARTS:
        if role in files:
            parts[f"{role}_id"] = _upload(cloud, datastore, role, files[role], folder, {})
    says = {**parts, "min_ram": kind.least_mb}
    image = _upload(cloud, datastore, "root", files["root"], folder, says)
    _mend(cloud, image, says)
    _set_version(cloud, datastore, series, server, image)
    return series


def _name_in(folder: Path) -> str:
    """Which datastore's the image is, as far as that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / "manifest.json").read_text())["datastore"])
    return "NAME"


def _upload(
    cloud: Cloud, datastore: str, role: str, entry: dict[str, Any], folder: Path, more: dict[str, Any]
) -> str:
    """Named by its content: what changed is another image."""
    name = f"{datastore}-{role}-{entry['sha512'][:12]}"
    return upload_one(cloud, name, entry, folder / entry["name"], more, visibility="private")


def _mend(cloud: Cloud, image: str, says: dict[str, Any]) -> None:
    """One that was there already may have been uploaded by an earlier version, which did not say how much
    memory it needs, or name a kernel that was deleted since."""
    found = cloud.get(f"/image/v2/images/{image}")
    patch = [
        {"op": "add", "path": f"/{key}", "value": value}
        for key, value in says.items()
        if found.get(key) != value
    ]
    if patch:
        headers = {"content-type": "application/openstack-images-v2.1-json-patch"}
        cloud.ask("PATCH", f"/image/v2/images/{image}", json=patch, headers=headers)


def _set_version(cloud: Cloud, datastore: str, name: str, server: str, image: str) -> None:
    projects = cloud.get("/identity/v3/projects", params={"name": "admin"})["projects"]
    path = f"/database/v1.0/{projects[0]['id']}/mgmt/datastore-versions"
    for version in cloud.get(path)["versions"]:
        if version["name"] == name and version["datastore_name"] == datastore:
            if version["image"] != image:
                cloud.ask("PATCH", f"{path}/{version['id']}", json={"image": image})
            return
    new = {
        "name": name, "datastore_name": datastore, "datastore_manager": datastore, "version": server,
        "image": image, "active": True, "default": True,
    }  # fmt: skip
    cloud.ask("POST", path, json={"version": new})
