"""Identity v3: log in, scopes, tokens that end at once, projects, users, roles, credentials."""

from __future__ import annotations

import base64
import re
import time
from typing import Any

import msgspec
import pytest
from api_cloud import BASE_SERVICES, Cloud, by_password, in_project

from unstuck.api.errors import ApiError
from unstuck.api.identity.tokens import verify
from unstuck.store import identity

V3 = "/identity/v3"
TOKENS = f"{V3}/auth/tokens"


@pytest.fixture
def services() -> list[str]:
    return BASE_SERVICES


def make_user(admin: Cloud, name: str, project: str | None = None, role: str = "member") -> dict[str, Any]:
    answer = admin.ask("POST", f"{V3}/users", json={"user": {"name": name, "password": "p-" + name}})
    assert answer.status_code == 201, answer.text
    user: dict[str, Any] = answer.json()["user"]
    if project is not None:
        assert admin.ask("PUT", grant_path(admin, user["id"], project, role)).status_code == 204
    return user


def project_id(admin: Cloud, name: str) -> str:
    return str(admin.get(f"{V3}/projects?name={name}").json()["projects"][0]["id"])


def role_id(admin: Cloud, name: str) -> str:
    return str(admin.get(f"{V3}/roles?name={name}").json()["roles"][0]["id"])


def grant_path(admin: Cloud, user: str, project: str, role: str) -> str:
    return f"{V3}/projects/{project_id(admin, project)}/users/{user}/roles/{role_id(admin, role)}"


