"""What the control plane and the guests both know of each datastore: which parameters may be set, and how."""

from __future__ import annotations

from unstuck.core.datastores.mariadb import parameters as mariadb
from unstuck.core.datastores.parameters import Allowed
from unstuck.core.datastores.postgresql import parameters as postgresql

ALLOWED: dict[str, Allowed] = {"postgresql": postgresql.ALLOWED, "mariadb": mariadb.ALLOWED}
"""By what runs the datastore (a version's ``manager``)."""
