"""The database API as a user of one project calls it."""

from __future__ import annotations

from typing import Any

import httpx2
from api_cloud import Cloud


class Trove:
    """Paths without what is before them: ``get("/instances")``."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        self.cloud = cloud
        projects = cloud.get("/identity/v3/auth/projects").json()["projects"]
        self.project = next(item["id"] for item in projects if item["name"] == name)
        self.base = f"/database/v1.0/{self.project}"

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return self.cloud.ask(method, self.base + path, **more)

    def get(self, path: str, **more: Any) -> Any:
        answer = self.ask("GET", path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any, status: int = 202) -> Any:
        answer = self.ask("POST", path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def refused(self, method: str, path: str, status: int, kind: str, **more: Any) -> str:
        """A call that must be refused in Trove's form; its message."""
        answer = self.ask(method, path, **more)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        body = answer.json()
        assert list(body) == [kind], body
        assert body[kind]["code"] == status
        return str(body[kind]["message"])

    def bad(self, method: str, path: str, **more: Any) -> str:
        return self.refused(method, path, 400, "badRequest", **more)

    def missing(self, method: str, path: str, **more: Any) -> str:
        return self.refused(method, path, 404, "itemNotFound", **more)
