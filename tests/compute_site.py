"""A cloud with network, flavors, an image that boots and a host: what tests of the compute API need."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa

from tests.compute_fakes import FakeHost, network, settle
from unstuck.core.image import Data, Image
from unstuck.store import flavors, identity, images
from unstuck.store.engine import Store, Tx
from unstuck.store.schema.identity import projects

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f somebody"


def add_image(tx: Tx, name: str, **more: Any) -> str:
    """A public image with data, as if it had been uploaded."""
    image_id = str(uuid.uuid4())
    project_id = more.pop("project_id", "p")
    if tx.execute(sa.select(projects.c.id).where(projects.c.id == project_id)).first() is None:
        identity.create_project(tx, identity.Project(id=project_id, name=project_id))
    properties = more.pop("properties", {})
    size = more.pop("size", 1 << 20)
    active = more.pop("active", True)
    row = Image(
        id=image_id, project_id=project_id, created=0.0, updated=0.0, name=name,
        visibility=more.pop("visibility", "public"), disk_format="raw", container_format="bare",
        properties=properties, **more,
    )  # fmt: skip
    images.create_image(tx, row, most=1000)
    if active:
        images.claim_upload(tx, image_id, project_id="p", admin=True, nonce="n", seconds=60.0)
        data = Data(name=f"{image_id}.n", size=size, virtual_size=size, checksum="c" * 32, sha512="a" * 128)
        assert images.finish_upload(tx, image_id, nonce="n", disk_format="raw", data=data)
    return image_id


def bootable(tx: Tx, **more: Any) -> str:
    """An image with its kernel and ramdisk."""
    kernel, ramdisk = add_image(tx, "kernel"), add_image(tx, "ramdisk")
    return add_image(tx, "tiny", properties={"kernel_id": kernel, "ramdisk_id": ramdisk}, **more)


class Site:
    """Everything a test needs to know of what :func:`furnish` made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.transact(flavors.ensure_default_flavors)
        self.network = network(store)
        self.image = store.transact(bootable)
        self.host = FakeHost(store)

    def settle(self) -> None:
        settle(self.store, self.host)

    def project(self, name: str) -> str:
        def find(tx: Tx) -> str:
            return tx.execute(sa.select(projects.c.id).where(projects.c.name == name)).scalar_one()

        return self.store.transact(find)

    def body(self, **more: Any) -> dict[str, Any]:
        """A create request; ``None`` takes a key away."""
        server = {"name": "web", "imageRef": self.image, "flavorRef": "1", **more}
        return {"server": {key: value for key, value in server.items() if value is not None}}
