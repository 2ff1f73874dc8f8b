"""Routes of host agents for backups: attempts, objects of folder stores, and what a restore may read.

A guest is its tenant: its host speaks for it, and gets no more than its present attempt may write and its
restore may read. Objects are in memory whole, a few at a time, and never on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Final, TypeVar

import msgspec

from unstuck.api.agents.guard import Refusal, body, guarded
from unstuck.api.backups import site
from unstuck.api.errors import ApiError
from unstuck.api.routes import Call, Query, Reply, Route, route
from unstuck.blobs import keys, manifest
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.manifest import ManifestError, manifest_key
from unstuck.blobs.objects import BlobError, Conflict, Location, Objects, sha256
from unstuck.blobs.verify import MANIFEST_LARGEST
from unstuck.core.backup.content import Content
from unstuck.core.backup.data import Done, Gave, Phase
from unstuck.core.errors import Unavailable
from unstuck.core.instance.wire import (
    AskGrant,
    EndAttempt,
    Place,
    RenewAttempt,
    Renewed,
    RestoreGrant,
    TakeAttempt,
    Taken,
    Who,
)
from unstuck.core.server.data import Fence
from unstuck.runtime.lanes import LaneFull, TookTooLong
from unstuck.store import backup_attempts as rows

T = TypeVar("T")

CHUNK_LARGEST: Final = 8 << 20
"""Bytes of an object that is a piece of a backup."""
OBJECT_SECONDS: Final = 70.0
"""For one object to be written or read: longer than a store has for its answer."""
REASON_MAX: Final = 1000
PUT_OFF_MAX: Final = 300
_CHUNK: Final = re.compile(r"\d{8}\.zst\.age\Z")
_ATTEMPT: Final = re.compile(r"(\d{4,6})-([0-9A-Za-z]{1,64})\Z")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

_take = msgspec.json.Decoder(TakeAttempt)
_renew = msgspec.json.Decoder(RenewAttempt)
_end = msgspec.json.Decoder(EndAttempt)
_grant = msgspec.json.Decoder(AskGrant)

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ObjectQuery(Query, frozen=True, kw_only=True):
    """Who asks: the host's incarnation and the server's grant; ``nonce`` is the attempt's, when writing."""

    server_id: Annotated[str, msgspec.Meta(max_length=64)]
    generation: Number
    epoch: Number
    incarnation: Number
    nonce: str = ""

    def who(self) -> Who:
        fence = Fence(self.generation, self.epoch)
        return Who(incarnation=self.incarnation, server_id=self.server_id, fence=fence)


@guarded
async def take(call: Call, host_id: str) -> Reply:
    ask = await body(call, _take)
    check_ids(ask.who.server_id, ask.backup_id, ask.nonce)
    try:
        keys.check_public(ask.signing_key)
    except keys.BadKey as error:
        raise Refusal(400, "invalid", f"Invalid input: `signing_key`: {error}.") from None
    there, keyring = site(call.app), available(lambda: site(call.app).keyring)
    granted = await call.store.run(rows.take_attempt, host_id, ask, keyring)
    place = place_of(answered(lambda: there.stores.remote(granted.location)))
    return Reply(Taken(granted.frame, granted.prefix, granted.certificate, place))


@guarded
async def renew(call: Call, host_id: str) -> Reply:
    ask = await body(call, _renew)
    check_ids(ask.who.server_id, ask.backup_id, ask.nonce)
    try:
        phase = Phase(ask.phase)
    except ValueError:
        raise Refusal(400, "invalid", f"Invalid input: no phase is called {ask.phase[:40]!r}.") from None
    if ask.size < 0 or ask.idle < 0:
        raise Refusal(400, "invalid", "Invalid input: `size` and `idle` are not negative.")
    ask = msgspec.structs.replace(ask, put_off=_words(ask.put_off, PUT_OFF_MAX))
    return Reply(Renewed(await call.store.run(rows.renew_attempt, host_id, ask, phase)))


