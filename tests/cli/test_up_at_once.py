"""Several `unstuck up` at the same moment, and folders that cannot be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_up_and_down import Cli, cli, healthy, until  # noqa: F401 (cli is a fixture)

from unstuck.runtime.state import State, prepare


def test_four_at_once_start_one_cloud_and_all_say_so(cli: Cli) -> None:  # noqa: F811
    """Three of four said that the supervisor had ended, although the cloud came up."""
    words = cli.command("up", "--detach", "--driver", "instant")
    started = [
        subprocess.Popen(
            words, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4, said
    url = cli.state.url()
    assert all(url in text for text in said), said
    cli.port = cli.state.read().port
    until(lambda: healthy(cli))
    assert all(cli.holders().values())


def test_a_folder_that_is_read_only_is_said(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk = small_disk(16 << 20)
    made = Cli(tmp_path, disk / "state")
    prepare(made.state.root, port=made.port, driver="instant")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for words in (("up", "--detach"), ("up",)):
        said = made.run(*words, code=1)
        assert "cannot be used" in said
        assert "Read-only file system" in said
        assert "bug" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_folder_without_room_is_said(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk = small_disk(64 * 1024)
    made = Cli(tmp_path, disk / "state")
    (disk / "fill").write_bytes(b"x" * (64 * 1024 - 3 * 4096))
    said = made.run("up", "--detach", "--driver", "instant", code=1)
    assert "No space left" in said
    assert "bug" not in said


def test_prepared_twice_at_once_it_has_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(tmp_path / "state", driver="instant").read()
    monkeypatch.setattr(State, "prepared", lambda _: False)  # as the other one saw it a moment before
    assert prepare(tmp_path / "state", driver="instant", port=first.port + 1).read() == first
