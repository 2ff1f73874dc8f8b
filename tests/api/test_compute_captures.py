"""Images of servers' disks through the API: asked for, made, given up, deleted, and never left half made."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest
import sqlalchemy as sa
from api_cloud import Cloud
from tests.compute_fakes import control
from tests.compute_site import Site

from unstuck.core.errors import Conflict
from unstuck.core.server.control import IMAGE_FAILED
from unstuck.core.server.data import Spec, Step, Trouble
from unstuck.store import captures
from unstuck.store import images as rows
from unstuck.store.agents import Stale
from unstuck.store.schema.compute import operations, servers

SERVERS = "/compute/v2.1/servers"
IMAGES = "/image/v2/images"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


@pytest.fixture
def server(demo: Cloud, site: Site) -> str:
    """A server of the member's, and it runs."""
    made = demo.ask("POST", SERVERS, json=site.body())
    site.settle()
    return str(made.json()["server"]["id"])


def act(cloud: Cloud, server_id: str, name: str, body: Any = None, version: str = "2.96") -> httpx2.Response:
    headers = {"openstack-api-version": f"compute {version}"}
    return cloud.ask("POST", f"{SERVERS}/{server_id}/action", json={name: body}, headers=headers)


def capture(cloud: Cloud, server_id: str, **more: Any) -> str:
    answer = act(cloud, server_id, "createImage", {"name": "copy", **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["image_id"])


def state(cloud: Cloud, server_id: str) -> tuple[str, str | None, int]:
    shown = cloud.get(f"{SERVERS}/{server_id}").json()["server"]
    return shown["status"], shown["OS-EXT-STS:task_state"], shown["OS-EXT-STS:power_state"]


def image(cloud: Cloud, image_id: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.get(f"{IMAGES}/{image_id}").json()
    return found


def gone(cloud: Cloud, image_id: str) -> bool:
    return cloud.get(f"{IMAGES}/{image_id}").status_code == 404


def last_action(cloud: Cloud, server_id: str) -> tuple[str, str | None]:
    headers = {"openstack-api-version": "compute 2.96"}
    row = cloud.get(f"{SERVERS}/{server_id}/os-instance-actions", headers=headers).json()["instanceActions"][
        0
    ]
    return row["action"], row["message"]


def test_an_image_is_made(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server, metadata={"a": "b"})
    assert state(demo, server) == ("ACTIVE", "image_snapshot", 1)
    shown = image(demo, image_id)
    assert (shown["status"], shown["name"], shown["visibility"]) == ("queued", "copy", "private")
    assert (shown["disk_format"], shown["container_format"], shown["a"]) == ("qcow2", "bare", "b")
    assert (shown["image_type"], shown["instance_uuid"], shown["base_image_ref"]) == (
        "snapshot", server, site.image,
    )  # fmt: skip
    base = image(demo, site.image)
    assert (shown["kernel_id"], shown["ramdisk_id"]) == (base["kernel_id"], base["ramdisk_id"])
    for name, body in (
        ("createImage", {"name": "second"}), ("os-stop", None), ("pause", None), ("reboot", {"type": "HARD"}),
        ("resize", {"flavorRef": "2"}), ("shelve", None),
    ):  # fmt: skip
        assert act(demo, server, name, body).status_code == 409, name
    [want] = site.host.wants().values()
    assert want.capture == image_id
    site.host.report(want, step=Step.CAPTURING)
    assert state(demo, server) == ("ACTIVE", "image_uploading", 1)
    site.settle()
    assert (state(demo, server), image(demo, image_id)["status"]) == (("ACTIVE", None, 1), "active")
    assert last_action(demo, server) == ("createImage", None)
    [want] = site.host.wants().values()
    assert want.capture == ""
    booted = demo.ask("POST", SERVERS, json=site.body(imageRef=image_id))
    assert booted.status_code == 202, "it boots as its base does"


@pytest.mark.parametrize(
    ("name", "shown"), [("os-stop", "SHUTOFF"), ("pause", "PAUSED"), ("suspend", "SUSPENDED")]
)
def test_of_a_server_that_does_not_run(demo: Cloud, site: Site, server: str, name: str, shown: str) -> None:
    act(demo, server, name)
    site.settle()
    image_id = capture(demo, server)
    assert state(demo, server)[:2] == (shown, "image_snapshot")
    site.settle()
    assert state(demo, server)[:2] == (shown, None)
    assert image(demo, image_id)["status"] == "active"


def test_a_host_that_gives_up_leaves_no_image_and_no_error(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    [want] = site.host.wants().values()
    trouble = Trouble(IMAGE_FAILED, "no image could be made: the host's disk is full", "ask for one again")
    site.host.report(want, step=Step.CAPTURING, trouble=trouble)
    assert gone(demo, image_id)
    assert state(demo, server)[0] == "ACTIVE"
    assert last_action(demo, server) == ("createImage", trouble.reason)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)
    capture(demo, server)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_nothing_is_saving_for_ever(demo: Cloud, site: Site, server: str) -> None:
    """The host does not come: at the deadline the image is removed, saying so; the server is as it was."""
    image_id = capture(demo, server)
    deadline = site.store.read(
        lambda tx: tx.execute(
            sa.select(operations.c.deadline).where(operations.c.state == "open")
        ).scalar_one()
    )
    assert deadline > site.store.read(lambda tx: tx.now.lease)

    def pass_by(tx: Any) -> None:
        tx.execute(sa.update(operations).where(operations.c.state == "open").values(deadline=0.0))
        tx.execute(sa.update(servers).values(next_look=0.0))

    site.store.transact(pass_by)
    control(site.store)
    assert gone(demo, image_id)
    assert state(demo, server)[0] == "ACTIVE"
    action, message = last_action(demo, server)
    assert (action, "in time" in str(message)) == ("createImage", True)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_bytes_that_arrive_move_the_deadline(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    [want] = site.host.wants().values()
    site.store.transact(
        captures.claim_capture, site.host.id, site.host.incarnation, server, want.fence, image_id,
        nonce="n" * 32, seconds=60.0,
    )  # fmt: skip
    assert image(demo, image_id)["status"] == "saving"
    near = sa.update(operations).where(operations.c.state == "open").values(deadline=1.0)
    site.store.transact(lambda tx: tx.execute(near) and None)
    assert site.store.transact(captures.renew_capture, server, image_id, nonce="n" * 32, seconds=60.0)
    left = site.store.read(
        lambda tx: (
            tx.execute(sa.select(operations.c.deadline).where(operations.c.state == "open")).scalar_one()
            - tx.now.lease
        )
    )
    assert left > captures.PATIENCE - 5
    assert not site.store.transact(captures.renew_capture, server, image_id, nonce="m" * 32, seconds=60.0)


def test_the_next_agent_takes_over(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    [want] = site.host.wants().values()
    grant = (server, want.fence, image_id)
    host = site.host
    claim = captures.claim_capture
    host.store.transact(claim, host.id, host.incarnation, *grant, nonce="1" * 32, seconds=60.0)
    host.store.transact(claim, host.id, host.incarnation, *grant, nonce="2" * 32, seconds=60.0)
    assert not host.store.transact(captures.renew_capture, server, image_id, nonce="1" * 32, seconds=60.0)
    assert host.deliver(want)
    assert image(demo, image_id)["status"] == "active"
    with pytest.raises(Stale):
        host.deliver(want)


def test_deleting_the_server_ends_it(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    [want] = site.host.wants().values()
    assert demo.ask("DELETE", f"{SERVERS}/{server}").status_code == 204
    assert gone(demo, image_id)
    with pytest.raises(Stale):
        site.host.deliver(want)
    site.settle()
    assert demo.get(f"{SERVERS}/{server}").status_code == 404


def test_deleting_the_image_ends_it(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    [want] = site.host.wants().values()
    assert demo.ask("DELETE", f"{IMAGES}/{image_id}").status_code == 204
    assert gone(demo, image_id)
    assert last_action(demo, server) == ("createImage", "the image was deleted")
    with pytest.raises(Stale):
        site.host.deliver(want)
    site.settle()
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_nobody_else_brings_its_data(demo: Cloud, site: Site, server: str) -> None:
    image_id = capture(demo, server)
    headers = {"content-type": "application/octet-stream"}
    assert demo.ask("PUT", f"{IMAGES}/{image_id}/file", content=b"x", headers=headers).status_code == 409
    with pytest.raises(Conflict):
        site.store.transact(
            rows.claim_upload, image_id, project_id=site.project("demo"), admin=True, nonce="n", seconds=1.0
        )
    site.settle()
    assert image(demo, image_id)["status"] == "active"


def test_before_2_45_its_address_is_the_answer(demo: Cloud, site: Site, server: str) -> None:
    answer = act(demo, server, "createImage", {"name": "copy"}, "2.44")
    assert (answer.status_code, answer.content) == (202, b"")
    image_id = answer.headers["location"].rpartition("/")[2]
    assert image(demo, image_id)["name"] == "copy"


BAD = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"name": 5}, "name"),
    ({"name": "x", "metadata": {"": "y"}}, "metadata"),
    ({"name": "x", "metadata": {"status": "y"}}, "metadata"),
    ({"name": "x", "metadata": {"a": 5}}, "metadata"),
    ({"name": "x", "why": "y"}, "why"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_bad_requests_name_the_field_and_make_nothing(
    demo: Cloud, site: Site, server: str, body: dict[str, Any], field: str
) -> None:
    answer = act(demo, server, "createImage", body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["badRequest"]["message"]
    assert state(demo, server) == ("ACTIVE", None, 1)


def test_what_was_never_placed_has_no_image(demo: Cloud, site: Site) -> None:
    made = demo.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    assert act(demo, made, "createImage", {"name": "copy"}).status_code == 409


@pytest.mark.parametrize(
    ("name", "body"), [("createImage", {"name": "copy"}), ("resize", {"flavorRef": "2"})]
)
def test_the_server_of_a_database_is_left_to_its_instance(
    admin: Cloud, site: Site, name: str, body: dict[str, Any]
) -> None:
    made = admin.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    site.settle()

    def give(tx: Any) -> None:
        text = tx.execute(sa.select(servers.c.spec).where(servers.c.id == made)).scalar_one()
        spec = msgspec.structs.replace(msgspec.json.decode(text, type=Spec), data=True)
        tx.execute(
            sa.update(servers).where(servers.c.id == made).values(spec=msgspec.json.encode(spec).decode())
        )

    site.store.transact(give)
    answer = act(admin, made, name, body)
    assert answer.status_code == 409
    assert "is a database's" in answer.json()["conflictingRequest"]["message"]
    assert state(admin, made) == ("ACTIVE", None, 1)


def test_others_cannot_touch(admin: Cloud, demo: Cloud, site: Site) -> None:
    theirs = admin.ask("POST", SERVERS, json=site.body()).json()["server"]["id"]
    site.settle()
    assert act(demo, theirs, "createImage", {"name": "copy"}).status_code == 404