@guarded
async def end(call: Call, host_id: str) -> Reply:
    ask = await body(call, _end)
    check_ids(ask.who.server_id, ask.backup_id, ask.nonce)
    match ask.said:
        case Done(digest) if not _DIGEST.match(digest):
            raise Refusal(400, "invalid", "Invalid input: `digest` is not a sha256 in hex.")
        case Gave(reason, final):
            said = Gave(_words(reason, REASON_MAX) or "no reason was told", final)
            ask = msgspec.structs.replace(ask, said=said)
    await call.store.run(rows.end_attempt, host_id, ask)
    call.app.notifier.wake("control")
    return Reply(status=204)


@guarded
async def grant(call: Call, host_id: str) -> Reply:
    ask = await body(call, _grant)
    check_ids(ask.who.server_id)
    keyring = available(lambda: site(call.app).keyring)
    try:
        granted = await call.store.run_read(rows.grant_restore, host_id, ask.who, keyring, ask.above)
    except keys.BadKey as error:
        raise Refusal(422, "rotten", f"The backup's key cannot be opened: {error}.") from None
    found = granted.row
    prefix, digest = found.prefix, found.digest
    assert prefix is not None

    def content_of(objects: Objects) -> Content:
        data = objects.get(manifest_key(prefix))
        if data is None or manifest.digest(data) != digest:
            raise ManifestError("the manifest is not the one that was verified")
        read = manifest.read(data, keyring.public.signing, prefix)
        if read.parent != granted.parent:
            raise ManifestError("its parent is another one than the manifest says")
        return manifest.content(read)

    try:
        content = await at_store(call, found.location, content_of)
    except ManifestError as error:
        raise Refusal(422, "rotten", f"Backup {found.id} cannot be restored: {error}.") from None
    place = place_of(answered(lambda: site(call.app).stores.remote(found.location)))
    return Reply(RestoreGrant(found.id, prefix, content, granted.identity, place, granted.parents))


@guarded
async def put_object(call: Call, host_id: str) -> Reply:
    """One object of a live attempt, whole or not at all; the same again is success."""
    query: ObjectQuery = call.query
    backup_id, attempt, nonce, name = _parts(call)
    if nonce != query.nonce:
        raise Refusal(400, "invalid", "Invalid input: `nonce` is not the one in the object's key.")
    most = CHUNK_LARGEST if _CHUNK.match(name) else MANIFEST_LARGEST
    check = (host_id, query.who(), backup_id, attempt, nonce)
    await call.store.run_read(rows.may_write, *check)
    async with turn(call, host_id):
        data = await read_object(call, most)
        # Once more: a manifest that arrives after its attempt was given up would say that it was not.
        location = await call.store.run_read(rows.may_write, *check)
        key = f"{prefix_of(backup_id, attempt, nonce)}/{name}"
        try:
            await at_store(call, location, lambda objects: objects.put_new(key, data))
        except Conflict:
            raise Refusal(409, "conflict", "Another object has this key, with other bytes.") from None
    return Reply(status=204)


@guarded
async def get_object(call: Call, host_id: str) -> Reply:
    """One object of the backup that an instance on this host is made from, or of one of its parents."""
    query: ObjectQuery = call.query
    backup_id, attempt, nonce, name = _parts(call)
    chain = await call.store.run_read(rows.may_read, host_id, query.who())
    prefix = prefix_of(backup_id, attempt, nonce)
    found = next((row for row in chain if row.prefix == prefix), None)
    if found is None:
        raise Refusal(410, "stale", "This is not the backup that the instance is made from.")
    async with turn(call, host_id):
        data = await at_store(call, found.location, lambda objects: objects.get(f"{prefix}/{name}"))
    if data is None:
        raise Refusal(404, "no-object", f"There is no object {name}.")
    return Reply(data, headers={"content-type": "application/octet-stream", "unstuck-sha256": sha256(data)})


