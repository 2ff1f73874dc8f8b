"""What a handler knows about its surroundings: settings, the caller's identity, process-wide state."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from unstuck.api.notify import Notifier
from unstuck.core.instance.data import TRASH

HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the API processes."""

    state_dir: Path
    public_url: str | None = None
    """The URL in front of ``/identity`` and the others; without it the Host header is used."""
    region: str = "RegionOne"
    token_seconds: int = 3600
    max_body_bytes: int = 1 << 20
    body_seconds: float = 60.0
    """How long a client may take to send a JSON body, or stay silent within an upload."""
    image_max_bytes: int = 64 << 30
    image_free_bytes: int = 256 << 20
    """What an upload must leave free on the disk."""
    images_per_project: int = 1000
    upload_lease_seconds: float = 60.0
    """How long an image upload stays its holder's while no bytes flow."""
    database_trash_seconds: float = TRASH
    """How long the volume of a deleted database instance is kept."""
    database_schedules: bool = True
    """Whether a new database instance has a schedule of daily backups, which its user may change."""
    database_superuser: bool = False
    """Whether root of a database instance may be a true superuser."""
    metrics_token: str | None = None
    """Lets others than this machine itself read ``/metrics``."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A verified token: who is asking, within which project, with which roles."""

    user_id: str
    user_name: str
    project_id: str | None
    project_name: str | None
    roles: tuple[str, ...]
    """Names of the effective roles: admin implies manager, that member, that reader."""
    role_ids: tuple[str, ...]
    """Ids of the same roles, in the same order."""
    methods: tuple[str, ...]
    audit_ids: tuple[str, ...]
    """The token's own id, and that of the token it was made from."""
    epoch: int = 0
    """The user's epoch that the token was made in."""
    issued_at: float
    expires_at: float
    domain_id: str | None = None
    """Set in a token with domain scope."""
    user_domain_id: str = "default"
    app_credential_id: str | None = None
    unrestricted: bool = True
    """False for an application credential that may not make further credentials."""

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles


def new_id() -> str:
    """A fresh random id in the form of all OpenStack resources."""
    return str(uuid.uuid4())


class App(msgspec.Struct, frozen=True, kw_only=True):
    """State shared by all requests of this process."""

    settings: Settings
    notifier: Notifier
    new_id: Callable[[], str] = new_id
    extra: dict[str, Any] = {}
    """Process-wide helpers of single services, by a name that each service chooses."""
