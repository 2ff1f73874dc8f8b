"""A real machine with nothing in it but a guest's end of a channel, over a virtio port.

Kernel, drivers and Python are the database image's; the code is this tree's.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from unstuck.host import dbimage
from unstuck.host.cpio import Archive

ROOT = Path(__file__).parents[1]
CODE = ("src/unstuck/core", "src/unstuck/runtime", "src/unstuck/guest")
INIT = """#!/bin/sh
/bin/busybox mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/lib/modules/$module.ko"; done < /lib/modules/boot.list
until [ -b /dev/vda ] && grep -qlx unstuck.channel.0 /sys/class/virtio-ports/*/name; do usleep 20000; done
mount -t squashfs -o ro /dev/vda /root
mount -t proc proc /root/proc
mount -t devtmpfs dev /root/dev
mount -t tmpfs tmp /root/tmp
mv /code /root/tmp/code
port=$(grep -lx unstuck.channel.0 /sys/class/virtio-ports/*/name); port=${port%/name}
ln -sf "${port##*/}" /dev/unstuck
send() {
    exec chroot /root /usr/bin/env PYTHONPATH=/tmp/code:/usr/lib/unstuck/python PYTHONDONTWRITEBYTECODE=1 \\
        /usr/bin/python3 -m tests.guest_sender /dev/unstuck "$@"
}
SCRIPT
poweroff -f
"""


def initrd(image: Path, script: str) -> bytes:
    """The image's own, and behind it a second archive that replaces its first program."""
    archive = Archive()
    archive.file("init", INIT.replace("SCRIPT", script).encode(), 0o755)
    folders = {"code"}
    files = {"code/tests/guest_sender.py": (ROOT / "tests/guest_sender.py").read_bytes()}
    files |= {f"code/{name}": b"" for name in ("tests/__init__.py", "unstuck/__init__.py")}
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            files[f"code/{path.relative_to(ROOT / 'src')}"] = path.read_bytes()
    for name in files:
        folders |= {str(folder) for folder in Path(name).parents if str(folder) != "."}
    for name in sorted(folders):
        archive.directory(name)
    for name, data in files.items():
        archive.file(name, data)
    return (image / "initrd").read_bytes() + archive.packed()


class Machine:
    """Its console is heard line by line."""

    def __init__(self, child: subprocess.Popen[bytes], console: IO[bytes]) -> None:
        self.child = child
        self._console = console
        self.text = b""

    def heard(self, word: str, seconds: float) -> dict[str, float]:
        """The next line of the sender with this word in it."""
        end = time.monotonic() + seconds
        line = b""
        while time.monotonic() < end:
            line += self._console.readline()
            if not line.endswith(b"\n"):
                if self.child.poll() is not None:
                    break
                time.sleep(0.02)  # the console is a file that grows
                continue
            self.text += line
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                said = msgspec.json.decode(line)
                if isinstance(said, dict) and word in said:
                    return said
            line = b""
        raise TimeoutError(f"no {word!r} from the machine: {self.text[-2000:].decode(errors='replace')}")


def built_image() -> Path | None:
    """The database image, where it was built."""
    folder = dbimage.default_folder()
    return None if dbimage.read_manifest(folder) is None else folder


@contextlib.contextmanager
def machine(image: Path, server: Path, script: str) -> Iterator[Machine]:
    """Starts it with its port in the server's folder. ``script`` has ``( send ... )`` in it
    (tests/guest_sender.py)."""
    (server / "channel").mkdir(exist_ok=True)
    (server / "initrd").write_bytes(initrd(image, script))
    console = server / "console"
    console.touch()
    socket = "path=channel/vm.sock,server=on,wait=off"
    root = image / "root.squashfs"
    command = [
        "qemu-system-x86_64", "-machine", "pc", "-accel", "tcg", "-cpu", "qemu64", "-m", "320", "-nodefaults",
        "-no-reboot", "-display", "none", "-serial", "file:console", "-kernel", str(image / "vmlinux"),
        "-initrd", "initrd",
        "-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check",
        "-blockdev", f"node-name=root,driver=raw,read-only=on,file.driver=file,file.filename={root}",
        "-device", "virtio-blk-pci,drive=root",
        "-device", "virtio-serial-pci", "-chardev", f"socket,id=channel,{socket}",
        "-device", "virtserialport,chardev=channel,name=unstuck.channel.0",
    ]  # fmt: skip
    child = subprocess.Popen(command, cwd=server)
    try:
        with console.open("rb", buffering=0) as file:
            yield Machine(child, file)
    finally:
        child.kill()
        child.wait(10.0)
