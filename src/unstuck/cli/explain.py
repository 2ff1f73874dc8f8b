"""``unstuck explain``: why a thing is in the state it is in, and what comes next (law 10)."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import Parameter

from unstuck.cli.cloud import COMPUTE, Cloud, connect, send, show_json, state_of
from unstuck.cli.errors import CliError
from unstuck.cli.words import plain

_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def explain(
    kind: Literal["server", "instance", "backup"],
    name: str,
    /,
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: Path | None = None,
) -> None:
    """Say why something is in the state it is in, since when, who holds it, and what comes next.

    Parameters
    ----------
    kind
        What it is: server, instance (of a database) or backup.
    name
        Its id or name.
    output
        text or json.
    state
        The state folder.
    """
    with connect(state_of(state)) as cloud:
        answer = _asked(cloud, kind, name)
    if output == "json":
        show_json(answer)
        return
    for line in lines(answer):
        print(plain(line))


def _asked(cloud: Cloud, kind: str, name: str) -> dict[str, Any]:
    """By id at once: a server that is deleted is in no list any more, and can still be explained."""
    if _ID.fullmatch(name):
        answer = send(cloud.client, "GET", f"/unstuck/v1/explain/{kind}/{name.lower()}")
        if answer.is_success:
            by_id: dict[str, Any] = answer.json()
            return by_id
    key = find_server(cloud, name) if kind == "server" else find_database(cloud, kind, name)
    found: dict[str, Any] = cloud.get(f"/unstuck/v1/explain/{kind}/{key}")
    return found


def find_database(cloud: Cloud, kind: str, name: str) -> str:
    """The id of a database instance or a backup by its name, of any project. Raises :class:`CliError`."""
    where = {"instance": "/mgmt/instances?deleted=false", "backup": "/backups?all_projects=true"}[kind]
    found = cloud.get(f"/database/v1.0/{cloud.project_id}{where}")[f"{kind}s"]
    exact = [item["id"] for item in found if item["name"] == name]
    if len(exact) > 1:
        raise CliError(f"Several {kind}s are called {name}; say which by its id: {', '.join(exact)}.")
    if not exact:
        raise CliError(f"There is no {kind} {name}; `unstuck db list` shows what is there.")
    return str(exact[0])


def find_server(cloud: Cloud, name: str) -> str:
    """The id of a server by id or name. Raises :class:`CliError` when none or several have it."""
    query = {"all_tenants": "1", "name": f"^{re.escape(name)}$"}
    answer = cloud.client.get(f"/compute/v2.1/servers/{quote(name, safe='')}", headers=COMPUTE)
    # The answer has to say the id itself: "detail" is a name, too, and .../servers/detail is a list.
    if answer.status_code == 200 and answer.json().get("server", {}).get("id") == name:
        return name
    found = cloud.get("/compute/v2.1/servers/detail", params=query, headers=COMPUTE)["servers"]
    exact = [server for server in found if server["name"] == name]
    if len(exact) > 1:
        ids = ", ".join(server["id"] for server in exact)
        raise CliError(f"Several servers are called {name}; say which by its id: {ids}.")
    if not exact:
        raise CliError(f"There is no server {name}; `unstuck status` lists them.")
    return str(exact[0]["id"])


def lines(answer: dict[str, Any], indent: str = "") -> list[str]:
    """Any answer as words: our own facts change faster than this command."""
    out = []
    for key, value in answer.items():
        label = key.replace("_", " ")
        if value is None or value in ((), [], {}):
            continue
        if isinstance(value, dict):
            out += [f"{indent}{label}:", *lines(value, indent + "  ")]
        elif isinstance(value, list):
            out.append(f"{indent}{label}:")
            for item in value:
                if isinstance(item, dict):
                    words = "  ".join(f"{k}={v}" for k, v in item.items() if v is not None)
                    out.append(f"{indent}  - {words}")
                else:
                    out.append(f"{indent}  - {item}")
        else:
            out.append(f"{indent}{label}: {_word(key, value)}")
    return out


def _word(key: str, value: Any) -> str:
    if isinstance(value, float) and value > 1e9 and ("at" in key or "wall" in key or "since" in key):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    return f"{value:.1f}" if isinstance(value, float) else str(value)
