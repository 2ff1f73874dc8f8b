"""A way to the control plane on which no report of a running guest gets through."""

from __future__ import annotations

import asyncio
import threading


class Deaf:
    """Passes an agent's calls on, but answers 503 to every report that says running."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = made.result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                head, body = await _message(reader)
                if b"/reports " in head.split(b"\r\n")[0] and b'"running"' in body.lower():
                    writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
                    continue
                there[1].write(head + body)
                writer.write(b"".join(await _message(there[0])))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            there[1].close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    return head, await reader.readexactly(size)
