"""Stores of objects on their bad days, while a real database is backed up to them: a folder that is full, and
a real S3 server behind a proxy that fails. Each backup ends by itself and says for what."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.blobs.conftest import ROOT, S3Server
from tests.faulty_store import FaultyStore
from tests.proof import proves
from tests.real.database_cloud import DatabaseCloud, Instance
from unstuck.blobs import stores
from unstuck.blobs.objects import Location

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(600),
]


class Far:
    """A bucket behind a proxy; ``direct`` is how a test looks into it."""

    def __init__(self, made: DatabaseCloud, server: S3Server) -> None:
        self.made = made
        self.direct = server.bucket("backups")
        self.proxy = FaultyStore(server.url)
        self.where = msgspec.structs.replace(self.direct, endpoint=self.proxy.url)

    def use(self) -> None:
        self.made.send_to("far", self.where)

    def only_complete(self) -> None:
        self.made.only_objects_of_complete_backups("far", self.direct)


@pytest.fixture(scope="module")
def far(made: DatabaseCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    if not (ROOT / ".cache" / "swift" / "built").exists():
        pytest.skip("the S3 server for tests is not installed: scripts/s3-server build (make test does it)")
    server = S3Server(tmp_path_factory.mktemp("s3"))  # in the cloud's own network
    try:
        found = Far(made, server)
        yield found
        found.proxy.close()
    finally:
        server.close()


@pytest.fixture
def small(made: DatabaseCloud, tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 12 MiB: a backup does not fit."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "small", folder], check=True)
    stores.make_folder(folder)
    try:
        yield folder
    finally:
        made.send_home()
        subprocess.run(["umount", "--lazy", folder], check=True)


@proves("T6", ends="FAILED with that reason, nothing of it is left in the store")
def test_a_store_that_is_full(made: DatabaseCloud, shop: Instance, small: Path) -> None:
    made.settings(uploading=4.0, attempts=2)
    where = Location(small.as_uri())
    made.send_to("small", where)
    shop.failed(shop.request(), "the blob store.*No space left on device")
    made.only_objects_of_complete_backups("small", where)
    made.send_home()
    shop.free()


@proves("B4", ends="COMPLETED by the same attempt, once there is room")
def test_a_store_that_is_full_until_somebody_makes_room(
    made: DatabaseCloud, shop: Instance, small: Path
) -> None:
    made.settings(uploading=60.0)
    made.send_to("small", Location(small.as_uri()))
    backup = shop.request()
    shop.until_phase(backup, "uploading")
    shop.writes_go_on()
    subprocess.run(["mount", "-o", "remount,size=300m", small], check=True)
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    shop.api.ask("DELETE", f"/backups/{backup}")
    made.send_home()
    shop.free()


@pytest.mark.parametrize("status", [500, 503])
@proves("T6", "B1", ends="FAILED with that reason, nothing of it is left in the store")
def test_a_store_that_answers_5xx(made: DatabaseCloud, shop: Instance, far: Far, status: int) -> None:
    made.settings(uploading=5.0, attempts=2)
    far.use()
    with far.proxy.doing(status, "PUT"):
        shop.failed(shop.request(), f"the blob store.*it answered {status}")
    far.only_complete()
    shop.completed(shop.request("far"))
    made.send_home()
    shop.free()


@proves("B1", ends="COMPLETED by the same attempt, once it answers")
def test_a_store_that_answers_5xx_for_a_while(made: DatabaseCloud, shop: Instance, far: Far) -> None:
    made.settings(uploading=90.0)
    far.use()
    with far.proxy.doing(503, "PUT"):
        backup = shop.request()
        shop.until_phase(backup, "uploading")
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    made.send_home()
    shop.free()


@proves("T7", ends="tried again until the credentials are right: COMPLETED by a later attempt")
def test_a_store_that_refuses_the_credentials_at_the_start(
    made: DatabaseCloud, shop: Instance, far: Far
) -> None:
    made.settings(uploading=6.0)
    made.send_to("far", msgspec.structs.replace(far.where, secret_key="wrong"))
    backup = shop.request()
    shop.until_phase(backup, "uploading")
    far.use()  # the operator puts the right ones into the file
    assert shop.completed(backup)["unstuck"]["attempt"] > 1
    far.only_complete()
    made.send_home()
    shop.free()


@proves("T7", "B2", ends="FAILED with that reason; what lies there goes as soon as it lets us in")
@pytest.mark.parametrize("since", ["at the start", "half way"])
def test_a_store_that_refuses_the_credentials_for_good(
    made: DatabaseCloud, shop: Instance, far: Far, since: str
) -> None:
    made.settings(uploading=5.0, attempts=2, unknown=10.0)
    far.use()
    if since == "half way":
        backup, holds = shop.held("copying")
        shop.cloud.until("a piece is there", lambda: made.entries(far.direct))
    else:
        backup, holds = "", []
    with far.proxy.doing(403):
        backup = backup or shop.request()
        for hold in holds:
            hold.go_on()
        shop.failed(backup, "the blob store.*it answered 403 Forbidden")
    far.only_complete()
    made.send_home()
    shop.free()


@pytest.mark.parametrize("only", ["PUT", ""])
@proves("T8", "B3", ends="FAILED with that reason; others complete meanwhile")
def test_a_store_that_accepts_and_never_answers(
    made: DatabaseCloud, shop: Instance, far: Far, only: str
) -> None:
    made.settings(uploading=5.0, attempts=2, unknown=10.0)  # its agent is free long before the call ends
    far.use()
    backup, holds = shop.held("copying")
    shop.cloud.until("a piece is there", lambda: made.entries(far.direct))
    with far.proxy.doing("hang", *([only] if only else [])):
        holds[0].go_on()
        shop.failed(backup, "the blob store", 300.0)
        made.send_home()
        shop.completed(shop.request("home"))
    far.only_complete()
    shop.free()


@proves("B3", ends="COMPLETED by the same attempt, once it answers")
def test_a_store_that_does_not_answer_for_a_while(made: DatabaseCloud, shop: Instance, far: Far) -> None:
    made.settings(uploading=120.0)
    far.use()
    backup, holds = shop.held("copying")
    with far.proxy.doing("hang"):
        holds[0].go_on()
        shop.until_phase(backup, "uploading", 60.0)
    far.proxy.release()
    assert shop.completed(backup)["unstuck"]["attempt"] == 1
    far.only_complete()
    made.send_home()
    shop.free()


@proves("T3", ends="COMPLETED by the second attempt, on S3 too")
def test_an_agent_killed_while_it_uploads_to_s3(made: DatabaseCloud, shop: Instance, far: Far) -> None:
    made.settings(uploading=60.0)
    far.use()
    with far.proxy.doing(503, "PUT"):
        backup = shop.request()
        shop.until_phase(backup, "uploading")
        shop.kill_agent()
    assert shop.completed(backup)["unstuck"]["attempt"] == 2
    far.only_complete()
    made.send_home()
    shop.free()


@proves("T5", ends="COMPLETED by the second attempt, on S3 too")
def test_a_tool_that_hangs_on_its_way_to_s3(made: DatabaseCloud, shop: Instance, far: Far) -> None:
    far.use()
    made.settings(copying=4.0)
    backup, _ = shop.held("copying")
    shop.until_attempt(backup, 2)
    shop.let_all_go()
    shop.completed(backup)
    far.only_complete()
    made.send_home()
    shop.free()
