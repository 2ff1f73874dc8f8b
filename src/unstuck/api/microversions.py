"""Microversions of the compute API: which one a request asks for, and the headers that say so."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers

from unstuck.api.errors import ApiError, bad_request

Version = tuple[int, int]

MIN: Final[Version] = (2, 1)
MAX: Final[Version] = (2, 96)

_FORM = re.compile(r"([1-9]\d{0,3})\.(0|[1-9]\d{0,3})")
_SERVICES = {"compute", "nova"}


def requested(headers: Headers) -> Version:
    """The version a request asks for: 400 when malformed, 406 when out of range, 2.1 when absent."""
    text = _modern(headers) or headers.get("x-openstack-nova-api-version", "").strip()
    if not text:
        return MIN
    if text.lower() == "latest":
        return MAX
    form = _FORM.fullmatch(text)
    if form is None:
        raise bad_request(f"API Version String {text!r} is of invalid format. It must be of format 2.NN.")
    version = (int(form[1]), int(form[2]))
    if not MIN <= version <= MAX:
        raise ApiError(
            406,
            f"Version {text} is not supported by the API. Minimum is {show(MIN)} and maximum is {show(MAX)}.",
            kind="computeFault",
        )
    return version


def _modern(headers: Headers) -> str:
    """The value in ``OpenStack-API-Version: compute 2.NN[, other …]``, or an empty string."""
    for item in headers.get("openstack-api-version", "").split(","):
        service, _, version = item.strip().partition(" ")
        if service.lower() in _SERVICES:
            return version.strip() or "(empty)"
    return ""


def show(version: Version) -> str:
    """``2.96``."""
    return f"{version[0]}.{version[1]}"


def echo(version: Version) -> dict[str, str]:
    """The headers that go with every answer of the compute API."""
    return {
        "openstack-api-version": f"compute {show(version)}",
        "x-openstack-nova-api-version": show(version),
        "vary": "OpenStack-API-Version, X-OpenStack-Nova-API-Version",
    }
