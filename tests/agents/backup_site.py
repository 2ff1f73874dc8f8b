"""A control plane with a folder of backups, an instance in a placed server, and its host's calls."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from agents_site import HOST, SECRET, Site, facts
from tests.backup_world import PLACES, Upload, add_instance, backup_row, fence_of, new_keyring

from unstuck.api import backups as api_backups
from unstuck.blobs import keys, manifest
from unstuck.blobs.manifest import manifest_key
from unstuck.blobs.site import BackupSite
from unstuck.blobs.stores import Stores, make_folder
from unstuck.control.backup_blobs import ThreadedBlobs
from unstuck.control.backups import BackupController
from unstuck.core.agents import Claim, Register, Report
from unstuck.core.backup.data import Done, Gave
from unstuck.core.backup.limits import Wish
from unstuck.core.backup.status import status
from unstuck.core.instance.wire import EndAttempt, RenewAttempt, TakeAttempt, Taken, Who
from unstuck.core.server.data import Observation, Running, Step, Thing
from unstuck.store import agents, backups, servers
from unstuck.store.backup_rows import BackupRow
from unstuck.store.engine import Store

DEADLINE = 20.0
_numbers = itertools.count(1)


class BackupCloud(Site):
    """One host whose agent is this test, and instances on it."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        super().__init__(store, tmp_path)
        self.keyring = new_keyring(tmp_path)
        make_folder(tmp_path / "backups")
        self.stores = Stores(tmp_path / "backups", tmp_path / "backup-stores.json", answer=2.0)
        self.site = BackupSite(self.stores, self.keyring)
        self.app.app.extra[api_backups.NAME] = self.site
        self.signer = keys.Signer.new()
        asked = store.transact(agents.register, HOST, Register("start", facts()))
        self.incarnation = store.transact(
            agents.register, HOST, Register("start", facts(), asked.incarnation)
        ).incarnation
        self.controller: BackupController | None = None

    @property
    def objects(self) -> Any:
        return self.stores.objects(self.stores.places().default)

    async def instance(self, *, restores: str | None = None) -> Instance:
        server_id = await self.create()
        assert await self.store.run(servers.place, server_id, HOST, f"n{next(_numbers)}")
        fence = fence_of(self.store, server_id)
        await self.store.run(agents.claim, HOST, Claim(self.incarnation, server_id, fence))
        seen = Observation(1, Running(1), Thing.PRESENT, Step.AT_REST)
        ask = Report(self.incarnation, next(_numbers), server_id, fence, seen)
        await self.store.run(agents.report, HOST, ask)
        instance_id = await self.store.run(add_instance, server_id, restores=restores)
        return Instance(self, server_id, instance_id)

    def control_backups(
        self, port: Any, *, job: float = 5.0, blobs: ThreadedBlobs | None = None
    ) -> asyncio.Task[int]:
        """The loops of a control plane; ``port.end`` ends them."""
        blobs = blobs or ThreadedBlobs(self.stores, self.keyring)
        self.controller = BackupController(port, self.store, blobs, self.notifier.wake, tick=0.05, job=job)
        ticker = self.ticking(port)
        works = {"backups": self.controller.run_forever(), "tick": ticker}
        return asyncio.ensure_future(port.run(works))

    def ticking(self, port: Any) -> Any:
        from unstuck.control.loop import Controller

        return Controller(port, self.store, self.notifier.wake, tick=0.05).tick_forever()

    async def ended(self, backup_id: str) -> BackupRow:
        """Wait for its end; within this test's own deadline, not the backup's."""
        async with asyncio.timeout(DEADLINE):
            while True:
                found = await asyncio.to_thread(backup_row, self.store, backup_id)
                if found.backup.ended is not None:
                    return found
                await asyncio.sleep(0.02)

    async def until(self, true: Callable[[], bool]) -> None:  # type: ignore[override]
        """Wait for what is so in the store sooner or later; nothing tells of it."""
        async with asyncio.timeout(DEADLINE):
            while not await asyncio.to_thread(true):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def settled(self, backup_id: str) -> BackupRow:
        async with asyncio.timeout(DEADLINE):
            while True:
                found = await asyncio.to_thread(backup_row, self.store, backup_id)
                if found.settled:
                    return found
                await asyncio.sleep(0.02)

    def row(self, backup_id: str) -> BackupRow:
        return backup_row(self.store, backup_id)

    def status(self, backup_id: str) -> str:  # type: ignore[override]
        return status(self.row(backup_id).backup)


