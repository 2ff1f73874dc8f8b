"""A cloud on a loopback port with a host that obeys at once, and the stock ``openstack`` command in this
process (starting it anew takes a second each time)."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import locale
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from tests.compute_fakes import settle
from tests.compute_site import Site

from unstuck.api.app import create_app
from unstuck.api.context import Settings
from unstuck.api.identity.passwords import hash_password
from unstuck.store import clock, identity
from unstuck.store.engine import Store

PASSWORD = "secret"


class Running:
    """The cloud, as administrator."""

    def __init__(self, store: Store, folder: Path) -> None:
        store.transact(
            identity.bootstrap, admin_password_hash=hash_password(PASSWORD), token_key=b"k" * 32,
            ids=lambda: uuid.uuid4().hex,
        )  # fmt: skip
        self.store = store
        self.folder = folder
        self.site = self.furnish()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.app = create_app(store, Settings(state_dir=folder))
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=self.port,
            log_level="error",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self.server = uvicorn.Server(config)
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.serve), threading.Thread(target=self.work)]

    def furnish(self) -> Any:
        """What there is to work with, and who works."""
        return Site(self.store)

    def serve(self) -> None:
        asyncio.run(self.server.serve())

    def work(self) -> None:
        """The control loop and the host, ten times a second."""
        while not self.stopping.wait(0.1):
            self.store.transact(clock.tick, lease_seconds=30.0)
            self.turn()

    def turn(self) -> None:
        settle(self.store, self.site.host)

    def start(self) -> None:
        for thread in self.threads:
            thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        self.stopping.set()
        self.server.should_exit = True
        for thread in self.threads:
            thread.join(20)

    def auth(self, user: str = "admin", project: str = "admin") -> dict[str, str]:
        return {
            "auth_url": f"http://127.0.0.1:{self.port}/identity/v3", "username": user,
            "password": PASSWORD, "project_name": project, "user_domain_id": "default",
            "project_domain_id": "default",
        }  # fmt: skip

    def cli(self, *words: str) -> Any:
        """The answer of one ``openstack`` command that must succeed, as JSON where it prints some."""
        return Shell(self)("", *words)

    def environment(self, user: str = "admin", project: str = "admin") -> dict[str, str]:
        """What the ``openstack`` command is told."""
        found = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "OS_REGION_NAME": "RegionOne"}
        return found | {f"OS_{key.upper()}": value for key, value in self.auth(user, project).items()}


@contextlib.contextmanager
def surroundings(variables: dict[str, str]) -> Iterator[None]:
    """Just these environment variables."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def forget_clients() -> None:
    """The command keeps its clients of each service for the life of the process; the next one has its own."""
    from osc_lib.clientmanager import ClientCache, ClientManager

    for value in vars(ClientManager).values():
        if isinstance(value, ClientCache):
            value._handle = None


class Shell:
    """The stock ``openstack`` command, its own code unchanged, run in this process."""

    def __init__(self, cloud: Running, user: str = "admin", project: str = "admin") -> None:
        self._variables = cloud.environment(user, project)

    def run(self, *words: str) -> tuple[int, str, str]:
        """(exit status, standard output, errors)."""
        from openstackclient import shell

        out, errors = io.StringIO(), io.StringIO()
        forget_clients()
        before = locale.setlocale(locale.LC_ALL)
        logging.disable(logging.DEBUG)  # some of its debug lines have wrong arguments, which pytest minds
        with (
            surroundings(self._variables), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors)
        ):  # fmt: skip
            try:
                status = shell.OpenStackShell().run(list(words))
            except SystemExit as end:  # argparse
                status = int(end.code or 0)
            finally:
                locale.setlocale(locale.LC_ALL, before)  # it sets its own, for the tests after it too
                logging.disable(logging.NOTSET)
        return status or 0, out.getvalue(), errors.getvalue()

    def __call__(self, line: str, *more: str) -> Any:
        """One command that must succeed; its answer as JSON where it can print some."""
        status, out, errors = self.run(*line.split(), *more)
        assert status == 0, f"openstack {line} {more}: {out}{errors}"
        with contextlib.suppress(ValueError):
            return json.loads(out)
        return out

    def json(self, line: str, *more: str) -> Any:
        """One command that must succeed and print JSON."""
        return self(line, *more, "-f", "json")
