"""``unstuck explain``: why a thing is in the state it is in, and what comes next (law 10)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from unstuck.cli.cloud import COMPUTE, Cloud, connect, show_json, state_of
from unstuck.cli.errors import CliError


def explain(
    kind: Literal["server"],
    name: str,
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    state: Path | None = None,
) -> None:
    """Say why something is in the state it is in, since when, who holds it, and what comes next.

    Parameters
    ----------
    kind
        What it is: server.
    name
        Its id or name.
    output
        text or json.
    state
        The state folder.
    """
    with connect(state_of(state)) as cloud:
        server_id = find_server(cloud, name)
        answer = cloud.get(f"/unstuck/v1/explain/{kind}/{server_id}")
    if output == "json":
        show_json(answer)
        return
    for line in lines(answer):
        print(line)


def find_server(cloud: Cloud, name: str) -> str:
    """The id of a server by id or name. Raises :class:`CliError` when none or several have it."""
    query = {"all_tenants": "1", "name": f"^{_escaped(name)}$"}
    answer = cloud.client.get(f"/compute/v2.1/servers/{name}", headers=COMPUTE)
    if answer.status_code == 200:
        return name
    found = cloud.get("/compute/v2.1/servers/detail", params=query, headers=COMPUTE)["servers"]
    exact = [server for server in found if server["name"] == name]
    if len(exact) > 1:
        ids = ", ".join(server["id"] for server in exact)
        raise CliError(f"Several servers are called {name}; say which by its id: {ids}.")
    if not exact:
        raise CliError(f"There is no server {name}; `unstuck status` lists them.")
    return str(exact[0]["id"])


def _escaped(name: str) -> str:
    import re

    return re.escape(name)


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
