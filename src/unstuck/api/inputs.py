"""Reading what clients send: bodies within limits, JSON into validated structs, query parameters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from unstuck.api.context import Settings
from unstuck.api.errors import ApiError, bad_request, not_found
from unstuck.api.routes import Entry

_DRAIN_BYTES: Final = 16 << 20
_DRAIN_SECONDS: Final = 5.0
_RAW: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(http: Request, settings: Settings) -> bytes:
    """The whole body: 413 beyond the limit (whatever Content-Length says), 408 when it does not arrive."""
    limit = settings.max_body_bytes
    too_large = ApiError(
        413, f"The request body is larger than {limit} bytes.", headers={"connection": "close"}
    )
    length = http.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in http.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(
            408, "The request body did not arrive in time.", headers={"connection": "close"}
        ) from None
    return b"".join(chunks)


async def drain(http: Request) -> None:
    """Read what is still on its way, within limits, before an answer that closes the connection.

    A client that is cut off while it sends may never see the answer that says why.
    """
    left = _DRAIN_BYTES
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for chunk in http.stream():
                left -= len(chunk)
                if left < 0:
                    return


def decode_body(entry: Entry, data: bytes | msgspec.Raw) -> Any:
    """The validated body of a route, or 400 that names the place."""
    if entry.decoder is None:
        return None
    if not data:
        raise bad_request("A JSON body is required.")
    return checked(lambda: entry.decoder.decode(data) if entry.decoder else None, bytes(data))


NOT_OFFERED: Final = frozenset({
    "addFixedIp", "addFloatingIp", "addSecurityGroup", "changePassword", "confirmResize",
    "createBackup", "createImage", "eject_replica_source", "evacuate", "forceDelete", "injectNetworkInfo",
    "lock", "migrate",
    "os-getConsoleOutput", "os-getRDPConsole", "os-getSerialConsole", "os-getSPICEConsole",
    "os-getVNCConsole", "os-migrateLive", "os-resetState", "os-start", "os-stop", "pause",
    "promote_to_replica_source", "reboot",
    "rebuild", "removeFixedIp", "removeFloatingIp", "removeSecurityGroup", "rescue", "resetNetwork",
    "resize", "restore", "resume", "revertResize", "shelve", "shelveOffload", "suspend",
    "trigger_crash_dump", "unlock", "unpause", "unrescue", "unshelve",
})  # fmt: skip
"""The compute API's actions on servers, as of 2.96, and the database API's on instances. One without a route
here is real, and not offered."""


def choose_action(entries: list[Entry], data: bytes) -> tuple[Entry, Any]:
    """The entry that the body's one key names, and its value."""
    keys: dict[str, msgspec.Raw] = checked(lambda: _RAW.decode(data), data) if data else {}
    if len(keys) != 1:
        raise bad_request("The body must be a JSON object with exactly one key, the name of the action.")
    name, value = next(iter(keys.items()))
    for entry in entries:
        if entry.route.action == name:
            return entry, value
    if name in NOT_OFFERED:
        raise bad_request(f"The action {name} is not offered by this cloud.")
    raise bad_request(f"There is no such action: {name[:100]!r}.")


def checked(decode: Any, data: bytes) -> Any:
    """Run a JSON decoder; whatever it dislikes becomes a 400."""
    try:
        value = decode()
        if b"\\u0000" in data:
            _refuse_nul(msgspec.json.decode(data))
        if b"\\u" in data or b"\\U" in data:
            msgspec.json.encode(value, enc_hook=str)  # a lone surrogate cannot be written again
    except msgspec.ValidationError as error:
        raise bad_request(f"Invalid input: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from None
    return value


def _refuse_nul(value: Any) -> None:
    # PostgreSQL cannot store it, and no name needs it.
    if isinstance(value, str):
        if "\0" in value:
            raise bad_request("Invalid input: strings must not contain the character NUL.")
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_nul(key)
            _refuse_nul(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_nul(item)


def decode_query(entry: Entry, http: Request) -> Any:
    """The validated query parameters, or 400 that names the parameter."""
    if entry.route.query is None and not http.scope["query_string"]:
        return None
    params = http.query_params
    for name, value in params.multi_items():
        if "\0" in name or "\0" in value:
            raise bad_request("Invalid input: query parameters must not contain the character NUL.")
    if entry.route.query is None:
        return None
    given = {name: params.getlist(name) if name in entry.lists else params[name] for name in params}
    try:
        return msgspec.convert(given, entry.route.query, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"Invalid input for query parameters: {error}") from None


def path_parts(raw_path: bytes) -> list[str]:
    """Segments of a path, decoded one by one (an encoded slash stays inside its segment)."""
    trimmed = raw_path.partition(b"?")[0].strip(b"/")
    if not trimmed:
        return []
    try:
        parts = [unquote_to_bytes(part).decode() for part in trimmed.split(b"/")]
    except UnicodeDecodeError:
        raise not_found() from None
    if any("\0" in part for part in parts):
        raise not_found()
    return parts
