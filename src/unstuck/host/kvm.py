"""Whether guests can run under KVM, found by running one.

Opening the device or asking for its version proves nothing: in some virtual machines both succeed and every
guest is a thousand times too slow (and some then cannot run a kernel at all: they lack instructions). So a
guest of twenty million steps has to end in time; with hardware support that takes about ten milliseconds.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import grp
import os
import select
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from unstuck.host import kvmguest

DEADLINE = 0.5
_START_SECONDS = 10.0


class KvmState(enum.StrEnum):
    USABLE = "usable"
    TOO_SLOW = "too slow"
    NO_PERMISSION = "no permission"
    MISSING = "missing"
    BROKEN = "broken"


class Accelerator(enum.StrEnum):
    """The names QEMU uses."""

    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True)
class KvmReport:
    """``remedy`` says what to do, and is empty where there is nothing to do."""

    state: KvmState
    detail: str
    remedy: str


@functools.cache
def accelerator() -> Accelerator:
    """What guests started by this process use; probed once."""
    return Accelerator.KVM if probe_kvm().state is KvmState.USABLE else Accelerator.TCG


def probe_kvm(device: str = kvmguest.DEVICE, deadline: float = DEADLINE) -> KvmReport:
    """Never raises and never takes much longer than the deadline and the start of one Python."""
    if not Path(device).exists():
        return _missing(device)
    if not os.access(device, os.R_OK | os.W_OK):
        return _no_permission(device)
    if device != kvmguest.DEVICE:
        return KvmReport(KvmState.BROKEN, f"{device} is not the KVM device", "")
    try:
        return _run_guest(deadline)
    except OSError as error:
        return _broken(f"the probe could not run: {error}")


def _run_guest(deadline: float) -> KvmReport:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", kvmguest.__file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        if not _says_go(child):
            return _broken("the probe did not start")
        began = time.monotonic()
        try:
            code = child.wait(deadline)
        except subprocess.TimeoutExpired:
            return _too_slow(deadline)
        if code == 0:
            milliseconds = (time.monotonic() - began) * 1000
            took = f"a guest of twenty million steps took {milliseconds:.0f} ms"
            return KvmReport(KvmState.USABLE, took, "")
        said = child.stdout.read().decode(errors="replace").strip() if child.stdout else ""
        return _broken(said or f"the probe ended with {code}")
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
        if child.stdout:
            child.stdout.close()


def _says_go(child: subprocess.Popen[bytes]) -> bool:
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], _START_SECONDS)
    return bool(readable) and os.read(child.stdout.fileno(), 3) == b"go\n"


def _missing(device: str) -> KvmReport:
    return KvmReport(
        KvmState.MISSING,
        f"{device} does not exist",
        "Switch virtualisation on in the firmware (in a virtual machine: nested virtualisation), then: "
        "modprobe kvm_intel || modprobe kvm_amd. Without it guests are emulated: they work, slowly.",
    )


def _no_permission(device: str) -> KvmReport:
    group, mode = "kvm", 0o660
    with contextlib.suppress(OSError, KeyError):
        info = Path(device).stat()
        mode = stat.S_IMODE(info.st_mode)
        group = grp.getgrgid(info.st_gid).gr_name
    if group != "root" and mode & 0o060 == 0o060:
        remedy = f"As root: usermod -aG {group} $USER, then log in again."
    else:
        # Who is let into the group root may do far more than use KVM.
        remedy = (
            f"As root: groupadd -f -r kvm && chgrp kvm {device} && chmod 660 {device} && "
            "usermod -aG kvm $USER, "
            'then log in again. To keep it over a restart: echo \'KERNEL=="kvm", GROUP="kvm", MODE="0660"\' '
            "> /etc/udev/rules.d/65-kvm.rules"
        )
    return KvmReport(
        KvmState.NO_PERMISSION, f"this user may not open {device} (group {group}, mode {mode:o})", remedy
    )


def _too_slow(deadline: float) -> KvmReport:
    pvm = Path("/sys/module/kvm_pvm").exists()
    why = "; this machine has a software KVM (kvm_pvm) that interprets" if pvm else ""
    return KvmReport(
        KvmState.TOO_SLOW,
        f"a guest of twenty million steps did not end within {deadline:g} s{why}",
        "Use a machine with hardware virtualisation (vmx or svm in /proc/cpuinfo). "
        "Until then guests are emulated: they work, slowly.",
    )


def _broken(detail: str) -> KvmReport:
    return KvmReport(
        KvmState.BROKEN, detail, "See the kernel's log (dmesg). Until it is repaired guests are emulated."
    )
