"""Routes of host agents for guests' logs: pieces to be kept, and what a restore to a point in time reads."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from unstuck.api.agents.backups import (
    ObjectQuery,
    answered,
    at_store,
    available,
    check_ids,
    place_of,
    read_object,
    turn,
)
from unstuck.api.agents.guard import Refusal, body, guarded
from unstuck.api.backups import site
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.blobs import archive as objects
from unstuck.blobs import keys
from unstuck.blobs.objects import Conflict, sha256
from unstuck.core.instance.wire import AskLog, BeginPiece, BegunPiece, EndPiece, LogGrant
from unstuck.store import archive_pieces as rows

PART_LARGEST: Final = 8 << 20
MANIFEST_LARGEST: Final = 1 << 20
"""Bytes of an object of each kind."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\Z")
_PLACE: Final = re.compile(r"[A-Za-z0-9:._-]{0,64}\Z")
_TAG: Final = re.compile(r"[0-9A-Za-z]{1,64}\Z")
_RUN: Final = re.compile(r"\d{4,8}-[0-9A-Za-z]{1,64}\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_PART: Final = re.compile(r"\d{8}\.zst\.age\Z")

_begin = msgspec.json.Decoder(BeginPiece)
_end = msgspec.json.Decoder(EndPiece)
_log = msgspec.json.Decoder(AskLog)


@guarded
async def begin(call: Call, host_id: str) -> Reply:
    """A piece is announced: the ledger has its digest before there is any object of it."""
    ask = await body(call, _begin)
    piece = ask.piece
    check_ids(ask.who.server_id, ask.archive_id)
    words = _NAME.match(piece.name) and _PLACE.match(piece.start) and _PLACE.match(piece.stop)
    if not words or not _TAG.match(ask.tag) or not _DIGEST.match(piece.digest):
        raise Refusal(400, "invalid", "Invalid input: `piece` or `tag` is none.")
    if piece.size <= 0 or piece.timeline < 0 or (piece.start == "") != (piece.stop == ""):
        raise Refusal(400, "invalid", "Invalid input: `piece` has no place in a log.")
    try:
        keys.check_public(ask.signing_key)
    except keys.BadKey as error:
        raise Refusal(400, "invalid", f"Invalid input: `signing_key`: {error}.") from None
    keyring = available(lambda: site(call.app).keyring)
    granted = await call.store.run(rows.begin_piece, host_id, ask, keyring)
    if granted.diverged:
        call.app.notifier.wake("control")
        call.app.notifier.wake(f"host:{host_id}")
    if granted.known or granted.diverged:
        return Reply(BegunPiece(granted.known, granted.diverged))
    place = place_of(answered(lambda: site(call.app).stores.remote(granted.location)))
    return Reply(BegunPiece(kept=granted.kept, certificate=granted.certificate, place=place))


@guarded
async def end(call: Call, host_id: str) -> Reply:
    ask = await body(call, _end)
    check_ids(ask.who.server_id, ask.archive_id)
    if not _NAME.match(ask.name) or not _TAG.match(ask.tag) or len(ask.chunks) > 1024:
        raise Refusal(400, "invalid", "Invalid input: `name`, `tag` or `chunks` is none.")
    await call.store.run(rows.end_piece, host_id, ask)
    return Reply(status=204)


@guarded
async def log(call: Call, host_id: str) -> Reply:
    """The pieces from the end of the base to the point, and the archive's key."""
    ask = await body(call, _log)
    check_ids(ask.who.server_id)
    keyring = available(lambda: site(call.app).keyring)
    try:
        page = await call.store.run_read(rows.grant_log, host_id, ask, keyring)
    except keys.BadKey as error:
        raise Refusal(422, "rotten", f"The archive's key cannot be opened: {error}.") from None
    place = place_of(answered(lambda: site(call.app).stores.remote(page.location)))
    return Reply(LogGrant(page.identity, page.parts, page.more, place))


def _folder(call: Call) -> tuple[str, str, str, str]:
    """(prefix, piece, tag, object) of the key, which is one that is made here."""
    values: dict[str, Any] = call.params
    instance_id, run, piece, tag, name = (
        values[part] for part in ("instance_id", "run", "piece", "tag", "name")
    )
    check_ids(instance_id)
    known = _PART.match(name) or name == objects.NAME
    if not _RUN.match(run) or not _NAME.match(piece) or not _TAG.match(tag) or not known:
        raise Refusal(404, "no-object", "No object of ours has such a key.")
    return f"{objects.ROOT}/{instance_id}/{run}", piece, tag, name


@guarded
async def put_object(call: Call, host_id: str) -> Reply:
    """One object of a try that goes on, whole or not at all; the same again is success."""
    query: ObjectQuery = call.query
    prefix, piece, tag, name = _folder(call)
    check = (host_id, query.who(), prefix, piece, tag)
    await call.store.run_read(rows.may_keep, *check)
    async with turn(call, host_id):
        data = await read_object(call, PART_LARGEST if name != objects.NAME else MANIFEST_LARGEST)
        location = await call.store.run_read(rows.may_keep, *check)
        key = f"{objects.folder_of(prefix, piece, tag)}/{name}"
        try:
            await at_store(call, location, lambda there: there.put_new(key, data))
        except Conflict:
            raise Refusal(409, "conflict", "Another object has this key, with other bytes.") from None
    return Reply(status=204)


@guarded
async def get_object(call: Call, host_id: str) -> Reply:
    """One object of the log that an instance on this host is made from."""
    query: ObjectQuery = call.query
    prefix, piece, tag, name = _folder(call)
    folder = objects.folder_of(prefix, piece, tag)
    location = await call.store.run_read(rows.may_read_log, host_id, query.who(), folder, piece)
    async with turn(call, host_id):
        data = await at_store(call, location, lambda there: there.get(f"{folder}/{name}"))
    if data is None:
        raise Refusal(404, "no-object", f"There is no object {name}.")
    return Reply(data, headers={"content-type": "application/octet-stream", "unstuck-sha256": sha256(data)})


_HOST: Final = "/agents/v1/hosts/{host_id}"
_OBJECT: Final = f"{_HOST}/objects/archives/{{instance_id}}/{{run}}/{{piece}}/{{tag}}/{{name}}"

ROUTES: list[Route] = [
    route("POST", f"{_HOST}/archives/begin", begin, "public", body=BeginPiece, raw=True),
    route("POST", f"{_HOST}/archives/end", end, "public", body=EndPiece, raw=True, status=204),
    route("POST", f"{_HOST}/restores/log", log, "public", body=AskLog, raw=True),
    route("PUT", _OBJECT, put_object, "public", query=ObjectQuery, status=204),
    route("GET", _OBJECT, get_object, "public", query=ObjectQuery),
]
