"""A real HTTP server in front of a real S3 server, which does what object stores do on their bad days."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FaultyStore:
    """``fault``: None (pass on), a status to answer with, or ``hang`` (accept, and never answer).

    ``only``: HTTP methods that it happens to. ``seen``: requests that came.
    """

    def __init__(self, upstream: str) -> None:
        self.fault: int | str | None = None
        self.only: frozenset[str] | None = None
        self.seen = 0
        self._upstream = urlsplit(upstream)
        self._released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                outer.seen += 1
                length = int(self.headers.get("content-length", "0"))
                data = self.rfile.read(length)
                fault = outer.fault if outer.only is None or self.command in outer.only else None
                if fault == "hang":
                    outer._released.wait(120.0)
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self.answer(fault, {"content-type": "text/plain"}, b"a fault that a test has asked for")
                    return
                self.pass_on(data)

            def pass_on(self, data: bytes) -> None:
                there = http.client.HTTPConnection(outer._upstream.netloc, timeout=60.0)
                with contextlib.closing(there):
                    there.request(self.command, self.path, body=data, headers=dict(self.headers))
                    answer = there.getresponse()
                    body = answer.read()
                    headers = {k: v for k, v in answer.getheaders() if k.lower() != "transfer-encoding"}
                    self.answer(answer.status, headers, body)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD" or "content-length" not in {n.lower() for n in headers}:
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        for method in ("GET", "PUT", "HEAD", "DELETE", "POST"):
            setattr(Handler, f"do_{method}", Handler.handle_any)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that was cut off or has given up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Those that hang are cut off; later ones may hang again."""
        self._released.set()
        self._released = threading.Event()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)

    @contextlib.contextmanager
    def doing(self, fault: int | str, *only: str) -> Iterator[None]:
        self.fault, self.only = fault, frozenset(only) or None
        try:
            yield
        finally:
            self.fault, self.only = None, None
