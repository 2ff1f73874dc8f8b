"""The agents' API, version 1: what host agents ask of the control plane, over HTTP."""

from __future__ import annotations

from unstuck.api.agents import archives, backups, consoles, guests, hosts, join

ROUTES = [*hosts.ROUTES, *guests.ROUTES, *join.ROUTES, *backups.ROUTES, *archives.ROUTES]
SOCKETS = consoles.SOCKETS
