"""The agent's own process over the real channel to the real service of a host: made, backed up, restored."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg

from tests.guest.guest import PASSWORD, anna, folder, free_port
from tests.guest_site import HostEnd, Site, play, until
from unstuck.blobs import manifest as manifests
from unstuck.core.backup.data import Done
from unstuck.core.instance.view import DatabaseView, GuestStep
from unstuck.core.instance.want import Origin, WantedDatabase

SHOP = Origin(databases=(WantedDatabase("shop"),), users=(anna("shop"),))
ROOT = Path(__file__).parents[2]


class Running:
    """A guest whose host is a site."""

    def __init__(self, place: Path, origin: Origin, tmp_path: Path) -> None:
        self.place = place
        self.port = free_port()
        self.site = Site(tmp_path)
        self.site.cloud.origin = origin
        self.version = 1
        for name in ("volume", "run"):
            (place / name).mkdir(parents=True)
        place.chmod(0o755)

    def hold(self, end: HostEnd, *, recorded: bool) -> None:
        self.version += 1
        want = self.site.cloud.want(chunk_size=4 << 20, data_recorded=recorded, version=self.version)
        assert want.database is not None
        mine = msgspec.structs.replace(want.database, port=self.port, cidrs=("127.0.0.1/32",))
        end.service.hold(msgspec.structs.replace(want, database=mine))

    @contextlib.contextmanager
    def agent(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            sys.executable, "-m", "unstuck.guest", "--volume", self.place / "volume",
            "--run", self.place / "run", "--channel", self.site.socket,
        ]  # fmt: skip
        with (self.place / "log").open("ab") as log:
            made = subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
            )
        try:
            yield made
        finally:
            made.kill()
            made.wait(10)

    def view(self) -> DatabaseView | None:
        reports = self.site.cloud.reports
        return reports[-1].view if reports else None

    async def ready(self) -> None:
        await until(lambda: (view := self.view()) is not None and view.step is GuestStep.READY)

    def query(self, text: str) -> object:
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="anna", dbname="shop", password=PASSWORD, autocommit=True
        ) as connection:
            found = connection.execute(text)
            return found.fetchone() if found.description else None

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.place / "volume/database/pg/postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)


def test_a_database_is_made_backed_up_and_restored_over_the_real_channel(tmp_path: Path) -> None:
    with folder() as root:
        one = Running(root / "one", SHOP, tmp_path / "one")
        two = Running(root / "two", SHOP, tmp_path / "two")

        async def first() -> None:
            async with one.site.host() as end:
                one.hold(end, recorded=False)
                with one.agent():
                    await one.ready()
                    one.query("CREATE TABLE t AS SELECT n FROM generate_series(1, 100000) n")
                    one.site.cloud.offer("n1")
                    one.hold(end, recorded=True)
                    await until(lambda: made(one))

        async def second() -> None:
            async with two.site.host() as end:
                two.hold(end, recorded=False)
                with two.agent():
                    await two.ready()

        try:
            play(first, 100)
            cloud = one.site.cloud
            written = cloud.objects.get(manifests.manifest_key(cloud.prefix))
            manifest = manifests.read(written or b"", cloud.signer.public, cloud.prefix)
            assert manifests.missing(manifest, cloud.objects.list(cloud.prefix)) == []
            cloud.may_restore(manifests.content(manifest))
            two.site.cloud.restore, two.site.cloud.origin = cloud.restore, cloud.origin
            play(second, 100)
            assert two.query("SELECT count(*) FROM t") == (100000,)
        except BaseException:
            print((root / "one/log").read_text())
            if (root / "two/log").exists():
                print((root / "two/log").read_text())
            raise
        finally:
            one.end()
            two.end()


def made(guest: Running) -> bool:
    backup = guest.site.cloud.backup
    assert backup is not None
    return isinstance(backup.attempt.report, Done)
