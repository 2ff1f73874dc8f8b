"""The application: all services over one route table."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from unstuck.api.context import App, Settings
from unstuck.api.dispatch import Authenticate, Dispatcher
from unstuck.api.identity.auth import Authenticator
from unstuck.api.notify import Notifier
from unstuck.api.routes import Route, Table
from unstuck.api.sockets import all_sockets
from unstuck.runtime.metrics import Metrics
from unstuck.store.engine import Store

SERVICES: Final[list[str]] = [
    # Modules with ``ROUTES: list[Route]``. A new service: add its module here.
    "unstuck.api.versions",
    "unstuck.api.identity",
    "unstuck.api.image",
    "unstuck.api.compute",
    "unstuck.api.network",
    "unstuck.api.database",
    "unstuck.api.explain",
    "unstuck.api.recovery",
    "unstuck.api.metrics",
    "unstuck.api.console",
    "unstuck.api.openapi",
]


def all_routes(services: Sequence[str] = SERVICES) -> list[Route]:
    """The whole route table."""
    return [item for name in services for item in importlib.import_module(name).ROUTES]


def create_app(
    store: Store,
    settings: Settings,
    *,
    notifier: Notifier | None = None,
    routes: list[Route] | Table | None = None,
    sockets: Sequence[Route] | None = None,
    authenticate: Authenticate | None = None,
    extra: dict[str, Any] | None = None,
) -> Dispatcher:
    """The ASGI app. ``routes``, ``sockets`` and ``authenticate`` replace the whole tables and the tokens."""
    helpers = {"identity": Authenticator(), "metrics": Metrics(), **(extra or {})}
    app = App(settings=settings, notifier=notifier or Notifier(), extra=helpers)
    known = all_routes() if routes is None else routes
    table = known if isinstance(known, Table) else Table(known)
    # Nothing in front of it: a router that finds no route would answer in a form that no client knows.
    talks = all_sockets(SERVICES) if sockets is None else sockets
    return Dispatcher(store, app, table, authenticate or helpers["identity"], talks)
