"""Servers through the API: their life, their conflicts, and exactly the keys of each microversion."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from api_cloud import Cloud
from tests.compute_site import Site, add_image, bootable

SERVERS = "/compute/v2.1/servers"


@pytest.fixture
def site(cloud: Cloud) -> Site:
    return Site(cloud.store)


def at(version: str) -> dict[str, str]:
    return {"x-openstack-nova-api-version": version}


def create(who: Cloud, site: Site, version: str = "2.96", **more: Any) -> str:
    more = {"networks": "auto", **more} if version != "2.1" else more
    answer = who.ask("POST", SERVERS, json=site.body(**more), headers=at(version))
    assert answer.status_code == 202, answer.text
    return answer.json()["server"]["id"]


def show(who: Cloud, server_id: str, version: str = "2.96") -> dict[str, Any]:
    answer = who.get(f"{SERVERS}/{server_id}", headers=at(version))
    assert answer.status_code == 200, answer.text
    return answer.json()["server"]


def act(who: Cloud, server_id: str, action: str, value: Any = None, version: str = "2.96") -> Any:
    return who.ask("POST", f"{SERVERS}/{server_id}/action", json={action: value}, headers=at(version))


def test_a_whole_life(demo: Cloud, site: Site) -> None:
    server_id = create(demo, site, name="My Web_1")
    assert (show(demo, server_id)["status"], show(demo, server_id)["OS-EXT-STS:task_state"]) == (
        "BUILD",
        "scheduling",
    )
    site.settle()
    shown = show(demo, server_id)
    assert shown["status"] == "ACTIVE"
    assert shown["OS-EXT-STS:task_state"] is None
    assert shown["OS-EXT-STS:power_state"] == 1
    assert shown["host_status"] == "UP"
    assert len(shown["hostId"]) == 56
    [address] = shown["addresses"]["private"]
    assert address["addr"].startswith("10.7.")
    assert address["version"] == 4
    assert address["OS-EXT-IPS:type"] == "fixed"
    assert shown["OS-EXT-SRV-ATTR:hostname"] == "my-web-1"
    assert shown["OS-SRV-USG:launched_at"]

    assert act(demo, server_id, "os-start").status_code == 409
    assert act(demo, server_id, "os-stop").status_code == 202
    assert show(demo, server_id)["OS-EXT-STS:task_state"] == "powering-off"
    site.settle()
    assert show(demo, server_id)["status"] == "SHUTOFF"
    assert act(demo, server_id, "reboot", {"type": "SOFT"}).status_code == 409
    assert act(demo, server_id, "os-start").status_code == 202
    site.settle()
    assert act(demo, server_id, "reboot", {"type": "HARD"}).status_code == 202
    assert show(demo, server_id)["status"] == "HARD_REBOOT"
    site.settle()
    assert show(demo, server_id)["status"] == "ACTIVE"

    answer = demo.ask("DELETE", f"{SERVERS}/{server_id}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert show(demo, server_id)["OS-EXT-STS:task_state"] == "deleting"
    assert demo.ask("DELETE", f"{SERVERS}/{server_id}").status_code == 204
    site.settle()
    assert demo.get(f"{SERVERS}/{server_id}").status_code == 404
    assert demo.ask("DELETE", f"{SERVERS}/{server_id}").status_code == 404


BASE = {
    "addresses", "created", "flavor", "hostId", "id", "image", "links", "metadata", "name", "status",
    "tenant_id", "updated", "user_id", "OS-DCF:diskConfig", "OS-EXT-AZ:availability_zone",
    "OS-EXT-STS:power_state", "OS-EXT-STS:task_state", "OS-EXT-STS:vm_state", "OS-SRV-USG:launched_at",
    "OS-SRV-USG:terminated_at", "accessIPv4", "accessIPv6", "config_drive", "key_name",
    "os-extended-volumes:volumes_attached", "progress", "security_groups",
}  # fmt: skip
ADMIN = {f"OS-EXT-SRV-ATTR:{name}" for name in ("host", "hypervisor_hostname", "instance_name")}
ADMIN_23 = {
    f"OS-EXT-SRV-ATTR:{name}"
    for name in (
        "hostname", "kernel_id", "launch_index", "ramdisk_id", "reservation_id", "root_device_name",
        "user_data",
    )
}  # fmt: skip
SHORT = {
    "addresses", "created", "flavor", "hostId", "id", "image", "links", "metadata", "name", "status",
    "tenant_id", "updated", "user_id", "OS-DCF:diskConfig", "accessIPv4", "accessIPv6", "progress",
}  # fmt: skip
ADDED = [
    ((2, 9), {"locked"}), ((2, 19), {"description"}), ((2, 26), {"tags"}),
    ((2, 63), {"trusted_image_certificates"}), ((2, 73), {"locked_reason"}),
    ((2, 96), {"pinned_availability_zone"}),
]  # fmt: skip
VERSIONS = [
    "2.1", "2.3", "2.9", "2.16", "2.19", "2.26", "2.47", "2.63", "2.71", "2.73", "2.75", "2.90", "2.96",
]  # fmt: skip


def common(number: tuple[int, int]) -> set[str]:
    return {key for since, keys in ADDED if number >= since for key in keys}


def detailed(number: tuple[int, int], *, admin: bool) -> set[str]:
    keys = BASE | common(number)
    if number >= (2, 16):
        keys |= {"host_status"}
    if admin:
        keys |= ADMIN | (ADMIN_23 if number >= (2, 3) else set())
    elif number >= (2, 90):
        keys |= {"OS-EXT-SRV-ATTR:hostname"}
    return keys


@pytest.mark.parametrize("version", VERSIONS)
def test_exactly_the_keys_of_each_microversion(admin: Cloud, demo: Cloud, site: Site, version: str) -> None:
    number = (2, int(version[2:]))
    grouped = {"server_groups"} if number >= (2, 71) else set()
    made = demo.ask(
        "POST", SERVERS, json=site.body(networks="auto" if number >= (2, 37) else None), headers=at(version)
    )
    assert made.status_code == 202, made.text
    server = made.json()["server"]
    assert set(server) == {"id", "links", "OS-DCF:diskConfig", "security_groups", "adminPass"}
    assert made.headers["location"].endswith(server["id"])
    site.settle()
    for who, is_admin in ((demo, False), (admin, True)):
        keys = detailed(number, admin=is_admin)
        assert set(show(who, server["id"], version)) == keys | grouped
        query = "?all_tenants=1" if is_admin else ""
        [listed] = who.get(f"{SERVERS}/detail{query}", headers=at(version)).json()["servers"]
        assert set(listed) == keys
        changed = who.ask(
            "PUT", f"{SERVERS}/{server['id']}", json={"server": {"name": "b"}}, headers=at(version)
        )
        long = number >= (2, 75)
        assert set(changed.json()["server"]) == (keys if long else SHORT | common(number)) | grouped
    flavor = show(demo, server["id"], version)["flavor"]
    if number >= (2, 47):
        assert set(flavor) == {"vcpus", "ram", "disk", "ephemeral", "swap", "original_name", "extra_specs"}
    else:
        assert set(flavor) == {"id", "links"}


BAD = [
    ({"name": ""}, "name"),
    ({"name": " x"}, "name"),
    ({"name": "x" * 256}, "name"),
    ({"name": 7}, "name"),
    ({"imageRef": "nonsense"}, "imageRef"),
    ({"imageRef": "11111111-1111-4111-8111-111111111111"}, "imageRef"),
    ({"imageRef": ""}, "imageRef"),
    ({"flavorRef": "nonsense"}, "flavorRef"),
    ({"key_name": "nonsense"}, "key_name"),
    ({"networks": "some"}, "networks"),
    ({"networks": [{"uuid": "x"}]}, "networks[0].uuid"),
    ({"networks": [{}]}, "networks[0].uuid"),
    ({"networks": [{"uuid": "11111111-1111-4111-8111-111111111111"}]}, "networks"),
    ({"networks": [{"port": "11111111-1111-4111-8111-111111111111"}]}, "networks[0].port"),
    ({"min_count": 0}, "min_count"),
    ({"max_count": "x"}, "max_count"),
    ({"min_count": 3, "max_count": 2}, "min_count"),
    ({"metadata": {"": "x"}}, "metadata"),
    ({"metadata": {"x": "y" * 256}}, "metadata"),
    ({"metadata": {"x": 1}}, "metadata"),
    ({"user_data": "%%%"}, "user_data"),
    ({"user_data": base64.b64encode(b"x" * 60000).decode()}, "user_data"),
    ({"config_drive": "maybe"}, "config_drive"),
    ({"availability_zone": "mars"}, "availability_zone"),
    ({"security_groups": [{"name": "web"}]}, "security_groups"),
    ({"personality": []}, "personality"),
    ({"trusted_image_certificates": ["x"]}, "trusted_image_certificates"),
    ({"accessIPv4": "::1"}, "accessIPv4"),
    ({"OS-DCF:diskConfig": "x"}, "diskConfig"),
    ({"hostname": "-x"}, "hostname"),
    ({"tags": ["a,b"]}, "tags"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"block_device_mapping_v2": [{"source_type": "blank", "destination_type": "local"}]}, "block_device"),
    ({"block_device_mapping_v2": [{"boot_index": 0, "uuid": "x", "source_type": "volume",
                                   "destination_type": "volume"}]}, "block_device"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "field"), BAD)
def test_bad_create_requests_name_the_field(demo: Cloud, site: Site, change: Any, field: str) -> None:
    body = site.body(**{"networks": "auto", **change})
    answer = demo.ask("POST", SERVERS, json=body, headers=at("2.96"))
    assert answer.status_code == 400, answer.text
    assert answer.json()["badRequest"]["code"] == 400
    assert field in answer.json()["badRequest"]["message"]
    assert demo.get(SERVERS).json() == {"servers": []}


def test_what_the_image_must_be(demo: Cloud, site: Site) -> None:
    def message(**more: Any) -> str:
        answer = demo.ask("POST", SERVERS, json=site.body(**more))
        assert answer.status_code == 400, answer.text
        text: str = answer.json()["badRequest"]["message"]
        return text

    assert "firmware boot is not there yet" in message(imageRef=site.store.transact(add_image, "plain"))
    waiting = site.store.transact(add_image, "waiting", active=False)
    assert "is not active" in message(imageRef=waiting)
    assert "disk is too small" in message(imageRef=site.store.transact(bootable, size=2 << 30), flavorRef="2")
    assert "memory is too small" in message(imageRef=site.store.transact(bootable, min_ram=4096))
    assert "minimum size" in message(imageRef=site.store.transact(bootable, min_disk=2), flavorRef="2")
    hidden = site.store.transact(bootable, visibility="private")
    assert "could not be found" in message(imageRef=hidden)


def test_keys_of_later_microversions_are_refused(demo: Cloud, site: Site) -> None:
    for key, value, version in (
        ("description", "x", "2.18"), ("tags", ["x"], "2.51"), ("hostname", "x", "2.89"),
        ("host", "x", "2.73"), ("networks", "none", "2.36"),
    ):  # fmt: skip
        answer = demo.ask("POST", SERVERS, json=site.body(**{key: value}), headers=at(version))
        assert answer.status_code == 400
        assert key in answer.json()["badRequest"]["message"]
    answer = demo.ask("POST", SERVERS, json=site.body(), headers=at("2.37"))
    assert "networks" in answer.json()["badRequest"]["message"]


def test_what_clients_send_as_root_disk(demo: Cloud, site: Site) -> None:
    disk = {
        "uuid": site.image, "boot_index": 0, "source_type": "image", "destination_type": "local",
        "delete_on_termination": True,
    }  # fmt: skip
    create(demo, site, block_device_mapping_v2=[disk])
    create(demo, site, block_device_mapping_v2=[disk], imageRef=None)


def test_networks(demo: Cloud, site: Site) -> None:
    bare = create(demo, site, networks="none")
    assert show(demo, bare)["addresses"] == {}
    assert show(demo, bare)["security_groups"] == []
    fixed = create(demo, site, networks=[{"uuid": site.network, "fixed_ip": "10.7.0.77", "tag": "x"}])
    assert show(demo, fixed)["addresses"]["private"][0]["addr"] == "10.7.0.77"
    answer = demo.ask(
        "POST", SERVERS, headers=at("2.96"),
        json=site.body(networks=[{"uuid": site.network, "fixed_ip": "10.7.0.77"}]),
    )  # fmt: skip
    assert answer.status_code == 400
    assert len(demo.get(SERVERS).json()["servers"]) == 2
    two = create(demo, site, networks=[{"uuid": site.network}, {"uuid": site.network}])
    assert len(show(demo, two)["addresses"]["private"]) == 2


def test_several_at_once_and_quotas(demo: Cloud, admin: Cloud, site: Site) -> None:
    body = site.body(min_count=2, max_count=3, return_reservation_id=True)
    answer = demo.ask("POST", SERVERS, json=body)
    assert answer.status_code == 202
    reservation = answer.json()["reservation_id"]
    found = demo.get(f"{SERVERS}/detail?reservation_id={reservation}&sort_key=display_name&sort_dir=asc")
    assert [item["name"] for item in found.json()["servers"]] == ["web-1", "web-2", "web-3"]
    answer = demo.ask("POST", SERVERS, json=site.body(min_count=99))
    assert answer.status_code == 403
    assert "Quota exceeded" in answer.json()["forbidden"]["message"]
    assert demo.ask("POST", SERVERS, json=site.body(min_count=1, max_count=99)).status_code == 202
    assert len(demo.get(f"{SERVERS}?limit=1000").json()["servers"]) == 100
    assert demo.ask("POST", SERVERS, json=site.body()).status_code == 403
    assert admin.ask("POST", SERVERS, json=site.body()).status_code == 202


def test_others_cannot_see_or_touch(demo: Cloud, admin: Cloud, site: Site) -> None:
    theirs = create(admin, site)
    assert demo.get(f"{SERVERS}/{theirs}").status_code == 404
    assert demo.ask("DELETE", f"{SERVERS}/{theirs}").status_code == 404
    assert act(demo, theirs, "os-stop").status_code == 404
    assert act(demo, theirs, "os-getConsoleOutput", {}).status_code == 404
    changed = demo.ask("PUT", f"{SERVERS}/{theirs}", json={"server": {"name": "x"}})
    assert changed.status_code == 404
    assert demo.get(f"{SERVERS}?all_tenants=1").status_code == 403
    assert demo.get(SERVERS).json() == {"servers": []}
    mine = create(demo, site)
    assert show(admin, mine)["id"] == mine
    ids = {item["id"] for item in admin.get(f"{SERVERS}?all_tenants=True").json()["servers"]}
    assert ids == {mine, theirs}
    project = site.project("demo")
    found = admin.get(f"{SERVERS}?all_tenants=True&project_id={project}").json()["servers"]
    assert [item["id"] for item in found] == [mine]


def test_only_administrators_choose_a_host(demo: Cloud, admin: Cloud, site: Site) -> None:
    answer = demo.ask("POST", SERVERS, json=site.body(availability_zone="nova:host-1"))
    assert answer.status_code == 403
    answer = admin.ask("POST", SERVERS, json=site.body(availability_zone="nova:mars"))
    assert answer.status_code == 400
    server_id = create(admin, site, availability_zone="nova:host-1")
    site.settle()
    shown = show(admin, server_id)
    assert shown["OS-EXT-SRV-ATTR:host"] == "host-1"
    assert shown["pinned_availability_zone"] == "nova"


def test_update(demo: Cloud, site: Site) -> None:
    server_id = create(demo, site)
    change = {"name": "new", "description": "d", "accessIPv4": "1.2.3.4", "hostname": "other"}
    answer = demo.ask("PUT", f"{SERVERS}/{server_id}", json={"server": change}, headers=at("2.90"))
    assert answer.status_code == 200
    shown = answer.json()["server"]
    assert (shown["name"], shown["description"], shown["accessIPv4"]) == ("new", "d", "1.2.3.4")
    assert shown["OS-EXT-SRV-ATTR:hostname"] == "other"
    for bad in ({"name": ""}, {"accessIPv6": "1.2.3.4"}, {"status": "x"}, {"OS-DCF:diskConfig": "x"}):
        answer = demo.ask("PUT", f"{SERVERS}/{server_id}", json={"server": bad}, headers=at("2.90"))
        assert answer.status_code == 400, bad


def test_actions_that_are_none(demo: Cloud, site: Site) -> None:
    server_id = create(demo, site)
    answer = act(demo, server_id, "teleport")
    assert answer.status_code == 400
    assert "There is no such action" in answer.json()["badRequest"]["message"]
    answer = act(demo, server_id, "os-migrateLive", {"host": None, "block_migration": "auto"})
    assert answer.status_code == 400
    message = answer.json()["badRequest"]["message"]
    assert message == "The action os-migrateLive is not offered by this cloud."
    assert act(demo, server_id, "reboot", {"type": "WARM"}).status_code == 400
    assert act(demo, server_id, "os-stop").status_code == 409  # it is being built


def test_delete_in_every_state(demo: Cloud, site: Site) -> None:
    unplaced = create(demo, site)
    assert demo.ask("DELETE", f"{SERVERS}/{unplaced}").status_code == 204
    assert demo.get(f"{SERVERS}/{unplaced}").status_code == 404  # nobody had to clean anything up
    server_id = create(demo, site)
    site.settle()
    act(demo, server_id, "os-stop")
    assert act(demo, server_id, "forceDelete").status_code == 202
    assert act(demo, server_id, "os-start").status_code == 409


def test_the_end_of_the_console_log(demo: Cloud, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from unstuck.api.compute import servers

    server_id = create(demo, site)
    assert act(demo, server_id, "os-getConsoleOutput", {}).status_code == 409  # it has no host yet
    site.settle()
    notifier = demo.app.app.notifier
    before = notifier.wake

    def wake(key: str) -> None:
        before(key)
        if key.startswith("host:"):
            site.host.wants()  # answers what it is asked

    monkeypatch.setattr(notifier, "wake", wake)
    answer = act(demo, server_id, "os-getConsoleOutput", {"length": 2})
    assert (answer.status_code, answer.json()) == (200, {"output": "line 2\nline 3\n"})
    assert act(demo, server_id, "os-getConsoleOutput", {}).json()["output"].startswith("line 1")
    assert act(demo, server_id, "os-getConsoleOutput", None).status_code == 200
    assert act(demo, server_id, "os-getConsoleOutput", {"length": "x"}).status_code == 400
    monkeypatch.setattr(notifier, "wake", before)
    monkeypatch.setattr(servers, "CONSOLE_SECONDS", 0.2)
    answer = act(demo, server_id, "os-getConsoleOutput", {})
    assert answer.status_code == 409
    assert "did not answer" in answer.json()["conflictingRequest"]["message"]


def test_a_network_that_no_host_can_make_is_refused_at_once(demo: Cloud, site: Site) -> None:
    """Without root a server with a network stayed BUILD for ever, and said only "see doctor"."""
    site.host.register(no_networks="networks need root: start Unstuck as root on the host")
    answer = demo.ask("POST", SERVERS, json=site.body(networks="auto"), headers=at("2.96"))
    assert answer.status_code == 409
    told = answer.json()["conflictingRequest"]["message"]
    assert told.startswith("networks: no host can connect a server now (host-1: networks need root: start")
    assert "--no-network" in told
    assert demo.get(SERVERS).json()["servers"] == []
    server_id = create(demo, site, networks="none")
    site.settle()
    assert show(demo, server_id)["status"] == "ACTIVE"
    site.host.register()
    create(demo, site)
