"""A small client of our own APIs, for the commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from unstuck.cli.errors import CliError
from unstuck.runtime.state import State, StateError

COMPUTE = {"openstack-api-version": "compute 2.96"}

CLOCK_STANDS = 15.0
"""Seconds without a tick, of which one a second is due, after which the control plane's loop is dead."""


class Cloud:
    """The cloud of a state folder, as one of its users; ``project_id`` is the user's own."""

    def __init__(self, client: httpx2.Client, url: str, project_id: str = "") -> None:
        self.client = client
        self.url = url
        self.project_id = project_id

    def get(self, path: str, **more: Any) -> Any:
        return self.ask("GET", path, **more).json()

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        answer = send(self.client, method, path, **more)
        if not answer.is_success:
            raise CliError(f"{method} {path}: {sentence(answer)}")
        return answer


def send(client: httpx2.Client, method: str, path: str, **more: Any) -> httpx2.Response:
    try:
        return client.request(method, path, **more)
    except httpx2.TransportError as error:
        raise CliError(
            f"The control plane at {client.base_url} does not answer ({error or type(error).__name__}); "
            "`unstuck up` starts it."
        ) from None


def sentence(answer: httpx2.Response) -> str:
    """The message in whatever form the API wrote it."""
    try:
        body = answer.json()
    except ValueError:
        return f"HTTP {answer.status_code}"
    inner = next((value for value in body.values() if isinstance(value, dict)), body)
    return str(inner.get("message") or f"HTTP {answer.status_code}")


@contextlib.contextmanager
def connect(state: State, user: str = "admin") -> Iterator[Cloud]:
    """Log in. Raises :class:`CliError` when the control plane does not answer."""
    try:
        url, password = state.url(), state.password(user)
    except StateError as error:
        raise CliError(str(error)) from None
    who = {"name": user, "password": password, "domain": {"id": "default"}}
    auth = {
        "identity": {"methods": ["password"], "password": {"user": who}},
        "scope": {"project": {"name": user, "domain": {"id": "default"}}},
    }
    with httpx2.Client(base_url=url, timeout=httpx2.Timeout(30.0, connect=3.0), trust_env=False) as client:
        answer = send(client, "POST", "/identity/v3/auth/tokens", json={"auth": auth})
        if answer.status_code != 201:
            raise CliError(
                f"The password of {user} in {state.secrets} is not accepted: {sentence(answer)} "
                f"Write the right one into {state.secrets / (user + '-password')}."
            )
        client.headers["x-auth-token"] = answer.headers["x-subject-token"]
        yield Cloud(client, url, answer.json()["token"]["project"]["id"])


def show_json(data: Any) -> None:
    """Print as JSON, for programs."""
    import sys

    text = msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2)
    sys.stdout.write(text.decode() + "\n")


def state_of(folder: Path | None) -> State:
    """The state folder that a command is about."""
    from unstuck.runtime.state import default_state

    return State(folder or default_state())
