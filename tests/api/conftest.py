"""A whole cloud's API in this process, with an administrator and a member logged in."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from api_cloud import ADMIN_HASH, DEMO_HASH, Cloud, app_over
from database_setup import Trove
from tests.database_site import DatabaseSite

from unstuck.api.app import SERVICES
from unstuck.api.context import Settings
from unstuck.store import identity
from unstuck.store.engine import Store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
def services() -> Sequence[str]:
    """The services in the app; a test module may choose others."""
    return SERVICES


@pytest.fixture
def cloud(store: Store, settings: Settings, services: Sequence[str]) -> Iterator[Cloud]:
    """Nobody is logged in."""
    store.transact(
        identity.bootstrap, admin_password_hash=ADMIN_HASH, demo_password_hash=DEMO_HASH,
        token_key=b"k" * 32, ids=lambda: uuid.uuid4().hex,
    )  # fmt: skip
    with asyncio.Runner() as loop:
        yield Cloud(app_over(store, settings, services), store, loop)


@pytest.fixture
def admin(cloud: Cloud) -> Cloud:
    return cloud.login("admin", "admin-secret", "admin")


@pytest.fixture
def demo(cloud: Cloud) -> Cloud:
    return cloud.login("demo", "demo-secret", "demo")


@pytest.fixture
def site(cloud: Cloud, store: Store) -> DatabaseSite:
    """Databases beside the cloud; a test module may furnish others."""
    made = DatabaseSite(store)
    made.host.wake = cloud.app.app.notifier.wake
    return made


@pytest.fixture
def trove(site: DatabaseSite, demo: Cloud) -> Trove:
    return Trove(demo, "demo")


@pytest.fixture
def operator(site: DatabaseSite, admin: Cloud) -> Trove:
    return Trove(admin, "admin")
