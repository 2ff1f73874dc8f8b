"""Groups, roles that are made, tags of projects, and what of the identity API is built in."""

from __future__ import annotations

from typing import Any

import pytest
from api_cloud import Cloud

from unstuck.store import identity, roles

V3 = "/identity/v3"


def make(admin: Cloud, kind: str, **fields: Any) -> str:
    answer = admin.ask("POST", f"{V3}/{kind}s", json={kind: fields})
    assert answer.status_code == 201, answer.text
    made: str = answer.json()[kind]["id"]
    return made


def role(cloud: Cloud, name: str) -> str:
    return {item.name: item.id for item in cloud.store.read(roles.list_roles)}[name]


def user(cloud: Cloud, name: str) -> str:
    return {item.name: item.id for item in cloud.store.read(identity.list_users)}[name]


def names(cloud: Cloud, path: str) -> list[str]:
    answer = cloud.get(f"{V3}/{path}")
    assert answer.status_code == 200, answer.text
    key = next(key for key in answer.json() if key != "links")
    return [item["name"] for item in answer.json()[key]]


@pytest.fixture
def team(admin: Cloud) -> tuple[str, str]:
    """A group without members and a project without users."""
    return make(admin, "group", name="team"), make(admin, "project", name="p1")


def test_a_role_of_a_group_is_a_role_of_its_members_and_ends_with_it(
    admin: Cloud, demo: Cloud, cloud: Cloud, team: tuple[str, str]
) -> None:
    group, project = team
    grant = f"{V3}/projects/{project}/groups/{group}/roles/{role(cloud, 'member')}"
    assert admin.ask("HEAD", grant).status_code == 404
    assert admin.ask("PUT", grant).status_code == 204
    assert admin.ask("PUT", grant).status_code == 204
    assert admin.ask("HEAD", grant).status_code == 204
    assert names(admin, f"projects/{project}/groups/{group}/roles") == ["member"]
    member = f"{V3}/groups/{group}/users/{user(cloud, 'demo')}"
    assert names(demo, "auth/projects") == ["demo"]
    assert admin.ask("PUT", member).status_code == 204
    assert admin.ask("PUT", member).status_code == 204
    assert names(demo, "auth/projects") == ["demo", "p1"]
    inside = cloud.login("demo", "demo-secret", "p1")
    assert inside.get("/compute/v2.1/servers").status_code == 200
    assert admin.ask("DELETE", member).status_code == 204
    assert inside.get("/compute/v2.1/servers").status_code == 401, "at once"
    assert admin.ask("DELETE", member).status_code == 404
    admin.ask("PUT", member)
    assert inside.get("/compute/v2.1/servers").status_code == 200
    assert admin.ask("DELETE", grant).status_code == 204
    assert inside.get("/compute/v2.1/servers").status_code == 401
    assert admin.ask("DELETE", grant).status_code == 404
    admin.ask("PUT", grant)
    assert admin.ask("DELETE", f"{V3}/groups/{group}").status_code == 204
    assert inside.get("/compute/v2.1/servers").status_code == 401


def test_groups_are_made_changed_and_found(admin: Cloud, demo: Cloud, cloud: Cloud) -> None:
    group = make(admin, "group", name="a", description="x", domain_id="default")
    make(admin, "group", name="b")
    assert names(admin, "groups") == ["a", "b"]
    assert names(admin, "groups?name=b") == ["b"]
    assert names(admin, "groups?domain_id=other") == []
    path = f"{V3}/groups/{group}"
    changed = admin.ask("PATCH", path, json={"group": {"name": "c", "description": None}}).json()["group"]
    assert (changed["name"], changed["description"]) == ("c", "")
    assert admin.get(path).json()["group"] == changed
    admin.ask("PUT", f"{path}/users/{user(cloud, 'demo')}")
    assert names(admin, f"groups/{group}/users") == ["demo"]
    assert names(demo, f"users/{user(cloud, 'demo')}/groups") == ["c"]
    assert admin.ask("HEAD", f"{path}/users/{user(cloud, 'demo')}").status_code == 204
    assert admin.ask("HEAD", f"{path}/users/{user(cloud, 'admin')}").status_code == 404
    assert demo.get(f"{V3}/users/{user(cloud, 'admin')}/groups").status_code == 403


