"""All of the way in one process: a guest over its channel, its host's real agent, the real control plane."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import msgspec
import sqlalchemy as sa
from agents_site import RunningAgent
from backup_site import HOST, BackupCloud, Instance
from tests.guest_sender import content_of, patiently

from unstuck.blobs.chunks import make_chunk, open_chunk
from unstuck.core.instance.guestwire import (
    AskRestore,
    Done,
    Fetch,
    Finish,
    Hello,
    Look,
    Orders,
    Refused,
    Renew,
    Restore,
    Store,
    Take,
    Welcome,
)
from unstuck.core.instance.want import BackupWant
from unstuck.core.server.data import Machine, Spec
from unstuck.guest.channel import Channel
from unstuck.host.serving import serve_guests
from unstuck.store.engine import Store as Database
from unstuck.store.engine import Tx
from unstuck.store.rows import bump_world
from unstuck.store.schema.compute import servers


def as_database(tx: Tx, server_id: str) -> None:
    """Its machine is one for a database, in a container."""
    found = tx.execute(sa.select(servers.c.spec).where(servers.c.id == server_id)).scalar_one()
    spec = msgspec.structs.replace(
        msgspec.json.decode(found, type=Spec), data=True, machine=Machine.CONTAINER
    )
    text = msgspec.json.encode(spec).decode()
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(spec=text))
    bump_world(tx, HOST, server_id)


class Cloud(BackupCloud):
    async def instance(self, *, restores: str | None = None) -> Instance:
        made = await super().instance(restores=restores)
        await self.store.run(as_database, made.server_id)
        self.notifier.wake(f"host:{HOST}")
        (self.folder / "servers" / made.server_id).mkdir(parents=True, exist_ok=True)
        return made

    def serving(self) -> RunningAgent:
        running = self.agent()
        running.agent.serve(lambda: serve_guests(running.port, running.control, running.agent, self.folder))
        return running

    def channel(self, server_id: str) -> Channel:
        return Channel(self.folder / "servers" / server_id / "channel" / "agent.sock")


async def offered(guest: Channel) -> tuple[Orders, BackupWant]:
    """What is wanted, once it has a backup in it."""
    since = 0
    while True:
        orders = await patiently(guest, Look(since, 5.0))
        if isinstance(orders, Orders) and orders.want is not None and orders.want.backup is not None:
            return orders, orders.want.backup
        since = orders.version if isinstance(orders, Orders) else 0


def test_a_guest_makes_a_backup_and_another_is_restored_from_it(store: Database, tmp_path: Path) -> None:
    async def play() -> None:
        cloud = Cloud(store, tmp_path)
        port = cloud.control_port()
        control = cloud.control_backups(port)
        instance = await cloud.instance()
        data, channels = os.urandom(300_000), []

        def guest_of(server_id: str) -> Channel:
            channel = cloud.channel(server_id)
            channels.append(asyncio.ensure_future(channel.run()))
            return channel

        host = cloud.serving()
        guest = guest_of(instance.server_id)
        hello = Hello(secrets.token_hex(8), 1)
        welcome = await patiently(guest, hello)
        assert welcome == Welcome(2, 5.0, 30.0)  # the first process was the site's own
        backup_id = await instance.backup()
        orders, backup = await offered(guest)
        assert orders.want is not None
        assert await patiently(guest, Take(backup_id, backup.nonce)) == Done()
        assert await patiently(guest, Renew(backup_id, backup.nonce, "copying", 5, 0.0)) == Done()
        size = backup.chunk_size
        pieces = [make_chunk(0, data, backup.recipient)]
        assert await patiently(guest, Store(backup.nonce, pieces[0][0]), pieces[0][1]) == Done()
        await host.end()
        host = cloud.serving()  # another incarnation, in mid-backup
        assert await patiently(guest, Finish(backup.nonce, content_of(pieces, size))) == Done()
        row = await cloud.ended(backup_id)
        assert cloud.status(backup_id) == "COMPLETED"
        assert row.size == len(data)
        assert await patiently(guest, Finish(backup.nonce, content_of(pieces, size))) == Done()
        late = await patiently(guest, Store(backup.nonce, pieces[0][0]), pieces[0][1])
        assert isinstance(late, Refused)

        cloud.incarnation = host.agent.incarnation
        second = await cloud.instance(restores=backup_id)
        other = guest_of(second.server_id)
        assert isinstance(await patiently(other, Hello(secrets.token_hex(8), 1)), Welcome)
        granted = await patiently(other, AskRestore())
        assert isinstance(granted, Restore)
        said, sealed = await other.ask(Fetch(0))
        assert said == Done()
        assert open_chunk(granted.content.chunks[0], sealed, granted.identity) == data
        # And neither may do what only the other may.
        assert isinstance(await patiently(guest, AskRestore()), Refused)
        assert isinstance(await patiently(other, Store(backup.nonce, pieces[0][0]), pieces[0][1]), Refused)

        for channel in channels:
            channel.cancel()
        assert await host.end() == 0
        port.end(0)
        await control

    asyncio.run(asyncio.wait_for(play(), 60.0))
