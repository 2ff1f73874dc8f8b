"""Logs: one JSON object a line into files, words on a terminal; never a secret."""

from __future__ import annotations

import logging
import os
import sys
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
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