class TestLogin:
    def test_a_password_gives_a_token_with_roles_and_catalog(self, cloud: Cloud) -> None:
        answer = cloud.auth(by_password("demo", "demo-secret"), in_project("demo"))
        assert answer.status_code == 201
        token = answer.json()["token"]
        assert answer.headers["x-subject-token"].isascii()
        assert token["user"]["name"] == "demo"
        assert token["user"]["domain"] == {"id": "default", "name": "Default"}
        assert token["project"]["name"] == "demo"
        assert [role["name"] for role in token["roles"]] == ["member", "reader"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", token["expires_at"])
        types = {entry["type"] for entry in token["catalog"]}
        assert types == {"identity", "image", "network", "compute", "database"}
        [compute] = [entry for entry in token["catalog"] if entry["type"] == "compute"]
        endpoint = compute["endpoints"][0]
        assert endpoint["url"] == "http://cloud:81/compute/v2.1"
        assert endpoint["region"] == endpoint["region_id"] == "RegionOne"

    def test_a_user_may_be_named_by_id_and_a_project_by_id_and_a_domain_by_name(
        self, cloud: Cloud, admin: Cloud
    ) -> None:
        user = make_user(admin, "ann", "demo")
        who = {"methods": ["password"], "password": {"user": {"id": user["id"], "password": "p-ann"}}}
        assert cloud.auth(who, {"project": {"id": project_id(admin, "demo")}}).status_code == 201
        named = by_password("ann", "p-ann")
        named["password"]["user"]["domain"] = {"name": "Default"}
        answer = cloud.auth(named, {"project": {"name": "demo", "domain": {"name": "Default"}}})
        assert answer.status_code == 201

    def test_a_token_gives_a_token_that_ends_no_later(self, cloud: Cloud, demo: Cloud) -> None:
        first = demo.get(TOKENS, headers={"x-subject-token": demo.token}).json()["token"]
        answer = cloud.auth({"methods": ["token"], "token": {"id": demo.token}}, in_project("demo"))
        assert answer.status_code == 201
        assert answer.json()["token"]["expires_at"] == first["expires_at"]
        assert answer.json()["token"]["methods"] == ["password", "token"]

    def test_without_a_scope_there_are_no_roles(self, cloud: Cloud) -> None:
        token = cloud.auth(by_password("demo", "demo-secret")).json()["token"]
        assert "roles" not in token
        assert "project" not in token
        assert "catalog" not in token

    def test_an_administrator_may_have_domain_scope_and_others_not(self, cloud: Cloud) -> None:
        scope = {"domain": {"id": "default"}}
        token = cloud.auth(by_password("admin", "admin-secret"), scope).json()["token"]
        assert token["domain"]["id"] == "default"
        assert cloud.auth(by_password("demo", "demo-secret"), scope).status_code == 401

    @pytest.mark.parametrize(("name", "password"), [("demo", "wrong"), ("nobody", "x"), ("demo", "x" * 9999)])
    def test_wrong_passwords_and_unknown_users_look_the_same(
        self, cloud: Cloud, name: str, password: str
    ) -> None:
        answer = cloud.auth(by_password(name, password))
        assert answer.status_code == 401
        message = "The request you have made requires authentication."
        assert answer.json() == {"error": {"code": 401, "message": message, "title": "Unauthorized"}}

    @pytest.mark.parametrize("project", ["admin", "nothing"])
    def test_a_project_without_a_role_is_a_401(self, cloud: Cloud, project: str) -> None:
        assert cloud.auth(by_password("demo", "demo-secret"), in_project(project)).status_code == 401

    MALFORMED: list[Any] = [
        {},
        {"identity": {"methods": []}},
        {"identity": {"methods": ["password"]}},
        {"identity": {"methods": "password"}},
        {"identity": {"methods": ["password"], "password": {"user": {"name": 5, "password": "x"}}}},
        {"identity": {"methods": ["password"], "password": {"user": {"password": "x"}}}},
        {"identity": {"methods": ["password"], "password": {"user": {"name": "demo"}}}},
        {"identity": {"methods": ["token"]}},
        {"identity": {"methods": ["application_credential"], "application_credential": {"id": "x"}}},
        {"identity": {"methods": ["password"], "secret": 1}},
        {"identity": by_password("demo", "demo-secret"), "scope": {"project": {}}},
        {"identity": by_password("demo", "demo-secret"), "scope": {}},
        {"identity": by_password("demo", "demo-secret"), "scope": "elsewhere"},
    ]

    def test_a_malformed_request_is_a_400(self, cloud: Cloud) -> None:
        for auth in self.MALFORMED:
            assert cloud.ask("POST", TOKENS, json={"auth": auth}).status_code == 400, auth

    def test_an_unknown_method_is_a_401(self, cloud: Cloud) -> None:
        assert cloud.auth({"methods": ["magic"]}).status_code == 401


class TestTokens:
    @pytest.mark.parametrize(
        "token", ["x", "unstuck1.", "unstuck1.YQ.YQ", "unstuck1.é", "a" * 70_000, "unstuck1.!!.!!", "."]
    )
    def test_garbage_is_a_401(self, cloud: Cloud, token: str) -> None:
        answer = cloud.get(f"{V3}/auth/projects", headers={"x-auth-token": token.encode()})
        assert answer.status_code == 401

    def test_a_changed_token_is_a_401(self, demo: Cloud) -> None:
        prefix, body, mac = demo.token.split(".")
        claim = msgspec.msgpack.decode(base64.urlsafe_b64decode(body + "=="))
        forged = base64.urlsafe_b64encode(msgspec.msgpack.encode([*claim[:-2], 9e12, None]))
        token = f"{prefix}.{forged.rstrip(b'=').decode()}.{mac}"
        assert demo.get(f"{V3}/auth/projects", headers={"x-auth-token": token}).status_code == 401

    def test_a_token_can_be_validated_by_its_owner_and_administrators(
        self, demo: Cloud, admin: Cloud
    ) -> None:
        subject = {"x-subject-token": demo.token}
        assert demo.get(TOKENS, headers=subject).json()["token"]["user"]["name"] == "demo"
        assert admin.get(TOKENS, headers=subject).status_code == 200
        assert admin.ask("HEAD", TOKENS, headers=subject).content == b""
        assert "catalog" not in admin.get(TOKENS + "?nocatalog", headers=subject).json()["token"]
        assert demo.get(TOKENS, headers={"x-subject-token": admin.token}).status_code == 403
        assert admin.get(TOKENS, headers={"x-subject-token": "x"}).status_code == 404
        assert admin.get(TOKENS).status_code == 400

    def test_a_revoked_token_ends_at_once_with_those_made_from_it(self, cloud: Cloud, demo: Cloud) -> None:
        child = cloud.auth({"methods": ["token"], "token": {"id": demo.token}}, in_project("demo"))
        subject = {"x-subject-token": demo.token}
        assert demo.ask("DELETE", TOKENS, headers=subject).status_code == 204
        assert demo.get(f"{V3}/auth/projects").status_code == 401
        token = child.headers["x-subject-token"]
        assert cloud.get(f"{V3}/auth/projects", headers={"x-auth-token": token}).status_code == 401
        assert cloud.login("demo", "demo-secret", "demo").get(f"{V3}/auth/projects").status_code == 200

    def test_a_token_ends_by_itself(self, cloud: Cloud, demo: Cloud) -> None:
        assert demo.get(f"{V3}/auth/projects").status_code == 200
        real = cloud.store._wall or time.time
        cloud.store._wall = lambda: real() + 3601
        assert demo.get(f"{V3}/auth/projects").status_code == 401

    @pytest.mark.parametrize("how", ["disable", "password", "delete user", "delete project", "role", "own"])
    def test_what_takes_access_away_counts_at_once(self, cloud: Cloud, admin: Cloud, how: str) -> None:
        admin.ask("POST", f"{V3}/projects", json={"project": {"name": "p"}})
        user = make_user(admin, "ann", "p")
        ann = cloud.login("ann", "p-ann", "p")
        assert ann.get(f"{V3}/auth/projects").status_code == 200
        path = f"{V3}/users/{user['id']}"
        change = {"original_password": "p-ann", "password": "new"}
        done = {
            "disable": lambda: admin.ask("PATCH", path, json={"user": {"enabled": False}}),
            "password": lambda: admin.ask("PATCH", path, json={"user": {"password": "new"}}),
            "delete user": lambda: admin.ask("DELETE", path),
            "delete project": lambda: admin.ask("DELETE", f"{V3}/projects/{project_id(admin, 'p')}"),
            "role": lambda: admin.ask("DELETE", grant_path(admin, user["id"], "p", "member")),
            "own": lambda: ann.ask("POST", path + "/password", json={"user": change}),
        }[how]()
        assert done.status_code in (200, 204), done.text
        assert ann.get(f"{V3}/auth/projects").status_code == 401
        if how in ("password", "own"):
            assert cloud.login("ann", "new", "p").get(f"{V3}/auth/projects").status_code == 200


class TestProjects:
    def test_a_project_lives(self, admin: Cloud) -> None:
        body = {"project": {"name": "p", "description": "d", "tags": ["a"], "colour": "red"}}
        answer = admin.ask("POST", f"{V3}/projects", json=body)
        assert answer.status_code == 201
        made = answer.json()["project"]
        assert made["colour"] == "red"
        assert made["tags"] == ["a"]
        assert made["domain_id"] == "default"
        path = f"{V3}/projects/{made['id']}"
        assert made["links"]["self"] == "http://cloud:81" + path
        assert admin.get(path).json()["project"] == made
        changed = admin.ask("PATCH", path, json={"project": {"name": "q"}}).json()["project"]
        assert changed == {**made, "name": "q"}
        assert admin.ask("DELETE", path).status_code == 204
        assert admin.get(path).status_code == 404

    def test_names_are_found_exactly(self, admin: Cloud) -> None:
        assert len(admin.get(f"{V3}/projects?name=demo").json()["projects"]) == 1
        assert admin.get(f"{V3}/projects?name=dem").json()["projects"] == []
        assert len(admin.get(f"{V3}/projects").json()["projects"]) == 3
        assert admin.get(f"{V3}/projects?enabled=false").json()["projects"] == []
        assert admin.get(f"{V3}/projects?enabled=perhaps").status_code == 400

    @pytest.mark.parametrize(
        ("project", "status"),
        [
            ({}, 400),
            ({"name": ""}, 400),
            ({"name": " "}, 400),
            ({"name": "x" * 65}, 400),
            ({"name": 1}, 400),
            ({"name": "x", "enabled": "yes"}, 400),
            ({"name": "demo"}, 409),
            ({"name": "x", "domain_id": "y"}, 404),
            ({"name": "x", "tags": "y"}, 400),
        ],
    )
    def test_bad_projects_are_refused(self, admin: Cloud, project: Any, status: int) -> None:
        assert admin.ask("POST", f"{V3}/projects", json={"project": project}).status_code == status

    def test_members_see_their_own_only(self, admin: Cloud, demo: Cloud) -> None:
        assert demo.get(f"{V3}/projects").status_code == 403
        assert demo.get(f"{V3}/projects/{project_id(admin, 'demo')}").status_code == 200
        assert demo.get(f"{V3}/projects/{project_id(admin, 'admin')}").status_code == 403
        assert [p["name"] for p in demo.get(f"{V3}/auth/projects").json()["projects"]] == ["demo"]
        assert demo.ask("POST", f"{V3}/projects", json={"project": {"name": "x"}}).status_code == 403

    def test_there_is_one_domain(self, admin: Cloud) -> None:
        assert len(admin.get(f"{V3}/domains?name=Default").json()["domains"]) == 1
        assert admin.get(f"{V3}/domains?name=other").json()["domains"] == []
        assert admin.get(f"{V3}/domains/default").json()["domain"]["name"] == "Default"
        assert admin.get(f"{V3}/domains/other").status_code == 404


class TestUsers:
    def test_a_user_lives(self, admin: Cloud) -> None:
        user = make_user(admin, "ann")
        assert "password" not in str(sorted(user.keys() - {"password_expires_at"}))
        path = f"{V3}/users/{user['id']}"
        body = {"user": {"email": "a@b", "description": "d"}}
        assert admin.ask("PATCH", path, json=body).json()["user"] == {
            **user,
            "email": "a@b",
            "description": "d",
        }
        assert [u["name"] for u in admin.get(f"{V3}/users?name=ann").json()["users"]] == ["ann"]
        assert admin.ask("DELETE", path).status_code == 204
        assert admin.ask("DELETE", path).status_code == 404

    @pytest.mark.parametrize(
        ("user", "status"),
        [
            ({}, 400),
            ({"name": ""}, 400),
            ({"name": "x" * 256}, 400),
            ({"name": "x", "password": ""}, 400),
            ({"name": "x", "password": 1}, 400),
            ({"name": "x", "email": 1}, 400),
            ({"name": "demo"}, 409),
            ({"name": "x", "default_project_id": "y" * 65}, 400),
        ],
    )
    def test_bad_users_are_refused(self, admin: Cloud, user: Any, status: int) -> None:
        assert admin.ask("POST", f"{V3}/users", json={"user": user}).status_code == status

    def test_a_user_sees_only_itself(self, admin: Cloud, demo: Cloud) -> None:
        ids = {u["name"]: u["id"] for u in admin.get(f"{V3}/users").json()["users"]}
        assert demo.get(f"{V3}/users/{ids['demo']}").status_code == 200
        assert demo.get(f"{V3}/users/{ids['admin']}").status_code == 403
        assert demo.get(f"{V3}/users/nobody").status_code == 403
        assert demo.get(f"{V3}/users").status_code == 403

    def test_a_password_needs_the_old_one(self, admin: Cloud) -> None:
        user = make_user(admin, "ann")
        change = {"user": {"original_password": "wrong", "password": "new"}}
        assert admin.ask("POST", f"{V3}/users/{user['id']}/password", json=change).status_code == 401

    def test_the_default_project_is_the_scope_of_who_names_none(self, cloud: Cloud, admin: Cloud) -> None:
        user = make_user(admin, "ann", "demo")
        body = {"user": {"default_project_id": project_id(admin, "demo")}}
        admin.ask("PATCH", f"{V3}/users/{user['id']}", json=body)
        assert cloud.auth(by_password("ann", "p-ann")).json()["token"]["project"]["name"] == "demo"
        assert "project" not in cloud.auth(by_password("ann", "p-ann"), "unscoped").json()["token"]


class TestRoles:
    def test_roles_are_given_and_taken(self, admin: Cloud) -> None:
        user = make_user(admin, "ann")
        path = grant_path(admin, user["id"], "demo", "reader")
        assert admin.ask("HEAD", path).status_code == 404
        assert admin.ask("PUT", path).status_code == 204
        assert admin.ask("PUT", path).status_code == 204
        assert admin.ask("HEAD", path).status_code == 204
        assert [r["name"] for r in admin.get(path.rpartition("/")[0]).json()["roles"]] == ["reader"]
        query = f"{V3}/role_assignments?user.id={user['id']}&include_names=True"
        found = admin.get(query).json()["role_assignments"]
        assert [(a["role"]["name"], a["scope"]["project"]["name"]) for a in found] == [("reader", "demo")]
        assert admin.ask("DELETE", path).status_code == 204
        assert admin.ask("DELETE", path).status_code == 404

    def test_the_expected_roles_exist(self, admin: Cloud, demo: Cloud) -> None:
        names = [role["name"] for role in admin.get(f"{V3}/roles").json()["roles"]]
        assert names == ["admin", "manager", "member", "reader", "service"]
        assert admin.get(f"{V3}/roles/{role_id(admin, 'member')}").json()["role"]["name"] == "member"
        assert demo.get(f"{V3}/roles").status_code == 403

    def test_unknown_users_projects_and_roles_are_404(self, admin: Cloud) -> None:
        user, project, role = (
            make_user(admin, "ann")["id"],
            project_id(admin, "demo"),
            role_id(admin, "member"),
        )
        for ids in ((project, "x", role), ("x", user, role), (project, user, "x")):
            path = "{}/projects/{}/users/{}/roles/{}".format(V3, *ids)
            assert admin.ask("PUT", path).status_code == 404


class TestCredentials:
    def make(self, cloud: Cloud, **more: Any) -> dict[str, Any]:
        answer = cloud.ask("POST", self.path(cloud), json={"application_credential": {"name": "c", **more}})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()["application_credential"]
        return made

    def path(self, cloud: Cloud) -> str:
        token = cloud.get(TOKENS, headers={"x-subject-token": cloud.token}).json()["token"]
        return f"{V3}/users/{token['user']['id']}/application_credentials"

    def use(self, cloud: Cloud, made: dict[str, Any]) -> Any:
        given = {"id": made["id"], "secret": made["secret"]}
        return cloud.auth({"methods": ["application_credential"], "application_credential": given})

    def test_the_secret_is_shown_once_and_logs_in(self, cloud: Cloud, demo: Cloud) -> None:
        made = self.make(demo)
        answer = self.use(cloud, made)
        assert answer.status_code == 201
        assert answer.json()["token"]["project"]["name"] == "demo"
        shown = demo.get(f"{self.path(demo)}/{made['id']}").json()["application_credential"]
        assert "secret" not in shown
        assert [c["id"] for c in demo.get(self.path(demo)).json()["application_credentials"]] == [made["id"]]
        named = {"name": "c", "secret": made["secret"], "user": {"name": "demo", "domain": {"id": "default"}}}
        by_name = {"methods": ["application_credential"], "application_credential": named}
        assert cloud.auth(by_name).status_code == 201

    def test_a_restricted_one_makes_no_further_ones(self, cloud: Cloud, demo: Cloud) -> None:
        answer = self.use(cloud, self.make(demo))
        inner = Cloud(cloud.app, cloud.store, cloud.loop, answer.headers["x-subject-token"])
        body = {"application_credential": {"name": "d"}}
        assert inner.ask("POST", self.path(inner), json=body).status_code == 403

    def test_it_can_have_fewer_roles_but_not_more(self, cloud: Cloud, demo: Cloud) -> None:
        answer = self.use(cloud, self.make(demo, roles=[{"name": "reader"}]))
        assert [role["name"] for role in answer.json()["token"]["roles"]] == ["reader"]
        body = {"application_credential": {"name": "d", "roles": [{"name": "admin"}]}}
        assert demo.ask("POST", self.path(demo), json=body).status_code == 400

    def test_it_ends_with_its_delete_and_with_its_time(self, cloud: Cloud, demo: Cloud) -> None:
        made = self.make(demo)
        token = self.use(cloud, made).headers["x-subject-token"]
        assert demo.ask("DELETE", f"{self.path(demo)}/{made['id']}").status_code == 204
        assert cloud.get(f"{V3}/auth/projects", headers={"x-auth-token": token}).status_code == 401
        assert self.use(cloud, made).status_code == 401
        made = self.make(demo, expires_at="2999-01-01T00:00:00.000000")
        assert made["expires_at"] == "2999-01-01T00:00:00.000000"
        for wrong in ("2001-01-01T00:00:00", "tomorrow"):
            body = {"application_credential": {"name": "d", "expires_at": wrong}}
            assert demo.ask("POST", self.path(demo), json=body).status_code == 400

    def test_others_cannot_see_or_make_them(self, admin: Cloud, demo: Cloud) -> None:
        made = self.make(demo)
        assert demo.get(f"{self.path(admin)}/{made['id']}").status_code == 403
        assert admin.get(f"{self.path(admin)}/{made['id']}").status_code == 404
        body = {"application_credential": {"name": "d"}}
        assert admin.ask("POST", self.path(demo), json=body).status_code == 403
        again = demo.ask("POST", self.path(demo), json={"application_credential": {"name": "c"}})
        assert again.status_code == 409


def test_services_and_endpoints_are_the_catalog(admin: Cloud) -> None:
    services = admin.get(f"{V3}/services").json()["services"]
    assert [s["type"] for s in services] == ["identity", "image", "network", "compute", "database"]
    endpoints = admin.get(f"{V3}/endpoints").json()["endpoints"]
    assert len(endpoints) == 15
    for endpoint in endpoints:
        assert admin.get(f"{V3}/services/{endpoint['service_id']}").status_code == 200
    assert admin.get(f"{V3}/regions").json()["regions"][0]["id"] == "RegionOne"
    assert admin.get(f"{V3}/services/x").status_code == 404
    assert admin.get(f"{V3}/auth/catalog").json()["catalog"][0]["type"] == "identity"


def test_a_cloud_starts_once_and_deletes_stay_final(cloud: Cloud, admin: Cloud) -> None:
    admin.ask("DELETE", f"{V3}/projects/{project_id(admin, 'demo')}")
    again = cloud.store.transact(
        identity.bootstrap, admin_password_hash="x", token_key=b"x" * 32, ids=lambda: "never"
    )
    assert not again.first_time
    assert sorted(again.projects) == ["admin", "service"]
    assert admin.get(f"{V3}/projects").status_code == 200


class TestDiscovery:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/identity", 300),
            ("/identity/", 300),
            ("/identity/v3", 200),
            ("/identity/v3/", 200),
            ("/image", 300),
            ("/compute", 200),
            ("/compute/", 200),
            ("/compute/v2.1", 200),
            ("/compute/v2.1/", 200),
            ("/networking", 200),
            ("/networking/v2.0", 200),
            ("/database/", 200),
        ],
    )
    def test_versions_need_no_token_and_have_absolute_links(
        self, cloud: Cloud, path: str, status: int
    ) -> None:
        answer = cloud.ask("GET", path, headers={"x-auth-token": "", "host": "somewhere:99"})
        assert answer.status_code == status
        assert '"href":"http://somewhere:99/' in answer.text

    def test_compute_names_its_range(self, cloud: Cloud) -> None:
        version = cloud.get("/compute/v2.1").json()["version"]
        assert (version["version"], version["min_version"]) == ("2.96", "2.1")


def test_a_token_has_one_spelling(demo: Cloud) -> None:
    """The last character of a signature has bits that a decoder drops: three more spellings were taken."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for other in alphabet:
        spelled = demo.token[:-1] + other
        answer = demo.get("/identity/v3/auth/projects", headers={"x-auth-token": spelled})
        assert answer.status_code == (200 if spelled == demo.token else 401), other
    for added in ("=", "==", "\n", "A"):
        with pytest.raises(ApiError):
            verify(b"k" * 32, demo.token + added)
