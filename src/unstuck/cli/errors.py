"""What a command says when it cannot do what it was asked: one sentence and a remedy, never a traceback."""

from __future__ import annotations


class CliError(Exception):
    """Ends a command; the message goes to stderr as it is."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
