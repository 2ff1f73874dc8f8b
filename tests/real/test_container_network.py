"""Who reaches a guest in a container: the packet filter on the real thing, guests and the host as peers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.real.container_stage import (
    Stage,
    build_tree,
    inside,
    nic,
    reached,
    said,
    staged,
    why_not,
)
from tests.real.driving import settle
from unstuck.core.server.data import Access, Power, Running, Step, Thing, Want
from unstuck.host.drivers.podman.driver import PodmanDriver
from unstuck.host.drivers.process import run
from unstuck.host.networks import netns
from unstuck.host.networks.bridge import tap_names

pytestmark = [
    pytest.mark.xdist_group("containers"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are containers"),
]
HOST = "10.97.0.1"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tree(tmp_path_factory.mktemp("tree"))


def with_access(want: Want, *cidrs: str, version: int = 2) -> Want:
    spec = msgspec.structs.replace(want.spec, access=Access((5432,), cidrs))
    return msgspec.structs.replace(want, spec=spec, version=version, disk_recorded=True)


async def guest(stage: Stage, driver: PodmanDriver, index: int) -> Want:
    want = stage.want((nic(index),))
    assert await settle(driver, want) is Step.AT_REST
    await said(driver, want, "ready")
    return want


def from_guest(peer: Want, address: str, port: int = 5432) -> bool:
    return reached(address, port, namespace=netns.netns_name(peer.server_id))


def patiently(question: Callable[[], bool]) -> bool:
    """The small service is away for a moment after each answer: a refusal proves little."""
    end = time.monotonic() + 15
    while not (found := question()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def lets_in(peer: Want, address: str, port: int = 5432) -> bool:
    return patiently(lambda: from_guest(peer, address, port))


def host_gets_in(address: str) -> bool:
    return patiently(lambda: reached(address, 5432))


def pid_of(driver: PodmanDriver, want: Want) -> int:
    seen = driver._containers.known(want.server_id)
    assert seen is not None
    return seen.pid


@pytest.mark.usefixtures("namespace")
def test_only_named_peers_reach_the_named_port_and_a_change_needs_no_restart(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver = stage.driver()
            base, friend, stranger = [await guest(stage, driver, index) for index in (10, 11, 12)]
            pid = pid_of(driver, base)
            assert lets_in(friend, "10.97.0.10")  # without access rules: open to its network
            assert lets_in(stranger, "10.97.0.10", 5433)
            assert host_gets_in("10.97.0.10")  # the host

            base = with_access(base, "10.97.0.11/32")
            assert (await driver.look(base)).nics is Thing.ABSENT
            assert await settle(driver, base) is Step.AT_REST
            assert (await driver.look(base)).guest == Running(1)
            assert pid_of(driver, base) == pid
            assert lets_in(friend, "10.97.0.10")
            assert not from_guest(friend, "10.97.0.10", 5433)  # another port
            assert not from_guest(stranger, "10.97.0.10")
            assert not reached("10.97.0.10", 5432)
            assert lets_in(base, "10.97.0.11")  # its own connections get their answers
            assert lets_in(stranger, "10.97.0.11")  # others are as open as before

            base = with_access(base, "10.97.0.12", f"{HOST}/32", version=3)
            assert await settle(driver, base) is Step.AT_REST
            assert not from_guest(friend, "10.97.0.10")
            assert lets_in(stranger, "10.97.0.10")
            assert host_gets_in("10.97.0.10")

            base = with_access(base, version=4)
            assert await settle(driver, base) is Step.AT_REST
            assert not from_guest(stranger, "10.97.0.10")
            open_again = msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, access=None))
            await driver.make_nics(open_again)
            assert lets_in(stranger, "10.97.0.10", 5433)

            for want in (base, friend, stranger):
                assert await settle(driver, msgspec.structs.replace(want, gone=True)) is Step.REMOVED
            assert stage.left_over(driver) == []
            rules = (await run(["nft", "list", "ruleset"], 10)).decode()
            assert not any(tap in rules for want in (base, friend, stranger) for tap in tap_names(want))

    asyncio.run(scene())


@pytest.mark.usefixtures("namespace")
def test_a_connection_that_is_open_ends_when_its_peer_is_no_longer_let_in(
    tmp_path: Path, image: Path
) -> None:
    """The peer's own address counts for each packet, not only for the first."""

    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver = stage.driver()
            base, friend = await guest(stage, driver, 10), await guest(stage, driver, 11)
            base = with_access(base, "10.97.0.0/24")
            await settle(driver, base)
            where = ["ip", "netns", "exec", netns.netns_name(friend.server_id)]
            inside(pid_of(driver, base), "sh", "-c", "nc -l -p 5999 -e cat >/dev/null 2>&1 &")
            base = msgspec.structs.replace(
                base, spec=msgspec.structs.replace(base.spec, access=Access((5999,), ("10.97.0.0/24",)))
            )
            await settle(driver, base)
            with subprocess.Popen(  # noqa: ASYNC220
                [*where, "busybox", "nc", "10.97.0.10", "5999"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            ) as peer:  # fmt: skip
                assert peer.stdin is not None
                assert peer.stdout is not None
                peer.stdin.write(b"one\n")
                assert await asyncio.to_thread(peer.stdout.readline) == b"one\n"
                closed = msgspec.structs.replace(
                    base, spec=msgspec.structs.replace(base.spec, access=Access((5999,), ()))
                )
                await settle(driver, closed)
                peer.stdin.write(b"two\n")
                answer = asyncio.create_task(asyncio.to_thread(peer.stdout.readline))
                done, _ = await asyncio.wait({answer}, timeout=1.5)
                assert not done
                peer.kill()
                await answer

    asyncio.run(scene())


@pytest.mark.usefixtures("namespace")
def test_a_flushed_filter_closes_what_had_access_rules_until_they_are_known_again(
    tmp_path: Path, image: Path
) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver = stage.driver()
            base, friend = await guest(stage, driver, 10), await guest(stage, driver, 11)
            base = with_access(base, "10.97.0.11")
            await settle(driver, base)
            assert lets_in(friend, "10.97.0.10")
            await run(["nft", "flush", "ruleset"], 10)
            assert await driver.networks.guard()
            assert not from_guest(friend, "10.97.0.10")
            assert (await driver.look(base)).nics is Thing.ABSENT
            await settle(driver, base)
            assert lets_in(friend, "10.97.0.10")
            assert (await driver.look(friend)).nics is Thing.PRESENT

    asyncio.run(scene())


@pytest.mark.usefixtures("namespace")
def test_a_guest_sends_only_as_itself_and_reaches_nothing_of_the_host(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver = stage.driver()
            base, friend = await guest(stage, driver, 10), await guest(stage, driver, 11)
            where = netns.netns_name(base.server_id)
            with socket.create_server((HOST, 8080)) as service:
                assert not await asyncio.to_thread(reached, HOST, 8080, namespace=where)
                service.setblocking(False)
                with pytest.raises(BlockingIOError):
                    service.accept()
            assert lets_in(base, "10.97.0.11")
            other = ["ip", "-n", where, "addr"]
            await run([*other, "del", "10.97.0.10/24", "dev", "eth0"], 10)
            await run([*other, "add", "10.97.0.77/24", "dev", "eth0"], 10)
            assert not from_guest(base, "10.97.0.11")
            await run([*other, "del", "10.97.0.77/24", "dev", "eth0"], 10)
            await driver.make_nics(base)  # its address is put right where it is made again
            assert lets_in(friend, "10.97.0.10")

    asyncio.run(scene())


@pytest.mark.usefixtures("namespace")
def test_links_and_names_that_were_lost_are_made_again(tmp_path: Path, image: Path) -> None:
    async def scene() -> None:
        async with staged(tmp_path, image) as stage:
            driver = stage.driver()
            base, friend = await guest(stage, driver, 10), await guest(stage, driver, 11)
            base = with_access(base, "10.97.0.11")
            await settle(driver, base)
            await run(["ip", "link", "del", tap_names(base)[0]], 10)
            assert not from_guest(friend, "10.97.0.10")
            await settle(driver, base)  # into the namespace of the guest that runs
            assert lets_in(friend, "10.97.0.10")
            await run(["umount", str(netns.netns_path(base.server_id))], 10)
            await settle(driver, base)
            assert lets_in(friend, "10.97.0.10")
            off = msgspec.structs.replace(base, power=Power.OFF)
            await settle(driver, off)
            await run(["ip", "netns", "del", netns.netns_name(base.server_id)], 10)
            netns.netns_path(base.server_id).touch()  # as a killed `ip netns add` leaves it
            assert await settle(driver, msgspec.structs.replace(base, edge=2)) is Step.AT_REST
            await said(driver, base, "start 2")
            assert lets_in(friend, "10.97.0.10")

    asyncio.run(scene())
