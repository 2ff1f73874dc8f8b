"""Joining a cloud from another machine: ``unstuck host --join TOKEN``, once per host."""

from __future__ import annotations

import re
import socket
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx2
import msgspec

from unstuck.runtime.files import private_folder
from unstuck.runtime.state import State, StateError, host_identity

_PATIENCE: Final = 30.0
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,64}")


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Body(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def join(state: State, url: str, token: str, name: str | None) -> str:
    """Make this host a member; returns its name. Raises :class:`StateError`.

    The identity is written before anybody is asked, so that a join that was cut off is simply repeated. The
    secret stays here (0600); the control plane learns its hash.
    """
    if _TOKEN.fullmatch(token) is None:
        raise StateError("The join token is not one: make it with POST /unstuck/v1/join-tokens.")
    for folder in (state.root, state.host, state.run, state.logs):
        private_folder(folder)
    known, secret = host_identity(state)
    hostname = name or socket.gethostname()
    body = {
        "token": token, "host_id": known.host_id, "hostname": hostname, "machine_id": known.machine_id,
        "secret_hash": sha256(secret).hexdigest(),
    }  # fmt: skip
    first = url.split(",")[0].rstrip("/")
    try:
        answer = httpx2.post(f"{first}/agents/v1/join", json=body, timeout=_PATIENCE, trust_env=False)
    except httpx2.TransportError as error:
        raise StateError(f"{first} does not answer ({type(error).__name__}); join again.") from None
    if answer.status_code != 200:
        raise StateError(f"{first} refuses this host: {_reason(answer)}")
    return hostname


def _reason(answer: httpx2.Response) -> str:
    try:
        return msgspec.json.decode(answer.content, type=_Body).error.message
    except msgspec.DecodeError:
        return f"HTTP {answer.status_code}"


def token_from(text: str) -> str:
    """The token itself, or ``@file``: what stands in a command line, everybody on the machine can read."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except OSError as error:
        raise StateError(f"The join token in {text[1:]} cannot be read: {error.strerror}.") from None
