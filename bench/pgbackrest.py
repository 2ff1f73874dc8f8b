"""pgBackRest beside us: its full backup of the same server. Debian's package, installed when asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.house import House, worked


class Unusable(Exception):
    """Why it cannot be measured here."""


class PgBackRest:
    """It packs with the same compression and encrypts, by two processes."""

    def __init__(self, house: House, folder: Path) -> None:
        self._house = house
        self._folder = folder
        self.packed = 0.0
        folder.mkdir()
        config = folder / "pgbackrest.conf"
        config.write_text(
            f"[global]\nrepo1-path={folder}/repo\nlog-path={folder}\nlock-path={folder}\nspool-path={folder}\n"
            "repo1-cipher-type=aes-256-cbc\nrepo1-cipher-pass=of-the-bench-alone\ncompress-type=zst\n"
            "compress-level=3\nprocess-max=2\nstart-fast=y\narchive-check=n\narchive-copy=n\nlog-level-file=off\n"
            f"repo1-retention-full=1\n[bench]\npg1-path={house.data}\npg1-port={house.port}\n"
            f"pg1-socket-path={house.sockets}\npg1-user=postgres\n"
        )
        user = []
        if os.geteuid() == 0:
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(folder, "postgres", "postgres")
        self._command = [*user, program(), f"--config={config}", "--stanza=bench"]
        self._run("stanza-create")

    def back_up(self) -> tuple[float, float, float]:
        """MB of the database's files, seconds, and seconds of processor time."""
        before, began = worked(os.getpid()) + worked(self._house.server_pid()), time.monotonic()
        self._run("--type=full", "backup")
        seconds = time.monotonic() - began
        work = worked(os.getpid()) + worked(self._house.server_pid()) - before
        self.packed = _size(self._folder / "repo")
        shutil.rmtree(self._folder / "repo")
        self._run("stanza-create")
        return _size(self._house.data), seconds, work

    def _run(self, *words: str) -> None:
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise Unusable(f"{words[-1]}: {(done.stdout + done.stderr).strip()[-200:]}")


def program() -> str:
    """Where it is; installed first, if need be. Raises :class:`Unusable`."""
    if (found := shutil.which("pgbackrest")) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        sys.stderr.write("bench: installing Debian's package pgbackrest, to be compared with ...\n")
        subprocess.run(
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", "pgbackrest"],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        found = shutil.which("pgbackrest")
    if found is None:
        raise Unusable("pgbackrest is not installed (Debian: pgbackrest)")
    return found


def _size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
