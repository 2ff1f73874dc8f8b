"""The image of a datastore, registered in a real cloud: once, again, and with other content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_up_and_down import Cli

from unstuck.cli.checks import Check
from unstuck.cli.cloud import Cloud, connect
from unstuck.cli.dbcheck import datastore_versions
from unstuck.cli.dbimage import register
from unstuck.cli.errors import CliError


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.clean_up()


def image(folder: Path, content: str) -> Path:
    """What `unstuck image build postgresql` leaves, with other bytes in it."""
    folder.mkdir()
    files = {}
    for role, name, disk_format in (
        ("root", "root.squashfs", "raw"), ("kernel", "vmlinux", "aki"), ("ramdisk", "initrd", "ari"),
    ):  # fmt: skip
        data = f"{role} {content}".encode() * 500
        (folder / name).write_bytes(data)
        files[role] = {
            "name": name, "disk_format": disk_format, "size": len(data),
            "container_format": "bare" if disk_format == "raw" else disk_format,
            "sha512": hashlib.sha512(data).hexdigest(),
        }  # fmt: skip
    manifest = {
        "format": 1, "name": "postgresql", "datastore": "postgresql", "version": "15.20", "files": files,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def versions(cloud: Cloud) -> list[dict[str, Any]]:
    project = cloud.get("/identity/v3/projects", params={"name": "admin"})["projects"][0]["id"]
    found: list[dict[str, Any]] = cloud.get(f"/database/v1.0/{project}/mgmt/datastore-versions")["versions"]
    return found


def test_registering_makes_one_version_whose_image_follows_its_content(cli: Cli, tmp_path: Path) -> None:
    first, second = image(tmp_path / "first", "one"), image(tmp_path / "second", "two")
    cli.up()
    with connect(cli.state) as cloud:
        assert register(cloud, first) == "15"
        (version,) = versions(cloud)
        assert (version["name"], version["datastore_name"], version["active"]) == ("15", "postgresql", True)
        assert register(cloud, first) == "15"
        assert versions(cloud) == [version]
        shown = cloud.get(f"/image/v2/images/{version['image']}")
        parts = [cloud.get(f"/image/v2/images/{shown[key]}") for key in ("kernel_id", "ramdisk_id")]
        assert shown["min_ram"] == 128
        assert {shown["visibility"], *(part["visibility"] for part in parts)} == {"private"}
        assert {shown["status"], *(part["status"] for part in parts)} == {"active"}
        register(cloud, second)
        (again,) = versions(cloud)
        assert again["id"] == version["id"]
        assert again["image"] != version["image"]
        assert len(cloud.get("/image/v2/images", params={"visibility": "private"})["images"]) == 6
        (first / "vmlinux").write_bytes(b"other bytes")
        with pytest.raises(CliError, match="is damaged; build it again: unstuck image build postgresql"):
            register(cloud, first)


@pytest.mark.slow
def test_doctor_says_what_keeps_databases_from_being_made_and_registering_again_mends_it(
    cli: Cli, tmp_path: Path
) -> None:
    built = image(tmp_path / "first", "one")
    cli.up()
    with connect(cli.state) as cloud:

        def said(name: str = "postgresql 15") -> Check:
            return next(check for check in datastore_versions(cloud, cli.state) if check.name == name)

        assert "no datastore version is registered" in said("databases").detail
        register(cloud, built)
        assert said() == Check("postgresql 15", "ok", said().detail)
        assert "server 15.20" in said().detail

        (version,) = versions(cloud)
        path = f"/image/v2/images/{version['image']}"
        patch = [{"op": "replace", "path": "/min_ram", "value": 0}]
        kind = {"content-type": "application/openstack-images-v2.1-json-patch"}
        cloud.ask("PATCH", path, json=patch, headers=kind)
        assert (said().level, "128 MiB" in said().detail) == ("note", True)
        register(cloud, built)
        assert cloud.get(path)["min_ram"] == 128
        assert said().level == "ok"

        cloud.ask("POST", f"{path}/actions/deactivate")
        assert (said().level, "is deactivated" in said().detail) == ("fault", True)
        cloud.ask("POST", f"{path}/actions/reactivate")
        kernel = cloud.get(path)["kernel_id"]
        (data,) = (cli.state.root / "blobs" / "images").glob(f"{kernel}.*")
        data.rename(tmp_path / "elsewhere")
        assert f"openstack image delete {kernel}" in said().remedy
        cloud.ask("DELETE", f"/image/v2/images/{kernel}")
        assert (said().level, "was deleted" in said().detail) == ("fault", True)
        assert said().detail in cli.run("doctor", code=1)
        register(cloud, built)
        assert said().level == "ok"


def test_the_tiny_image_is_not_registered(cli: Cli) -> None:
    said = cli.run("image", "build", "tiny", "--register", code=2)
    assert "`unstuck up` uploads the tiny image by itself" in said
