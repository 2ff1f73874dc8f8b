"""The stock ``openstack database …`` commands of python-troveclient, unchanged, against the database API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openstack as openstack_sdk
import psycopg
import pytest
from database_running import Databases
from running import Shell
from tests import postgres as own

from unstuck.store.engine import Store

pytestmark = [pytest.mark.xdist_group("client-databases"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def server() -> Iterator[own.Postgres]:
    if own.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (`make setup` installs Debian's package)")
    with own.controlled(durable=False) as made:
        yield made


@pytest.fixture
def cloud(store: Store, tmp_path: Path, server: own.Postgres) -> Iterator[Databases]:
    running = Databases(store, tmp_path, server.address)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def openstack(cloud: Databases) -> Shell:
    return Shell(cloud)


def wait(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, check
        time.sleep(0.1)


def healthy(openstack: Shell, name: str) -> dict[str, Any]:
    """The instance, once it is."""
    shown: dict[str, Any] = {}

    def look() -> bool:
        shown.update(openstack.json(f"database instance show {name}"))
        return (shown["status"], shown["operating_status"]) == ("ACTIVE", "HEALTHY")

    wait(look)
    return shown


def create(openstack: Shell, name: str = "shop", *more: str) -> dict[str, Any]:
    line = f"database instance create {name} --flavor m1.tiny --size 1 --datastore postgresql"
    made: dict[str, Any] = openstack.json(f"{line} --datastore-version 17", *more)
    return made


def refused(openstack: Shell, line: str, word: str) -> None:
    status, out, errors = openstack.run(*line.split())
    assert status != 0, out
    assert word in errors, errors


def test_datastores_flavors_limits_and_quotas(openstack: Shell, cloud: Databases) -> None:
    [store] = openstack.json("datastore list")
    assert store["Name"] == "postgresql"
    assert openstack.json("datastore show postgresql")["default_version"] == "17"
    assert openstack.json(f"datastore show {store['ID']}")["name"] == "postgresql"
    [version] = openstack.json("datastore version list postgresql")
    assert (version["Name"], version["Version"]) == ("17", "17")
    shown = openstack.json("datastore version show 17 --datastore postgresql")
    assert shown["id"] == version["ID"]
    assert openstack.json(f"datastore version show {version['ID']}")["name"] == "17"
    openstack(f"datastore version create 18 postgresql postgresql {cloud.site.image} --active")
    made = {item["Name"]: item["ID"] for item in openstack.json("datastore version list postgresql")}
    openstack(f"datastore version set {made['18']} --default --version-name 18.1 --image {cloud.site.image}")
    assert openstack.json("datastore show postgresql")["default_version"] == "18.1"
    openstack(f"datastore version set {version['ID']} --default")
    openstack(f"datastore version set {made['18']} --disable")
    assert len(openstack.json("datastore version list postgresql")) == 1
    openstack(f"datastore version delete {made['18']}")
    refused(openstack, f"datastore version create 19 x oracle {cloud.site.image}", "datastore_manager")
    refused(openstack, "datastore delete postgresql", "versions")
    names = {item["Name"] for item in openstack.json("database flavor list")}
    assert {"m1.tiny", "m1.small"} <= names
    assert openstack.json("database flavor show m1.tiny")["ram"] == 512
    line = f"database flavor list --datastore-type postgresql --datastore-version-id {version['ID']}"
    assert {item["Name"] for item in openstack.json(line)} == names
    assert "max_instances" in openstack("database limit list")
    assert openstack.json("database quota update admin instances 7")["instances"] == 7
    shown = {item["Resource"]: item["Limit"] for item in openstack.json("database quota show admin")}
    assert shown["instances"] == 7
    refused(openstack, "database quota update admin cows 7", "cows")


def test_the_life_of_an_instance(openstack: Shell, cloud: Databases) -> None:
    made = create(
        openstack, "shop", "--databases", "app", "--users", "anna:secret", "--is-public",
        "--allowed-cidr", "10.0.0.0/8", "--nic", f"net-id={cloud.site.network}",
    )  # fmt: skip
    assert (made["status"], made["datastore_version"], made["volume"]) == ("BUILD", "17", 1)
    assert (made["public"], made["allowed_cidrs"]) == (True, ["10.0.0.0/8"])
    shown = healthy(openstack, "shop")
    assert shown["id"] == made["id"]
    [listed] = openstack.json("database instance list")
    assert (listed["Name"], listed["Operating Status"], listed["Size"]) == ("shop", "HEALTHY", 1)
    [managed] = openstack.json("database instance list --all-projects")
    assert managed["Server ID"]
    assert len(openstack.json(f"database instance list --project-id {managed['Tenant ID']}")) == 1
    key = made["id"]
    openstack(f"database instance update {key} --name store --is-private")
    assert healthy(openstack, "store")["public"] is False
    openstack(f"database instance update {key} --allowed-cidr 192.168.0.0/16")
    assert healthy(openstack, "store")["allowed_cidrs"] == ["192.168.0.0/16"]
    openstack("database instance restart store")
    healthy(openstack, "store")
    openstack("database instance resize flavor store m1.small")
    assert healthy(openstack, "store")["flavor"] == "4"
    openstack("database instance resize volume store 2")
    assert healthy(openstack, "store")["volume"] == 2
    openstack("database instance reset status store")
    healthy(openstack, "store")
    openstack(f"database instance reboot {key}")
    healthy(openstack, "store")
    openstack(f"database instance rebuild {key} {cloud.site.image}")
    healthy(openstack, "store")
    openstack("database instance delete store")
    wait(lambda: openstack.json("database instance list") == [])
    refused(openstack, "database instance show store", "store")


def test_forced_deletes_and_deletes_by_id(openstack: Shell, cloud: Databases) -> None:
    keys = [create(openstack, name)["id"] for name in ("a", "b", "c")]
    openstack("database instance force delete a")
    openstack("database instance delete --force b")
    openstack(f"database instance delete {keys[2]}")
    wait(lambda: openstack.json("database instance list") == [])


def test_databases_users_and_root_on_a_real_postgresql(
    openstack: Shell, cloud: Databases, server: own.Postgres
) -> None:
    create(openstack)
    healthy(openstack, "shop")
    openstack("database db create shop books --character_set UTF8")
    openstack("database db create shop films")
    assert [item["Name"] for item in openstack.json("database db list shop")] == ["books", "films"]
    refused(openstack, "database db create shop books", "exists")
    openstack("database user create shop anna first-secret --databases books")
    openstack("database user create shop bert another")
    users = {item["Name"]: item for item in openstack.json("database user list shop")}
    assert set(users) == {"anna", "bert"}
    assert openstack.json("database user show shop anna")["databases"] == [{"name": "books"}]
    openstack("database user grant access shop bert books films")
    assert [item["Name"] for item in openstack.json("database user show access shop bert")] == [
        "books",
        "films",
    ]
    openstack("database user revoke access shop bert films")
    assert [item["Name"] for item in openstack.json("database user show access shop bert")] == ["books"]
    openstack("database user update attributes shop anna --new_name annette --new_password second-secret")
    assert {item["Name"] for item in openstack.json("database user list shop")} == {"annette", "bert"}
    with psycopg.connect(f"postgresql://unstuck@{server.address}/postgres") as connection:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'annette'"
        [(stored,)] = connection.execute(query).fetchall()
    assert stored.startswith("SCRAM-SHA-256$4096:")
    refused(openstack, "database user show shop nobody", "nobody")
    refused(openstack, "database user create shop postgres x", "postgres")
    refused(openstack, "database user create shop hosted x --host 10.0.0.1", "hosts")
    assert openstack.json("database root show shop")["is_root_enabled"] is False
    root = openstack.json("database root enable shop")
    assert (root["name"], len(root["password"]) >= 20) == ("root", True)
    assert openstack.json("database root show shop")["is_root_enabled"] is True
    named = openstack.json("database root enable shop --root_password my-own")
    assert named["password"] == "my-own"
    openstack("database root disable shop")
    assert openstack.json("database root show shop")["is_root_enabled"] is False
    for name in ("annette", "bert"):
        openstack(f"database user delete shop {name}")
    for name in ("books", "films"):
        openstack(f"database db delete shop {name}")
    assert openstack.json("database db list shop") == []
    assert openstack.json("database user list shop") == []
    refused(openstack, "database db delete shop books", "books")


def test_backups_and_where_they_go(openstack: Shell, cloud: Databases) -> None:
    key = create(openstack)["id"]
    healthy(openstack, "shop")
    made = openstack.json("database backup create monday -i shop --description before")
    assert (made["status"], made["instance_id"]) == ("NEW", key)
    assert (made["datastore"], made["datastore_version"]) == ("postgresql", "17")
    assert openstack.json("database backup show monday")["id"] == made["id"]
    for line in (
        "list",
        "list -i shop",
        "list --datastore postgresql",
        "list --all-projects",
        "list instance shop",
    ):
        [listed] = openstack.json(f"database backup {line}")
        assert (listed["Name"], listed["Status"]) == ("monday", "NEW")
    refused(openstack, "database backup create tuesday -i shop", "under way")
    refused(openstack, "database backup create tuesday -i shop --incremental --parent monday", "monday")
    refused(openstack, "database backup create x --restore-from http://x --restore-size 1", "name of a store")
    nowhere = "local/backups/none/0001-n"
    refused(openstack, f"database backup create x --restore-from {nowhere} --restore-size 1", "version")
    line = "database instance create again --flavor m1.tiny --size 1 --backup monday"
    refused(openstack, line, "not finished")
    openstack("database backup delete monday")
    assert openstack.json("database backup list") == []
    assert (
        openstack.json("database backup strategy create --swift-container local")["swift_container"]
        == "local"
    )
    openstack(f"database backup strategy create --swift-container local --instance-id {key}")
    assert len(openstack.json("database backup strategy list")) == 2
    assert len(openstack.json(f"database backup strategy list --instance-id {key}")) == 1
    openstack(f"database backup strategy delete --instance-id {key}")
    openstack("database backup strategy delete")
    assert openstack.json("database backup strategy list") == []


def test_the_sdk(cloud: Databases, sdk: openstack_sdk.connection.Connection) -> None:
    database = sdk.database
    # Its create_instance has no way to name a flavor, which Trove wants as well.
    body = cloud.site.body(databases=[{"name": "app"}], datastore={"version": "17"})
    key = database.post("/instances", json=body).json()["instance"]["id"]
    wait(lambda: database.get_instance(key).status == "ACTIVE")
    assert [item.name for item in database.instances(limit=1)] == ["shop"]
    assert database.find_instance("shop").id == key
    assert database.find_flavor("m1.small").ram == 2048
    assert {item.name for item in database.flavors()} >= {"m1.tiny", "m1.small"}
    instance = database.get_instance(key)
    assert instance.is_root_enabled(database) is False
    assert instance.enable_root_user(database)["name"] == "root"
    assert instance.is_root_enabled(database) is True
    instance.restart(database)
    wait(lambda: database.get_instance(key).status == "ACTIVE")
    instance.resize(database, "4")
    wait(lambda: database.get_instance(key).status == "ACTIVE")
    assert list(database.databases(key)) == []
    assert list(database.users(key)) == []
    database.delete_instance(key)
    assert list(database.instances()) == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("database log set shop server --publish", "unstuck db logs"),
        ("database ssl show shop", "not offered"),
        ("database instance promote shop", "not offered"),
        ("database instance eject shop", "not offered"),
        ("database instance detach shop", "not offered"),
        ("database instance upgrade shop 18", "no version"),
        ("database instance create r --replica-of shop", "not offered"),
        ("database cluster create c postgresql 17 --instance flavor=3,volume=1", "not offered"),
    ],
)
def test_what_is_not_offered_is_said_to_the_user(openstack: Shell, line: str, word: str) -> None:
    create(openstack)
    healthy(openstack, "shop")
    refused(openstack, line, word)


def test_lists_of_what_is_not_offered_are_empty(openstack: Shell) -> None:
    assert openstack.json("database cluster list") == []


def test_configuration_groups_from_the_parameters_to_the_instance(openstack: Shell, cloud: Databases) -> None:
    listed = openstack.json("database configuration parameter list 17 --datastore postgresql")
    assert {"max_connections", "work_mem"} <= {item["Name"] for item in listed}
    shown = openstack.json("database configuration parameter show 17 work_mem --datastore postgresql")
    assert (shown["name"], shown["restart_required"]) == ("work_mem", False)
    values = '{"work_mem": "8MB", "max_connections": 55}'
    made = openstack.json(
        "database configuration create fast", values, "--datastore", "postgresql", "--datastore-version",
        "17", "--description", "for reports",
    )  # fmt: skip
    assert made["instance_count"] == 0
    create(openstack)
    healthy(openstack, "shop")
    openstack("database configuration attach shop fast")
    shown = openstack.json("database instance show shop")
    assert shown["configuration"] == made["id"]
    [having] = openstack.json("database configuration instances fast")
    assert having["Name"] == "shop"
    refused(openstack, "database configuration delete fast", "attached")
    openstack(f"database configuration parameter set {made['id']}", '{"jit": false}')
    values = openstack.json("database configuration show fast")["values"]
    assert "jit" in values
    assert "work_mem" in values
    openstack(f"database configuration set {made['id']}", '{"jit": true}', "--name", "slow")
    assert "work_mem" not in openstack.json("database configuration show slow")["values"]
    assert openstack.json("database configuration default shop")["max_connections"]
    refused(openstack, 'database configuration create bad {"fsync":false} --datastore postgresql', "fsync")
    openstack("database configuration detach shop")
    assert "configuration" not in openstack.json("database instance show shop")
    other = f"database instance create other --flavor m1.tiny --size 1 --configuration {made['id']}"
    assert openstack.json(other + " --datastore postgresql --datastore-version 17")["name"] == "other"
    openstack("database instance delete other")
    wait(lambda: len(openstack.json("database instance list")) == 1)
    openstack("database configuration delete slow")
    assert openstack.json("database configuration list") == []


def test_an_instance_gets_another_version_of_its_datastore(openstack: Shell, cloud: Databases) -> None:
    create(openstack)
    healthy(openstack, "shop")
    openstack("datastore version create 17.9 postgresql postgresql", cloud.site.image, "--active")
    openstack("datastore version create 19 postgresql postgresql", cloud.site.image, "--active")
    refused(openstack, "database instance upgrade shop 19", "major version")
    openstack("database instance upgrade shop 17.9")
    assert healthy(openstack, "shop")["datastore_version"] == "17.9"
    refused(openstack, "database instance upgrade shop 17.9", "already")
