"""``/configurations``: groups of parameters; and which parameters there are."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.database.common import (
    BASE,
    caller,
    description_of,
    invalid,
    limit,
    marker,
    missing,
    object_id,
    page,
    project,
    scope,
    text_of,
    wake,
)
from unstuck.api.database.configured import until_configured
from unstuck.api.database.create import Datastore
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.datastores import ALLOWED
from unstuck.core.datastores.parameters import Kind, Parameter
from unstuck.core.time import iso_seconds
from unstuck.store import configurations as store
from unstuck.store.configurations import Configuration
from unstuck.store.datastores import Version, get_version
from unstuck.store.instance_configuration import defaults_for

VALUES_MOST: Final = 200
Values = dict[str, bool | int | float | str | None]


class NewConfiguration(Body, frozen=True, kw_only=True):
    name: str
    values: Values
    description: str | None = None
    datastore: Datastore | None = None


class CreateBody(Body, frozen=True, kw_only=True):
    configuration: NewConfiguration


class NewValues(Body, frozen=True, kw_only=True):
    values: Values


class PatchBody(Body, frozen=True, kw_only=True):
    configuration: NewValues


class Changes(Body, frozen=True, kw_only=True):
    values: Values
    name: str | None = None
    description: str | None = None


class PutBody(Body, frozen=True, kw_only=True):
    configuration: Changes


def _short(found: Configuration) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "description": found.description,
        "created": iso_seconds(found.created_wall)[:-1],
        "updated": iso_seconds(found.updated_wall)[:-1],
        "instance_count": found.instances,
        "datastore_name": found.datastore,
        "datastore_version_id": found.version_id,
        "datastore_version_name": found.version,
        "datastore_version_number": found.version_number,
    }


def _view(found: Configuration) -> dict[str, Any]:
    return _short(found) | {"values": found.values}


def _key(call: Call) -> str:
    return object_id(call.params["id"], "Configuration")


def _checked(values: Values) -> dict[str, Any]:
    if len(values) > VALUES_MOST:
        invalid("configuration.values", f"at most {VALUES_MOST} parameters can be named.")
    return dict(values)


async def list_all(call: Call) -> Reply:
    """``GET /configurations``."""
    found, more = await call.store.run_read(
        store.list_configurations, project(call), limit=limit(call), marker=marker(call)
    )
    return page(call, "configurations", [_short(item) for item in found], found[-1].id if more else None)


async def show(call: Call) -> Reply:
    """``GET /configurations/{id}``."""
    found = await call.store.run_read(store.get_configuration, _key(call), scope(call))
    return Reply({"configuration": _view(found)})


async def list_instances(call: Call) -> Reply:
    """``GET /configurations/{id}/instances``."""
    found, more = await call.store.run_read(
        store.attached_to, _key(call), scope(call), limit=limit(call), marker=marker(call)
    )
    shown = [{"id": item.id, "name": item.name} for item in found]
    return page(call, "instances", shown, found[-1].id if more else None)


async def create(call: Call) -> Reply:
    """``POST /configurations``."""
    asked: NewConfiguration = call.body.configuration
    of = asked.datastore or Datastore()
    found = await call.store.run(
        store.create_configuration, call.new_id(), caller(call).project_id,
        name=text_of(asked.name, "configuration.name"),
        description=description_of(asked.description, "configuration.description"),
        values=_checked(asked.values), datastore=of.type or None, version=of.version or None,
    )  # fmt: skip
    return Reply({"configuration": _view(found)})


async def patch(call: Call) -> Reply:
    """``PATCH``: these values beside those that are there. 200, as the API has it."""
    values = _checked(call.body.configuration.values)
    return await _changed(call, values=values, replace=False)


async def put(call: Call) -> Reply:
    """``PUT``: these values in place of those that were there, and name and description where named."""
    asked: Changes = call.body.configuration
    name = None if asked.name is None else text_of(asked.name, "configuration.name")
    description = description_of(asked.description, "configuration.description")
    return await _changed(
        call, values=_checked(asked.values), replace=True, name=name, description=description
    )


async def _changed(call: Call, **changes: Any) -> Reply:
    instances, hosts = await call.store.run(store.change_configuration, _key(call), scope(call), **changes)
    wake(call, *hosts)
    await until_configured(call, instances)
    return Reply()


async def delete(call: Call) -> Reply:
    """``DELETE``: refused while an instance has it."""
    await call.store.run(store.delete_configuration, _key(call), scope(call))
    return Reply()


async def defaults(call: Call) -> Reply:
    """``GET /instances/{id}/configuration``: what holds where no group says anything."""
    key = object_id(call.params["id"], "Instance")
    manager, ram_mb, volume_gb = await call.store.run_read(defaults_for, key, scope(call))
    found = ALLOWED[manager].defaults(ram_mb, volume_gb * 1024)
    return Reply({"instance": {"configuration": found}})


def _parameter(parameter: Parameter, version: Version) -> dict[str, Any]:
    """Bounds of numbers are in the unit; what stands outside of them is under ``unstuck``."""
    shown: dict[str, Any] = {
        "name": parameter.name,
        "type": parameter.kind.value,
        "restart_required": parameter.restart,
        "datastore_version_id": version.id,
        "unstuck": {
            "unit": parameter.unit or None,
            "choices": list(parameter.choices),
            "several": parameter.several,
            "also": list(parameter.also),
        },
    }
    if parameter.kind in (Kind.INTEGER, Kind.FLOAT):
        whole = parameter.kind is Kind.INTEGER
        shown["min"] = int(parameter.least) if whole else parameter.least
        shown["max"] = int(parameter.most) if whole else parameter.most
    return shown


async def _version(call: Call) -> Version:
    project(call)
    if "ds" in call.params:
        return (await call.store.run_read(get_version, call.params["v"], call.params["ds"])).version
    key = object_id(call.params["v"], "Datastore version")
    return (await call.store.run_read(get_version, key)).version


async def list_parameters(call: Call) -> Reply:
    """``GET …/parameters``."""
    version = await _version(call)
    known = ALLOWED[version.manager].parameters
    return Reply({"configuration-parameters": [_parameter(known[name], version) for name in sorted(known)]})


async def show_parameter(call: Call) -> Reply:
    """``GET …/parameters/{p}``."""
    version = await _version(call)
    found = ALLOWED[version.manager].parameters.get(call.params["p"])
    if found is None:
        raise missing("Configuration parameter", call.params["p"])
    return Reply(_parameter(found, version))


_ALL: Final = f"{BASE}/configurations"
_ONE: Final = f"{_ALL}/{{id}}"
_OF: Final = f"{BASE}/datastores/{{ds}}/versions/{{v}}/parameters"
_OF_VERSION: Final = f"{BASE}/datastores/versions/{{v}}/parameters"

ROUTES: list[Route] = [
    route("GET", _ALL, list_all, "reader"),
    route("POST", _ALL, create, "member", body=CreateBody),
    route("GET", _ONE, show, "reader"),
    route("PATCH", _ONE, patch, "member", body=PatchBody, status=200),
    route("PUT", _ONE, put, "member", body=PutBody, status=202),
    route("DELETE", _ONE, delete, "member", status=202),
    route("GET", f"{_ONE}/instances", list_instances, "reader"),
    route("GET", f"{BASE}/instances/{{id}}/configuration", defaults, "reader"),
    route("GET", _OF, list_parameters, "reader"),
    route("GET", f"{_OF}/{{p}}", show_parameter, "reader"),
    route("GET", _OF_VERSION, list_parameters, "reader"),
    route("GET", f"{_OF_VERSION}/{{p}}", show_parameter, "reader"),
]
