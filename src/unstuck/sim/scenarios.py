"""What the simulated users do. A scenario is a user's script; the runner adds the faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol


class User(Protocol):
    """What a script can do; every call is one request, repeated until it is answered."""

    async def create(self, name: str) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def stop(self, name: str) -> None: ...

    async def start(self, name: str) -> None: ...

    async def reboot(self, name: str, *, soft: bool) -> None: ...

    async def break_image(self) -> None: ...
    async def pause(self, name: str) -> None: ...

    async def unpause(self, name: str) -> None: ...

    async def suspend(self, name: str) -> None: ...

    async def resume(self, name: str) -> None: ...

    async def suspended(self, name: str) -> bool: ...

    async def rebuild(self, name: str) -> None: ...

    async def resize(self, name: str, *, ram_mb: int = 128, disk_gb: int = 2) -> bool: ...

    async def confirm(self, name: str) -> None: ...

    async def revert(self, name: str) -> None: ...

    async def create_image(self, name: str, image: str) -> None: ...

    async def image_ends(self, image: str) -> bool: ...

    async def delete_image(self, image: str) -> None: ...

    async def shelve(self, name: str) -> None: ...

    async def offload(self, name: str) -> None: ...

    async def unshelve(self, name: str) -> None: ...

    async def lose_disk(self, name: str) -> None: ...

    async def reset(self, name: str) -> None: ...

    async def disk_full(self, name: str, *, full: bool) -> None: ...

    async def break_starts(self, *, broken: bool) -> None: ...

    async def power_off_inside(self, name: str) -> None: ...

    async def power_off_resized(self, name: str) -> None: ...

    async def host_dies(self, seconds: float) -> None: ...

    async def host_of_dies(self, name: str, seconds: float) -> None: ...

    async def lose(self) -> None: ...

    async def strike(self) -> None: ...

    async def join_again(self, name: str) -> None: ...

    async def until(self, name: str, *statuses: str) -> None: ...

    async def wait(self, seconds: float) -> None: ...

    def beside(self, script: Coroutine[Any, Any, None]) -> None: ...


Script = Callable[[User], Awaitable[None]]


async def create(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")


async def create_and_delete(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.delete("a")


async def delete_while_building(user: User) -> None:
    await user.create("a")
    await user.wait(1.0)
    await user.delete("a")


async def delete_while_starting(user: User) -> None:
    await user.create("a")
    await user.wait(2.0)
    await user.delete("a")


async def delete_at_once(user: User) -> None:
    await user.create("a")
    await user.delete("a")


async def stop_and_start(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")
    await user.until("a", "SHUTOFF")
    await user.start("a")
    await user.until("a", "ACTIVE")


async def stop(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")


async def reboot_hard(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.reboot("a", soft=False)


async def reboot_soft(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.reboot("a", soft=True)


async def power_off_inside(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.power_off_inside("a")
    await user.until("a", "SHUTOFF")


async def image_of_no_use(user: User) -> None:
    """No try can help: the build ends with that reason, and not never."""
    await user.break_image()
    await user.create("a")
    await user.until("a", "ERROR")
    await user.delete("a")


async def pause(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.pause("a")


async def pause_and_unpause(user: User) -> None:
    await pause(user)
    await user.until("a", "PAUSED")
    await user.unpause("a")
    await user.until("a", "ACTIVE")


async def delete_while_pausing(user: User) -> None:
    await pause(user)
    await user.delete("a")


async def reboot_while_pausing(user: User) -> None:
    """The one action that may override a pause: a new guest process, and it runs."""
    await pause(user)
    await user.reboot("a", soft=False)


async def suspend(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    await user.suspended("a")


async def suspend_and_resume(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    if await user.suspended("a"):
        await user.resume("a")
        await user.until("a", "ACTIVE")


async def suspend_twice(user: User) -> None:
    await suspend_and_resume(user)
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    await user.suspended("a")


async def cold_boot_of_what_was_suspended(user: User) -> None:
    """The memory is dead then, and never comes back over the disk that moves on."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    if await user.suspended("a"):
        await user.reboot("a", soft=False)
        await user.until("a", "ACTIVE")


