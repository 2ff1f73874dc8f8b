"""What Trove has and this cloud does not offer: lists are empty, the rest says so."""

from __future__ import annotations

from typing import Final

from unstuck.api.database.common import BASE, none_of, not_offered, not_there
from unstuck.api.routes import Route, route

_INSTANCE: Final = f"{BASE}/instances/{{id}}"
_TLS: Final = "Certificates of one's own (connections are always encrypted)"


def _kind(path: str, key: str, one: str, many: str) -> list[Route]:
    return [
        route("GET", f"{BASE}/{path}", none_of(key), "reader"),
        route("POST", f"{BASE}/{path}", not_offered(many), "member"),
        route("GET", f"{BASE}/{path}/{{id}}", not_there(one), "reader"),
        *(
            route(method, f"{BASE}/{path}/{{id}}", not_there(one), "member")
            for method in ("PUT", "PATCH", "POST", "DELETE")
        ),
        route("GET", f"{BASE}/{path}/{{id}}/instances", not_there(one), "reader"),
    ]


ROUTES: list[Route] = [
    *_kind("modules", "modules", "Module", "Modules"),
    *_kind("clusters", "clusters", "Cluster", "Clusters"),
    route("GET", f"{BASE}/clusters/{{id}}/root", not_there("Cluster"), "reader"),
    route("POST", f"{BASE}/clusters/{{id}}/root", not_there("Cluster"), "member"),
    route("GET", f"{_INSTANCE}/modules", not_offered("Modules"), "reader"),
    route("POST", f"{_INSTANCE}/modules", not_offered("Modules"), "member"),
    route("DELETE", f"{_INSTANCE}/modules/{{module}}", not_offered("Modules"), "member"),
    route("GET", f"{_INSTANCE}/ssl", not_offered(_TLS), "reader"),
    route("POST", f"{_INSTANCE}/ssl", not_offered(_TLS), "member"),
]
