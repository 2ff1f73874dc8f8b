"""What the ``unstuck db`` commands ask of the database API, and how they wait."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from cyclopts import Parameter

from unstuck.cli.cloud import Cloud, connect, send, sentence, state_of
from unstuck.cli.clouds import NAMES
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

POLL: Final = 1.0
"""Seconds between two looks."""


State = Annotated[Path | None, Parameter(help="The state folder.")]


class Databases:
    """The database API of a project."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.base = f"/database/v1.0/{cloud.project_id}"

    def get(self, path: str, **more: Any) -> Any:
        return self.cloud.get(f"{self.base}{path}", **more)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        """The answer's JSON; None where it has no body."""
        answer = self.cloud.ask(method, f"{self.base}{path}", **more)
        return answer.json() if answer.content else None

    def all(self, kind: str, **query: str) -> list[dict[str, Any]]:
        """Every item of a list, page after page."""
        found: list[dict[str, Any]] = []
        marker: str | None = None
        while True:
            asked = query | {"limit": "200"} | ({} if marker is None else {"marker": marker})
            answer = self.get(f"/{kind}", params=asked)
            found += answer[kind]
            following = [link["href"] for link in answer.get("links", []) if link["rel"] == "next"]
            if not following:
                return found
            marker = _marker(following[0])

    def find(self, kind: str, what: str, name: str) -> dict[str, Any]:
        """One instance or backup by id or name. Raises :class:`CliError` when none or several have it."""
        one = kind.removesuffix("s")
        answer = send(self.cloud.client, "GET", f"{self.base}/{kind}/{quote(name, safe='')}")
        if answer.status_code == 200 and answer.json().get(one, {}).get("id") == name:
            found: dict[str, Any] = answer.json()[one]
            return found
        if answer.status_code not in (200, 404):
            raise CliError(f"{what} {name}: {sentence(answer)}")
        named = [item["id"] for item in self.all(kind) if item["name"] == name]
        if len(named) > 1:
            raise CliError(f"Several {kind} are called {name}; say which by its id: {', '.join(named)}.")
        if not named:
            raise CliError(f"There is no {what} {name}; `unstuck db list` shows what is there.")
        shown: dict[str, Any] = self.get(f"/{kind}/{named[0]}")[one]
        return shown

    def instance(self, name: str) -> dict[str, Any]:
        return self.find("instances", "instance", name)

    def backup(self, name: str) -> dict[str, Any]:
        return self.find("backups", "backup", name)

    def flavor(self, wanted: str | None, least_mb: int) -> str:
        """A flavor's id by its id or name; without one the smallest that has so many MiB of memory."""
        found = self.get("/flavors")["flavors"]
        if wanted is not None:
            for flavor in found:
                if wanted in (flavor["str_id"], flavor["name"]):
                    return str(flavor["str_id"])
            raise CliError(f"There is no flavor {wanted}; there are: {_names(found)}.")
        enough = sorted(
            (flavor for flavor in found if flavor["ram"] >= least_mb), key=lambda item: item["ram"]
        )
        if not enough:
            raise CliError(f"No flavor has {least_mb} MiB of memory; there are: {_names(found)}.")
        return str(enough[0]["str_id"])


@contextmanager
def databases(state: Path | None) -> Iterator[Databases]:
    """The database API as the user of ``OS_CLOUD``, where that is one of this cloud's entries; else demo."""
    user, _ = NAMES.get(os.environ.get("OS_CLOUD", ""), NAMES["unstuck"])
    with connect(state_of(state), user) as cloud:
        yield Databases(cloud)


def _names(found: list[dict[str, Any]]) -> str:
    return ", ".join(sorted(item["name"] for item in found)) or "none"


def _marker(href: str) -> str:
    from urllib.parse import parse_qs, urlsplit

    return parse_qs(urlsplit(href).query)["marker"][0]


class Progress:
    """One line on stderr for each new thing to say; on a terminal, the line is written over."""

    def __init__(self) -> None:
        self._said = ""
        self._live = sys.stderr.isatty()

    def say(self, words: str) -> None:
        if words == self._said:
            return
        line = plain(words)
        if self._live:
            sys.stderr.write(f"\r\x1b[K{line}")
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
        self._said = words

    def end(self) -> None:
        if self._live and self._said:
            sys.stderr.write("\n")
            sys.stderr.flush()


def wait(
    look: Callable[[], dict[str, Any]],
    over: Callable[[dict[str, Any]], bool],
    words: Callable[[dict[str, Any]], str],
    seconds: float,
    what: str,
) -> dict[str, Any]:
    """Look until it is over, and say how it goes. Raises :class:`CliError` when the time is up."""
    progress, end = Progress(), time.monotonic() + seconds
    try:
        while True:
            seen = look()
            progress.say(words(seen))
            if over(seen):
                return seen
            if time.monotonic() >= end:
                raise CliError(
                    f"{what} takes longer than {seconds:.0f} seconds. It goes on; look again later."
                )
            time.sleep(POLL)
    finally:
        progress.end()
