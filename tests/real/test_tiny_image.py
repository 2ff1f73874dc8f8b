"""One real guest of the tiny image: what it says of itself; power-off, reboot and button are real."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unstuck.host import tinyimage

IMAGE = Path(
    os.environ.get("UNSTUCK_TINY")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unstuck/images/tiny"
)
TOOLS = ("qemu-system-x86_64", "mkfs.vfat", "mcopy", "ip", "busybox")
ADDRESS, GATEWAY, MAC = "10.99.7.2", "10.99.7.1", "fa:16:3e:00:00:07"
META = {
    "hostname": "web-1.example.org",
    "public_keys": {"k": 'ssh-ed25519 AAAA "quoted"\n', "second": "ssh-rsa BBBB"},
}
NETWORK = {
    "links": [{"id": "tap0", "type": "phy", "ethernet_mac_address": MAC, "mtu": 1400}],
    "networks": [
        {
            "id": "network0", "type": "ipv4", "link": "tap0",
            "ip_address": ADDRESS, "netmask": "255.255.255.0",
            "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": GATEWAY}],
        }
    ],
    "services": [],
}  # fmt: skip
USER_DATA = "#!/bin/sh\necho hello\n"

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("qemu"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for the namespace and its tap"),
]


def until(look: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := look():
            return result
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {what}")


def sh(*command: str, data: str | None = None, timeout: float = 20) -> str:
    done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=timeout, check=True)
    return done.stdout


class Guest:
    """QEMU in a namespace of its own, with a monitor and the guest's port 7."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = folder / "console.log"
        self.namespace = f"unstuck-tiny-{os.getpid()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        sh("ip", "netns", "add", self.namespace)
        for line in (
            "tuntap add tap0 mode tap", f"addr add {GATEWAY}/24 dev tap0", "link set tap0 up",
        ):  # fmt: skip
            sh("ip", "-n", self.namespace, *line.split())
        shutil.copy(IMAGE / "disk.raw", self.folder / "disk.raw")
        config_drive(self.folder / "config")
        log = (self.folder / "qemu.log").open("wb")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *self.command()],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()

    def command(self) -> list[str]:
        manifest = json.loads((IMAGE / "manifest.json").read_text())
        monitor = f"socket,id=qmp0,path={self.folder}/qmp.sock,server=on,wait=off"
        return [
            "qemu-system-x86_64", "-machine", "pc", "-accel", "tcg,thread=multi,tb-size=64", "-cpu", "qemu64",
            "-smp", "1", "-m", str(manifest["min_ram"]), "-nodefaults", "-display", "none", "-no-shutdown",
            "-chardev", monitor, "-mon", "chardev=qmp0,mode=control", "-serial", f"file:{self.console}",
            "-kernel", str(IMAGE / "vmlinux"), "-initrd", str(IMAGE / "initrd"),
            "-append", manifest["cmdline"],
            "-drive", f"file={self.folder}/disk.raw,if=none,format=raw,id=d0",
            "-device", "virtio-blk-pci,drive=d0,romfile=",
            "-drive", f"file={self.folder}/config,if=none,format=raw,id=d1,readonly=on",
            "-device", "virtio-blk-pci,drive=d1,romfile=",
            "-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=n0,mac={MAC},romfile=",
        ]  # fmt: skip

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)

    def said(self, text: str, times: int = 1) -> Callable[[], bool]:
        return lambda: (
            self.console.exists() and self.console.read_text("utf-8", "replace").count(text) >= times
        )

    def ask(self, line: str) -> str:
        return sh(
            "ip", "netns", "exec", self.namespace, "busybox", "nc", "-w", "5", ADDRESS, "7", data=f"{line}\n"
        )  # fmt: skip

    def monitor(self, command: str) -> Any:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(10)
            connection.connect(str(self.folder / "qmp.sock"))
            with connection.makefile("rw") as stream:
                stream.readline()
                for name in ("qmp_capabilities", command):
                    stream.write(json.dumps({"execute": name}) + "\n")
                    stream.flush()
                    while "return" not in (answer := json.loads(stream.readline())):
                        assert "error" not in answer, answer
        return answer["return"]

    def is_off(self) -> bool:
        return bool(self.monitor("query-status")["status"] == "shutdown")


def config_drive(target: Path) -> None:
    content = target.with_suffix(".d") / "openstack"
    (content / "latest").mkdir(parents=True)
    (content / "latest/meta_data.json").write_text(json.dumps(META))
    (content / "latest/network_data.json").write_text(json.dumps(NETWORK))
    (content / "latest/user_data").write_text(USER_DATA)
    with target.open("wb") as file:
        file.truncate(1 << 20)
    sh("mkfs.vfat", "-n", "config-2", str(target))
    sh("mcopy", "-s", "-i", str(target), str(content), "::")


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if tinyimage.read_manifest(IMAGE) is None:
        pytest.skip("no tiny image; `make setup` builds it")
    guest = Guest(tmp_path)
    try:
        guest.start()
        yield guest
    finally:
        guest.stop()


@pytest.mark.slow
def test_one_guest_from_first_boot_to_power_button(guest: Guest) -> None:
    until(guest.said("unstuck-tiny: ready"), "first boot")
    assert guest.said("unstuck-tiny: hostname web-1")()
    assert guest.said(f"unstuck-tiny: address {ADDRESS}")()
    assert guest.said("unstuck-tiny: keys 2")()
    assert guest.ask("hostname") == "web-1\n"
    assert guest.ask("key") == 'ssh-ed25519 AAAA "quoted"\n'
    assert guest.ask("userdata") == USER_DATA
    assert json.loads(guest.ask("meta")) == META
    assert guest.ask("boots") == "1\n"
    assert guest.ask("write what must survive") == "ok\n"
    assert guest.ask("nonsense") == "error: unknown command\n"
    assert guest.ask("help").startswith("uptime, boots, boot_id, hostname, address, key")
    first_boot = guest.ask("boot_id")

    assert guest.ask("reboot") == "ok\n"
    until(guest.said("unstuck-tiny: ready", 2), "second boot")
    assert guest.ask("boots\nread") == "2\nwhat must survive\n"
    assert guest.ask("boot_id") != first_boot
    assert float(guest.ask("uptime")) < 60

    guest.monitor("system_powerdown")
    until(guest.is_off, "off by the button", 10)
    assert guest.said("unstuck-tiny: power button")()

    guest.monitor("system_reset")
    guest.monitor("cont")
    until(guest.said("unstuck-tiny: ready", 3), "third boot")
    assert guest.ask("poweroff") == "ok\n"
    until(guest.is_off, "off from inside", 10)
