"""Quota sets of projects, and the class ``default`` that holds for every project without its own."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unstuck.api.compute.common import BASE, as_bool, as_int
from unstuck.api.errors import bad_request, forbidden, not_found
from unstuck.api.microversions import Version
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.store import quotas

DEFAULT_CLASS: Final = "default"
_ALWAYS: Final = ("instances", "cores", "ram", "metadata_items", "key_pairs")
_GROUPS: Final = ("server_groups", "server_group_members")
_FILES: Final = ("injected_files", "injected_file_content_bytes", "injected_file_path_bytes")
_NETWORK: Final = ("fixed_ips", "floating_ips", "security_groups", "security_group_rules")
_NO_FILES: Final[Version] = (2, 57)


class QuotaBody(Body, frozen=True, kw_only=True):
    quota_set: dict[str, Any]


class ClassBody(Body, frozen=True, kw_only=True):
    quota_class_set: dict[str, Any]


def _names(version: Version) -> tuple[str, ...]:
    """The resources of a quota set in a microversion."""
    files = _FILES if version < _NO_FILES else ()
    network = _NETWORK if version < (2, 36) else ()
    return (*_ALWAYS, *_GROUPS, *files, *network)


def _class_names(version: Version) -> tuple[str, ...]:
    """The resources of a quota class set: groups came later, and network ones stayed longer."""
    groups = _GROUPS if version >= (2, 50) else ()
    network = _NETWORK if version < (2, 50) else ()
    files = _FILES if version < _NO_FILES else ()
    return (*_ALWAYS, *groups, *files, *network)


def own_project(call: Call, asked: str | None) -> str:
    """The project asked about: the caller's own, or anybody's for an administrator."""
    if asked is None or asked == call.token.project_id:
        return call.project_id
    if not call.is_admin:
        raise forbidden("Policy does not allow this request: it is about another project.")
    return asked


def _of_project(call: Call) -> str:
    if "user_id" in call.query_params and call.http.method != "GET":
        raise bad_request("Invalid input for query parameter user_id: single users have no quotas here.")
    return own_project(call, call.params["project"])


def _limits(given: dict[str, Any], known: tuple[str, ...], where: str) -> dict[str, int]:
    """The limits in a body; 400 names what is wrong with them."""
    for name, value in given.items():
        if name not in known:
            raise bad_request(
                f"Invalid input for field {where}: Additional properties are not allowed "
                f"({name[:60]!r} was unexpected)"
            )
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise bad_request(f"Invalid input for field {name}: {str(value)[:60]!r} is not a whole number.")
    return {name: as_int(value, name, least=-1) for name, value in given.items()}


async def show(call: Call) -> Reply:
    """``GET /os-quota-sets/{project}``."""
    project = _of_project(call)
    found = await call.store.run_read(quotas.limits, project)
    return Reply({"quota_set": {"id": project, **{name: found[name] for name in _names(call.version)}}})


async def show_defaults(call: Call) -> Reply:
    """``GET /os-quota-sets/{project}/defaults``."""
    project = _of_project(call)
    found = await call.store.run_read(quotas.default_limits)
    return Reply({"quota_set": {"id": project, **{name: found[name] for name in _names(call.version)}}})


async def show_detail(call: Call) -> Reply:
    """``GET /os-quota-sets/{project}/detail``."""
    project = _of_project(call)
    found, used = await call.store.run_read(quotas.with_usage, project)
    counted = msgspec.structs.asdict(used)
    shown = {
        name: {"limit": found[name], "in_use": counted.get(name, 0), "reserved": 0}
        for name in _names(call.version)
    }
    return Reply({"quota_set": {"id": project, **shown}})


async def update(call: Call) -> Reply:
    """``PUT /os-quota-sets/{project}``: less than is in use only with ``force``."""
    given = dict(call.body.quota_set)
    force = as_bool(given.pop("force", False), "force")
    wanted = _limits(given, _names(call.version), "quota_set")
    made = await call.store.run(quotas.set_limits, _of_project(call), wanted, force=force)
    return Reply({"quota_set": {name: made[name] for name in _names(call.version)}})


async def delete(call: Call) -> Reply:
    """``DELETE /os-quota-sets/{project}``: the defaults hold again."""
    await call.store.run(quotas.drop_limits, _of_project(call))
    return Reply()


def _check_class(call: Call) -> None:
    if call.params["class"] != DEFAULT_CLASS:
        raise not_found(f"Quota class {call.params['class'][:60]!r} could not be found; there is: default.")


async def show_class(call: Call) -> Reply:
    """``GET /os-quota-class-sets/default``."""
    _check_class(call)
    found = await call.store.run_read(quotas.default_limits)
    shown = {name: found[name] for name in _class_names(call.version)}
    return Reply({"quota_class_set": {"id": DEFAULT_CLASS, **shown}})


async def update_class(call: Call) -> Reply:
    """``PUT /os-quota-class-sets/default``: holds for every project that has no limit of its own."""
    _check_class(call)
    wanted = _limits(call.body.quota_class_set, _class_names(call.version), "quota_class_set")
    made = await call.store.run(quotas.set_default_limits, wanted)
    return Reply({"quota_class_set": {name: made[name] for name in _class_names(call.version)}})


_ONE: Final = f"{BASE}/os-quota-sets/{{project}}"
_CLASS: Final = f"{BASE}/os-quota-class-sets/{{class}}"

ROUTES: list[Route] = [
    route("GET", _ONE, show, "reader"),
    route("GET", f"{_ONE}/defaults", show_defaults, "reader"),
    route("GET", f"{_ONE}/detail", show_detail, "reader"),
    route("PUT", _ONE, update, "admin", body=QuotaBody),
    route("DELETE", _ONE, delete, "admin", status=202),
    route("GET", _CLASS, show_class, "admin"),
    route("PUT", _CLASS, update_class, "admin", body=ClassBody),
]
