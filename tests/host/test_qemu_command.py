"""The command line of a guest."""

from __future__ import annotations

import itertools

from driver_wants import NIC, SERVER, make_spec, make_want

from unstuck.host.drivers.command import Files, Machine, qemu_command

FILES = Files("disk-n0nce.qcow2", "config.img", "../../images/k.1", "../../images/r.1")


def after(argv: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def test_a_guest_carries_its_identity_and_gets_exactly_its_flavor() -> None:
    argv = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    assert after(argv, "-name") == [f"guest={SERVER}.7,process=unstuck-1111111"]
    assert after(argv, "-uuid") == [SERVER]
    assert after(argv, "-smp") == ["2"]
    assert after(argv, "-m") == ["192M"]
    assert after(argv, "-pidfile") == ["pid"]
    assert {"-nodefaults", "-no-user-config", "-no-shutdown"} <= set(argv)
    assert "-no-reboot" not in argv  # a reboot from inside, or after a panic, works


def test_every_path_is_relative_so_that_no_state_folder_is_too_long_or_needs_escaping() -> None:
    argv = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    absolute = [word for word in argv if word.startswith("/") or "=/" in word.partition(" ")[0]]
    assert absolute == ["rng-random,id=rng,filename=/dev/urandom", after(argv, "-append")[0]]


def test_the_serial_port_is_a_socket_and_all_of_it_goes_to_the_log_as_well() -> None:
    argv = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    [console] = [word for word in after(argv, "-chardev") if "id=console" in word]
    assert console == (
        "socket,id=console,path=serial.sock,server=on,wait=off,logfile=console.log,logappend=on"
    )
    assert after(argv, "-serial") == ["chardev:console"]


def test_disks_keep_what_the_guest_flushed_and_nobody_else_may_open_them() -> None:
    root, config = after(qemu_command(make_want(), FILES, (), Machine("kvm", None)), "-blockdev")
    assert "file.locking=on" in root
    assert "cache.no-flush" not in root
    assert "read-only=on" in config


def test_ports_are_taps_that_are_there_already() -> None:
    want = make_want(spec=make_spec(nics=(NIC,)))
    argv = qemu_command(want, FILES, ("unt111111111100",), Machine("tcg", None))
    assert after(argv, "-netdev") == ["tap,id=net0,ifname=unt111111111100,script=no,downscript=no"]
    assert f"mac={NIC.mac},host_mtu=1450" in next(word for word in argv if word.startswith("virtio-net"))


def test_the_kernel_is_entered_directly_where_there_is_one_and_a_panic_reboots() -> None:
    argv = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    assert after(argv, "-kernel") == ["../../images/k.1"]
    assert after(argv, "-initrd") == ["../../images/r.1"]
    assert "panic=5" in after(argv, "-append")[0].split()
    without = qemu_command(make_want(), Files("d", "c", None, None), (), Machine("tcg", None))
    assert "-append" not in without


def test_mitigations_are_off_only_where_the_real_cpu_never_runs_guest_code() -> None:
    tcg = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    kvm = qemu_command(make_want(), FILES, (), Machine("kvm", None))
    assert "mitigations=off" in after(tcg, "-append")[0]
    assert "mitigations=off" not in after(kvm, "-append")[0]


def test_the_timer_is_not_checked_where_a_busy_host_would_make_the_check_fail() -> None:
    for accelerator, unchecked in (("tcg", True), ("kvm", False)):
        argv = qemu_command(make_want(), FILES, (), Machine(accelerator, None))
        assert ("no_timer_check" in after(argv, "-append")[0].split()) == unchecked


def test_the_sandbox_is_on_and_lets_go_of_privileges_only_to_change_the_user() -> None:
    ours = qemu_command(make_want(), FILES, (), Machine("tcg", None))
    other = qemu_command(make_want(), FILES, (), Machine("tcg", "unstuck-guest"))
    assert "elevateprivileges=deny" in after(ours, "-sandbox")[0]
    assert "elevateprivileges" not in after(other, "-sandbox")[0]
    assert after(other, "-runas") == ["unstuck-guest"]
