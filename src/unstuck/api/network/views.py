"""Networks, subnets and ports in the network API's form."""

from __future__ import annotations

from typing import Any

from unstuck.api.network.groups import group_id
from unstuck.core.time import iso_seconds
from unstuck.store.network_lists import NetworkRow, PortRow, SubnetRow


def _common(item: NetworkRow | SubnetRow | PortRow, name: str) -> dict[str, Any]:
    created = iso_seconds(item.created_wall)
    return {
        "id": item.id,
        "name": name,
        "tenant_id": item.project_id,
        "project_id": item.project_id,
        "description": "",
        "tags": [],
        "created_at": created,
        "updated_at": created,
        "revision_number": 1,
    }


def network_view(item: NetworkRow, *, admin: bool) -> dict[str, Any]:
    shown = _common(item, item.name) | {
        "admin_state_up": True,
        "status": "ACTIVE",
        "shared": item.shared,
        "subnets": item.subnets,
        "mtu": item.mtu,
        "router:external": False,
        "port_security_enabled": True,
        "availability_zones": ["nova"],
        "availability_zone_hints": [],
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        "is_default": False,
        "vlan_transparent": None,
        "l2_adjacency": True,
    }
    if admin:
        shown |= {
            "provider:network_type": "local",
            "provider:physical_network": None,
            "provider:segmentation_id": None,
        }
    return shown


def subnet_view(item: SubnetRow) -> dict[str, Any]:
    return _common(item, item.name) | {
        "network_id": item.network_id,
        "cidr": item.cidr,
        "ip_version": 4,
        "gateway_ip": item.gateway,
        "allocation_pools": [{"start": item.first, "end": item.last}],
        "enable_dhcp": False,
        "dns_nameservers": [],
        "host_routes": [],
        "ipv6_address_mode": None,
        "ipv6_ra_mode": None,
        "service_types": [],
        "segment_id": None,
        "subnetpool_id": None,
        "dns_publish_fixed_ip": False,
    }


def port_view(item: PortRow, *, admin: bool) -> dict[str, Any]:
    shown = _common(item, "") | {
        "network_id": item.network_id,
        "mac_address": item.mac,
        "fixed_ips": [{"subnet_id": item.subnet_id, "ip_address": item.address}],
        "device_id": item.server_id,
        "device_owner": "compute:nova",
        "admin_state_up": True,
        "status": "ACTIVE" if item.launched and item.host else "DOWN",
        "port_security_enabled": True,
        "security_groups": [group_id(item.project_id)],
        "allowed_address_pairs": [],
        "extra_dhcp_opts": [],
        "binding:vnic_type": "normal",
        "dns_name": "",
        "dns_assignment": [],
        "qos_policy_id": None,
        "ip_allocation": "immediate",
        "propagate_uplink_status": False,
    }
    if admin:
        shown |= {
            "binding:host_id": item.host or "",
            "binding:vif_type": "bridge",
            "binding:vif_details": {"port_filter": True},
            "binding:profile": {},
        }
    return shown
