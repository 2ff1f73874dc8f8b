"""The QEMU command line of a guest: a pure function of what is wanted.

All paths are relative to the server's folder, which is QEMU's working directory: no length limit of unix
sockets, no character that QEMU's option syntax would take apart, and messages fit for the user's eyes.
"""

from __future__ import annotations

import ipaddress
import re

import msgspec

from unstuck.core.server.data import Nic, Want
from unstuck.host.networks import rules

BOOT = "root=/dev/vda rw console=ttyS0 panic=5 quiet loglevel=3"
"""For every guest with a kernel of its own. A panic reboots, as a machine in a rack would."""
QUICK = "mitigations=off nokaslr cryptomgr.notests no_timer_check"
"""What emulated CPUs need not do: about half a second of the boot. The check of the timer counts its ticks
within milliseconds: on a host that is busy enough there are none, and the kernel panics."""

# Emulated guests run no code of their own on the real CPU, so that the mitigations only cost (about a fifth
# of the boot time).
_ACCELERATORS = {
    "tcg": (("-accel", "tcg,thread=multi,tb-size=128", "-cpu", "qemu64"), f"{BOOT} {QUICK}"),
    "kvm": (("-accel", "kvm", "-cpu", "host"), BOOT),
}
CHANNEL = "channel/vm.sock"
SERIAL = "serial.sock"
"""The guest's serial port, for one client at a time. What is written is in the log, whoever listens."""
_LOG = "logfile=console.log,logappend=on"
_HOSTNAME = re.compile(r"[^A-Za-z0-9.-]")
_SANDBOX = "on,obsolete=deny,spawn=deny,resourcecontrol=deny"


class Files(msgspec.Struct, frozen=True):
    """The files a guest is made of, relative to its folder. Without a kernel the firmware boots the disk.

    ``root``: the system tree of a server whose disk is for data alone; it has a channel, and no config drive.
    """

    disk: str
    config: str
    kernel: str | None
    ramdisk: str | None
    root: str | None = None


class Machine(msgspec.Struct, frozen=True):
    """What the host adds: ``tcg`` or ``kvm``, and the user that guests run as (None: ours)."""

    accelerator: str
    run_as: str | None


def guest_name(server_id: str, edge: int) -> str:
    """The name that a guest carries in its command line and over QMP: which server, which start of it."""
    return f"{server_id}.{edge}"


def qemu_command(
    want: Want, files: Files, taps: tuple[str, ...], machine: Machine, *, incoming: int | None = None
) -> list[str]:
    """What to execute in the server's folder; ``incoming`` is a descriptor of the memory to wake up with,
    and its CPUs stand still then."""
    name = guest_name(want.server_id, want.edge)
    accelerator, boot = _ACCELERATORS[machine.accelerator]
    return [
        *("qemu-system-x86_64", "-name", f"guest={name},process=unstuck-{want.server_id[:7]}"),
        *("-uuid", want.server_id, "-pidfile", "pid"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-shutdown"),
        *("-machine", "pc,usb=off", *accelerator),
        *("-smp", str(want.spec.flavor.vcpus), "-m", f"{want.spec.flavor.ram_mb}M"),
        *_privileges(machine.run_as),
        *_monitor("qmp", "qmp.sock"),
        *_monitor("qmp2", "qmp2.sock"),
        *("-chardev", f"socket,id=console,path={SERIAL},server=on,wait=off,{_LOG}"),
        *("-serial", "chardev:console"),
        *_drives(files),
        *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
        *_nics(want.spec.nics, taps),
        *_kernel(files, boot if files.root is None else f"{_data_boot(boot)} {_told(want)}"),
        *(() if incoming is None else ("-incoming", f"fd:{incoming}", "-S")),
    ]


def _privileges(run_as: str | None) -> tuple[str, ...]:
    """Everything is opened before the user is changed; changing it is what ``elevateprivileges`` forbids."""
    if run_as is None:
        return ("-sandbox", f"{_SANDBOX},elevateprivileges=deny")
    return ("-sandbox", _SANDBOX, "-runas", run_as)


def _monitor(name: str, path: str) -> tuple[str, ...]:
    """A socket serves one client at a time, even a frozen one; hence there are two."""
    chardev = f"socket,id={name},path={path},server=on,wait=off"
    return ("-chardev", chardev, "-mon", f"chardev={name},mode=control")


def _disk(name: str, options: str, path: str) -> tuple[str, ...]:
    """Writes are cached by the host and the guest's flushes are honoured (the default, writeback)."""
    block = f"node-name={name},{options},file.driver=file,file.filename={path}"
    return ("-blockdev", block, "-device", f"virtio-blk-pci,drive={name}")


def _drives(files: Files) -> list[str]:
    if files.root is None:
        return [
            *_disk("root", "driver=qcow2,discard=unmap,file.locking=on", files.disk),
            *_disk("config", "driver=raw,read-only=on", files.config),
        ]
    return [
        *_disk("root", "driver=raw,read-only=on", files.root),
        *_disk("data", "driver=raw,discard=unmap,file.locking=on", files.disk),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=channel,path={CHANNEL},server=on,wait=off"),
        *("-device", "virtserialport,chardev=channel,name=unstuck.channel.0"),
    ]


def _data_boot(boot: str) -> str:
    """There is no root disk for the kernel: the initramfs mounts the tree."""
    return boot.replace("root=/dev/vda rw ", "")


def _told(want: Want) -> str:
    """What a config drive says to other guests, for the script in the initramfs (``host/dbvm/init``)."""
    words = [f"unstuck.hostname={_HOSTNAME.sub('-', want.spec.hostname)}"]
    for index, nic in enumerate(want.spec.nics):
        address = ipaddress.IPv4Interface(f"{nic.address}/{nic.prefix}")
        gateway = "" if nic.gateway is None else str(ipaddress.IPv4Address(nic.gateway))
        words.append(f"unstuck.net{index}={rules.checked_mac(nic.mac)},{address},{nic.mtu},{gateway}")
    return " ".join(words)


def _nics(nics: tuple[Nic, ...], taps: tuple[str, ...]) -> list[str]:
    """The taps are there already; no boot from the network (``romfile=``)."""
    arguments = []
    for index, (nic, tap) in enumerate(zip(nics, taps, strict=True)):
        netdev = f"tap,id=net{index},ifname={tap},script=no,downscript=no"
        device = f"virtio-net-pci,netdev=net{index},mac={nic.mac},host_mtu={nic.mtu},romfile="
        arguments += ["-netdev", netdev, "-device", device]
    return arguments


def _kernel(files: Files, boot: str) -> tuple[str, ...]:
    if files.kernel is None:
        return ()
    ramdisk = ("-initrd", files.ramdisk) if files.ramdisk is not None else ()
    return ("-kernel", files.kernel, *ramdisk, "-append", boot)
