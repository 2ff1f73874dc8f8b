"""What a datastore's image is made of but our own code: Debian's packages, and Python packages; both kept.

Everything comes from this machine's own Debian release and its own mirrors, checked by apt, and from PyPI at
the versions that run here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unstuck.host.dbkinds import Kind
from unstuck.host.debian import BuildError, candidate, depends, run

_AGENT: Final = ("unstuck", 900, "/nonexistent", "/usr/sbin/nologin")
_LEFT_OUT: Final = (
    "usr/share/doc/*", "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*",
)  # fmt: skip
# The packages' own scripts look for some of what a datastore leaves out, so it goes only at the end.
_REMOVED: Final = (
    "usr/share/bash-completion",
    # Perl is for packages' scripts and wrappers only, the tables of glibc for what servers have themselves.
    "usr/bin/perl*", "usr/lib/*/perl", "usr/lib/*/perl-base", "usr/lib/*/perl5", "usr/share/perl*",
    "usr/lib/*/libperl*", "usr/lib/*/gconv",
)  # fmt: skip
_EMPTIED: Final = (
    "var/cache", "var/log", "var/lib/apt", "var/lib/dpkg/info", "run", "tmp", "etc/ssl/private", "boot",
    "home", "root", "media", "mnt", "srv",
)  # fmt: skip
_FORMAT: Final = 3
"""Counts the ways in which a base was tidied: another one is made anew."""
_KEPT: Final = 30 * 86400
_PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")


@dataclass(frozen=True)
class Base:
    """A tree that is not to be changed, and what is in it."""

    tree: Path
    release: str
    packages: dict[str, str]
    version: str
    python: str


def settings(kind: Kind) -> str:
    """All that decides what is in a base, beside the packages' versions."""
    chosen = (kind.packages, kind.user, kind.before, kind.removed)
    return repr((_FORMAT, _AGENT, chosen, _LEFT_OUT, _REMOVED, _EMPTIED))


def ensure(folder: Path, kind: Kind) -> Base:
    """The base for the packages as apt knows them now; made where it is not there. Root only."""
    release = _release()
    wanted = _wanted(kind)
    if not wanted and (kept := sorted(folder.glob(f"base-{kind.name}-*/base.json"))):
        return _read(kept[-1].parent, release)  # apt has no lists just now
    key = hashlib.sha256(f"{release} {sorted(wanted.items())} {settings(kind)}".encode()).hexdigest()[:16]
    target = folder / f"base-{kind.name}-{key}"
    if not (target / "base.json").exists():
        _make(target, release, kind)
    return _read(used(target), release)


def used(kept: Path) -> Path:
    """It is: what nobody has used for weeks goes. (Other versions of Unstuck may work in the same folder.)"""
    os.utime(kept)
    for other in kept.parent.glob(f"{kept.name.rpartition('-')[0]}-*"):
        if time.time() - other.stat().st_mtime > _KEPT:
            shutil.rmtree(other, ignore_errors=True)
    return kept


def _read(target: Path, release: str) -> Base:
    told = json.loads((target / "base.json").read_text())
    return Base(target / "tree", release, told["packages"], told["version"], told["python"])


def _release() -> str:
    text = Path("/etc/os-release").read_text()
    facts: dict[str, str] = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    name = facts.get("VERSION_CODENAME", "")
    if facts.get("ID") != "debian" or not name:
        raise BuildError("images of datastores are built on Debian only")
    return name


def _wanted(kind: Kind) -> dict[str, str]:
    """The versions of what is included, behind meta packages too, as apt would install them."""
    names = set(kind.packages)
    names |= {name for name in depends(kind.packages[0]) if name.startswith(kind.meta)}
    return {name: version for name in names if (version := candidate(name))}