def test_bad_groups_change_nothing(admin: Cloud, demo: Cloud, team: tuple[str, str]) -> None:
    group, _ = team
    for body, status in (
        ({}, 400), ({"name": ""}, 400), ({"name": 5}, 400), ({"name": "x" * 256}, 400),
        ({"name": "x", "more": 1}, 400), ({"name": "team"}, 409), ({"name": "x", "domain_id": "other"}, 404),
    ):  # fmt: skip
        assert admin.ask("POST", f"{V3}/groups", json={"group": body}).status_code == status, body
    make(admin, "group", name="other")
    assert admin.ask("PATCH", f"{V3}/groups/{group}", json={"group": {"name": "other"}}).status_code == 409
    assert names(admin, "groups") == ["other", "team"]
    for path in ("nobody", f"{group}/users/nobody", f"nobody/users/{group}"):
        assert admin.ask("GET", f"{V3}/groups/{path}").status_code == 404
    assert admin.ask("PUT", f"{V3}/groups/{group}/users/nobody").status_code == 404
    for method in ("GET", "POST"):
        assert demo.ask(method, f"{V3}/groups", json={"group": {"name": "x"}}).status_code == 403
    assert demo.ask("PUT", f"{V3}/groups/{group}/users/nobody").status_code == 403


def test_assignments_of_groups_and_what_follows_from_them(
    admin: Cloud, cloud: Cloud, team: tuple[str, str]
) -> None:
    group, project = team
    manager, demo = role(cloud, "manager"), user(cloud, "demo")
    admin.ask("PUT", f"{V3}/projects/{project}/groups/{group}/roles/{manager}")
    admin.ask("PUT", f"{V3}/groups/{group}/users/{demo}")

    def listed(query: str) -> list[dict[str, Any]]:
        answer = admin.get(f"{V3}/role_assignments?{query}")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["role_assignments"]
        return found

    [shown] = listed(f"group.id={group}&include_names")
    assert shown["group"] == {"id": group, "name": "team", "domain": {"id": "default", "name": "Default"}}
    assert shown["links"]["assignment"].endswith(f"/projects/{project}/groups/{group}/roles/{manager}")
    assert listed(f"user.id={demo}&scope.project.id={project}") == []
    effective = listed(f"user.id={demo}&scope.project.id={project}&effective&include_names=true")
    assert {item["role"]["name"] for item in effective} == {"manager", "member", "reader"}
    assert {item["user"]["name"] for item in effective} == {"demo"}
    assert len(listed(f"scope.project.id={project}")) == 1
    assert listed(f"role.id={manager}&scope.project.id={project}")[0]["group"]["id"] == group
    for bad in (f"user.id={demo}&group.id={group}", f"effective&group.id={group}"):
        assert admin.get(f"{V3}/role_assignments?{bad}").status_code == 400


def test_roles_are_made_and_the_built_in_ones_stay(admin: Cloud, demo: Cloud, cloud: Cloud) -> None:
    made = make(admin, "role", name="special", description="x")
    path = f"{V3}/roles/{made}"
    changed = admin.ask("PATCH", path, json={"role": {"name": "other", "description": "y"}}).json()["role"]
    assert (changed["name"], changed["description"]) == ("other", "y")
    project = make(admin, "project", name="p1")
    grant = f"{V3}/projects/{project}/users/{user(cloud, 'demo')}/roles/{made}"
    assert admin.ask("PUT", grant).status_code == 204
    inside = cloud.login("demo", "demo-secret", "p1")
    assert inside.get("/compute/v2.1/servers").status_code == 403, "a role that the policy does not know"
    assert admin.ask("DELETE", path).status_code == 204
    assert inside.get("/compute/v2.1/servers").status_code == 401
    assert admin.get(path).status_code == 404
    built_in = f"{V3}/roles/{role(cloud, 'member')}"
    assert admin.ask("DELETE", built_in).status_code == 403
    assert admin.ask("PATCH", built_in, json={"role": {"name": "x"}}).status_code == 403
    assert admin.ask("PATCH", built_in, json={"role": {"description": "x"}}).status_code == 200
    for body, status in (
        ({}, 400), ({"name": "admin"}, 409), ({"name": " "}, 400), ({"name": "x", "domain_id": "d"}, 403),
        ({"name": "x", "more": 1}, 400), ({"name": "x", "options": {"immutable": True}}, 400),
    ):  # fmt: skip
        assert admin.ask("POST", f"{V3}/roles", json={"role": body}).status_code == status, body
    assert demo.ask("POST", f"{V3}/roles", json={"role": {"name": "x"}}).status_code == 403


