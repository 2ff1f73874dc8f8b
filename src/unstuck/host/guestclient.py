"""The control plane over HTTP, as it is asked for the guests: registers, reports, attempts, objects."""

from __future__ import annotations

from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from unstuck.blobs.objects import BlobError, Conflict, Problem
from unstuck.core.agents import Answer
from unstuck.core.instance.wire import (
    AskGrant,
    AskLog,
    BeginPiece,
    BegunPiece,
    EndAttempt,
    EndPiece,
    GuestRegister,
    GuestRegistered,
    GuestReport,
    LogGrant,
    RenewAttempt,
    Renewed,
    RestoreGrant,
    TakeAttempt,
    Taken,
    Who,
)
from unstuck.host.client import Failed, HttpControl, translate
from unstuck.host.control import Declined, Incompatible, Superseded, Unreachable

T = TypeVar("T")

OBJECT: Final = 75.0
"""Seconds for one object: a little longer than the control plane waits for its blob store."""
_DECLINED: Final = frozenset({400, 403, 404, 405, 409, 411, 413, 414, 422})
_PROBLEMS: Final = {f"store-{problem.value}": problem for problem in Problem}


class HttpDatabase:
    """Implements :class:`unstuck.host.control.DatabaseControl`.

    The control plane's errors about a blob store have ``store-`` and the problem's name as their type; of an
    object that is certainly not there ``no-object``, of one that is there with other bytes ``conflict``.
    """

    def __init__(self, control: HttpControl) -> None:
        self._control = control

    async def guest_register(self, ask: GuestRegister) -> GuestRegistered:
        return await self._ask("guests/register", GuestRegistered, ask)

    async def guest_report(self, ask: GuestReport) -> None:
        await self._send("POST", "guests/reports", msgspec.json.encode(ask))

    async def take(self, ask: TakeAttempt) -> Taken:
        return await self._ask("attempts/take", Taken, ask)

    async def renew(self, ask: RenewAttempt) -> Renewed:
        return await self._ask("attempts/renew", Renewed, ask)

    async def end(self, ask: EndAttempt) -> None:
        await self._send("POST", "attempts/end", msgspec.json.encode(ask))

    async def restore_grant(self, ask: AskGrant) -> RestoreGrant:
        return await self._ask("restores/grant", RestoreGrant, ask)

    async def begin_piece(self, ask: BeginPiece) -> BegunPiece:
        return await self._ask("archives/begin", BegunPiece, ask)

    async def end_piece(self, ask: EndPiece) -> None:
        await self._send("POST", "archives/end", msgspec.json.encode(ask))

    async def log_grant(self, ask: AskLog) -> LogGrant:
        return await self._ask("restores/log", LogGrant, ask)

    async def put_object(self, who: Who, nonce: str, key: str, data: bytes) -> None:
        await self._send("PUT", _object(who, key, nonce=nonce), data, OBJECT)

    async def get_object(self, who: Who, key: str) -> bytes | None:
        try:
            return (await self._send("GET", _object(who, key), None, OBJECT)).content
        except _NoObject:
            return None

    async def answer(self, ask_id: str, answer: Answer) -> None:
        await self._send("POST", f"answers/{quote(ask_id, safe='')}", msgspec.json.encode(answer))

    async def _ask(self, path: str, kind: type[T], body: Any) -> T:
        answer = await self._send("POST", path, msgspec.json.encode(body))
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the control plane's answer to {path} cannot be read: {error}") from error

    async def _send(
        self, method: str, path: str, content: bytes | None, seconds: float | None = None
    ) -> httpx2.Response:
        try:
            return await self._control.request(method, path, content, seconds)
        except Failed as failed:
            raise _meaning(failed) from None


class _NoObject(Exception):
    pass


def _meaning(failed: Failed) -> Exception:
    """As for any call of the agent; but a guest's words are no reason for the host's agent to end."""
    kind = failed.problem.type
    if kind in _PROBLEMS:
        return BlobError(_PROBLEMS[kind], str(failed))
    if kind == "no-object":
        return _NoObject(str(failed))
    if kind == "conflict":
        return Conflict(str(failed))
    meaning = translate(failed)
    if failed.status in _DECLINED and not isinstance(meaning, Superseded | Incompatible):
        return Declined(str(failed))
    return meaning


def _object(who: Who, key: str, **more: str) -> str:
    query = {
        "server_id": who.server_id, "generation": who.fence.generation, "epoch": who.fence.epoch,
        "incarnation": who.incarnation, **more,
    }  # fmt: skip
    return f"objects/{quote(key)}?{urlencode(query)}"
