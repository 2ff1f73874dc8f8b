"""Unpacks a backup from its input into a folder that it makes. Run by its text, as the datastore's user.

With ``over`` as second argument the folder may be there, and files in it are replaced.

Only plain files and folders, only below the folder, each once: what else a tar can hold (links, devices,
names that climb) no base backup of ours has.
"""

import os
import sys
import tarfile
from typing import IO

BLOCK = 1 << 20


def parts(name: str) -> list[str]:
    found = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in found or "\0" in name:
        raise ValueError(f"a name climbs out of it: {name[:80]!r}")
    return found


def write(source: IO[bytes], path: str, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
    try:
        left = size
        while left:
            data = source.read(min(BLOCK, left))
            if not data:
                raise ValueError("it ends in the middle of a file")
            left -= len(data)
            while data:
                data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def main(target: str, over: str = "") -> int:
    os.umask(0o027)
    try:
        if over:
            os.makedirs(target, 0o750, exist_ok=True)
        else:
            os.mkdir(target, 0o750)
        with (
            os.fdopen(0, "rb", buffering=BLOCK) as stream,
            tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as tar,
        ):
            for member in tar:
                found = parts(member.name)
                path = os.path.join(target, *found)
                if member.isdir():
                    os.makedirs(path, 0o750, exist_ok=True)
                elif member.isreg():
                    os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
                    inside = tar.extractfile(member)
                    assert inside is not None
                    if over and os.path.lexists(path):
                        os.unlink(path)
                    write(inside, path, member.size)
                else:
                    raise ValueError(f"it holds something that is no file: {member.name[:80]!r}")
                tar.members = []  # type: ignore[attr-defined]  # else it remembers every file
            while stream.read(BLOCK):
                pass
    except (ValueError, tarfile.TarError) as error:
        sys.stderr.write(f"damaged: {error}\n")
        return 3
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