def test_tags_of_projects(admin: Cloud, demo: Cloud, cloud: Cloud) -> None:
    one = make(admin, "project", name="one", tags=["a", "b"])
    make(admin, "project", name="two", tags=["b", "c"])
    path = f"{V3}/projects/{one}/tags"
    assert admin.get(path).json()["tags"] == ["a", "b"]
    for query, wanted in (
        ("tags=a,b", ["one"]), ("tags=b", ["one", "two"]), ("tags-any=a,c", ["one", "two"]),
        ("not-tags=a,b", ["admin", "demo", "service", "two"]),
        ("not-tags-any=b", ["admin", "demo", "service"]),
    ):  # fmt: skip
        assert names(admin, f"projects?{query}") == wanted, query
    assert admin.ask("PUT", f"{path}/d").status_code == 201
    assert admin.ask("HEAD", f"{path}/d").status_code == 204
    assert admin.ask("DELETE", f"{path}/d").status_code == 204
    assert admin.ask("DELETE", f"{path}/d").status_code == 404
    assert admin.ask("HEAD", f"{path}/d").status_code == 404
    assert admin.ask("PUT", path, json={"tags": ["x", "x", "y"]}).json()["tags"] == ["x", "y"]
    for tags in (["a/b"], ["a,b"], [""], ["x" * 256], [5], "x", [f"t{n}" for n in range(81)]):
        assert admin.ask("PUT", path, json={"tags": tags}).status_code == 400, tags
        body = {"project": {"name": "bad", "tags": tags}}
        assert admin.ask("POST", f"{V3}/projects", json=body).status_code == 400, tags
    assert admin.get(path).json()["tags"] == ["x", "y"]
    assert admin.ask("DELETE", path).status_code == 204
    assert admin.get(path).json()["tags"] == []
    assert demo.get(path).status_code == 403
    assert demo.ask("PUT", f"{path}/d").status_code == 403


def test_what_is_built_in_cannot_be_changed(admin: Cloud, demo: Cloud) -> None:
    for method, path in (
        ("POST", "domains"), ("PATCH", "domains/default"), ("DELETE", "domains/default"),
        ("POST", "services"), ("DELETE", "services/x"), ("POST", "endpoints"), ("PATCH", "endpoints/x"),
        ("POST", "regions"), ("PUT", "regions/x"),
    ):  # fmt: skip
        assert admin.ask(method, f"{V3}/{path}", json={}).status_code == 403, path
        assert demo.ask(method, f"{V3}/{path}", json={}).status_code == 403, path


def test_there_are_no_access_rules_and_a_credential_that_wants_some_is_refused(
    demo: Cloud, admin: Cloud, cloud: Cloud
) -> None:
    me = user(cloud, "demo")
    assert demo.get(f"{V3}/users/{me}/access_rules").json()["access_rules"] == []
    body = {"name": "x", "access_rules": [{"service": "compute", "method": "GET", "path": "/"}]}
    answer = demo.ask(
        "POST", f"{V3}/users/{me}/application_credentials", json={"application_credential": body}
    )
    assert answer.status_code == 400
    assert "access_rules" in answer.json()["error"]["message"]
    assert demo.get(f"{V3}/users/{user(cloud, 'admin')}/access_rules").status_code == 403
