"""Images of disks over the agents' API: whole, as sent, from whom they are wanted, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import subprocess
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from agents_site import HOST, Site, facts

from unstuck.blobs import images as files
from unstuck.core.agents import Register, Report
from unstuck.core.server.data import Fence, Observation, Running, Step, Thing, Want
from unstuck.host.client import HttpControl
from unstuck.host.drivers.captures import DeliveryError
from unstuck.store import captures, identity, servers
from unstuck.store.schema.images import images

pytestmark = pytest.mark.skipif(not shutil.which("qemu-img"), reason="no qemu-img")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A disk that stands on nothing else."""
    raw, made = tmp_path / "raw", tmp_path / "copy.qcow2"
    raw.write_bytes(b"kept" * (1 << 20))
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, made], check=True)
    return made


def digest(path: Path) -> str:
    return hashlib.sha512(path.read_bytes()).hexdigest()


async def wanted(site: Site) -> tuple[HttpControl, Want]:
    """A host, and what is wanted of a server that runs on it: an image of its disk."""
    control = site.client()
    asked = await control.register(Register("start", facts()))
    got = await control.register(Register("start", facts(), asked.incarnation))
    await site.store.run(identity.create_project, identity.Project(id="project", name="project"))
    server_id = await site.create()
    assert await site.store.run(servers.place, server_id, HOST, "nonce")
    [want] = (await control.world(got.incarnation, -1)).wants
    seen = Observation(want.intent, Running(1), Thing.PRESENT, Step.AT_REST)
    await control.report(Report(got.incarnation, 1, server_id, want.fence, seen, f"{server_id}.1.1.nonce"))
    ask = captures.Capture(image_id=str(uuid.uuid4()), name="copy", properties={}, most=10)
    await site.store.run(captures.create_image_of, server_id, None, ask, site.user())
    [want] = (await control.world(got.incarnation, -1)).wants
    assert want.capture == ask.image_id
    return control, want


def image(site: Site, want: Want) -> Any:
    return site.store.read(lambda tx: tx.execute(sa.select(images).where(images.c.id == want.capture)).one())


def kept(site: Site) -> list[str]:
    folder = files.folder(site.tmp_path)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def play(site: Site, scene: Callable[[HttpControl, Want], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        control, want = await wanted(site)
        await scene(control, want)
        await control.close()

    asyncio.run(main())


def test_an_image_is_delivered_once(site: Site, copy: Path) -> None:
    content = copy.read_bytes()

    async def scene(control: HttpControl, want: Want) -> None:
        await control.deliver(want, copy, digest(copy))
        row = image(site, want)
        assert (row.sha512, row.size, row.virtual_size) == (digest(copy), len(content), 4 << 20)
        assert kept(site) == [row.data_name]
        assert (
            b"".join(files.read_range(files.open_path(site.tmp_path, row.data_name), 0, row.size)) == content
        )
        with pytest.raises(DeliveryError, match="not wanted") as caught:
            await control.deliver(want, copy, digest(copy))
        assert caught.value.final
        assert kept(site) == [row.data_name]

    play(site, scene)


def test_other_bytes_than_were_sent_are_refused(site: Site, copy: Path) -> None:
    async def scene(control: HttpControl, want: Want) -> None:
        with pytest.raises(DeliveryError, match="not those that were sent") as caught:
            await control.deliver(want, copy, "0" * 128)
        assert not caught.value.final
        assert (kept(site), image(site, want).data_name) == ([], None)
        await control.deliver(want, copy, digest(copy))
        assert image(site, want).sha512 == digest(copy)

    play(site, scene)


def test_what_is_no_disk_is_refused(site: Site, tmp_path: Path) -> None:
    """A host is trusted with its guests, and no further: what it brings is looked into like any upload."""
    bad = tmp_path / "bad"
    bad.write_bytes(b"QFI\xfb" + bytes(1000))

    async def scene(control: HttpControl, want: Want) -> None:
        with pytest.raises(DeliveryError):
            await control.deliver(want, bad, digest(bad))
        assert (kept(site), image(site, want).data_name) == ([], None)

    play(site, scene)


def test_an_agent_that_was_followed_delivers_nothing(site: Site, copy: Path) -> None:
    async def scene(control: HttpControl, want: Want) -> None:
        other = site.client()
        asked = await other.register(Register("later", facts()))
        await other.register(Register("later", facts(), asked.incarnation))
        with pytest.raises(DeliveryError, match="superseded"):
            await control.deliver(want, copy, digest(copy))
        assert kept(site) == []
        await other.deliver(want, copy, digest(copy))
        assert image(site, want).data_name is not None
        await other.close()

    play(site, scene)


def test_a_server_that_is_to_go_gives_no_image(site: Site, copy: Path) -> None:
    async def scene(control: HttpControl, want: Want) -> None:
        await site.store.run(servers.delete_server, want.server_id, site.user())
        with pytest.raises(DeliveryError) as caught:
            await control.deliver(want, copy, digest(copy))
        assert caught.value.final
        assert kept(site) == []
        row = image(site, want)
        assert (row.deleted_wall is None, row.data_name) == (False, None)

    play(site, scene)


def test_another_grant_delivers_nothing(site: Site, copy: Path) -> None:
    async def scene(control: HttpControl, want: Want) -> None:
        older = msgspec.structs.replace(want, fence=Fence(want.fence.generation, want.fence.epoch + 1))
        with pytest.raises(DeliveryError, match="not granted") as caught:
            await control.deliver(older, copy, digest(copy))
        assert caught.value.final

    play(site, scene)


def test_a_driver_that_cannot_ends_it_with_a_reason(site: Site) -> None:
    async def main() -> None:
        port = site.control_port()
        plane = site.control(port)
        await site.store.run(identity.create_project, identity.Project(id="project", name="project"))
        agent = site.agent()
        server_id = await site.create()
        await site.until(server_id, "active")
        ask = captures.Capture(image_id=str(uuid.uuid4()), name="copy", properties={}, most=10)
        await site.store.run(captures.create_image_of, server_id, None, ask, site.user())
        site.notifier.wake(f"host:{HOST}")
        query = sa.select(images.c.deleted_wall).where(images.c.id == ask.image_id)
        async with asyncio.timeout(20):
            while site.store.read(lambda tx: tx.execute(query).scalar_one()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await site.until(server_id, "active")
        assert await agent.end() == 0
        port.end(0)
        await plane

    asyncio.run(main())
