"""Security groups: each project has a built-in ``default`` one, which says what hosts really filter."""

from __future__ import annotations

import uuid
from typing import Any, Final

_SPACE = uuid.UUID("6f1c3f0e-7a55-4a0e-9d8a-6d5f2b3f9a10")
DESCRIPTION: Final = (
    "Built in, read only: guests of one network reach each other, nothing else reaches them, and they send "
    "with their own addresses only."
)
_CREATED: Final = "2026-01-01T00:00:00Z"


def group_id(project_id: str) -> str:
    """The same id wherever it is derived."""
    return str(uuid.uuid5(_SPACE, f"security-group/{project_id}"))


def network_rules(project_id: str) -> list[dict[str, Any]]:
    """The group's rules in the network API's form."""
    common: dict[str, Any] = {
        "security_group_id": group_id(project_id),
        "tenant_id": project_id,
        "project_id": project_id,
        "ethertype": "IPv4",
        "protocol": None,
        "port_range_min": None,
        "port_range_max": None,
        "remote_ip_prefix": None,
        "remote_group_id": None,
        "remote_address_group_id": None,
        "normalized_cidr": None,
        "standard_attr_id": 1,
        "description": "",
        "tags": [],
        "created_at": _CREATED,
        "updated_at": _CREATED,
        "revision_number": 0,
    }
    return [
        {"id": str(uuid.uuid5(_SPACE, f"rule/{project_id}/{way}")), "direction": way, **common}
        for way in ("egress", "ingress")
    ]


def network_group(project_id: str) -> dict[str, Any]:
    """The group in the network API's form."""
    return {
        "id": group_id(project_id),
        "name": "default",
        "description": DESCRIPTION,
        "tenant_id": project_id,
        "project_id": project_id,
        "security_group_rules": network_rules(project_id),
        "stateful": True,
        "shared": False,
        "tags": [],
        "created_at": _CREATED,
        "updated_at": _CREATED,
        "revision_number": 1,
    }


def compute_group(project_id: str) -> dict[str, Any]:
    """The group in the compute API's form."""
    return {
        "id": group_id(project_id),
        "name": "default",
        "description": DESCRIPTION,
        "tenant_id": project_id,
        "rules": [],
    }
