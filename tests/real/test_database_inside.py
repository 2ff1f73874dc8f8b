"""What a tenant's root inside an instance may not do: read keys, files, other instances or backups, become
more than it is, or run anything. Against the real server in its container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.proof import proves
from tests.real.database_cloud import PASSWORD, DatabaseCloud, Instance, login

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.xdist_group("database"),
    pytest.mark.timeout(300),
]

READS = [
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "CREATE TEMP TABLE stolen (line text); COPY stolen FROM PROGRAM 'cat /etc/passwd'",
    "CREATE TEMP TABLE stolen (line text); COPY stolen FROM '/etc/passwd'",
    "COPY (SELECT 1) TO '/tmp/left'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_file('/var/lib/unstuck/database/tls/server.key')",
    "SELECT pg_read_binary_file('postgresql.conf')",
    "SELECT pg_ls_dir('/var/lib/unstuck')",
    "SELECT pg_stat_file('/run/unstuck/init.sock')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(lo_from_bytea(0, 'x'), '/tmp/left')",
    "SELECT * FROM pg_authid",
    "SELECT * FROM pg_shadow",
    "SELECT * FROM pg_hba_file_rules",
    "SELECT * FROM pg_file_settings",
    "SELECT pg_backup_start('mine')",
    "SELECT pg_create_physical_replication_slot('mine')",
    "SELECT pg_switch_wal()",
    "SELECT pg_reload_conf()",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IS NULL AND usename IS NULL",
]
"""Each reads, writes or runs something that is not the database's own."""

RISES = [
    "ALTER SYSTEM SET archive_command = 'id > /tmp/left'",
    "ALTER ROLE root SUPERUSER",
    "CREATE ROLE more SUPERUSER",
    "CREATE ROLE more REPLICATION LOGIN",
    "CREATE ROLE more BYPASSRLS",
    "ALTER ROLE postgres PASSWORD 'mine'",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "GRANT postgres TO root",
    "GRANT pg_read_server_files TO root",
    "GRANT pg_write_server_files TO root",
    "GRANT pg_execute_server_program TO root",
    "CREATE ROLE more IN ROLE pg_execute_server_program",
    "ALTER GROUP pg_read_server_files ADD USER root",
    "ALTER ROLE pg_execute_server_program NOSUPERUSER",
    "CREATE EXTENSION adminpack",
    "CREATE EXTENSION file_fdw",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION plpython3u",
    "CREATE EXTENSION pageinspect",
    "CREATE LANGUAGE plpython3u",
    "CREATE FUNCTION run(cstring) RETURNS int AS '/lib/x86_64-linux-gnu/libc.so.6', 'system' LANGUAGE C",
    "SET session_preload_libraries = '/tmp/mine'",
    "ALTER ROLE root SET session_preload_libraries = '/tmp/mine'",
    "LOAD '/lib/x86_64-linux-gnu/libc.so.6'",
    "UPDATE pg_authid SET rolsuper = true",
    "CREATE TABLESPACE mine LOCATION '/var/lib/unstuck'",
    "ALTER DATABASE postgres OWNER TO root",
    "CREATE SUBSCRIPTION mine CONNECTION 'host=/run/unstuck/pg user=postgres' PUBLICATION p",
]
"""Each would make root more than it is, or load what runs as the server."""


@pytest.fixture
def root(shop: Instance) -> Iterator[Instance]:
    """The instance, with root enabled."""
    shop.api.ask("POST", f"/instances/{shop.id}/root", json={"password": PASSWORD})
    yield shop
    shop.api.ask("DELETE", f"/instances/{shop.id}/root")


def powers(shop: Instance) -> list[tuple[Any, ...]]:
    """Who may what, as any user sees it."""
    with login(shop.address, "shop") as connection:
        return connection.execute(
            "SELECT rolname, rolsuper, rolreplication, rolbypassrls FROM pg_roles ORDER BY rolname"
        ).fetchall()


def tried(shop: Instance, statements: list[str], database: str = "postgres") -> list[str]:
    """Those that were not refused."""
    done = []
    for statement in statements:
        with login(shop.address, database, user="root") as connection:
            try:
                connection.execute(statement)
            except psycopg.Error:
                continue
            done.append(statement)
    return done


@proves("B21", ends="refused by the server, each for itself")
def test_root_reads_runs_and_becomes_nothing_more(root: Instance) -> None:
    before = powers(root)
    server = root.postmaster()
    for database in ("postgres", "shop"):
        assert "\n".join(tried(root, [*READS, *RISES], database)) == ""
    assert powers(root) == before
    assert root.postmaster() == server
    root.writes_go_on()
    root.free()


