"""Every command of the stock client that this cloud answers, as people type it, against the real API.

One cloud per area and one process for all: a new process for each command would take a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import PASSWORD, Running, Shell
from tests.compute_site import KEY

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def osc(cloud: Running) -> Shell:
    return Shell(cloud)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The client sets levels of loggers and leaves them so."""
    before = {name: item.level for name, item in logging.root.manager.loggerDict.items()
              if isinstance(item, logging.Logger)}  # fmt: skip
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def column(rows: list[dict[str, Any]], name: str = "Name") -> set[Any]:
    return {row[name] for row in rows}


def until(osc: Shell, server: str, status: str) -> None:
    """Stop and start have no ``--wait``."""
    deadline = time.monotonic() + 60
    while osc.json("server show", server)["status"] != status:
        assert time.monotonic() < deadline


def test_identity(osc: Shell) -> None:
    assert osc.json("token issue")["expires"].endswith("+0000")
    assert {"keystone", "nova", "glance", "neutron", "trove"} <= column(osc.json("catalog list"))
    assert osc.json("catalog show compute")["name"] == "nova"
    assert {"admin", "demo", "service"} <= column(osc.json("project list"))
    assert osc.json("project show demo")["enabled"] is True
    assert column(osc.json("service list"), "Type") >= {"compute", "image", "identity", "network"}
    assert osc.json("service show nova")["type"] == "compute"
    assert len(osc.json("endpoint list")) == 15
    assert len(osc.json("endpoint list --service compute --interface public")) == 1
    assert column(osc.json("region list"), "Region") == {"RegionOne"}
    assert osc.json("region show RegionOne")["region"] == "RegionOne"
    assert column(osc.json("domain list")) == {"Default"}
    assert osc.json("domain show default")["name"] == "Default"
    assert osc.json("versions show")
    osc("project create p1 --description first --tag a")
    osc("project set p1 --description second --tag b --property k=v --disable")
    shown = osc.json("project show p1")
    assert (shown["description"], shown["enabled"], sorted(shown["tags"])) == ("second", False, ["a", "b"])
    osc("project set p1 --enable")
    osc("project set p1 --clear-tags")
    assert column(osc.json("project list --tags a")) == set()
    osc(f"user create u1 --password {PASSWORD} --project p1 --email a@b --description person")
    assert "u1" in column(osc.json("user list --long"))
    assert osc.json("user show u1")["email"] == "a@b"
    osc("user set u1 --email c@d --disable")
    osc("user set u1 --enable")
    assert {"admin", "member", "reader", "manager", "service"} <= column(osc.json("role list"))
    assert osc.json("role show member")["name"] == "member"
    osc("role add --project p1 --user u1 member")
    [row] = osc.json("role assignment list --user u1 --names")
    assert (row["Role"], row["Project"]) == ("member", "p1@Default")
    assert column(osc.json("user list --project p1")) == {"u1"}
    assert column(osc.json("project list --user u1")) == {"p1"}
    osc("role remove --project p1 --user u1 member")
    assert osc.json("role assignment list --user u1") == []
    osc("role create r1 --description special")
    osc("role set r1 --name r2 --description other")
    assert osc.json("role show r2")["description"] == "other"
    osc("role delete r2")
    osc("group create g1 --description group")
    osc("group set g1 --description better")
    assert osc.json("group show g1")["description"] == "better"
    osc("group add user g1 u1")
    assert column(osc.json("user list --group g1")) == {"u1"}
    assert column(osc.json("group list --user u1")) == {"g1"}
    osc("group contains user g1 u1")
    osc("role add --project p1 --group g1 reader")
    [row] = osc.json("role assignment list --group g1 --names")
    assert (row["Role"], row["Group"], row["Project"]) == ("reader", "g1@Default", "p1@Default")
    [row] = osc.json("role assignment list --user u1 --project p1 --effective --names")
    assert (row["Role"], row["User"]) == ("reader", "u1@Default")
    osc("role remove --project p1 --group g1 reader")
    osc("group remove user g1 u1")
    osc("group delete g1")
    osc("user delete u1")
    osc("project delete p1")