class Instance:
    """An instance and the calls that its host makes for it."""

    def __init__(self, cloud: BackupCloud, server_id: str, instance_id: str) -> None:
        self.cloud = cloud
        self.server_id = server_id
        self.id = instance_id
        self.guest = 1

    @property
    def who(self) -> Who:
        fence = fence_of(self.cloud.store, self.server_id)
        return Who(
            incarnation=self.cloud.incarnation, server_id=self.server_id, fence=fence, guest=self.guest
        )

    async def backup(self, **wish: Any) -> str:
        """Ask for a backup; its id."""
        new = backups.NewBackup(
            id=f"b-{secrets.token_hex(4)}", nonce=secrets.token_hex(8), name="nightly", instance_id=self.id,
            limits=Wish(**wish),
        )  # fmt: skip
        cloud = self.cloud
        made = await cloud.store.run(
            backups.create_backup, new, "project", keyring=cloud.keyring, places=cloud.stores.places()
        )
        return made.id

    async def post(self, path: str, ask: Any) -> httpx2.Response:
        async with self.cloud.raw() as client:
            return await client.post(path, content=msgspec.json.encode(ask))

    async def take(self, backup_id: str, nonce: str | None = None) -> httpx2.Response:
        nonce = nonce or self.cloud.row(backup_id).backup.attempt.nonce
        ask = TakeAttempt(self.who, backup_id, nonce, self.cloud.signer.public)
        return await self.post("attempts/take", ask)

    async def taken(self, backup_id: str) -> Taken:
        answer = await self.take(backup_id)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=Taken)

    async def renew(self, backup_id: str, *, phase: str = "copying", size: int = 0, idle: float = 0.0,
                    nonce: str | None = None) -> httpx2.Response:  # fmt: skip
        nonce = nonce or self.cloud.row(backup_id).backup.attempt.nonce
        return await self.post("attempts/renew", RenewAttempt(self.who, backup_id, nonce, phase, size, idle))

    async def end(self, backup_id: str, said: Done | Gave, nonce: str | None = None) -> httpx2.Response:
        nonce = nonce or self.cloud.row(backup_id).backup.attempt.nonce
        return await self.post("attempts/end", EndAttempt(self.who, backup_id, nonce, said))

    def query(self, nonce: str = "") -> dict[str, Any]:
        who = self.who
        return {
            "server_id": who.server_id, "generation": who.fence.generation, "epoch": who.fence.epoch,
            "incarnation": who.incarnation, "nonce": nonce,
        }  # fmt: skip

    async def put(self, key: str, data: bytes, nonce: str) -> httpx2.Response:
        async with self.cloud.raw() as client:
            return await client.put(f"objects/{key}", params=self.query(nonce), content=data)

    async def get(self, key: str) -> httpx2.Response:
        async with self.cloud.raw() as client:
            return await client.get(f"objects/{key}", params=self.query())

    def upload(self, backup_id: str, taken: Taken, **more: Any) -> Upload:
        recipient = self.cloud.row(backup_id).recipient
        return Upload(taken.frame, taken.certificate, taken.prefix, self.cloud.signer, recipient, **more)

    async def write(self, backup_id: str, taken: Taken, *, without: int | None = None,
                    signed: bytes | None = None) -> str:  # fmt: skip
        """Write all objects as the host does; the manifest's digest."""
        upload = self.upload(backup_id, taken)
        data = upload.signed() if signed is None else signed
        objects = {**upload.objects, manifest_key(taken.prefix): data}
        for index, (key, value) in enumerate(objects.items()):
            if index == without:
                continue
            alive = await self.renew(backup_id, size=index, nonce=taken.frame.nonce)
            assert alive.status_code == 200, alive.text
            if taken.place is None:
                answer = await self.put(key, value, taken.frame.nonce)
                assert answer.status_code == 204, answer.text
            else:
                await asyncio.to_thread(self.cloud.objects.put_new, key, value)
        return manifest.digest(data)

    async def complete(self, **wish: Any) -> str:
        """A whole backup by an agent that does all as it should."""
        backup_id = await self.backup(**wish)
        taken = await self.taken(backup_id)
        digest = await self.write(backup_id, taken)
        answer = await self.end(backup_id, Done(digest))
        assert answer.status_code == 204, answer.text
        return backup_id


__all__ = ["HOST", "PLACES", "SECRET", "BackupCloud", "Instance"]


def run(store: Store, tmp_path: Path, play: Callable[[BackupCloud], Awaitable[None]]) -> None:
    """Play against a control plane whose loops run."""

    async def whole() -> None:
        cloud = BackupCloud(store, tmp_path)
        port = cloud.control_port()
        task = cloud.control_backups(port)
        try:
            await play(cloud)
            assert not task.done(), "the control plane has ended"
        finally:
            port.end(0)
            await task

    asyncio.run(whole())
