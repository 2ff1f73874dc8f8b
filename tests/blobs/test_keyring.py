"""The cloud's keys: whole or not there, never made twice, and what opens what."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.blobs import keyring, keys
from unstuck.blobs.objects import Location
from unstuck.blobs.stores import StoresUnusable, add, read_file


def made(folder: Path) -> keyring.Keyring:
    keyring.ensure(folder / "keys", folder / "recovery")
    return keyring.load(folder / "keys")


@pytest.mark.parametrize("last", ["root-key", "signing-key", "cloud-id", "recovery"])
def test_whoever_was_killed_while_making_them_goes_on_where_it_was(tmp_path: Path, last: str) -> None:
    """Each file is as it was made first, whichever was the last one."""
    keyring.ensure(tmp_path / "keys", tmp_path / "recovery")
    names = ["root-key", "signing-key", "cloud-id"]
    before = {name: (tmp_path / "keys" / name).read_bytes() for name in names}
    before["recovery"] = (tmp_path / "recovery").read_bytes()
    (tmp_path / "keys" / "cloud.json").unlink()
    order = [*names, "recovery"]
    for name in order[order.index(last) + 1 :]:
        path = tmp_path / name if name == "recovery" else tmp_path / "keys" / name
        path.unlink()
    assert keyring.ensure(tmp_path / "keys", tmp_path / "recovery")
    for name in order[: order.index(last) + 1]:
        path = tmp_path / name if name == "recovery" else tmp_path / "keys" / name
        assert path.read_bytes() == before[name]
    keyring.load(tmp_path / "keys")


def test_they_are_made_once_and_a_recovery_file_that_was_moved_away_is_not_made_again(tmp_path: Path) -> None:
    first = made(tmp_path)
    (tmp_path / "recovery").unlink()
    assert not keyring.ensure(tmp_path / "keys", tmp_path / "recovery")
    assert not (tmp_path / "recovery").exists()
    assert keyring.load(tmp_path / "keys").public == first.public


def test_a_backups_key_is_opened_by_its_project_or_by_the_recovery_key_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    ring = made(tmp_path)
    mine, other = ring.new_project_key(), ring.new_project_key()
    key = ring.new_backup_key(mine)
    identity = ring.open_backup_key(mine, key.wrapped)
    assert keys.recipient_of(identity) == key.recipient
    with pytest.raises(keys.BadKey):
        ring.open_backup_key(other, key.wrapped)
    import msgspec

    recovery = msgspec.json.decode((tmp_path / "recovery").read_bytes(), type=keys.Recovery)
    assert keys.unwrap(key.wrapped, recovery.identity) == identity
    assert identity not in repr((ring, key, mine))


@pytest.mark.parametrize("name", ["root-key", "signing-key", "cloud.json"])
def test_keys_that_do_not_belong_together_or_are_missing_are_refused_with_what_helps(
    tmp_path: Path, name: str
) -> None:
    made(tmp_path)
    (tmp_path / "other").mkdir()
    made(tmp_path / "other")
    path = tmp_path / "keys" / name
    path.write_bytes((tmp_path / "other" / "keys" / name).read_bytes())
    with pytest.raises(keyring.KeysUnusable, match="put back"):
        keyring.load(tmp_path / "keys")
    path.write_bytes(b"rubbish")
    with pytest.raises(keyring.KeysUnusable) as said:
        keyring.load(tmp_path / "keys")
    assert "rubbish" not in str(said.value)
    path.unlink()
    with pytest.raises(keyring.KeysUnusable, match="missing"):
        keyring.load(tmp_path / "keys")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"format":1,"stores":{"local":{"url":"s3://b"}}}', "no name for a store"),
        ('{"format":1,"stores":{"x":{"url":"ftp://b"}}}', "s3://bucket"),
        ('{"format":1,"default":"x"}', "not among its stores"),
        ('{"format":2}', "format 2"),
        ('{"format":1,"limits":{"claim":0}}', "limits.claim"),
        ('{"format":1,"secrets":1}', "secrets"),
        ("{", "cannot be read"),
    ],
)
def test_a_file_of_stores_that_cannot_be_used_is_refused_with_its_reason(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "stores.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StoresUnusable, match=said):
        read_file(path)


def test_a_name_never_comes_to_mean_another_place(tmp_path: Path) -> None:
    path = tmp_path / "stores.json"
    assert add(path, "far", Location("s3://bucket/one", access_key="a", secret_key="b"))
    assert not add(path, "far", Location("s3://bucket/one", access_key="a", secret_key="b"))
    assert add(path, "far", Location("s3://bucket/one", access_key="a", secret_key="new"))
    with pytest.raises(StoresUnusable, match="another name"):
        add(path, "far", Location("s3://bucket/two"))
    assert read_file(path).stores["far"].secret_key == "new"