def test_a_user_by_himself(cloud: Running) -> None:
    demo = Shell(cloud, "demo", "demo")
    made = demo.json("application credential create c1 --role member --description robot")
    assert made["Secret"]
    assert column(demo.json("application credential list")) == {"c1"}
    assert demo.json("application credential show c1")["Description"] == "robot"
    demo("application credential delete c1")
    assert demo.json("access rule list") == []
    rules = '[{"service": "compute", "method": "GET", "path": "/v2.1/servers"}]'
    status, _, errors = demo.run("application", "credential", "create", "c2", "--access-rules", rules)
    assert status != 0
    assert "access_rules" in errors
    demo(f"user password set --original-password {PASSWORD} --password other-secret")
    status, _, errors = demo.run("token", "issue")
    assert status != 0
    assert "401" in errors


def test_flavors_and_key_pairs(cloud: Running, osc: Shell, tmp_path: Path) -> None:
    osc("flavor create f1 --ram 64 --vcpus 1 --disk 0 --private --property a=b")
    assert "f1" not in column(osc.json("flavor list"))
    assert "f1" in column(osc.json("flavor list --all --long"))
    osc("flavor set f1 --property c=d --description text")
    osc("flavor set f1 --project demo")
    shown = osc.json("flavor show f1")
    assert (shown["properties"], shown["description"]) == ({"a": "b", "c": "d"}, "text")
    assert len(shown["access_project_ids"]) == 1
    assert "f1" in column(Shell(cloud, "demo", "demo").json("flavor list --all"))
    osc("flavor unset f1 --property c")
    osc("flavor unset f1 --project demo")
    osc("flavor set f1 --no-property")
    assert osc.json("flavor show f1")["properties"] == {}
    osc("flavor delete f1")
    assert "PRIVATE KEY" in osc("keypair create k1")
    public = tmp_path / "key.pub"
    public.write_text(KEY)
    osc("keypair create k2 --user demo --public-key", str(public))
    assert column(osc.json("keypair list")) == {"k1"}
    assert column(osc.json("keypair list --user demo")) == {"k2"}
    assert osc.json("keypair show k1")["type"] == "ssh"
    assert osc("keypair show k2 --user demo --public-key").startswith("ssh-ed25519")
    osc("keypair delete k2 --user demo")
    osc("keypair delete k1")


def test_images(cloud: Running, osc: Shell, tmp_path: Path) -> None:
    disk, back = tmp_path / "disk", tmp_path / "back"
    disk.write_bytes(os.urandom(300_000))
    osc("image create i1 --disk-format raw --property a=b --tag t --min-ram 5 --file", str(disk))
    assert "i1" in column(osc.json("image list --long --status active --tag t --sort name:asc"))
    assert "i1" in column(osc.json("image list --property a=b"))
    shown = osc.json("image show i1")
    assert (shown["size"], shown["min_ram"], shown["tags"]) == (300_000, 5, ["t"])
    osc("image save i1 --file", str(back))
    assert back.read_bytes() == disk.read_bytes()
    osc("image set i1 --property c=d --name i2 --min-disk 1 --hidden --protected --tag s")
    assert "i2" not in column(osc.json("image list"))
    assert "i2" in column(osc.json("image list --hidden"))
    osc("image set i2 --unhidden --unprotected --deactivate")
    assert osc.json("image show i2")["status"] == "deactivated"
    osc("image set i2 --activate")
    osc("image unset i2 --property c --tag s")
    osc("image add project i2 demo")
    assert len(osc.json("image member list i2")) == 1
    demo = Shell(cloud, "demo", "demo")
    assert "i2" not in column(demo.json("image list"))
    assert "i2" in column(demo.json("image list --shared --member-status pending"))
    image_id = osc.json("image show i2")["id"]
    demo("image set --accept", image_id)
    assert "i2" in column(demo.json("image list --shared"))
    demo("image set --reject", image_id)
    osc("image remove project i2 demo")
    osc("image set i2 --public")
    assert "i2" in column(demo.json("image list --public"))
    osc("image delete i2")


