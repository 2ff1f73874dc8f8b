"""For ``unstuck doctor``: whether databases can be made of what is registered here."""

from __future__ import annotations

from typing import Any, Final

from unstuck.blobs import images
from unstuck.cli.checks import Check
from unstuck.cli.cloud import Cloud
from unstuck.host.dbkinds import KINDS
from unstuck.runtime.state import State

AGAIN: Final = "as root, unstuck image build {datastore} --register"
"""Registers what is missing, and leaves instances the image that they were made of."""


def datastore_versions(cloud: Cloud, state: State) -> list[Check]:
    """One check for each version that can be chosen, and one if there is none."""
    path = f"/database/v1.0/{cloud.project_id}/mgmt/datastore-versions"
    versions = [version for version in cloud.get(path)["versions"] if version["active"]]
    if not versions:
        detail = "no datastore version is registered: databases cannot be made"
        return [Check("databases", "note", detail, AGAIN.format(datastore="postgresql"))]
    out = [_version(cloud, state, version) for version in versions]
    for datastore in sorted({str(version["datastore_name"]) for version in versions}):
        mine = [version for version in versions if version["datastore_name"] == datastore]
        if not any(version["default"] for version in mine):
            remedy = "Name one with every create, or make one the default: openstack datastore version set."
            out.append(
                Check(datastore, "note", "none of its versions that can be chosen is the default", remedy)
            )
    return out


def _version(cloud: Cloud, state: State, version: dict[str, Any]) -> Check:
    datastore = str(version["datastore_name"])
    name, again = f"{datastore} {version['name']}", AGAIN.format(datastore=datastore)
    if not version["image"]:
        return Check(name, "fault", "it has no image: none of it can be made", again)
    root = _image(cloud, str(version["image"]))
    parts = [str(root[key]) for key in ("kernel_id", "ramdisk_id") if root is not None and root.get(key)]
    for image in (root, *(_image(cloud, part) for part in parts)):
        wrong = _unfit(state, image)
        if wrong is not None:
            why, first = wrong
            return Check(name, "fault", f"{why}: none of it can be made", f"{first}{again}")
    assert root is not None
    least = KINDS[datastore].least_mb if datastore in KINDS else 0
    if root["min_ram"] < least:
        detail = f"its image does not say that it needs {least} MiB: in less it never becomes healthy"
        return Check(name, "note", detail, again)
    return Check(name, "ok", f"server {version['version'] or 'of unknown version'}, image {root['name']}")


def _image(cloud: Cloud, image_id: str) -> dict[str, Any] | None:
    answer = cloud.client.get(f"/image/v2/images/{image_id}")
    if answer.status_code == 404:
        return None
    found: dict[str, Any] = cloud.get(f"/image/v2/images/{image_id}")
    return found


def _unfit(state: State, image: dict[str, Any] | None) -> tuple[str, str] | None:
    """What is wrong with it, and what is to be done before it is registered again; None if it is fit."""
    if image is None:
        return "its image, or a part of it, was deleted", ""
    name, image_id = image["name"], image["id"]
    if image["status"] == "deactivated":
        return f"its image {name} is deactivated", f"openstack image set --activate {image_id}. Or: "
    if image["status"] != "active":
        return f"its image {name} is {image['status']}", ""
    folder = images.folder(state.root)
    if not any(folder.glob(images.data_name(image_id, "*"))):
        return (
            f"the file of its image {name} is not in {folder}",
            f"openstack image delete {image_id}. Then: ",
        )
    return None
