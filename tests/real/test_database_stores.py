"""More of stores of objects on their bad days, while a real database is backed up to them; of each kind one
is in test_database_faults, in every run. Each backup ends by itself and says for what."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.proof import proves
from tests.real.database_cloud import DatabaseCloud, Instance
from tests.real.failing_stores import Far, far, small
from unstuck.blobs.objects import Location

__all__ = ["far", "small"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(600),
]


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
    made.settings(copying=4.0, attempts=6)
    backup, _ = shop.held("copying")
    shop.until_attempt(backup, 2)
    shop.let_all_go()
    shop.completed(backup)
    far.only_complete()
    made.send_home()
    shop.free()
