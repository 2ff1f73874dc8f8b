"""Debian's packages as a source of files: apt downloads and checks them; nothing is installed, no root."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """Says what is missing and how to get it."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str


def depends(name: str) -> list[str]:
    lines = run(["apt-cache", "depends", "--no-recommends", "--no-suggests", name], check=False).splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("Depends:")]


def candidate(name: str) -> str | None:
    for line in run(["apt-cache", "policy", name], check=False).splitlines():
        if line.strip().startswith("Candidate:"):
            version = line.split(":", 1)[1].strip()
            return None if version == "(none)" else version
    return None


def unpacked(package: Package, work: Path) -> Path:
    """Downloads and unpacks; apt itself checks the signature chain."""
    downloads, tree = work / "deb", work / package.name
    downloads.mkdir(exist_ok=True)
    # As root apt would drop to a user of its own that cannot write here, and warn.
    sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    run(["apt-get", "-qq", *sandbox, "download", f"{package.name}={package.version}"], cwd=downloads)
    archives = sorted(downloads.glob(f"{package.name}_*.deb"))
    if len(archives) != 1:
        raise BuildError(f"apt-get downloaded {len(archives)} files for {package.name}")
    run(["dpkg-deb", "-x", str(archives[0]), str(tree)])
    return tree


def run(
    command: list[str],
    cwd: Path | None = None,
    *,
    check: bool = True,
    extra: dict[str, str] | None = None,
    seconds: float = 300,
) -> str:
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
        **(extra or {}),
    }
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise BuildError(
            f"{command[0]} is missing; as root: apt-get install {_home_of(command[0])}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not end within {seconds:g} s") from error
    if check and done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _home_of(tool: str) -> str:
    homes = {
        "mke2fs": "e2fsprogs", "dpkg-deb": "dpkg", "dpkg-query": "dpkg", "mksquashfs": "squashfs-tools",
        "mmdebstrap": "mmdebstrap",
    }  # fmt: skip
    return homes.get(tool, "apt")
