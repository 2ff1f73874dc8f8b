"""Backups of a real MariaDB out of a store of objects, with no cloud: by us, and by stock tools."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from tests.cli.test_recover import PAGE, Bucket
from tests.guest.conftest import guests, objects  # noqa: F401
from tests.guest.guest import Guest
from tests.guest.test_mariadb import SHOP, rows

from unstuck.core.backup.content import Datastore, Position
from unstuck.guest.datastores.mariadb.server import PROGRAM
from unstuck.guest.datastores.mariadb.tape import CHANGES, FORM, Tape

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it is the agent's account"),
    pytest.mark.skipif(not Path(PROGRAM).exists(), reason="MariaDB is not installed here"),
]


def copied(guest: Guest, since: int = 0) -> tuple[bytes, int, dict[str, Any]]:
    """A copy by the tool itself, its checkpoint, and what a manifest says of it."""
    command = [
        "mariadb-backup", f"--defaults-file={guest.volume}/database/conf/server.cnf", "--backup",
        "--stream=mbstream", "--user=root", f"--socket={guest.run}/pg/mariadb.sock", "--target-dir=/tmp/none",
    ]  # fmt: skip
    if since:
        command.append(f"--incremental-lsn={since}")
    plain = subprocess.run(command, check=True, capture_output=True).stdout
    tape = Tape()
    tape.feed(plain)
    _, place = tape.places()
    says = {
        "datastore": Datastore("mariadb", guest.want().version, "10.11.1"), "stop": Position(1, place.text),
        "content": CHANGES if since else FORM,
    }  # fmt: skip
    return plain, place.checkpoint, says


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Any]:
    """A stock server on restored data, that asks nobody who he is."""
    subprocess.run(["chown", "-R", "nobody", folder], check=True)
    socket = folder / "s.sock"
    server = subprocess.Popen(
        [PROGRAM, "--no-defaults", f"--datadir={folder}", f"--socket={socket}", "--skip-networking",
         "--skip-grant-tables", "--user=nobody", "--innodb-buffer-pool-size=16M"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not socket.exists():  # it listens there as soon as it can be asked
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not come up"
            time.sleep(0.1)
        made = pymysql.connect(unix_socket=str(socket), user="x", database="shop", ssl_disabled=True)
        with made:
            yield made
    finally:
        server.kill()
        server.wait()


def test_a_chain_is_recovered_and_a_server_comes_up_on_it(
    guests: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    guest = guests("mariadb")
    guest.host.wants(guest.want(origin=SHOP))
    guest.start()
    guest.ready()
    bucket = Bucket(tmp_path)
    with guest.connect() as connection:
        rows(connection, "CREATE TABLE t (n int PRIMARY KEY)")
        rows(connection, "INSERT INTO t VALUES (1)")
        plain, checkpoint, says = copied(guest)
        full = bucket.add("m-1", plain, **says)
        rows(connection, "INSERT INTO t VALUES (2)")
        plain, _, says = copied(guest, checkpoint)
        bucket.add("m-2", plain, full, **says)
    with guests_folder() as place:
        target = place / "data"
        assert bucket.recover("--restore", "m-2", "--to", str(target)) == 0
        said = capsys.readouterr().out
        for step in re.findall(r"^  (mariadb-backup .*)$", said, re.MULTILINE):
            done = subprocess.run(step.split(), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        assert "restored-changes/1" in said
        with served(target) as connection:
            assert rows(connection, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
        # The same with nothing of ours, as the page says.
        work = place / "stock"
        shutil.copytree(bucket.folder, work)
        shutil.copy(bucket.recovery, work / "recovery-key.json")
        keys, _ = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (unpack,) = re.findall(r"```shell\n(.*?)```", PAGE.read_text(), re.DOTALL)
        opened = keys.partition("mkdir restored")[0]
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", opened + unpack], cwd=work, check=True, capture_output=True,
            env={"PATH": os.environ["PATH"], "PREFIX": full.prefix},
        )  # fmt: skip
        with served(work / "restored") as connection:
            assert rows(connection, "SELECT n FROM t ORDER BY n") == [(1,)]


def test_a_stream_that_is_cut_off_leaves_nothing(guests: Any, tmp_path: Path) -> None:  # noqa: F811
    guest = guests("mariadb")
    guest.host.wants(guest.want())
    guest.start()
    guest.ready()
    bucket = Bucket(tmp_path)
    plain, _, says = copied(guest)
    bucket.add("m-1", plain[: len(plain) - 1000], **says)
    assert bucket.recover("--restore", "m-1", "--to", str(tmp_path / "data")) == 1
    assert not (tmp_path / "data").exists()


@contextlib.contextmanager
def guests_folder() -> Iterator[Path]:
    """Where another user gets in."""
    from tests.guest.guest import folder

    with folder() as made:
        yield made
