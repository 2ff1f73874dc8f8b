"""Images for hosts: a host may fetch what it has to boot, with its own credential."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from unstuck.api.agents.guard import Refusal
from unstuck.api.routes import Call, Reply
from unstuck.blobs import images as files
from unstuck.core.errors import NotFound
from unstuck.store import images as rows

log = structlog.get_logger(__name__)


async def image(call: Call, host_id: str) -> Reply:
    """The data of an image, with its digest in a header; 404 is final, nobody will bring it back."""
    try:
        found = await call.store.run_read(
            rows.get_image, call.params["image_id"], project_id=None, admin=True
        )
    except NotFound as error:
        raise Refusal(404, "no-image", error.message) from None
    if found.data is None:
        raise Refusal(404, "no-image", f"Image {found.id} has no data.")
    path = files.open_path(call.app.settings.state_dir, found.data.name)
    if not await asyncio.to_thread(path.is_file):
        log.error("image data is missing", image=found.id, host=host_id, path=str(path))
        raise Refusal(503, "image-away", f"The data of image {found.id} is missing on the control plane.")
    headers = {
        "content-type": "application/octet-stream",
        "content-length": str(found.data.size),
        "unstuck-sha512": found.data.sha512,
    }
    return Reply(headers=headers, stream=_stream(path, found.data.size))


async def _stream(path: Path, size: int) -> AsyncIterator[bytes]:
    reader = files.read_range(path, 0, size)
    while (chunk := await asyncio.to_thread(next, reader, None)) is not None:
        yield chunk
