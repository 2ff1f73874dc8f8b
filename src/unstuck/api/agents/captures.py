"""Images that hosts make of servers' disks: delivered with the host's own credential, whole or not at all."""

from __future__ import annotations

import asyncio
import secrets

from unstuck.api.agents.guard import Refusal
from unstuck.api.image.data import check_size, length_of, receive, settle, storage_error, undo
from unstuck.api.routes import Call, Query, Reply
from unstuck.blobs import images as files
from unstuck.core.errors import Invalid
from unstuck.core.server.data import Fence
from unstuck.store import captures
from unstuck.store.engine import StoreUnavailable


class CaptureQuery(Query, frozen=True, kw_only=True):
    """Who delivers: the agent's incarnation, and the grant of the server."""

    incarnation: int
    generation: int
    epoch: int


async def deliver(call: Call, host_id: str) -> Reply:
    """``PUT …/servers/{server}/images/{image}``, the digest in a header: the bytes become the image's data.

    410 where nobody wants it any more; whatever else goes wrong, the host may begin anew.
    """
    server_id, image_id = call.params["server_id"], call.params["image_id"]
    query: CaptureQuery = call.query
    fence, nonce = Fence(query.generation, query.epoch), secrets.token_hex(16)
    settings = call.app.settings
    seconds = settings.upload_lease_seconds
    check_size(settings, length_of(call))
    await call.store.run(
        captures.claim_capture, host_id, query.incarnation, server_id, fence, image_id,
        nonce=nonce, seconds=seconds,
    )  # fmt: skip
    writer = files.Writer(settings.state_dir, image_id, nonce)
    try:
        await receive(
            call,
            writer,
            lambda: call.store.run(captures.renew_capture, server_id, image_id, nonce=nonce, seconds=seconds),
        )
        data = await asyncio.to_thread(settle, writer, "qcow2")
        if data.sha512 != call.http.headers.get("unstuck-sha512"):
            raise Refusal(422, "digest", "The bytes that arrived are not those that were sent.")
        if not await call.store.run(
            captures.finish_capture, host_id, server_id, fence, image_id, nonce=nonce, data=data
        ):
            raise Refusal(410, "stale", f"Image {image_id} is not wanted of this delivery any more.")
    except StoreUnavailable:
        writer.close()  # whether the data was recorded is unknown: it stays, and the sweep will know
        raise
    except OSError as error:
        await asyncio.shield(undo(call, writer, image_id, nonce))
        raise storage_error(error, image_id) from error
    except Invalid as error:
        await asyncio.shield(undo(call, writer, image_id, nonce))
        raise Refusal(422, "image", error.message) from error
    except BaseException:
        await asyncio.shield(undo(call, writer, image_id, nonce))
        raise
    call.app.notifier.wake(f"host:{host_id}")
    call.app.notifier.wake(f"server:{server_id}")
    return Reply(status=204)
