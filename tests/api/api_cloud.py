"""A whole cloud's API in this process, and how tests talk to it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import httpx2

from unstuck.api.app import all_routes, create_app
from unstuck.api.context import Settings
from unstuck.api.dispatch import Dispatcher
from unstuck.api.identity.auth import Authenticator
from unstuck.api.identity.passwords import Passwords, hash_password
from unstuck.api.routes import Table
from unstuck.store.engine import Store

ADMIN_HASH = hash_password("admin-secret")
DEMO_HASH = hash_password("demo-secret")

PASSWORDS = Passwords()
"""Shared by all tests: what was verified once need not be hashed again."""


BASE_SERVICES = ["unstuck.api.versions", "unstuck.api.identity", "unstuck.api.image"]
"""What needs no other service: tests of these do not depend on the rest."""


def app_over(store: Store, settings: Settings, services: Sequence[str] = BASE_SERVICES) -> Dispatcher:
    """The app, with a fresh verifier of tokens."""
    extra = {"identity": Authenticator(PASSWORDS)}
    return create_app(store, settings, routes=_table(tuple(services)), extra=extra)


@functools.cache
def _table(services: tuple[str, ...]) -> Table:
    return Table(all_routes(services))


class Cloud:
    """Sends requests to the app without a socket; ``login`` returns another one with a token."""

    def __init__(self, app: Dispatcher, store: Store, loop: asyncio.Runner, token: str = "") -> None:
        self.app = app
        self.store = store
        self.loop = loop
        self.token = token

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        headers = {"x-auth-token": self.token, **more.pop("headers", {})}

        async def send() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://cloud:81") as client:
                return await client.request(method, path, headers=headers, **more)

        return self.loop.run(send())

    def get(self, path: str, **more: Any) -> httpx2.Response:
        return self.ask("GET", path, **more)

    def auth(self, identity_: dict[str, Any], scope: Any = None) -> httpx2.Response:
        auth: dict[str, Any] = {"identity": identity_}
        if scope is not None:
            auth["scope"] = scope
        return self.ask("POST", "/identity/v3/auth/tokens", json={"auth": auth}, headers={"x-auth-token": ""})

    def login(self, name: str, password: str, project: str | None) -> Cloud:
        answer = self.auth(by_password(name, password), in_project(project) if project else None)
        assert answer.status_code == 201, answer.text
        return Cloud(self.app, self.store, self.loop, answer.headers["x-subject-token"])


def by_password(name: str, password: str) -> dict[str, Any]:
    user = {"name": name, "password": password, "domain": {"id": "default"}}
    return {"methods": ["password"], "password": {"user": user}}


def in_project(name: str) -> dict[str, Any]:
    return {"project": {"name": name, "domain": {"id": "default"}}}
