"""``GET /unstuck/v1/openapi/{service}``: a service as an OpenAPI 3.1 document, made from the route table.

What a request has to look like stands there because it is decoded by the same types; so it cannot go stale.
Answers are described by their status and the error form only.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

import unstuck
from unstuck.api.errors import not_found
from unstuck.api.microversions import MAX, MIN, show
from unstuck.api.routes import Call, Reply, Route, route

BASE: Final = "/unstuck/v1/openapi"
TITLES: Final = {
    "identity": "Identity API v3",
    "image": "Image API v2",
    "compute": "Compute API v2.1",
    "networking": "Networking API v2.0",
    "database": "Database API v1.0",
    "unstuck": "Unstuck's own calls",
}
_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{[^}]*\}")
_COMPUTE: Final = ("openstack-api-version", f"compute {show(MIN)}", f"compute {show(MAX)}")

Json = dict[str, Any]


def service_of(item: Route) -> str:
    """The first segment of its path."""
    return item.path.strip("/").partition("/")[0]


def document(routes: Iterable[Route], service: str) -> Json:
    """The OpenAPI document of one service."""
    mine = [item for item in routes if service_of(item) == service]
    kinds = [kind for item in mine for kind in (item.body, item.query) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Json] = {}
    names: dict[str, str] = {}
    for (path, method), group in _grouped(mine).items():
        # The same place may have its parameters named otherwise for another method.
        shown = names.setdefault(_PARAMETER.sub("{}", path), path)
        paths.setdefault(shown, {})[method.lower()] = _operation(shown, method, group, known, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLES[service], "version": unstuck.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
        "security": [{"token": []}],
    }


def _grouped(routes: list[Route]) -> dict[tuple[str, str], list[Route]]:
    found: dict[tuple[str, str], list[Route]] = {}
    for item in routes:
        found.setdefault((_PARAMETER.sub("{}", item.path), item.method), []).append(item)
    return {(group[0].path, method): group for (_, method), group in found.items()}


def _operation(path: str, method: str, group: list[Route], known: dict[int, Json], components: Json) -> Json:
    parameters = [
        {"name": name[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]
    if service_of(group[0]) == "compute":
        name, least, most = _COMPUTE
        schema = {"type": "string", "examples": [least, most]}
        parameters.append({"name": name, "in": "header", "required": False, "schema": schema})
    parameters += [
        parameter
        for item in group[:1]
        if item.query is not None
        for parameter in _query(known[id(item.query)], components)
    ]
    operation: Json = {
        "operationId": f"{method.lower()} {path}",
        "parameters": parameters,
        "responses": {
            **{str(item.status): {"description": "Done, or accepted."} for item in group},
            "4XX": {"description": "Refused: the message says why and names the field."},
        },
    }
    if all(item.policy.public for item in group):
        operation["security"] = []
    body = _body(group, known)
    if body is not None:
        operation["requestBody"] = body
    return operation


def _query(schema: Json, components: Json) -> list[Json]:
    while "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    needed = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": inner}
        for name, inner in schema.get("properties", {}).items()
    ]


def _body(group: list[Route], known: dict[int, Json]) -> Json | None:
    if any(item.raw for item in group):
        anything = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        return {"required": False, "content": anything}
    choices = [schema for item in group if (schema := _choice(item, known)) is not None]
    if not choices:
        return None
    unlike = [schema for index, schema in enumerate(choices) if schema not in choices[:index]]
    schema = unlike[0] if len(unlike) == 1 else {"anyOf": unlike}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _choice(item: Route, known: dict[int, Json]) -> Json | None:
    inner = None if item.body is None else known[id(item.body)]
    if item.action is None:
        return inner
    value: Json = {} if inner is None else inner
    return {
        "type": "object",
        "properties": {item.action: value},
        "required": [item.action],
        "additionalProperties": False,
    }


@functools.cache
def _written(service: str) -> bytes:
    # The table holds this module's own routes as well, so that it is whole only once all are loaded.
    routes = importlib.import_module("unstuck.api.app").all_routes()
    return msgspec.json.encode(document(routes, service))


async def list_documents(_call: Call) -> Reply:
    """``GET /unstuck/v1/openapi``."""
    return Reply({"documents": [{"service": name, "title": TITLES[name]} for name in TITLES]})


async def show_document(call: Call) -> Reply:
    """``GET /unstuck/v1/openapi/{service}``; 404 for a service that is not there."""
    service = call.params["service"]
    if service not in TITLES:
        raise not_found(f"There is no service {service[:60]!r}; there are: {', '.join(TITLES)}.")
    return Reply(_written(service))


ROUTES: list[Route] = [
    route("GET", BASE, list_documents, "public"),
    route("GET", f"{BASE}/{{service}}", show_document, "public"),
]
