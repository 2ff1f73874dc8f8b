"""The bytes of images: upload under a lease, download with ranges."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from unstuck.api.context import Settings
from unstuck.api.errors import ApiError, bad_request, conflict, forbidden
from unstuck.api.routes import Call, Reply
from unstuck.blobs import images as files
from unstuck.blobs.inspect import inspect_image
from unstuck.core.errors import Invalid
from unstuck.core.image import Data
from unstuck.store import images as rows
from unstuck.store.engine import StoreUnavailable

log = structlog.get_logger()

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_SPACE_EVERY: Final = 64 << 20
_CLOSE: Final = {"connection": "close"}


async def upload(call: Call) -> Reply:
    """``PUT /v2/images/{id}/file``: all of it becomes the image's data, or nothing does."""
    settings, image_id, nonce = call.app.settings, call.params["id"], secrets.token_hex(16)
    kind = call.http.headers.get("content-type", "application/octet-stream").partition(";")[0].strip()
    if kind != "application/octet-stream":
        raise ApiError(415, f"Content-Type: {kind[:80]!r} is not application/octet-stream.", headers=_CLOSE)
    check_size(settings, length_of(call))
    image = await call.store.run(
        rows.claim_upload, image_id, project_id=call.token.project_id, admin=call.is_admin,
        nonce=nonce, seconds=settings.upload_lease_seconds,
    )  # fmt: skip
    writer = files.Writer(settings.state_dir, image_id, nonce)
    try:
        if image.disk_format is None or image.container_format is None:
            raise bad_request("disk_format and container_format must be set before data is uploaded.")
        seconds = settings.upload_lease_seconds
        await receive(
            call,
            writer,
            lambda: call.store.run(rows.renew_upload, image_id, nonce=nonce, seconds=seconds),
        )
        data = await asyncio.to_thread(settle, writer, image.disk_format)
        if not await call.store.run(
            rows.finish_upload, image_id, nonce=nonce, disk_format=image.disk_format, data=data
        ):
            raise conflict(f"Image {image_id} was deleted, or its upload lost its turn.")
    except StoreUnavailable:
        writer.close()  # whether the data was recorded is unknown: it stays, and the sweep will know
        raise
    except OSError as error:
        await asyncio.shield(undo(call, writer, image_id, nonce))
        raise storage_error(error, image_id) from error
    except BaseException:
        await asyncio.shield(undo(call, writer, image_id, nonce))
        raise
    return Reply()


def length_of(call: Call) -> int | None:
    """How many bytes the request says that it brings."""
    text = call.http.headers.get("content-length")
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None


def check_size(settings: Settings, size: int | None) -> None:
    """413 when so many bytes are too many, for the limit or for the disk."""
    if size is not None and size > settings.image_max_bytes:
        raise ApiError(413, f"An image has at most {settings.image_max_bytes} bytes.", headers=_CLOSE)
    if files.free_bytes(settings.state_dir) - (size or 0) < settings.image_free_bytes:
        raise ApiError(413, "Image storage media is full: there is not enough space.", headers=_CLOSE)


async def receive(call: Call, writer: files.Writer, renew: Callable[[], Awaitable[bool]]) -> None:
    """Stream the body into the file in large pieces, renewing the lease while bytes flow."""
    settings, loop = call.app.settings, asyncio.get_running_loop()
    renew_at = loop.time() + settings.upload_lease_seconds / 3
    space_at = _SPACE_EVERY
    pending = bytearray()
    async for chunk in _chunks(call):
        pending += chunk
        if len(pending) >= files.CHUNK:
            if writer.size + len(pending) > settings.image_max_bytes:
                check_size(settings, writer.size + len(pending))
            await asyncio.to_thread(writer.write, bytes(pending))
            pending.clear()
        if writer.size >= space_at:
            check_size(settings, None)
            space_at = writer.size + _SPACE_EVERY
        if loop.time() >= renew_at:
            if not await renew():
                raise ApiError(409, "The image was deleted during the upload.", headers=_CLOSE)
            renew_at = loop.time() + settings.upload_lease_seconds / 3
    if writer.size + len(pending) > settings.image_max_bytes:
        check_size(settings, writer.size + len(pending))
    if pending:
        await asyncio.to_thread(writer.write, bytes(pending))
    if writer.size == 0:
        raise bad_request("The request body is empty: an image needs data.")


