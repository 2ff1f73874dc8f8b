"""The OpenAPI documents say of every route what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from unstuck.api.app import all_routes, create_app
from unstuck.api.context import Settings
from unstuck.api.openapi import TITLES, document, service_of
from unstuck.store.engine import Store

ROUTES = all_routes()


@pytest.fixture
def client(store: Store, tmp_path: Path) -> TestClient:
    return TestClient(create_app(store, Settings(state_dir=tmp_path)))


def refs(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return found + [ref for inner in value.values() for ref in refs(inner)]
    if isinstance(value, list):
        return [ref for inner in value for ref in refs(inner)]
    return []


@pytest.mark.parametrize("service", TITLES)
def test_every_route_of_a_service_is_in_its_document(service: str) -> None:
    made = document(ROUTES, service)
    places = {
        (path.replace("{", "").replace("}", "").count("/"), method)
        for path, methods in made["paths"].items()
        for method in methods
    }
    mine = [item for item in ROUTES if service_of(item) == service]
    assert mine
    assert {(item.path.count("/"), item.method.lower()) for item in mine} == places
    written = sum(len(methods) for methods in made["paths"].values())
    assert written == len({(_shape(item.path), item.method) for item in mine})


def _shape(path: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.parametrize("service", TITLES)
def test_every_reference_leads_somewhere(service: str) -> None:
    made = document(ROUTES, service)
    known = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert set(refs(made)) <= known


def test_every_service_of_the_table_has_a_document_but_metrics_and_the_console() -> None:
    assert {service_of(item) for item in ROUTES} - {""} == {*TITLES, "metrics", "console"}


def test_an_actions_body_is_one_of_what_the_table_has() -> None:
    action = document(ROUTES, "compute")["paths"]["/compute/v2.1/servers/{id}/action"]["post"]
    choices = action["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    named = [name for choice in choices for name in choice["required"]]
    assert {"os-stop", "reboot", "resize"} <= set(named)


def test_bodies_say_which_keys_are_needed_and_that_no_others_are_taken() -> None:
    made = document(ROUTES, "database")
    create = made["paths"]["/database/v1.0/{project_id}/instances"]["post"]
    ref = create["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = made["components"]["schemas"][ref.rpartition("/")[2]]
    assert schema["required"] == ["instance"]
    assert schema["additionalProperties"] is False


def test_the_documents_are_served_without_a_token(client: TestClient) -> None:
    listed = client.get("/unstuck/v1/openapi").json()["documents"]
    assert [item["service"] for item in listed] == list(TITLES)
    for item in listed:
        assert client.get(f"/unstuck/v1/openapi/{item['service']}").json()["openapi"] == "3.1.0"


def test_a_service_that_is_not_there_is_a_404(client: TestClient) -> None:
    answer = client.get("/unstuck/v1/openapi/telephony")
    assert answer.status_code == 404
    assert "telephony" in answer.text
