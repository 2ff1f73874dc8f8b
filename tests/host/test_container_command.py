"""What a container is started with, and what the packet filter is told, by words alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.host.driver_wants import NIC, make_spec, make_want

from unstuck.core.server.data import Access, Flavor, Machine, Want
from unstuck.host.driver import DriverError
from unstuck.host.drivers.command import Files, qemu_command
from unstuck.host.drivers.command import Machine as Qemu
from unstuck.host.drivers.podman.command import Limits, run_words
from unstuck.host.drivers.podman.console import plain
from unstuck.host.drivers.podman.engine import Abilities
from unstuck.host.drivers.podman.places import Places
from unstuck.host.networks import rules

ALL = Abilities("runc", users=True, memory=True, pids=True, cpu=True)
LIMITS = Limits(files=20000, processes=4096, cpus=2)
PLACES = Places("host-1", "boot-1")


def boxed(**changed: object) -> Want:
    return make_want(spec=make_spec(machine=Machine.CONTAINER, data=True, nics=(NIC,), **changed))


def words(want: Want, able: Abilities = ALL) -> list[str]:
    return run_words(want, PLACES, able, LIMITS, Path("/s/id"), Path("/s/console.log"))


def after(found: list[str], option: str) -> list[str]:
    return [found[index + 1] for index, word in enumerate(found) if word == option]


def test_a_container_has_its_own_users_few_rights_and_limits() -> None:
    found = words(boxed(flavor=Flavor(8, 512, 1)))
    assert after(found, "--cap-drop") == ["all"]
    assert "no-new-privileges" in after(found, "--security-opt")
    assert after(found, "--uidmap") == after(found, "--gidmap") == ["0:1879048192:65536"]
    assert after(found, "--memory") == after(found, "--memory-swap") == ["512m"]
    assert after(found, "--cpus") == ["2"]  # more than the machine has cannot be given
    assert "--read-only" in found
    assert not any("privileged" in word or word == "--publish" for word in found)
    assert found[-1] == "/usr/lib/unstuck/init"


def test_its_network_is_the_named_namespace_or_none() -> None:
    want = boxed()
    assert after(words(want), "--network") == [f"ns:/run/netns/unstuck-{want.server_id}"]
    alone = msgspec.structs.replace(want, spec=msgspec.structs.replace(want.spec, nics=()))
    assert after(words(alone), "--network") == ["none"]


def test_what_the_machine_cannot_do_is_left_out_and_named() -> None:
    less = Abilities("crun", users=False, memory=False, pids=True, cpu=False)
    found = words(boxed(), less)
    assert not {"--uidmap", "--memory", "--cpus"} & set(found)
    assert less.missing == "users of their own (user namespaces), a limit of memory, a limit of CPU time"
    assert ALL.missing == ""


def test_a_name_that_looks_like_an_option_stays_a_name() -> None:
    assert "--hostname=--privileged" in words(boxed(hostname="--privileged"))


def test_two_hosts_and_two_boots_share_no_place() -> None:
    keys = {Places(host, boot).key for host in ("a", "b") for boot in ("1", "2")}
    assert len(keys) == 4


def test_long_lines_of_a_container_come_out_whole() -> None:
    log = "2026-01-01T00:00:00Z stdout P one\n2026-01-01T00:00:00Z stdout F  line\nodd\n"
    assert plain(log) == "one line\nodd\n"


def test_access_rules_with_the_same_meaning_are_the_same() -> None:
    one = Access((5432, 80), ("10.0.0.0/8", "10.1.0.0/16", "192.168.0.7"))
    other = Access((80, 5432, 80), ("192.168.0.7/32", "10.0.0.0/8"))
    assert rules.digest(one) == rules.digest(other)
    assert rules.access_script("unt0", one) == rules.access_script("unt0", other)
    assert rules.digest(one) != rules.digest(Access((80,), one.cidrs))


def test_without_cidrs_or_ports_nothing_is_let_in() -> None:
    for access in (Access((5432,), ()), Access((), ("0.0.0.0/0",)), rules.NOBODY):
        script = rules.access_script("unt0", access)
        assert "saddr" not in script
        assert script.splitlines()[-2].endswith(" drop")


@pytest.mark.parametrize(
    "access",
    [
        Access((5432,), ("10.0.0.0/8 } accept; #",)),
        Access((5432,), ("::/0",)),
        Access((5432,), ("",)),
        Access((0,), ()),
        Access((70000,), ()),
    ],
)
def test_what_is_no_access_rule_never_reaches_the_filter(access: Access) -> None:
    with pytest.raises(DriverError):
        rules.access_script("unt0", access)
    with pytest.raises(DriverError):
        rules.digest(access)


def test_a_database_in_a_machine_boots_the_read_only_tree_and_has_a_channel() -> None:
    want = make_want(spec=make_spec(data=True, nics=(NIC,), hostname="db one"))
    files = Files("disk-n.ext4", "config.img", "vmlinux", "initrd", "root.squashfs")
    found = " ".join(qemu_command(want, files, ("unt0",), Qemu("tcg", None)))
    assert "driver=raw,read-only=on,file.driver=file,file.filename=root.squashfs" in found
    assert "driver=raw,discard=unmap,file.locking=on,file.driver=file,file.filename=disk-n.ext4" in found
    assert "path=channel/vm.sock" in found
    assert "name=unstuck.channel.0" in found
    assert "config.img" not in found
    assert "root=/dev/vda" not in found
    assert "unstuck.hostname=db-one unstuck.net0=52:54:00:aa:bb:cc,10.7.0.5/24,1450,10.7.0.1" in found