def _make(target: Path, release: str, kind: Kind) -> None:
    if os.geteuid() != 0:
        raise BuildError("the system tree of a datastore's image can only be made as root")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
        made = Path(work) / "base"
        made.mkdir()
        hook = Path(work) / "hook"
        hook.write_text(f"set -e\n{_users(kind)}\n{kind.before}")
        source = Path(work) / "apt.list"
        source.write_text(_mirrors(release))
        words = ["mmdebstrap", "--quiet", "--mode=root", "--variant=essential"]
        words += [f"--dpkgopt=path-exclude=/{path}" for path in _LEFT_OUT]
        words += ['--aptopt=APT::Install-Recommends "false"', f"--include={','.join(kind.packages)}"]
        words += [f'--essential-hook=sh "{hook}" "$1"', release, str(made / "tree"), str(source)]
        run(words, seconds=900)
        tree = made / "tree"
        told = {"packages": _installed(tree), "version": _server_version(tree, kind), "python": _python(tree)}
        _tidy(tree, kind)
        (made / "base.json").write_text(json.dumps(told, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)


def _users(kind: Kind) -> str:
    lines = []
    for name, number, home, shell in (_AGENT, (*kind.user, "/bin/sh")):
        lines.append(f"echo '{name}:x:{number}:{number}::{home}:{shell}' >> \"$1/etc/passwd\"")
        lines.append(f"echo '{name}:x:{number}:' >> \"$1/etc/group\"")
    return "\n".join(lines)


def _mirrors(release: str) -> str:
    """This machine's own sources of Debian itself, one line each."""
    found = []
    for line in run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"]).splitlines():
        uri, _, suite = line.partition(" ")
        if suite.split("-")[0] == release and (uri, suite) not in found:
            found.append((uri, suite))
    if not found:
        raise BuildError("apt knows no packages of this Debian release; as root: apt-get update")
    keys = sorted(Path("/usr/share/keyrings").glob("debian-archive-keyring.*"))
    signed = f"[signed-by={keys[0]}] " if keys else ""
    return "".join(f"deb {signed}{uri} {suite} main\n" for uri, suite in found)


def _installed(tree: Path) -> dict[str, str]:
    form = "${Package} ${Version}\n"
    listing = run(["dpkg-query", "--admindir", str(tree / "var/lib/dpkg"), "-W", "-f", form])
    return dict(sorted(line.split(" ", 1) for line in listing.splitlines() if " " in line))


def _server_version(tree: Path, kind: Kind) -> str:
    programs = sorted(tree.glob(kind.program))
    if not programs:
        raise BuildError(f"there is no {kind.name} server in the tree")
    told = run(["chroot", str(tree), f"/{programs[-1].relative_to(tree)}", "--version"])
    return told.split()[kind.word].split("-")[0]


def _python(tree: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return run(["chroot", str(tree), "/usr/bin/python3", "-c", code]).strip()


def _tidy(tree: Path, kind: Kind) -> None:
    """Out with what differs from build to build or nobody needs; in with what a container's start needs."""
    for path in [path for pattern in (*_REMOVED, *kind.removed) for path in tree.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in _EMPTIED:
        path = tree / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            path.mkdir()
            path.chmod(0o1777 if name == "tmp" else 0o755)
    for name in ("etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/hosts"):
        (tree / name).unlink(missing_ok=True)
        (tree / name).touch()
        (tree / name).chmod(0o644)
    (tree / "etc/mtab").unlink(missing_ok=True)
    (tree / "etc/mtab").symlink_to("/proc/mounts")
    for pattern in ("etc/*-", "var/lib/dpkg/*-old", "etc/.pwd.lock", "etc/ld.so.cache~"):
        for path in tree.glob(pattern):
            path.unlink()
    for path in tree.rglob("__pycache__"):
        shutil.rmtree(path)
    run([
        *("chroot", str(tree), "/usr/bin/python3", "-m", "compileall", "-q", "-j", "0"),
        *("--invalidation-mode", "unchecked-hash", "/usr/lib/python3", f"/usr/lib/python{_python(tree)}"),
    ], check=False)  # fmt: skip


def python_packages(folder: Path, wheels: dict[str, str], python: str) -> Path:
    """A folder with these Python packages for that version of Python; fetched once."""
    key = hashlib.sha256(f"{python} {sorted(wheels.items())}".encode()).hexdigest()[:16]
    target = folder / f"python-{key}"
    if target.exists():
        return used(target)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=folder) as work:
        made = Path(work) / "site"
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        words += ["--no-deps", "--only-binary=:all:", "--no-compile", "--target", str(made)]
        words += ["--python-version", python, "--implementation", "cp"]
        words += [word for name in _PLATFORMS for word in ("--platform", name)]
        run([*words, *(f"{name}=={version}" for name, version in sorted(wheels.items()))])
        for extra in [
            *made.glob("bin"),
            *made.glob("*.dist-info/RECORD"),
            *made.glob("*.dist-info/direct_url.json"),
        ]:
            shutil.rmtree(extra) if extra.is_dir() else extra.unlink()
        made.rename(target)
    return used(target)
