"""Anything at any time: users and mishaps of databases by a seed. Only the invariants judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.core.backup.data import Phase
from unstuck.core.errors import NotFound, Refused
from unstuck.sim.blobs import DIRECT, Mode
from unstuck.sim.parameters import TOO_MANY

if TYPE_CHECKING:
    from unstuck.sim.database_user import DatabaseUser

TURNS = 8
ACTS = (
    "backup", "backup", "backup", "backup-direct", "backup-child", "cancel", "delete-backup",
    "restart", "resize", "restore",
    "delete", "delete-to-trash", "undelete", "rebuild", "write", "create-user",
    "agent-dies", "agent-gone", "agent-frozen", "blobs", "blobs-ok", "hang", "hang-over", "control-away",
    "host-agents", "pause", "unpause", "volume-full", "volume-free", "server-crash",
    "configure", "configure-badly", "upgrade", "upgrade-badly", "attach", "detach",
)  # fmt: skip


async def chaos_of_databases(user: DatabaseUser) -> None:
    """A few instances and backups, and in the end everything that is broken is mended."""
    await user.create_db("db")
    if user.choose((True, True, False)):
        await user.ready()
        await user.write("db", 2)
    deeds = Deeds(user)
    for _ in range(TURNS):
        act = user.choose(ACTS)
        user.log(f"    *** {act}")
        try:
            await deeds.do(act)
        except (Refused, NotFound) as error:
            user.log(f"{error.status}: {error}")
        await user.wait(user.choose((0.3, 1.0, 4.0, 20.0, 70.0)))
    await deeds.mend()
    for name in sorted(deeds.instances):
        await user.db_until(
            name,
            ("ACTIVE", "HEALTHY"),
            ("RESTART_REQUIRED", "HEALTHY"),
            ("ERROR", ""),
            ("SHUTDOWN", ""),
            ("DELETED", ""),
        )


class Deeds:
    """What was made so far, and what is broken."""

    def __init__(self, user: DatabaseUser) -> None:
        self._user = user
        self.instances = ["db"]
        self._backups: list[str] = []

    async def do(self, act: str) -> None:
        user = self._user
        name = user.choose(tuple(self.instances))
        backup = user.choose(tuple(self._backups)) if self._backups else None
        match act:
            case "backup" | "backup-direct" | "backup-child":
                new = f"b{len(self._backups)}"
                where = DIRECT if act == "backup-direct" else None
                if await user.backup(new, name, location=where, incremental=act == "backup-child"):
                    self._backups.append(new)
            case "cancel" if backup:
                await user.cancel(backup)
            case "delete-backup" if backup:
                await user.delete_backup(backup)
            case "restore" if backup and len(self.instances) < 4:
                new = f"db{len(self.instances)}"
                await user.create_db(new, backup=backup)
                self.instances.append(new)
            case "restart":
                await user.try_once("restart", name)
            case "resize":
                await user.try_once("resize", name)
            case "rebuild":
                await user.try_once("rebuild", name)
            case "delete":
                await user.delete_db(name)
            case "delete-to-trash":
                await user.delete_db(name, trash=60.0)
            case "undelete":
                await user.try_once("undelete", name)
            case "configure":
                await user.configure(
                    work_mem=user.choose(("4MB", "8MB")), max_connections=user.choose((50, 60))
                )
            case "configure-badly":
                await user.configure(max_connections=int(TOO_MANY))
            case "attach" | "detach" | "upgrade" | "upgrade-badly":
                await user.try_once(act, name)
            case "write":
                user.beside(user.write(name))
            case "create-user":
                user.beside(user.create_user_if_it_lives(name))
            case _:
                await self._mishap(act, name)

    async def _mishap(self, act: str, name: str) -> None:
        user = self._user
        match act:
            case "agent-dies":
                await user.agent_dies(name)
            case "agent-gone":
                await user.agent_dies(name, back_after=user.choose((20.0, 100.0)))
            case "agent-frozen":
                await user.freeze_agent(name, user.choose((10.0, 45.0, 130.0)))
            case "blobs":
                await user.blobs(user.choose(tuple(Mode)))
            case "blobs-ok":
                await user.blobs(Mode.OK)
            case "hang":
                await user.hang(name, user.choose((Phase.STARTING, Phase.COPYING, Phase.FINISHING)))
            case "hang-over":
                await user.hang(name, None)
            case "control-away":
                await user.control_away(user.choose((5.0, 50.0)))
            case "host-agents":
                await user.restart_host_agents()
            case "pause":
                await user.try_once("pause", name)
            case "unpause":
                await user.try_once("unpause", name)
            case "volume-full":
                await user.volume_full(name, full=True)
            case "volume-free":
                await user.volume_full(name, full=False)
            case "server-crash":
                await user.crash_server(name)
            case _:
                user.log("nothing to do it with")

    async def mend(self) -> None:
        user = self._user
        await user.blobs(Mode.OK)
        for name in self.instances:
            await user.hang(name, None)
            await user.volume_full(name, full=False)
            await user.agent_comes(name)
            await user.let_go_on(name)
