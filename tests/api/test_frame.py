"""The frame: dispatch, input checks, error formats, microversions, policy, pages, wake-ups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from unstuck.api import pages
from unstuck.api.app import create_app
from unstuck.api.context import Settings, Token
from unstuck.api.errors import ApiError, unauthorized
from unstuck.api.notify import Notifier
from unstuck.api.routes import Action, Body, Call, Query, Reply, actions, route
from unstuck.core.errors import Conflict
from unstuck.store.engine import Store, StoreUnavailable


class Thing(Body):
    name: str
    size: int = 1


class ThingBody(Body):
    thing: Thing


class ThingQuery(Query):
    limit: int | None = None
    tag: list[str] = []


class Stop(Body):
    hard: bool = False


async def show(call: Call) -> Reply:
    return Reply({"id": call.params["id"], "version": list(call.version)})


async def newer(call: Call) -> Reply:
    return Reply({"newer": True})


async def create(call: Call) -> Reply:
    return Reply(call.body, headers={"Location": call.url("/compute/v2.1/things/1")})


async def listing(call: Call) -> Reply:
    return Reply(call.query)


async def stop(call: Call) -> Reply:
    return Reply({"stop": call.body})


async def crash(call: Call) -> Reply:
    raise RuntimeError("the secret is fish")


async def away(call: Call) -> Reply:
    raise StoreUnavailable("no route to host")


async def busy(call: Call) -> Reply:
    raise Conflict("The thing is busy.")


THINGS = "/compute/v2.1/things"
ROUTES = [
    route("GET", THINGS, listing, "reader", query=ThingQuery),
    route("POST", THINGS, create, "member", body=ThingBody, status=201),
    route("GET", THINGS + "/{id}", show, "reader", max_version=(2, 49)),
    route("GET", THINGS + "/{id}", newer, "reader", min_version=(2, 50), max_version=(2, 59)),
    route("DELETE", THINGS + "/{id}", busy, "admin", status=204),
    *actions(
        THINGS + "/{id}/action",
        [
            Action(name="os-stop", handler=stop, rule="member"),
            Action(name="stop2", handler=stop, rule="member", body=Stop | None),
            Action(name="reset", handler=stop, rule="admin"),
            Action(name="late", handler=stop, rule="member", min_version=(2, 50)),
        ],
    ),
    *(
        route("GET", f"/{service}/{name}", handler, "authenticated")
        for service in ("compute", "identity", "image", "networking", "unstuck")
        for name, handler in (("crash", crash), ("away", away), ("busy", busy))
    ),
]


async def authenticate(call: Call) -> Token:
    role = call.http.headers.get("x-auth-token", "")
    if not role:
        raise unauthorized()
    roles = {"admin": ("admin", "member", "reader"), "member": ("member", "reader")}.get(role, (role,))
    return Token(
        user_id="u",
        user_name="u",
        project_id="p",
        project_name="p",
        roles=roles,
        role_ids=roles,
        methods=("password",),
        audit_ids=("a",),
        issued_at=0.0,
        expires_at=1.0,
    )


Ask = Callable[..., httpx2.Response]


@pytest.fixture
def ask(store: Store, tmp_path: Path) -> Ask:
    app = create_app(store, Settings(state_dir=tmp_path), routes=ROUTES, authenticate=authenticate)

    def send(method: str, path: str, token: str = "member", **more: Any) -> httpx2.Response:
        async def run() -> httpx2.Response:
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://cloud:81") as client:
                headers = {"x-auth-token": token, **more.pop("headers", {})}
                return await client.request(method, path, headers=headers, **more)

        return asyncio.run(run())

    return send


def test_a_call_reaches_its_handler_with_decoded_parameters(ask: Ask) -> None:
    answer = ask("GET", THINGS + "/a%2Fb%20c")
    assert answer.status_code == 200
    assert answer.json() == {"id": "a/b c", "version": [2, 1]}
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["x-openstack-request-id"].startswith("req-")
    assert answer.headers["x-compute-request-id"] == answer.headers["x-openstack-request-id"]


def test_a_trailing_slash_is_an_empty_id_and_not_the_list(ask: Ask) -> None:
    assert ask("GET", THINGS + "/").status_code == 404
    assert ask("DELETE", THINGS + "/").status_code == 404


def test_head_answers_like_get_without_a_body(ask: Ask) -> None:
    answer = ask("HEAD", THINGS + "/1")
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0


def test_bodies_are_validated_and_links_are_absolute(ask: Ask) -> None:
    answer = ask("POST", THINGS, json={"thing": {"name": "x"}})
    assert answer.status_code == 201
    assert answer.json() == {"thing": {"name": "x", "size": 1}}
    assert answer.headers["location"] == "http://cloud:81/compute/v2.1/things/1"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON body is required"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"thing": {"name": "\xff"}}', "JSON"),
        (b"[" * 100_000, "Invalid input"),
        (b'{"thing": ' + b"[" * 5000, "Invalid input"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"thing": {"name": 1}}', "$.thing.name"),
        (b'{"thing": {"name": null}}', "$.thing.name"),
        (b'{"thing": {"name": "x", "size": "1"}}', "$.thing.size"),
        (b'{"thing": {"name": "x", "size": 1.5}}', "$.thing.size"),
        (b'{"thing": {"name": "x", "size": 1e400}}', "out of range"),
        (b'{"thing": {"name": "x", "colour": 1}}', "colour"),
        (b'{"thing": {}}', "name"),
        (b'{"thing": {"name": "a\\u0000b"}}', "NUL"),
        (b'{"thing": {"name": "\\ud800"}}', "JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_body_is_a_400_that_names_the_place(ask: Ask, body: bytes, says: str) -> None:
    answer = ask("POST", THINGS, content=body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["badRequest"]["message"]
    assert answer.json()["badRequest"]["code"] == 400


def test_a_huge_body_is_refused_by_its_announced_length(ask: Ask) -> None:
    answer = ask("POST", THINGS, content=b"x" * (1 << 20) + b"x")
    assert answer.status_code == 413
    assert answer.json()["overLimit"]["code"] == 413


def test_a_huge_body_is_refused_while_it_streams(ask: Ask) -> None:
    async def forever() -> Any:
        while True:
            yield b"x" * 65536

    assert ask("POST", THINGS, content=forever()).status_code == 413


def test_query_parameters_are_converted_or_refused(ask: Ask) -> None:
    assert ask("GET", THINGS + "?limit=3&tag=a&tag=b&other=1").json() == {"limit": 3, "tag": ["a", "b"]}
    answer = ask("GET", THINGS + "?limit=x")
    assert answer.status_code == 400
    assert "limit" in answer.json()["badRequest"]["message"]
    assert ask("GET", THINGS + "?tag=%00").status_code == 400


@pytest.mark.parametrize(
    "path", ["/compute/v2.1/nothing", THINGS + "/%00", THINGS + "/%ff", THINGS + "/1/2/3"]
)
def test_an_unknown_path_is_a_404(ask: Ask, path: str) -> None:
    answer = ask("GET", path)
    assert answer.status_code == 404
    assert answer.json()["itemNotFound"]["code"] == 404


def test_an_unknown_service_is_a_404_in_our_own_format(ask: Ask) -> None:
    for path in ("/", "/nothing", "//"):
        answer = ask("GET", path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == 404


def test_a_wrong_method_is_a_405_that_says_what_is_allowed(ask: Ask) -> None:
    answer = ask("PATCH", THINGS)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"


def test_no_token_is_a_401(ask: Ask) -> None:
    assert ask("GET", THINGS, token="").status_code == 401


def test_roles_are_enforced(ask: Ask) -> None:
    assert ask("POST", THINGS, token="reader", json={"thing": {"name": "x"}}).status_code == 403
    assert ask("DELETE", THINGS + "/1").status_code == 403
    assert ask("DELETE", THINGS + "/1", token="admin").status_code == 409


class TestActions:
    URL = THINGS + "/1/action"

    def test_the_one_key_chooses_the_handler(self, ask: Ask) -> None:
        answer = ask("POST", self.URL, json={"os-stop": None})
        assert answer.status_code == 202
        assert ask("POST", self.URL, json={"stop2": {"hard": True}}).json() == {"stop": {"hard": True}}

    def test_rules_are_per_action(self, ask: Ask) -> None:
        assert ask("POST", self.URL, json={"reset": {}}).status_code == 403
        assert ask("POST", self.URL, json={"reset": {}}, token="admin").status_code == 202

    def test_versions_are_per_action(self, ask: Ask) -> None:
        version = {"x-openstack-nova-api-version": "2.50"}
        assert ask("POST", self.URL, json={"late": {}}).status_code == 400
        assert ask("POST", self.URL, json={"late": {}}, headers=version).status_code == 202

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b"[]",
            b'"os-stop"',
            b'{"nope": 1}',
            b'{"os-stop": null, "reset": null}',
            b'{"stop2": {"hard": 3}}',
            b'{"stop2": {"soft": true}}',
            b'{"\\ud800": 1}',
        ],
    )
    def test_anything_else_is_a_400(self, ask: Ask, body: bytes) -> None:
        assert ask("POST", self.URL, content=body).status_code == 400


class TestMicroversions:
    @pytest.mark.parametrize(
        ("headers", "used"),
        [
            ({}, "2.1"),
            ({"x-openstack-nova-api-version": "2.30"}, "2.30"),
            ({"openstack-api-version": "compute 2.31"}, "2.31"),
            ({"openstack-api-version": "image 9.9, compute 2.32"}, "2.32"),
            ({"openstack-api-version": "compute 2.31", "x-openstack-nova-api-version": "2.30"}, "2.31"),
            ({"openstack-api-version": "volume 3.0", "x-openstack-nova-api-version": "2.30"}, "2.30"),
        ],
    )
    def test_both_headers_are_honoured_and_echoed(self, ask: Ask, headers: dict[str, str], used: str) -> None:
        answer = ask("GET", THINGS + "/1", headers=headers)
        assert answer.headers["openstack-api-version"] == f"compute {used}"
        assert answer.headers["x-openstack-nova-api-version"] == used
        assert "OpenStack-API-Version" in answer.headers["vary"]

    def test_latest_is_the_maximum(self, ask: Ask) -> None:
        answer = ask("GET", THINGS, headers={"x-openstack-nova-api-version": "latest"})
        assert answer.headers["x-openstack-nova-api-version"] == "2.96"

    def test_the_version_chooses_the_handler(self, ask: Ask) -> None:
        answer = ask("GET", THINGS + "/1", headers={"x-openstack-nova-api-version": "2.55"})
        assert answer.json() == {"newer": True}
        late = ask("GET", THINGS + "/1", headers={"x-openstack-nova-api-version": "2.60"})
        assert late.status_code == 404

    @pytest.mark.parametrize(
        ("text", "status"),
        [
            ("2.97", 406),
            ("3.0", 406),
            ("1.1", 406),
            ("2", 400),
            ("2.x", 400),
            ("2.01", 400),
            ("-2.1", 400),
            ("2.99999", 400),
            ("two", 400),
        ],
    )
    def test_others_are_refused(self, ask: Ask, text: str, status: int) -> None:
        for headers in ({"x-openstack-nova-api-version": text}, {"openstack-api-version": f"compute {text}"}):
            assert ask("GET", THINGS, headers=headers).status_code == status


@pytest.mark.parametrize("service", ["compute", "identity", "image", "networking", "unstuck"])
class TestErrorsOfEveryService:
    def test_a_crash_is_a_500_that_shows_nothing(self, ask: Ask, service: str) -> None:
        answer = ask("GET", f"/{service}/crash")
        assert answer.status_code == 500
        assert "fish" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers["x-openstack-request-id"] in answer.text

    def test_a_database_that_is_away_is_a_503(self, ask: Ask, service: str) -> None:
        answer = ask("GET", f"/{service}/away")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "route to host" not in answer.text

    def test_a_refusal_has_the_format_of_the_service(self, ask: Ask, service: str) -> None:
        answer = ask("GET", f"/{service}/busy")
        assert answer.status_code == 409
        body = answer.json()
        text = "The thing is busy."
        expected = {
            "compute": {"conflictingRequest": {"code": 409, "message": text}},
            "identity": {"error": {"code": 409, "message": text, "title": "Conflict"}},
            "image": {"message": text, "code": "409 Conflict", "title": "Conflict"},
            "networking": {"NeutronError": {"type": "HTTPConflict", "message": text, "detail": ""}},
            "unstuck": {
                "error": {
                    "code": 409,
                    "message": text,
                    "request_id": answer.headers["x-openstack-request-id"],
                }
            },
        }
        assert body == expected[service]


def test_a_bad_host_header_never_gets_into_links(ask: Ask) -> None:
    answer = ask("POST", THINGS, json={"thing": {"name": "x"}}, headers={"host": 'evil"><script>'})
    assert "evil" not in answer.headers["location"]


def test_a_table_with_a_route_twice_is_refused(store: Store, tmp_path: Path) -> None:
    twice = [route("GET", "/compute/x", show, "reader"), route("GET", "/compute/x", show, "reader")]
    with pytest.raises(ValueError, match="twice"):
        create_app(store, Settings(state_dir=tmp_path), routes=twice, authenticate=authenticate)


def test_a_route_without_a_known_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no policy rule"):
        route("GET", "/compute/x", show, "everybody")


class TestPages:
    @pytest.mark.parametrize("text", ["-1", "x", "", "1.5", "٣", "9" * 30])
    def test_a_wrong_limit_is_refused(self, text: str) -> None:
        with pytest.raises(ApiError, match="limit"):
            pages.parse_limit(text)

    def test_limits_are_capped(self) -> None:
        assert pages.parse_limit(None) == pages.MAX_LIMIT
        assert pages.parse_limit("5") == 5
        assert pages.parse_limit("99999") == pages.MAX_LIMIT

    def test_the_page_after_the_last_item_is_empty(self) -> None:
        assert pages.cut(["a", "b"], 10, "b", key=str) == ([], False)

    def test_an_unknown_marker_is_told_apart(self) -> None:
        assert pages.cut(["a", "b"], 10, "c", key=str) is None

    def test_a_page_says_whether_more_follow(self) -> None:
        assert pages.cut(["a", "b", "c"], 1, "a", key=str) == (["b"], True)
        assert pages.cut(["a", "b", "c"], 2, "a", key=str) == (["b", "c"], False)

    def test_sort_keys_are_checked(self) -> None:
        assert pages.parse_sort(["a", "b"], ["asc"], {"a", "b"}, default="a") == [("a", False), ("b", False)]
        for keys, ways in ((["x"], []), (["a"], ["up"]), (["a"], ["asc", "asc"])):
            with pytest.raises(ApiError):
                pages.parse_sort(keys, ways, {"a"}, default="a")


class TestNotifier:
    def test_a_wake_up_between_look_and_wait_is_not_lost(self) -> None:
        async def run() -> bool:
            notifier = Notifier()
            seen = notifier.version("host:1")
            notifier.wake("host:1")
            return await notifier.wait("host:1", 5, since=seen)

        assert asyncio.run(run())

    def test_everybody_who_waits_is_woken_and_others_are_not(self) -> None:
        async def run() -> list[bool]:
            notifier = Notifier()
            waits = [asyncio.create_task(notifier.wait(key, 0.2)) for key in ("a", "a", "b")]
            await asyncio.sleep(0)
            await asyncio.to_thread(notifier.wake, "a")
            return list(await asyncio.gather(*waits))

        assert asyncio.run(run()) == [True, True, False]

    def test_nothing_is_left_behind(self) -> None:
        notifier = Notifier()
        asyncio.run(notifier.wait("a", 0.01))
        assert notifier._waiting == {}


def test_errors_are_valid_json_for_any_message(ask: Ask) -> None:
    answer = ask("POST", THINGS, content=json.dumps({"thing": {"name": "x", 'a"b\\': 1}}))
    assert answer.status_code == 400
    assert msgspec.json.decode(answer.content)