async def _chunks(call: Call) -> AsyncIterator[bytes]:
    """The body's chunks; 408 when the client falls silent, so that nobody holds an upload for ever."""
    stream = call.http.stream()
    while True:
        try:
            async with asyncio.timeout(call.app.settings.body_seconds):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise ApiError(408, "No data arrived for too long.", headers=_CLOSE) from None
        if chunk is None:
            return
        yield chunk


def settle(writer: files.Writer, disk_format: str) -> Data:
    """Make the bytes durable, look into them, and give them their final name."""
    written = writer.sync()
    try:
        virtual_size = inspect_image(writer.part, disk_format)
    except Invalid:
        raise
    except Exception as error:  # whatever a parser stumbles over in somebody's file is that file's fault
        log.warning("image inspection failed", error=repr(error))
        raise Invalid(f"The image could not be read as {disk_format}.") from None
    writer.keep()
    return Data(
        name=writer.target.name, size=written.size, virtual_size=virtual_size,
        checksum=written.md5, sha512=written.sha512,
    )  # fmt: skip


async def undo(call: Call, writer: files.Writer, image_id: str, nonce: str) -> None:
    """Remove what was written and give the image back. If this fails too, lease and sweep will do it.

    The file goes first: on a full disk it may be what the store needs the room of.
    """
    with contextlib.suppress(OSError):
        await asyncio.to_thread(writer.drop)
    with contextlib.suppress(StoreUnavailable):
        await call.store.run(rows.release_upload, image_id, nonce=nonce)


def storage_error(error: OSError, image_id: str) -> ApiError:
    """The disk took no more: 413 as for too much from the start, 503 for anything else."""
    log.warning("image not written", image=image_id, error=str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiError(413, "Image storage media is full: there is not enough space.", headers=_CLOSE)
    words = f"Insufficient permissions on image storage media, or it fails: {error.strerror}."
    return ApiError(503, words, headers={**_CLOSE, "retry-after": "30"})


async def download(call: Call) -> Reply:
    """``GET /v2/images/{id}/file``: 204 when there is no data (yet)."""
    image, _ = await call.store.run_read(
        rows.with_lease, call.params["id"], project_id=call.token.project_id, admin=call.is_admin
    )
    if image.data is None:
        return Reply(status=204)
    if image.deactivated and not call.is_admin:
        raise forbidden("The requested image has been deactivated. Image data download is forbidden.")
    data, path = image.data, files.open_path(call.app.settings.state_dir, image.data.name)
    if not await asyncio.to_thread(path.is_file):
        log.error("image data is missing", image=image.id, path=str(path))
        raise ApiError(404, f"The data of image {image.id} is missing on this machine.")
    start, length = _range(call.http.headers.get("range"), data.size)
    headers = {
        "content-type": "application/octet-stream", "accept-ranges": "bytes", "content-length": str(length),
    }  # fmt: skip
    if length == data.size:
        headers["content-md5"] = data.checksum
        return Reply(headers=headers, stream=_stream(path, 0, length))
    headers["content-range"] = f"bytes {start}-{start + length - 1}/{data.size}"
    return Reply(status=206, headers=headers, stream=_stream(path, start, length))


def _range(text: str | None, size: int) -> tuple[int, int]:
    """(start, length) of the one range asked for; everything without one, or when it is not understood."""
    match = _RANGE.fullmatch(text.strip()) if text else None
    if match is None or (not match[1] and not match[2]):
        return 0, size
    if not match[1]:
        start, end = max(size - int(match[2]), 0), size - 1
    else:
        start, end = int(match[1]), min(int(match[2] or size - 1), size - 1)
    if start > end:
        raise ApiError(416, f"Range: there are {size} bytes.", headers={"content-range": f"bytes */{size}"})
    return start, end - start + 1


async def _stream(path: Path, start: int, length: int) -> AsyncIterator[bytes]:
    reader = files.read_range(path, start, length)
    while (chunk := await asyncio.to_thread(next, reader, None)) is not None:
        yield chunk