def _words(text: str, most: int) -> str:
    """What a guest said, as one line without what a terminal would act on."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())[:most]


def check_ids(*ids: str) -> None:
    if not all(_ID.match(text) for text in ids):
        raise Refusal(400, "invalid", "Invalid input: an id or a nonce is none.")


def _parts(call: Call) -> tuple[str, int, str, str]:
    """(backup, attempt, nonce, name) of the object's key, which is one that is made here."""
    backup_id, name = call.params["backup_id"], call.params["name"]
    match = _ATTEMPT.match(call.params["attempt"])
    known = _CHUNK.match(name) or name == manifest.NAME
    if match is None or not known or not _ID.match(backup_id):
        raise Refusal(404, "no-object", "No object of ours has such a key.")
    attempt = int(match[1])
    if call.params["attempt"] != f"{attempt:04d}-{match[2]}":
        raise Refusal(404, "no-object", "No object of ours has such a key.")
    return backup_id, attempt, match[2], name


@contextlib.asynccontextmanager
async def turn(call: Call, host_id: str) -> AsyncIterator[None]:
    """A place for an object in memory; 503 when none becomes free in time."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(site(call.app).object_in_memory(host_id, OBJECT_SECONDS))
        except TimeoutError:
            raise Refusal(503, "busy", "Too many objects are on their way: try again.") from None
        yield


async def read_object(call: Call, most: int) -> bytes:
    """The body: 413 beyond the limit, 408 when it does not arrive."""
    pieces, size = [], 0
    close = {"connection": "close"}
    try:
        async with asyncio.timeout(call.app.settings.body_seconds):
            async for piece in call.http.stream():
                size += len(piece)
                if size > most:
                    raise ApiError(413, f"An object like this has at most {most} bytes.", headers=close)
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(408, "The object did not arrive in time.", headers=close) from None
    if not size:
        raise Refusal(400, "invalid", "Invalid input: an object has at least one byte.")
    return b"".join(pieces)


async def at_store(call: Call, location: str, work: Callable[[Objects], T]) -> T:
    """Work at a store of objects on a thread; 503 with what is wrong where it did not do it."""
    there = site(call.app)
    try:
        return await there.lanes.run(location, OBJECT_SECONDS, lambda: work(there.stores.objects(location)))
    except BlobError as error:
        raise Refusal(503, f"store-{error.problem}", f"The store of objects: {error.reason}.") from error
    except (LaneFull, TookTooLong) as error:
        raise Refusal(503, "store-unreachable", f"The store of objects: {error}.") from error


def answered(work: Callable[[], T]) -> T:
    try:
        return work()
    except BlobError as error:
        raise Refusal(503, f"store-{error.problem}", f"The store of objects: {error.reason}.") from error


def available(work: Callable[[], T]) -> T:
    try:
        return work()
    except Unavailable as error:
        raise Refusal(503, "no-keys", error.message) from error


def place_of(where: Location | None) -> Place | None:
    if where is None:
        return None
    return Place(where.url, where.endpoint, where.region, where.access_key, where.secret_key)


_HOST: Final = "/agents/v1/hosts/{host_id}"
_OBJECT: Final = f"{_HOST}/objects/backups/{{backup_id}}/{{attempt}}/{{name}}"

ROUTES: list[Route] = [
    route("POST", f"{_HOST}/attempts/take", take, "public", body=TakeAttempt, raw=True),
    route("POST", f"{_HOST}/attempts/renew", renew, "public", body=RenewAttempt, raw=True),
    route("POST", f"{_HOST}/attempts/end", end, "public", body=EndAttempt, raw=True, status=204),
    route("POST", f"{_HOST}/restores/grant", grant, "public", body=AskGrant, raw=True),
    route("PUT", _OBJECT, put_object, "public", query=ObjectQuery, status=204),
    route("GET", _OBJECT, get_object, "public", query=ObjectQuery),
]