def test_servers(cloud: Running, osc: Shell, tmp_path: Path) -> None:
    public = tmp_path / "key.pub"
    public.write_text(KEY)
    osc("keypair create k --public-key", str(public))
    made = osc.json(
        f"server create s1 --image {cloud.site.image} --flavor t.nano --key-name k --network private "
        "--property a=b --tag red --description text --wait"
    )
    assert made["status"] == "ACTIVE"
    osc(f"server create s2 --image {cloud.site.image} --flavor t.nano --no-network --wait")
    assert column(osc.json("server list --all-projects")) == {"s1", "s2"}
    [row] = osc.json("server list --long --name s1")
    assert (row["Status"], row["Power State"], row["Flavor"]) == ("ACTIVE", 1, "t.nano")
    assert column(osc.json("server list -n --limit 1")) == {"s2"}, "the newest"
    assert column(osc.json("server list --tags red")) == {"s1"}
    assert column(osc.json("server list --status ACTIVE --flavor t.nano --project admin")) == {"s1", "s2"}
    osc("server set s1 --property c=d --tag blue --description other --name s3")
    shown = osc.json("server show s3")
    assert (shown["properties"], sorted(shown["tags"]), shown["description"]) == (
        {"a": "b", "c": "d"}, ["blue", "red"], "other",
    )  # fmt: skip
    osc("server unset s3 --property c --tag blue --description")
    shown = osc.json("server show s3")
    assert (shown["properties"], shown["tags"]) == ({"a": "b"}, ["red"])
    osc("server reboot --hard --wait s3")
    osc("server reboot --wait s3")
    assert "line 3" in osc("console log show s3")
    assert "line 1" not in osc("console log show s3 --lines 1")
    events = osc.json("server event list s3")
    assert [row["Action"] for row in events] == ["reboot", "reboot", "create"]
    event = osc.json("server event show s3", events[0]["Request ID"])
    assert event["action"] == "reboot"
    assert osc.json("server migration list") == []
    assert osc.json("server group list") == []
    assert len(osc.json("port list --server s3")) == 1
    osc("server stop s3 s2")
    until(osc, "s3", "SHUTOFF")
    osc("server start s3")
    until(osc, "s3", "ACTIVE")
    osc("server delete --wait s3 s2")
    assert osc.json("server list") == []


def test_compute_administration(cloud: Running, osc: Shell) -> None:
    osc(f"server create s1 --image {cloud.site.image} --flavor t.nano --no-network --wait")
    assert column(osc.json("hypervisor list --long"), "State") == {"up"}
    assert osc.json("hypervisor show host-1")["state"] == "up"
    assert osc.json("hypervisor stats show")["count"] == 1
    assert column(osc.json("host list"), "Host Name") == {"host-1"}
    assert osc.json("host show host-1")
    assert column(osc.json("compute service list --long"), "State") == {"up"}
    osc("compute service set --disable --disable-reason work host-1 nova-compute")
    [row] = osc.json("compute service list --long")
    assert (row["Status"], row["Disabled Reason"]) == ("disabled", "work")
    osc("compute service set --enable host-1 nova-compute")
    assert column(osc.json("availability zone list"), "Zone Name") == {"nova"}
    assert osc.json("availability zone list --compute --long")
    assert osc.json("aggregate list") == []
    osc("quota set --cores 11 --instances 12 --key-pairs 13 demo")
    rows = {row["Resource"]: row["Limit"] for row in osc.json("quota show demo")}
    assert (rows["cores"], rows["instances"], rows["key-pairs"]) == (11, 12, 13)
    assert osc.json("quota show --default demo")
    assert osc.json("quota show --usage admin")
    assert osc.json("quota list --compute")
    osc("quota delete --compute demo")
    rows = {row["Resource"]: row["Limit"] for row in osc.json("quota show --compute demo")}
    assert rows["cores"] == 200
    osc("quota set --class --cores 99 default")
    assert osc.json("usage show --project admin")
    assert osc.json("usage list")
    limits = {row["Name"]: row["Value"] for row in osc.json("limits show --absolute")}
    assert limits["total_instances_used"] == 1
    osc.json("limits show --rate")
    assert osc.json("extension list --compute")


def test_network_lists(osc: Shell) -> None:
    assert column(osc.json("network list --long")) == {"private"}
    assert osc.json("network show private")["status"] == "ACTIVE"
    assert column(osc.json("subnet list")) == {"private-v4"}
    assert osc.json("subnet show private-v4")["ip_version"] == 4
    assert osc.json("port list") == []
    assert "default" in column(osc.json("security group list"))
    assert osc.json("security group rule list")
    for line in ("router list", "floating ip list", "subnet pool list", "network agent list"):
        assert osc.json(line) == []
    assert osc.json("extension list --network")
    assert osc.json("quota show --network admin")
