"""A restore is exact or it fails, and says which piece is to blame: real backups of a database under load,
in a folder and in a real S3 server, then damaged by hand."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proof import proves
from tests.real.database_cloud import BOTH, DatabaseCloud, Instance
from tests.s3_server import S3Server, s3_is_built
from unstuck.blobs import keyring
from unstuck.blobs.objects import Location
from unstuck.cli.errors import CliError
from unstuck.cli.recover import recover

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(600),
    BOTH,
]
KILLS = 50


@pytest.fixture(scope="module")
def bucket(made: DatabaseCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Location]:
    if not s3_is_built():
        pytest.skip("the S3 server for tests is not installed: scripts/s3-server build (make test does it)")
    server = S3Server(tmp_path_factory.mktemp("s3"))  # in the cloud's own network
    try:
        yield server.bucket("exact")
    finally:
        server.close()


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_a_restore_under_load_is_exact(
    made: DatabaseCloud, shop: Instance, place: str, request: pytest.FixtureRequest
) -> None:
    if place == "s3":
        made.send_to("exact", request.getfixturevalue("bucket"))
    least = len(shop.acknowledged())
    backup = shop.completed(shop.request())["id"]
    restored = shop.restore(backup)
    restored.is_exact(shop, least)
    restored.find_server()
    restored.delete()
    made.send_home()
    shop.free()


# --- damaged backups


def objects_of(made: DatabaseCloud, backup: str) -> list[Path]:
    """Its files: pieces in their order, and the manifest."""
    return sorted(path for path in (made.state_backups / "backups" / backup).rglob("*") if path.is_file())


def flip(pieces: list[Path], manifest: Path) -> None:
    data = bytearray(pieces[1].read_bytes())
    data[len(data) // 2] ^= 1
    pieces[1].write_bytes(data)


def cut(pieces: list[Path], manifest: Path) -> None:
    pieces[1].write_bytes(pieces[1].read_bytes()[:-1])


def lose(pieces: list[Path], manifest: Path) -> None:
    pieces[1].unlink()


def swap(pieces: list[Path], manifest: Path) -> None:
    other = pieces[0].with_name("other")
    pieces[0].rename(other)
    pieces[1].rename(pieces[0])
    other.rename(pieces[1])


def forge(pieces: list[Path], manifest: Path) -> None:
    """The same manifest with one piece left out; its signature is now another text's."""
    found = json.loads(manifest.read_bytes())
    inner = json.loads(found["manifest"])
    inner["size"] -= inner["chunks"].pop()[1]
    found["manifest"] = json.dumps(inner)
    manifest.write_bytes(json.dumps(found).encode())


DAMAGES: list[tuple[Callable[[list[Path], Path], None], str]] = [
    (flip, "piece 1"),
    (cut, "piece 1"),
    (lose, "piece 1"),
    (swap, "piece [01]"),
    (forge, "manifest"),
]


@pytest.mark.parametrize(
    ("damage", "word"),
    [pytest.param(damage, word, id=damage.__name__) for damage, word in DAMAGES],
)
@proves("B17", "B18", ends="ERROR that names it; never a database that looks healthy")
def test_a_damaged_backup_is_named_and_makes_no_database(
    made: DatabaseCloud, shop: Instance, damage: Callable[[list[Path], Path], None], word: str
) -> None:
    backup = shop.completed(shop.request())["id"]
    files = objects_of(made, backup)
    (manifest,) = [path for path in files if path.suffix == ".json"]
    damage([path for path in files if path != manifest], manifest)
    broken = made.create("broken", backup)
    fault = broken.until_error(word)
    address = broken.shown()["addresses"][0]["address"]
    with pytest.raises(made.kit.error), made.kit.login(address, "shop", 2):
        pass
    assert fault["operating_status"] != "HEALTHY"
    with pytest.raises(CliError, match="cannot be restored"):
        recover(
            from_=str(made.state_backups), key=made.cloud.state.recovery, restore=backup,
            to=made.cloud.state.root / "never",
        )  # fmt: skip
    assert not (made.cloud.state.root / "never").exists()
    broken.find_server()
    broken.delete()
    shop.api.ask("DELETE", f"/backups/{backup}")
    shop.free()


@proves("B19", ends="refused, and nothing is written")
def test_another_clouds_key_opens_nothing(made: DatabaseCloud, shop: Instance, tmp_path: Path) -> None:
    backup = shop.completed(shop.request())["id"]
    right = json.loads(made.cloud.state.recovery.read_bytes())
    other = tmp_path / "other.json"
    keyring.ensure(tmp_path / "keys", other)
    wrong = json.loads(other.read_bytes())
    mixed = tmp_path / "mixed.json"
    mixed.write_text(json.dumps(right | {"identity": wrong["identity"]}))
    for file, words in ((other, "manifest|signed|cloud"), (mixed, "key")):
        with pytest.raises(CliError, match=f"(?i)cannot be restored.*({words})"):
            recover(from_=str(made.state_backups), key=file, restore=backup, to=tmp_path / "never")
        assert not (tmp_path / "never").exists()
    shop.free()


# --- many kills


@pytest.mark.timeout(1800)
@proves("B20", ends="every row that was acknowledged is there")
def test_killing_agents_harms_no_database(made: DatabaseCloud, shop: Instance) -> None:
    dice = random.Random(20)
    backup = shop.request()
    server = shop.postmaster()
    for number in range(KILLS):
        if number % 3 == 0:  # the guest's, which its PID 1 starts again ever later; else the host's
            agent = shop.cloud.until("an agent runs", shop.agents, seconds=90.0)[0]
            shop.kill(agent)
        else:
            shop.cloud.kill("host")
            shop.cloud.start("host")
        time.sleep(dice.uniform(0.0, 1.0))
        if shop.backup(backup)["status"] in ("COMPLETED", "FAILED"):
            with contextlib.suppress(AssertionError):
                backup = shop.request(f"b{number}")
    shop.until_over(backup, 180.0)
    assert shop.postmaster() == server
    shop.writes_go_on()
    shop.free()
