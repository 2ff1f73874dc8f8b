"""A bare QEMU: the command line that the driver would use, started by nobody but us."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path

from unstuck.core.server.data import BootImage, Fence, Flavor, ImageRole, Nic, Power, Spec, Want
from unstuck.host import configdrive
from unstuck.host.drivers.command import Files, Machine, qemu_command
from unstuck.host.drivers.qemu import guest_user
from unstuck.host.kvm import accelerator

TAP = "bench0"


class Bare:
    """Starts the same guest again and again in ``folder`` and times it."""

    def __init__(self, folder: Path, image: Path, flavor: Flavor) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        manifest = json.loads((image / "manifest.json").read_text())["files"]
        names = {role: manifest[role]["name"] for role in ("kernel", "ramdisk", "disk")}
        for name in names.values():
            shutil.copy(image / name, folder / name)
        subprocess.run(["ip", "tuntap", "add", "dev", TAP, "mode", "tap"], check=True)
        subprocess.run(["ip", "link", "set", TAP, "up"], check=True)
        size = max((folder / names["disk"]).stat().st_size, flavor.disk_gb << 30)
        overlay = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", names["disk"], "disk.qcow2"]
        subprocess.run([*overlay, str(size)], cwd=folder, check=True)
        nic = Nic("p", str(uuid.uuid4()), "52:54:00:00:00:01", "10.77.0.250", 24, "10.77.0.1", 1450)
        disk = BootImage("d", ImageRole.DISK, "", 0, "raw")
        spec = Spec(
            name="bare", hostname="bare", project_id="p", availability_zone="nova", flavor=flavor,
            images=(disk,), nics=(nic,),
        )  # fmt: skip
        want = Want(
            server_id=str(uuid.uuid4()), fence=Fence(1, 1), nonce="n", version=1, intent=1, power=Power.ON,
            edge=1, soft=False, patience=0.0, gone=False, disk_recorded=True, spec=spec,
        )  # fmt: skip
        configdrive.build(want, folder / "config.img")
        files = Files("disk.qcow2", "config.img", names["kernel"], names["ramdisk"])
        self.command = qemu_command(want, files, (TAP,), Machine(accelerator().value, guest_user()))
        if (user := guest_user()) is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

    def start(self) -> float:
        """Seconds from the start of QEMU until its monitor says ``running``; the guest is ended then."""
        for name in ("pid", "qmp.sock", "qmp2.sock", "console.log"):
            (self._folder / name).unlink(missing_ok=True)
        with (self._folder / "out").open("wb") as out:
            began = time.monotonic()
            child = subprocess.Popen(
                self.command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
            try:
                self._until_running(began + 20.0)
                return time.monotonic() - began
            finally:
                child.kill()
                child.wait(10.0)

    def _until_running(self, end: float) -> None:
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.settimeout(5.0)
                try:
                    monitor.connect(str(self._folder / "qmp.sock"))
                    if self._says_running(monitor):
                        return
                except OSError:
                    pass
            time.sleep(0.001)
        raise TimeoutError(f"QEMU did not run: {(self._folder / 'out').read_text()}")

    def _says_running(self, monitor: socket.socket) -> bool:
        lines = monitor.makefile("rwb")
        lines.readline()
        for command in ("qmp_capabilities", "query-status"):
            lines.write(json.dumps({"execute": command}).encode() + b"\n")
            lines.flush()
            answer = json.loads(lines.readline())
            while "event" in answer:
                answer = json.loads(lines.readline())
        return bool(answer["return"]["status"] == "running")
