"""The KVM probe, on machines where KVM works and on those where it does not."""

from __future__ import annotations

import grp
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from unstuck.host import kvm, kvmguest


def test_the_probe_ends_in_time_with_a_state_and_a_remedy() -> None:
    began = time.monotonic()
    report = kvm.probe_kvm()
    assert time.monotonic() - began < 15
    assert report.detail
    assert bool(report.remedy) is (report.state is not kvm.KvmState.USABLE)


def test_a_guest_without_time_is_too_slow() -> None:
    if not os.access(kvmguest.DEVICE, os.R_OK | os.W_OK):
        pytest.skip("needs a KVM device")
    report = kvm.probe_kvm(deadline=0)
    assert report.state in {kvm.KvmState.TOO_SLOW, kvm.KvmState.BROKEN}


def test_a_software_kvm_is_never_taken_for_hardware() -> None:
    """Found on a fast machine: its interpreter did a million steps in time, and then no kernel."""
    if not Path("/sys/module/kvm_pvm").exists() or not os.access(kvmguest.DEVICE, os.R_OK | os.W_OK):
        pytest.skip("needs a machine whose KVM is kvm_pvm, an interpreter")
    assert kvm.probe_kvm().state is kvm.KvmState.TOO_SLOW


def test_a_missing_device_is_told_from_a_forbidden_one(tmp_path: Path) -> None:
    assert kvm.probe_kvm(str(tmp_path / "kvm")).state is kvm.KvmState.MISSING
    (tmp_path / "kvm").touch()
    (tmp_path / "kvm").chmod(0)
    expected = kvm.KvmState.BROKEN if os.geteuid() == 0 else kvm.KvmState.NO_PERMISSION
    assert kvm.probe_kvm(str(tmp_path / "kvm")).state is expected


def test_permission_is_explained_with_the_group_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    report = kvm.probe_kvm("/dev/null")
    assert report.state is kvm.KvmState.NO_PERMISSION
    # Whoever is let into the group root may do far more than use KVM.
    assert "usermod -aG root" not in report.remedy
    assert "chgrp kvm /dev/null && chmod 660 /dev/null && usermod -aG kvm $USER" in report.remedy
    assert "udev" in report.remedy


@pytest.mark.parametrize(("mode", "enough"), [(0o660, True), (0o600, False), (0o640, False)])
def test_a_group_is_only_recommended_if_it_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, enough: bool
) -> None:
    device = tmp_path / "kvm"
    device.touch(mode)
    device.chmod(mode)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="kvm"))
    assert ("chmod 660" in kvm.probe_kvm(str(device)).remedy) is not enough


def test_the_accelerator_follows_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, expected in ((kvm.KvmState.USABLE, "kvm"), (kvm.KvmState.TOO_SLOW, "tcg")):
        monkeypatch.setattr(kvm, "probe_kvm", lambda state=state: kvm.KvmReport(state, "", ""))
        kvm.accelerator.cache_clear()
        assert kvm.accelerator() == expected
    kvm.accelerator.cache_clear()


def test_a_child_that_refuses_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "refuses.py"
    script.write_text("print('go', flush=True)\nprint('Function not implemented')\nraise SystemExit(1)\n")
    monkeypatch.setattr(kvmguest, "__file__", str(script))
    monkeypatch.setattr(kvmguest, "DEVICE", os.devnull)
    report = kvm.probe_kvm(os.devnull, deadline=10)
    assert (report.state, report.detail) == (kvm.KvmState.BROKEN, "Function not implemented")
