"""Merging our entries into the user's clouds.yaml: everybody else's stay as they are."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final

from unstuck.cli.errors import CliError
from unstuck.runtime.files import write_whole

NAMES: Final = {"unstuck": ("demo", "demo"), "unstuck-admin": ("admin", "admin")}
"""Entry -> user and project."""


def path() -> Path:
    return Path("~/.config/openstack/clouds.yaml").expanduser()


def entry(url: str, user: str, project: str, password: str, region: str = "RegionOne") -> dict[str, Any]:
    return {
        "auth": {
            "auth_url": f"{url}/identity/v3",
            "username": user,
            "password": password,
            "project_name": project,
            "user_domain_name": "Default",
            "project_domain_name": "Default",
        },
        "region_name": region,
        "identity_api_version": "3",
    }


def merge(target: Path, entries: dict[str, dict[str, Any]]) -> bool:
    """Put the entries into the file; true if it was changed. Raises :class:`CliError` where it cannot
    be read, rather than lose what is in it."""
    yaml = _yaml()
    try:
        text = target.read_text()
    except FileNotFoundError:
        text = ""
    try:
        content = yaml.safe_load(text)
        content = {} if content is None else content
    except yaml.YAMLError as error:
        raise CliError(f"{target} is not valid YAML ({_first_line(error)}); correct or remove it.") from None
    if not isinstance(content, dict) or not isinstance(content.get("clouds", {}) or {}, dict):
        raise CliError(f"{target} does not have the form of a clouds.yaml; correct or remove it.")
    clouds = content.get("clouds") or {}
    if all(clouds.get(name) == value for name, value in entries.items()):
        return False
    wanted = {**content, "clouds": {**clouds, **entries}}
    written = _added(text, clouds, entries)
    if written is None or yaml.safe_load(written) != wanted:
        written = yaml.safe_dump(wanted, sort_keys=False)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # What the name points to is replaced, so that a link into somebody's dotfiles stays one.
    write_whole(Path(os.path.realpath(target)), written.encode())
    return True


def _added(text: str, clouds: dict[str, Any], entries: dict[str, dict[str, Any]]) -> str | None:
    """The text with new entries put in as text, so that comments stay; None where they are there already."""
    yaml = _yaml()
    lines = text.splitlines()
    if any(name in clouds for name in entries) or "clouds:" not in lines:
        return None
    place = lines.index("clouds:") + 1
    following = [line for line in lines[place:] if line.strip() and not line.lstrip().startswith("#")]
    indent = len(following[0]) - len(following[0].lstrip()) if following else 2
    block = yaml.safe_dump(entries, sort_keys=False).splitlines()
    lines[place:place] = [" " * indent + line for line in block]
    return "\n".join(lines) + "\n"


def _yaml() -> Any:
    """Imported late: it takes a while, and most commands do not need it."""
    return importlib.import_module("yaml")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