async def reboot_while_suspending(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    await user.reboot("a", soft=False)


async def delete_while_suspending(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    await user.delete("a")


async def rebuild(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.rebuild("a")


async def rebuild_twice(user: User) -> None:
    await rebuild(user)
    await user.rebuild("a")


async def rebuild_what_is_off(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")
    await user.until("a", "SHUTOFF")
    await user.rebuild("a")
    await user.until("a", "SHUTOFF")


async def delete_while_rebuilding(user: User) -> None:
    await rebuild(user)
    await user.wait(1.0)
    await user.delete("a")


async def rebuild_after_the_disk_was_lost(user: User) -> None:
    """A disk that is missing is never made again by itself: it is shown, and a rebuild is the way out."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.lose_disk("a")
    await user.until("a", "ERROR")
    await user.rebuild("a")


async def resize_and_confirm(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.resize("a")
    await user.until("a", "VERIFY_RESIZE")
    await user.confirm("a")


async def resize_and_revert(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.resize("a")
    await user.until("a", "VERIFY_RESIZE")
    await user.revert("a")
    await user.until("a", "ACTIVE")


async def resize_what_is_off(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")
    await user.until("a", "SHUTOFF")
    await user.resize("a")
    await user.until("a", "VERIFY_RESIZE")
    await user.revert("a")
    await user.until("a", "SHUTOFF")
    await user.start("a")
    await user.until("a", "ACTIVE")


async def power_off_inside_a_resized(user: User) -> None:
    """Its user may still choose; it stays off whichever way."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.resize("a")
    await user.until("a", "VERIFY_RESIZE")
    await user.power_off_resized("a")
    await user.confirm("a")
    await user.until("a", "SHUTOFF")


async def delete_while_resizing(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.resize("a")
    await user.wait(1.0)
    await user.delete("a")


async def delete_while_reverting(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.resize("a")
    await user.until("a", "VERIFY_RESIZE")
    await user.revert("a")
    await user.wait(1.0)
    await user.delete("a")


async def revert_of_a_resize_that_failed(user: User) -> None:
    """Guests of the new flavor end at once, until the budget is used up: the way out is the former one."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.break_starts(broken=True)
    await user.resize("a")
    await user.until("a", "ERROR")
    await user.break_starts(broken=False)
    await user.revert("a")
    await user.until("a", "ACTIVE")


async def resize_with_room_for_one(user: User) -> None:
    """Of two that want most of the host's memory one gets it; and the other when it was given up again."""
    await user.create("a")
    await user.create("b")
    await user.until("a", "ACTIVE")
    await user.until("b", "ACTIVE")
    await user.resize("a", ram_mb=2500)
    if await user.resize("b", ram_mb=2500):
        raise AssertionError("there is no room for both")
    await user.until("a", "VERIFY_RESIZE")
    await user.revert("a")
    await user.until("a", "ACTIVE")
    await user.resize("b", ram_mb=2500)
    await user.until("b", "VERIFY_RESIZE")
    await user.confirm("b")


async def image_of_a_running_server(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create_image("a", "i")
    if not await user.image_ends("i"):
        raise AssertionError("no image was made")


async def image_of_a_stopped_server(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")
    await user.until("a", "SHUTOFF")
    await user.create_image("a", "i")
    if not await user.image_ends("i"):
        raise AssertionError("no image was made")
    await user.start("a")
    await user.until("a", "ACTIVE")


async def delete_while_an_image_is_made(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create_image("a", "i")
    await user.wait(2.0)
    await user.delete("a")
    await user.image_ends("i")


async def delete_an_image_that_is_made(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create_image("a", "i")
    await user.wait(2.0)
    await user.delete_image("i")
    if await user.image_ends("i"):
        raise AssertionError("it was deleted")
    await user.stop("a")


async def power_off_while_an_image_is_made(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create_image("a", "i")
    await user.power_off_inside("a")
    await user.image_ends("i")


async def image_on_a_dead_host(user: User) -> None:
    """Its deadline ends it; the server is as it was when the host is back."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create_image("a", "i")
    await user.host_dies(900.0)
    await user.image_ends("i")
    await user.wait(300.0)


async def shelve_and_unshelve(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.shelve("a")
    await user.until("a", "SHELVED")
    await user.unshelve("a")
    await user.until("a", "ACTIVE")


async def shelve_what_is_suspended(user: User) -> None:
    """Its memory is given up, and never comes back over the disk that moves on."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.suspend("a")
    if await user.suspended("a"):
        await user.shelve("a")
        await user.until("a", "SHELVED")
        await user.unshelve("a")
        await user.until("a", "ACTIVE")


async def delete_while_shelving(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.shelve("a")
    await user.wait(1.0)
    await user.delete("a")


async def unshelve_when_there_is_room_again(user: User) -> None:
    """Another server has the memory that it gave up, until that is deleted."""

    async def give_way() -> None:
        await user.wait(20.0)
        await user.delete("b")

    await user.create("a")
    await user.create("b")
    await user.until("a", "ACTIVE")
    await user.until("b", "ACTIVE")
    await user.resize("a", ram_mb=2500)
    await user.until("a", "VERIFY_RESIZE")
    await user.confirm("a")
    await user.shelve("a")
    await user.until("a", "SHELVED")
    await user.offload("a")
    if not await user.resize("b", ram_mb=2500):
        raise AssertionError("the room was given up")
    await user.until("b", "VERIFY_RESIZE")
    user.beside(give_way())
    await user.unshelve("a")
    await user.until("a", "ACTIVE")


async def disk_full_for_a_while(user: User) -> None:
    """The guest stops at a write; when there is room again, it goes on by itself."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.disk_full("a", full=True)
    await user.wait(30.0)
    await user.disk_full("a", full=False)


async def reset_after_failed_starts(user: User) -> None:
    """Guests end at once until the budget is used up; the operator mends that and sets the mark."""
    await user.break_starts(broken=True)
    await user.create("a")
    await user.until("a", "ERROR")
    await user.break_starts(broken=False)
    await user.reset("a")


async def delete_while_stopping(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.stop("a")
    await user.wait(1.0)
    await user.delete("a")


async def two_at_once(user: User) -> None:
    async def other() -> None:
        await user.create("b")
        await user.until("b", "ACTIVE")
        await user.delete("b")

    user.beside(other())
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.reboot("a", soft=False)


async def delete_on_a_dead_host(user: User) -> None:
    """The host falls silent with the guest running; the user deletes; the host comes back much later."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.host_dies(150.0)
    await user.wait(70.0)
    await user.delete("a")
    await user.until("a", "DELETED")
    await user.create("b")


async def host_dies_in_delete(user: User) -> None:
    """The delete is accepted and its host falls silent: the user does not wait for that host."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.delete("a")
    await user.host_dies(700.0)
    await user.until("a", "DELETED")


async def whole_life(user: User) -> None:
    await stop_and_start(user)
    await user.reboot("a", soft=True)
    await user.until("a", "ACTIVE")
    await user.reboot("a", soft=False)
    await user.until("a", "ACTIVE")
    await user.delete("a")


async def one_after_another(user: User) -> None:
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.create("b")
    await user.until("b", "ACTIVE")
    await user.delete("a")
    await user.until("a", "DELETED")
    await user.stop("b")


SETBACK_ONLY: dict[str, Script] = {script.__name__: script for script in (one_after_another,)}
"""Scenarios whose commits differ in what a copy of the store knows; single faults find nothing new here."""


async def host_lost_while_building(user: User) -> None:
    """Its host falls silent before there is a disk; an operator declares it lost; it comes back later."""
    await user.create("a")
    await user.wait(1.0)
    await user.host_of_dies("a", 60.0)
    await user.wait(10.0)
    await user.lose()
    await user.until("a", "ACTIVE")


async def host_struck_off_and_back(user: User) -> None:
    """A host is given up with the data on it, joins again after all, and nothing was lost."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.host_of_dies("a", 60.0)
    await user.lose()
    await user.strike()
    await user.until("a", "ERROR")
    await user.create("b")
    await user.until("b", "ACTIVE")
    await user.join_again("a")
    await user.until("a", "ACTIVE")


async def delete_on_a_host_struck_off(user: User) -> None:
    """What was deleted meanwhile is cleaned up by the host once it has joined again."""
    await user.create("a")
    await user.until("a", "ACTIVE")
    await user.host_of_dies("a", 60.0)
    await user.lose()
    await user.strike()
    await user.delete("a")
    await user.until("a", "DELETED")
    await user.create("b")
    await user.until("b", "ACTIVE")
    await user.join_again("a")


TWO_HOSTS = frozenset({"host_lost_while_building", "host_struck_off_and_back", "delete_on_a_host_struck_off"})
"""Scenarios with a second host to go on with."""

SLOW = TWO_HOSTS | frozenset(
    {
        "delete_on_a_dead_host",
        "host_dies_in_delete",
        "disk_full_for_a_while",
        "reset_after_failed_starts",
        "revert_of_a_resize_that_failed",
        "image_on_a_dead_host",
        "image_of_no_use",
    }
)
"""Scenarios in which nothing happens for minutes of virtual time."""

SCENARIOS: dict[str, Script] = {
    script.__name__: script
    for script in (
        create,
        create_and_delete,
        delete_while_building,
        delete_while_starting,
        delete_at_once,
        host_lost_while_building,
        host_struck_off_and_back,
        delete_on_a_host_struck_off,
        stop,
        stop_and_start,
        reboot_hard,
        reboot_soft,
        power_off_inside,
        image_of_no_use,
        pause,
        pause_and_unpause,
        delete_while_pausing,
        reboot_while_pausing,
        suspend,
        suspend_and_resume,
        suspend_twice,
        cold_boot_of_what_was_suspended,
        reboot_while_suspending,
        delete_while_suspending,
        rebuild,
        rebuild_twice,
        rebuild_what_is_off,
        delete_while_rebuilding,
        rebuild_after_the_disk_was_lost,
        resize_and_confirm,
        resize_and_revert,
        resize_what_is_off,
        power_off_inside_a_resized,
        delete_while_resizing,
        delete_while_reverting,
        revert_of_a_resize_that_failed,
        resize_with_room_for_one,
        image_of_a_running_server,
        image_of_a_stopped_server,
        delete_while_an_image_is_made,
        delete_an_image_that_is_made,
        power_off_while_an_image_is_made,
        image_on_a_dead_host,
        shelve_and_unshelve,
        shelve_what_is_suspended,
        delete_while_shelving,
        unshelve_when_there_is_room_again,
        disk_full_for_a_while,
        reset_after_failed_starts,
        delete_while_stopping,
        two_at_once,
        delete_on_a_dead_host,
        host_dies_in_delete,
        whole_life,
    )
}
