"""The route table: what can be called, by whom, with which input. One table drives everything.

A service is a module with ``ROUTES: list[Route]``; paths are full (``/compute/v2.1/servers/{id}``).
Several routes may share a path and method with different microversions, or different actions.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from unstuck.api.context import App, Token
from unstuck.api.errors import forbidden, unauthorized
from unstuck.api.microversions import MAX, MIN, Version
from unstuck.api.policy import RULES, Rule
from unstuck.store.engine import Store


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request bodies: unknown keys are refused, and the answer names them."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Base of query parameters: unknown ones are ignored, as the OpenStack APIs do.

    Fields of type ``list[str]`` collect repeated parameters; of any other, the last one counts.
    """


class Reply(msgspec.Struct, frozen=True):
    """An answer. ``body``: anything msgspec encodes, ready bytes, or None for no content.

    ``status`` overrides the route's. ``stream`` sends chunks instead; its length goes into the headers.
    """

    body: Any = None
    status: int | None = None
    headers: Mapping[str, str] = {}
    stream: AsyncIterator[bytes] | None = None


class Call:
    """One request, with everything already checked that the route's table entry says."""

    __slots__ = (
        "_token", "app", "body", "http", "params", "query", "request_id", "route", "store", "version",
    )  # fmt: skip

    def __init__(self, *, store: Store, app: App, http: Request, request_id: str) -> None:
        self.store = store
        self.app = app
        self.http = http
        self.request_id = request_id
        self.params: dict[str, str] = {}
        self.query: Any = None
        self.body: Any = None
        self.version: Version = MIN
        self.route: str | None = None
        """Its path in the route table, once it is found."""
        self._token: Token | None = None

    @property
    def token(self) -> Token:
        """Who is asking; 401 on a public route that was called without a token."""
        if self._token is None:
            raise unauthorized()
        return self._token

    def identify(self, token: Token) -> None:
        """Say who is asking (the dispatcher does)."""
        self._token = token

    @property
    def project_id(self) -> str:
        """The token's project; 403 if it has none."""
        if self.token.project_id is None:
            raise forbidden("This call needs a token with a project.")
        return self.token.project_id

    @property
    def is_admin(self) -> bool:
        return self.token.is_admin

    @property
    def query_params(self) -> QueryParams:
        """The raw query parameters."""
        return self.http.query_params

    def new_id(self) -> str:
        """A fresh random id."""
        return self.app.new_id()

    def url(self, path: str) -> str:
        """The absolute address of ``path`` as the client sees this server."""
        return str(self.http.scope["unstuck.base_url"]) + path

    def path(self) -> str:
        """The path as it was asked for."""
        return str(self.http.scope["path"])


Handler = Callable[[Call], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table.

    ``body``/``query``: types to decode and validate into. ``raw``: the handler reads ``call.http.stream()``
    itself. ``action``: the one key of a body like ``{"os-stop": null}``; ``body`` is then its value's type.
    """

    method: str
    path: str
    handler: Handler
    rule: str
    body: Any = None
    query: Any = None
    status: int = 200
    min_version: Version = MIN
    max_version: Version = MAX
    action: str | None = None
    raw: bool = False

    @property
    def policy(self) -> Rule:
        return RULES[self.rule]


def route(method: str, path: str, handler: Handler, rule: str, **more: Any) -> Route:
    """A :class:`Route`, checked: its rule exists and its path is in the expected form."""
    entry = Route(method=method, path=path, handler=handler, rule=rule, **more)
    if rule not in RULES:
        raise ValueError(f"{method} {path}: there is no policy rule {rule!r}")
    if not path.startswith("/") or (path.endswith("/") and path != "/"):
        raise ValueError(f"{method} {path}: paths start with a slash and end without one")
    return entry


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a resource: ``POST …/action`` with a body of one key, its ``name``."""

    name: str
    handler: Handler
    rule: str
    body: Any = None
    status: int = 202
    min_version: Version = MIN
    max_version: Version = MAX


def actions(path: str, table: list[Action]) -> list[Route]:
    """The routes of an action table."""
    return [
        route(
            "POST", path, entry.handler, entry.rule, body=entry.body, status=entry.status, action=entry.name,
            min_version=entry.min_version, max_version=entry.max_version,
        )
        for entry in table
    ]  # fmt: skip


class Entry:
    """A route with its decoders, built once."""

    __slots__ = ("decoder", "lists", "names", "policy", "route")

    def __init__(self, item: Route) -> None:
        self.route = item
        self.policy = item.policy
        self.names = [part[1:-1] for part in item.path.split("/") if part.startswith("{")]
        self.decoder = msgspec.json.Decoder(item.body) if item.body is not None else None
        self.lists = _list_fields(item.query) if item.query is not None else frozenset()


@functools.cache
def _list_fields(query: Any) -> frozenset[str]:
    """Names of the query parameters that may be repeated."""
    info: Any = msgspec.inspect.type_info(query)
    found = set()
    for field in info.fields:
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        if any(isinstance(kind, msgspec.inspect.ListType) for kind in kinds):
            found.add(field.encode_name)
    return frozenset(found)


class _Node:
    __slots__ = ("methods", "param", "static")

    def __init__(self) -> None:
        self.static: dict[str, _Node] = {}
        self.param: _Node | None = None
        self.methods: dict[str, list[Entry]] = {}


class Table:
    """All routes, as a tree by path segment; literal segments win over parameters."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = list(routes)
        self._root = _Node()
        for item in routes:
            self._add(Entry(item))

    def _add(self, entry: Entry) -> None:
        node = self._root
        for part in entry.route.path.strip("/").split("/"):
            if part.startswith("{"):
                node.param = node.param or _Node()
                node = node.param
            elif part:
                node = node.static.setdefault(part, _Node())
        known = node.methods.setdefault(entry.route.method, [])
        for other in known:
            if other.route.action == entry.route.action and _overlap(other.route, entry.route):
                raise ValueError(f"{entry.route.method} {entry.route.path} is in the table twice")
        known.append(entry)

    def find(self, parts: list[str]) -> tuple[dict[str, list[Entry]], list[str]] | None:
        """The entries by method at a path, and the values of its parameters in order."""
        return _walk(self._root, parts, 0, [])


def _overlap(one: Route, other: Route) -> bool:
    return one.min_version <= other.max_version and other.min_version <= one.max_version


def _walk(
    node: _Node, parts: list[str], index: int, values: list[str]
) -> tuple[dict[str, list[Entry]], list[str]] | None:
    if index == len(parts):
        return (node.methods, values) if node.methods else None
    part = parts[index]
    child = node.static.get(part)
    if child is not None:
        found = _walk(child, parts, index + 1, values)
        if found is not None:
            return found
    if node.param is not None and part:
        return _walk(node.param, parts, index + 1, [*values, part])
    return None


def at_version(entries: list[Entry], version: Version) -> list[Entry]:
    """The entries that exist in this microversion."""
    return [e for e in entries if e.route.min_version <= version <= e.route.max_version]