@proves("B21", ends="no way out: not over the network, the agent's socket, or the server's own")
def test_root_comes_to_no_other_instance_and_not_to_the_host(made: DatabaseCloud, root: Instance) -> None:
    """A trusted language could connect anywhere if there were one; what reaches out from SQL does not."""
    with login(root.address, "shop", user="root") as connection:
        languages = connection.execute("SELECT lanname FROM pg_language WHERE lanpltrusted").fetchall()
        offered = connection.execute(
            "SELECT name FROM pg_available_extension_versions WHERE trusted ORDER BY name"
        ).fetchall()
    assert {row[0] for row in languages} == {"plpgsql", "sql"}
    risky = {"dblink", "postgres_fdw", "file_fdw", "adminpack", "plperl", "plpython3u", "pltcl"}
    assert not risky & {row[0] for row in offered}, offered
    secrets = [made.cloud.state.keys, made.cloud.state.secrets, made.cloud.state.recovery]
    inside = f"/proc/{root.agent()}/root"
    for path in (*secrets, made.state_backups, made.cloud.state.store):
        with pytest.raises(OSError, match=r"No such file|Permission"):
            Path(inside + str(path)).stat()
    environment = Path(f"/proc/{root.agent()}/environ").read_bytes()
    assert b"AWS" not in environment
    assert b"SECRET" not in environment.upper()
    root.free()


@pytest.mark.timeout(900)
@proves(
    "B23", ends="it reaches its own container's files and programs, nothing else; bounded again when it ends"
)
def test_a_superuser_that_the_operator_allows_is_one_in_its_own_container_only(
    made: DatabaseCloud, shop: Instance
) -> None:
    cloud = made.cloud
    shop.api.ask("POST", f"/instances/{shop.id}/root", json={"password": PASSWORD})
    assert tried(shop, ["COPY (SELECT 1) TO PROGRAM 'true'"]) == []
    cloud.kill("control")
    cloud.environment["UNSTUCK_DATABASE_SUPERUSER"] = "1"
    cloud.start("control")
    try:

        def is_super() -> bool:
            shop.api.ask("POST", f"/instances/{shop.id}/root", json={"password": PASSWORD})
            return ("root", True, False, False) in powers(shop)

        cloud.until("root is a superuser", is_super)
        run = "COPY (SELECT 1) TO PROGRAM '{}'"
        assert tried(shop, [run.format("cat > /dev/null")])
        paths = [cloud.state.keys, cloud.state.secrets, cloud.state.recovery, made.state_backups]
        assert tried(shop, [run.format(f"cat > /dev/null; ls {path}") for path in paths]) == []
        assert tried(shop, [run.format("cat > /dev/null; kill -9 1"), "CREATE ROLE more SUPERUSER"]) == [
            "CREATE ROLE more SUPERUSER"
        ]
        backup = shop.completed(shop.request())["id"]
    finally:
        cloud.kill("control")
        del cloud.environment["UNSTUCK_DATABASE_SUPERUSER"]
        cloud.start("control")
    supers = {"postgres", "pg_execute_server_program", "pg_read_server_files", "pg_write_server_files"}
    cloud.until("nobody is a superuser", lambda: {row[0] for row in powers(shop) if row[1]} <= supers)
    assert tried(shop, [READS[0], READS[4], *RISES[:7], *RISES[9:12]]) == []
    assert shop.backup(backup)["status"] == "COMPLETED"
    restored = shop.restore(backup)  # in it root was a superuser
    cloud.until("nobody is one there", lambda: {row[0] for row in powers(restored) if row[1]} <= supers)
    restored.delete()
    with login(shop.address, "postgres", user="root") as connection:
        connection.execute("DROP ROLE more")
    shop.api.ask("DELETE", f"/instances/{shop.id}/root")
    shop.free()


@proves("B21", ends="a stolen channel grants nothing of another instance, and deletes nothing")
def test_the_agents_channel_gives_no_other_instances_backups(made: DatabaseCloud, shop: Instance) -> None:
    """Whoever is root in the guest may speak on its channel: all it can name is its own present attempt."""
    backup = shop.completed(shop.request())["id"]
    before = {entry.key: entry.size for entry in made.entries()}
    script = (
        "import asyncio, json, sys, msgspec\n"
        "from pathlib import Path\n"
        "from unstuck.guest.channel import Channel\n"
        "from unstuck.core.instance import guestwire as w\n"
        "async def main():\n"
        "    c = Channel(Path(sys.argv[1]))\n"
        "    asyncio.ensure_future(c.run())\n"
        "    said = []\n"
        "    for ask in (w.Hello('f' * 32, w.PROTOCOL, 'x'), w.AskRestore(), w.Fetch(0),\n"
        f"                w.Take('{backup}', 'a' * 32), w.GiveUp('{backup}', 'a' * 32, 'x', True),\n"
        f"                w.Renew('{backup}', 'a' * 32, 'copying', 1, 0.0)):\n"
        "        answer, blob = await asyncio.wait_for(c.ask(ask, b''), 20)\n"
        "        said.append([type(ask).__name__, type(answer).__name__, len(blob)])\n"
        "    print(json.dumps(said))\n"
        "asyncio.run(main())\n"
    )
    said = shop.run_inside(script, "/run/unstuck-host/agent.sock")
    answers = {name: (answer, length) for name, answer, length in json.loads(said)}
    assert answers["Hello"][0] == "Welcome"
    assert {answers[name] for name in ("AskRestore", "Fetch", "Take", "GiveUp", "Renew")} == {("Refused", 0)}
    assert {entry.key: entry.size for entry in made.entries()} == before
    assert shop.backup(backup)["status"] == "COMPLETED"
    shop.free()
