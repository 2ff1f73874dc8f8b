"""Passwords: argon2, off the event loop, and remembered for a while so that logins stay cheap."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import argon2

_HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)


def _nobody() -> str:
    """A hash that no password has, without the work of making one: every process imports this module."""
    costs = f"m={_HASHER.memory_cost},t={_HASHER.time_cost},p={_HASHER.parallelism}"
    salt, digest = (base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19${costs}${salt}${digest}"


_NOBODY: Final = _nobody()
"""Checked when there is no such user, so that an answer takes as long as with a wrong password."""

MAX_LENGTH: Final = 4096


def hash_password(password: str) -> str:
    """The hash to store. Takes some 20 ms: not on the event loop."""
    return _HASHER.hash(password)


class Passwords:
    """Checks passwords on two threads, and remembers what was right (not what was wrong)."""

    def __init__(self, *, size: int = 1024, seconds: float = 300.0) -> None:
        self._size = size
        self._seconds = seconds
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._random = secrets.token_bytes(32)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="argon2")

    async def hash(self, password: str) -> str:
        """The hash to store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, hash_password, password)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether ``password`` belongs to the hash; ``None`` (no such user) takes just as long."""
        if len(password) > MAX_LENGTH:
            return False
        digest = hashlib.sha256(self._random + (stored or "").encode() + b"\0" + password.encode()).digest()
        if stored is not None and self._known.get(digest, 0.0) > time.monotonic():
            return True
        right = await asyncio.get_running_loop().run_in_executor(
            self._threads, _matches, stored or _NOBODY, password
        )
        if not right or stored is None:
            return False
        self._known[digest] = time.monotonic() + self._seconds
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return True


def _matches(stored: str, password: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
