"""clouds.yaml belongs to its user: our entries are put in, everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from unstuck.cli import clouds
from unstuck.cli.errors import CliError

OURS = {"unstuck": clouds.entry("http://127.0.0.1:1", "demo", "demo", "secret")}
OTHER = """# my clouds
clouds:
    work:   # the important one
        auth: {auth_url: https://work, password: "p#w"}
other: [1, 2]
"""


def test_a_new_file_is_private(tmp_path: Path) -> None:
    target = tmp_path / "openstack" / "clouds.yaml"
    assert clouds.merge(target, OURS)
    assert yaml.safe_load(target.read_text()) == {"clouds": OURS}
    assert target.stat().st_mode & 0o777 == 0o600
    assert not clouds.merge(target, OURS)


def test_others_stay_with_their_comments(tmp_path: Path) -> None:
    target = tmp_path / "clouds.yaml"
    target.write_text(OTHER)
    assert clouds.merge(target, OURS)
    text = target.read_text()
    assert "# the important one" in text
    before, after = yaml.safe_load(OTHER), yaml.safe_load(text)
    assert after == {**before, "clouds": {**before["clouds"], **OURS}}


def test_an_entry_of_ours_is_renewed(tmp_path: Path) -> None:
    target = tmp_path / "clouds.yaml"
    target.write_text(OTHER)
    clouds.merge(target, OURS)
    newer = {"unstuck": clouds.entry("http://127.0.0.1:2", "demo", "demo", "other")}
    assert clouds.merge(target, newer)
    after = yaml.safe_load(target.read_text())
    assert after["clouds"]["unstuck"] == newer["unstuck"]
    assert after["clouds"]["work"] == yaml.safe_load(OTHER)["clouds"]["work"]
    assert after["other"] == [1, 2]


@pytest.mark.parametrize("text", ["", "\n", "clouds:\n", "clouds: {}\n", "# only a comment\n", "a: 1\n"])
def test_files_with_little_in_them(tmp_path: Path, text: str) -> None:
    target = tmp_path / "clouds.yaml"
    target.write_text(text)
    assert clouds.merge(target, OURS)
    assert yaml.safe_load(target.read_text())["clouds"] == OURS


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "clouds: [1]\n", "just words"])
def test_what_cannot_be_understood_is_not_touched(tmp_path: Path, text: str) -> None:
    target = tmp_path / "clouds.yaml"
    target.write_text(text)
    with pytest.raises(CliError, match="correct or remove it"):
        clouds.merge(target, OURS)
    assert target.read_text() == text


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    real.write_text(OTHER)
    target = tmp_path / "clouds.yaml"
    target.symlink_to(real)
    clouds.merge(target, OURS)
    assert target.is_symlink()
    assert "unstuck" in real.read_text()
