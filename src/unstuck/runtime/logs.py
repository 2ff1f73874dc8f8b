"""Logs: one JSON object a line into files, words on a terminal; never a secret, and never an error.

A full disk is when there is most to log and least room for it. The error of a log call once ended the
loop that meant to say that the store had no room: lost lines are counted, and told when there is room again.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_SECRET: Final = ("password", "secret", "token", "authorization", "credential", "private_key")


def hide_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A value whose key says that it is secret is not written, whoever logged it."""
    for key in event:
        if any(word in key.lower() for word in _SECRET):
            event[key] = "(hidden)"
    return event


class Lines:
    """Writes whole lines to a descriptor, and never raises; it holds nothing back that could be lost later.

    Not through Python's own buffer: what that cannot write stays in it and fails again at every call, the
    last time as the process's exit code.
    """

    def __init__(self, descriptor: int, form: str) -> None:
        self._descriptor = descriptor
        self._form = form
        self._lock = threading.Lock()
        self._lost = 0
        self._why = ""
        self._torn = False

    def line(self, text: str) -> None:
        """Write one event (of several lines, where it is a traceback)."""
        with self._lock:
            if not self._put(text):
                self._lost += 1
            elif self._lost and self._put(self._confession()):
                self._lost = 0

    debug = info = warning = error = critical = line

    def _put(self, text: str) -> bool:
        # The half of a line that got out must not spoil this one.
        data = (f"\n{text}\n" if self._torn else f"{text}\n").encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
                self._torn = bool(data)
        except OSError as error:
            self._why = error.strerror or str(error)
            return False
        return True

    def _confession(self) -> str:
        words = f"{self._lost} lines of the log could not be written and are lost: {self._why}"
        if self._form == "console":
            return words
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return json.dumps({"timestamp": stamp, "level": "warning", "event": words, "lost": self._lost})


class _Stdlib(logging.Handler):
    """What libraries log goes the same way as our own."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = record.levelname.lower()
            method = level if level in ("debug", "info", "warning", "error", "critical") else "info"
            more = {"exc_info": record.exc_info} if record.exc_info else {}
            getattr(structlog.get_logger(record.name), method)(record.getMessage(), **more)
        except Exception:
            self.handleError(record)


def set_up(process: str) -> None:
    """Log to stderr. ``UNSTUCK_LOG=json|console`` decides the form; else a terminal gets words."""
    form = os.environ.get("UNSTUCK_LOG") or ("console" if sys.stderr.isatty() else "json")
    lines = Lines(sys.stderr.fileno(), form)
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if form == "console"
        else structlog.processors.JSONRenderer()
    )
    chain: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    if form != "console":
        chain.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*chain, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process, pid=os.getpid())
    logging.basicConfig(handlers=[_Stdlib()], level=logging.WARNING, force=True)


def refuse(process: str, what: str, reason: str) -> None:
    """Say why a process cannot start: a sentence to a person, a line of the log to a file."""
    if sys.stderr.isatty():
        print(f"unstuck: the {what}: {reason}", file=sys.stderr)
        return
    set_up(process)
    structlog.get_logger(__name__).error(what, reason=reason)
