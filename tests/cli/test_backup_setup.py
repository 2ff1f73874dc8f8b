"""Keys and stores of backups of a real cloud: made once, closed to others, and never other ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_up_and_down import Cli, cli  # noqa: F401 (cli is a fixture)

from unstuck.blobs.keys import recipient_of
from unstuck.blobs.stores import read_file


def closed(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_recovery_file_is_written_once_and_reminded_of_until_it_is_kept_elsewhere(
    cli: Cli,  # noqa: F811
) -> None:
    said = cli.up()
    path = cli.state.recovery
    assert str(path) in said
    assert closed(path)
    assert all(closed(file) for file in cli.state.keys.iterdir())
    first = path.read_bytes()
    found = json.loads(first)
    public = json.loads((cli.state.keys / "cloud.json").read_bytes())
    assert recipient_of(found["identity"]) == public["recovery"]
    everything = [p for p in cli.state.root.rglob("*") if p.is_file() and p != path]
    assert not any(found["identity"].encode() in p.read_bytes() for p in everything), "it is nowhere else"
    assert str(path) in cli.run("doctor")
    assert str(path) not in cli.run("doctor", "--recovery-saved")
    assert "recovery key" not in cli.run("doctor")
    cli.run("down")
    assert str(path) not in cli.up()
    assert path.read_bytes() == first
    path.unlink()
    cli.run("down")
    cli.up()
    assert not path.exists(), "a second one would open nothing"


def test_where_backups_go_is_kept_with_its_credentials_and_only_for_the_owner(
    cli: Cli, tmp_path: Path,  # noqa: F811
) -> None:  # fmt: skip
    file = tmp_path / "credentials"
    file.write_text("AWS_ACCESS_KEY_ID=who\nexport AWS_SECRET_ACCESS_KEY='a secret'\n")
    file.chmod(0o600)
    words = ("up", "--detach", "--driver", "instant", "--port", str(cli.port), "--backups", "s3://bucket/one",
             "--backups-endpoint", "http://127.0.0.1:9", "--backups-credentials", str(file))  # fmt: skip
    said = cli.run(*words)
    assert "a secret" not in said
    kept = read_file(cli.state.backup_stores)
    where = kept.stores["remote"]
    assert (kept.default, where.url, where.access_key, where.secret_key) == (
        "remote", "s3://bucket/one", "who", "a secret",
    )  # fmt: skip
    assert closed(cli.state.backup_stores)
    assert "already" in cli.run(*words)
    other = [word.replace("bucket/one", "bucket/two") for word in words]
    assert "give s3://bucket/two another name" in cli.run(*other, code=1)
    cli.run(*other, "--backups-name", "second")
    assert set(read_file(cli.state.backup_stores).stores) == {"remote", "second"}


def test_credentials_are_refused_where_others_may_read_them_and_missed_where_there_are_none(
    cli: Cli, tmp_path: Path,  # noqa: F811
) -> None:  # fmt: skip
    file = tmp_path / "credentials"
    file.write_text("AWS_ACCESS_KEY_ID=who\nAWS_SECRET_ACCESS_KEY=secret\n")
    file.chmod(0o644)
    words = ("up", "--detach", "--driver", "instant", "--backups", "s3://bucket/one")
    said = cli.run(*words, "--backups-credentials", str(file), code=1)
    assert f"chmod 600 {file}" in said
    assert "AWS_SECRET_ACCESS_KEY" in cli.run(*words, code=1, AWS_SECRET_ACCESS_KEY="")
    assert "s3://bucket/prefix" in cli.run("up", "--detach", "--backups", "ftp://x/y", code=1)
    assert "not given" in cli.run("up", "--detach", "--backups-region", "x", code=1)
    assert not cli.state.backup_stores.exists()


@pytest.mark.slow
def test_a_cloud_whose_keys_are_lost_goes_on_without_backups_and_gets_no_other_ones(
    cli: Cli, tmp_path: Path,  # noqa: F811
) -> None:  # fmt: skip
    cli.up()
    cli.run("down")
    away = tmp_path / "away"
    shutil.move(cli.state.keys, away)
    cli.up()
    assert not cli.state.keys.exists()
    said = cli.run("doctor", code=1)
    assert "no backup can be made or restored" in said
    assert "put back the folder" in said
    cli.run("down")
    shutil.move(away, cli.state.keys)
    cli.up()
    assert "can be opened here" in cli.run("doctor")


@pytest.mark.slow
def test_a_control_plane_with_another_clouds_keys_makes_no_backups(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    from unstuck.blobs import keyring

    cli.up()
    cli.run("down")
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery-key.json")
    shutil.rmtree(cli.state.keys)
    shutil.copytree(tmp_path / "keys", cli.state.keys)
    cli.up()
    log = (cli.state.logs / "control.log").read_text()
    assert "no backups are made or restored here" in log
    assert "its store was set up with cloud" in log
