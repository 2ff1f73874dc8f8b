"""The network API's lists: filters by any attribute, chosen fields, sorting, pages."""

from __future__ import annotations

from typing import Any, Final

from unstuck.api.errors import bad_request
from unstuck.api.pages import cut, next_url, parse_limit
from unstuck.api.routes import Call, Reply

_CONTROL: Final = frozenset({"fields", "limit", "marker", "page_reverse", "sort_key", "sort_dir"})
_TRUE, _FALSE = {"true", "1"}, {"false", "0"}


def listed(call: Call, collection: str, items: list[dict[str, Any]]) -> Reply:
    """The answer to a list call over all items that the caller may see."""
    params = call.query_params
    for name in params:
        if name not in _CONTROL:
            values = params.getlist(name)
            items = [item for item in items if _matches(item, name, values)]
    items = _sorted(call, items)
    reverse = _truth(params.get("page_reverse", "false"), "page_reverse")
    if reverse:
        items.reverse()
    page = cut(
        items, parse_limit(params.get("limit")), params.get("marker"), key=lambda item: str(item["id"])
    )
    if page is None:
        raise bad_request(f"Invalid marker: {params['marker'][:64]!r} could not be found.", kind="BadRequest")
    shown, more = page
    body: dict[str, Any] = {collection: [chosen(call, item) for item in shown]}
    if more and "limit" in params and not reverse:
        target = next_url(call.url(call.path()), params.multi_items(), str(shown[-1]["id"]))
        body[f"{collection}_links"] = [{"rel": "next", "href": target}]
    return Reply(body)


def chosen(call: Call, item: dict[str, Any]) -> dict[str, Any]:
    """Only the ``fields`` asked for."""
    wanted = call.query_params.getlist("fields")
    return {key: value for key, value in item.items() if key in wanted} if wanted else item


def _truth(text: str, name: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise bad_request(f"Invalid input for {name}: '{text[:60]}' cannot be converted to boolean.")


def _matches(item: dict[str, Any], name: str, values: list[str]) -> bool:
    """An unknown attribute filters nothing, as in neutron without strict filter validation."""
    if name == "fixed_ips" and "fixed_ips" in item:
        return all(_fixed(item["fixed_ips"], value) for value in values)
    if name not in item:
        return True
    have = item[name]
    if isinstance(have, bool):
        return have in [_truth(value, name) for value in values]
    if isinstance(have, list | tuple):
        return all(value in have for value in values)
    return ("" if have is None else str(have)) in values


def _fixed(addresses: list[dict[str, str]], condition: str) -> bool:
    key, sign, value = condition.partition("=")
    if not sign or key not in ("ip_address", "subnet_id", "ip_address_substr"):
        raise bad_request(f"Invalid input for fixed_ips: {condition[:60]!r} is not understood.")
    if key == "ip_address_substr":
        return any(value in address["ip_address"] for address in addresses)
    return any(address[key] == value for address in addresses)


def _sorted(call: Call, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys, ways = call.query_params.getlist("sort_key"), call.query_params.getlist("sort_dir")
    if ways and len(keys) != len(ways):
        raise bad_request("The number of sort_keys and sort_dirs must be same")
    for index in reversed(range(len(keys))):
        key, way = keys[index], ways[index] if ways else "asc"
        if way not in ("asc", "desc"):
            raise bad_request(f"Invalid input for sort_dir: {way[:60]!r} is neither asc nor desc.")
        if items and (key not in items[0] or isinstance(items[0][key], list | tuple | dict)):
            raise bad_request(f"Invalid input for sort_key: {key[:60]!r} is not an attribute to sort by.")
        items = sorted(items, key=lambda item: str(item[key]), reverse=way == "desc")
    return items
