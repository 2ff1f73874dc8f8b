"""A client that costs little: one connection, one request at a time, so that we measure the server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec


class Failed(Exception):
    """An answer that is no success."""


class Line:
    """HTTP/1.1 over one connection that stays open."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self._port = port
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of the answer. Raises :class:`Failed`."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        length = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n" if data else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n{self._head}{length}\r\n"
        writer.write(head.encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        answer = await reader.readexactly(size)
        if not lines[0].split(b" ")[1].startswith(b"2"):
            raise Failed(f"{method} {path}: {lines[0].decode()} {answer[:300].decode()}")
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
