"""`unstuck` as its user meets it: real processes on a port of their own, guests that are files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.tiny_image import fake_tiny

from unstuck.cli.cloud import COMPUTE, Cloud, connect
from unstuck.cli.errors import CliError
from unstuck.cli.supervisor import last_reason, size_of
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import ProcessId, end, lives
from unstuck.runtime.state import State

DEADLINE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any]) -> Any:
    """Poll for something that another process does, under a deadline far away."""
    end_of_patience = time.monotonic() + DEADLINE
    while time.monotonic() < end_of_patience:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


class Cli:
    """The command, with a state folder and a home of its own."""

    def __init__(self, tmp_path: Path, folder: Path | None = None) -> None:
        self.home = tmp_path / "home"
        self.home.mkdir()
        self.state = State(folder or tmp_path / "state")
        self.port = free_port()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("UNSTUCK", "OS_"))}
        self.environment = {**kept, "HOME": str(self.home), "UNSTUCK_STATE": str(self.state.root)}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "unstuck.cli.main", *words]

    def run(self, *words: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            self.command(*words), env={**self.environment, **environment}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def up(self, **environment: str) -> str:
        words = ("up", "--detach", "--driver", "instant", "--port", str(self.port))
        return self.run(*words, **environment)

    def holders(self) -> dict[str, ProcessId | None]:
        locks = {
            "supervisor": self.state.supervisor_lock,
            "control": self.state.control_lock,
            "host": self.state.host_lock,
        }
        return {name: holder(path) for name, path in locks.items()}

    def clean_up(self) -> None:
        """Only what we started, by verified identity."""
        for name in ("supervisor", "host", "control"):
            found = self.holders()[name]
            if found is not None:
                end(found, signal.SIGKILL, 10.0)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.clean_up()


def healthy(cli: Cli) -> bool:
    try:
        answer = httpx2.get(f"http://127.0.0.1:{cli.port}/healthz", timeout=5.0, trust_env=False)
    except httpx2.TransportError:
        return False
    return answer.status_code == 200


def test_up_status_doctor_down(cli: Cli) -> None:
    said = cli.up()
    assert f"Unstuck is up at http://127.0.0.1:{cli.port}" in said
    assert "OS_CLOUD=unstuck" in said
    names = yaml.safe_load((cli.home / ".config/openstack/clouds.yaml").read_text())["clouds"]
    assert names.keys() == {"unstuck", "unstuck-admin"}
    first = cli.holders()
    assert all(first.values())
    assert "up already" in cli.up()
    assert cli.holders() == first

    status = json.loads(cli.run("status", "-o", "json"))
    assert status["servers"] == []
    assert [host["state"] for host in status["hosts"]] == ["up"]
    assert "0 servers on 1 host," in cli.run("status")
    doctor = json.loads(cli.run("doctor", "-o", "json"))
    assert doctor["ok"]
    assert doctor["differences"] == []
    assert "host agent starts" in cli.run("logs", "host")
    assert "no server nobody" in cli.run("explain", "server", "nobody", code=1)

    assert "Guests go on running" in cli.run("down")
    assert not any(cli.holders().values())
    assert "was not running" in cli.run("down")
    assert "does not answer" in cli.run("status", code=1)
    cli.run("doctor")  # with the control plane down it reads the store itself

    assert f"http://127.0.0.1:{cli.port}" in cli.up()
    cli.run("down", "--guests")


@pytest.mark.slow
def test_what_died_is_started_again(cli: Cli) -> None:
    cli.up()
    for name in ("control", "host"):
        before = cli.holders()[name]
        assert before is not None
        end(before, signal.SIGKILL, 10.0)
        until(lambda name=name, before=before: cli.holders()[name] not in (None, before))
    until(lambda: healthy(cli))
    assert json.loads(cli.run("doctor", "-o", "json"))["ok"]


@pytest.mark.slow
def test_a_new_supervisor_adopts_what_runs(cli: Cli) -> None:
    cli.up()
    first = cli.holders()
    assert first["supervisor"] is not None
    assert first["control"] is not None
    end(first["supervisor"], signal.SIGKILL, 10.0)
    assert lives(first["control"])
    cli.up()
    second = cli.holders()
    assert (second["control"], second["host"]) == (first["control"], first["host"])
    assert second["supervisor"] != first["supervisor"]
    cli.run("down")
    assert not any(cli.holders().values())


def test_secrets_are_private_and_in_no_argument(cli: Cli) -> None:
    cli.up()
    secrets = [path.read_text() for path in cli.state.secrets.iterdir()]
    secrets.append((cli.state.host / "secret").read_text())
    for path in [*cli.state.secrets.iterdir(), cli.state.host / "secret"]:
        assert path.stat().st_mode & 0o077 == 0
    for found in cli.holders().values():
        assert found is not None
        arguments = Path(f"/proc/{found.pid}/cmdline").read_text()
        assert not any(secret in arguments for secret in secrets)
    logs = "".join(path.read_text() for path in cli.state.logs.iterdir())
    assert not any(secret in logs for secret in secrets)


def test_in_the_foreground_an_interrupt_ends_it(cli: Cli) -> None:
    child = subprocess.Popen(
        cli.command("up", "--driver", "instant", "--port", str(cli.port)), env=cli.environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    else:
        pytest.fail("".join(lines))
    child.send_signal(signal.SIGINT)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait(60) == 0
    assert "guests go on running" in rest
    assert not any(cli.holders().values())


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cli.port))
        taken.listen()
        words = ("up", "--detach", "--driver", "instant", "--port", str(cli.port))
        said = cli.run(*words, code=1)
    assert f"127.0.0.1:{cli.port} cannot be used" in said
    assert not any(cli.holders().values())
    cli.up()


@pytest.mark.slow
def test_a_barrier_stops_one_process_and_its_successor_gets_by(cli: Cli) -> None:
    cli.up()
    cli.run("down")
    environment = {**cli.environment, "UNSTUCK_STOP_AT": "control.heartbeat"}
    child = subprocess.Popen(
        cli.command("up", "--driver", "instant"), env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    marker = until(lambda: next(iter(cli.state.run.glob("stopped-*")), None))
    assert marker.read_text() == "control.heartbeat\n"
    host = cli.holders()["host"]
    assert host is not None
    assert marker.name == f"stopped-{host.pid}"
    assert end(host, signal.SIGKILL, 10.0)
    until(lambda: cli.holders()["host"] not in (None, host))
    until(lambda: json.loads(cli.run("status", "-o", "json"))["hosts"][0]["state"] == "up")
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 0


def create(cloud: Cloud, name: str, networks: str = "auto") -> str:
    images = {item["name"]: item for item in cloud.get("/image/v2/images")["images"]}
    flavors = cloud.get("/compute/v2.1/flavors/detail", headers=COMPUTE)["flavors"]
    flavor = min(flavors, key=lambda item: (item["ram"], item["id"]))
    body = {
        "name": name, "imageRef": images["tiny"]["id"], "flavorRef": flavor["id"], "networks": networks,
    }  # fmt: skip
    answer = cloud.ask("POST", "/compute/v2.1/servers", json={"server": body}, headers=COMPUTE)
    return str(answer.json()["server"]["id"])


def test_servers_outlive_everything_else(cli: Cli, tmp_path: Path) -> None:
    tiny = str(fake_tiny(tmp_path / "tiny"))
    assert "Uploaded the image `tiny`" in cli.up(UNSTUCK_TINY=tiny)

    def statuses() -> dict[str, str]:
        return {
            item["name"]: item["status"] for item in json.loads(cli.run("status", "-o", "json"))["servers"]
        }

    with connect(cli.state) as cloud:
        names = {item["name"] for item in cloud.get("/image/v2/images")["images"]}
        assert names == {"tiny", "tiny-kernel", "tiny-ramdisk"}
        server_id = create(cloud, "web")
    until(lambda: statuses() == {"web": "ACTIVE"})
    marker = cli.state.host / "servers" / server_id / "guest.json"
    before = marker.read_bytes(), marker.stat().st_mtime_ns
    assert "the guest runs" in cli.run("explain", "server", "web")
    assert "instant guest web" in cli.run("logs", "web")
    cli.run("down")
    assert (marker.read_bytes(), marker.stat().st_mtime_ns) == before
    cli.run("doctor")
    assert "Uploaded" not in cli.up(UNSTUCK_TINY=tiny)
    until(lambda: statuses() == {"web": "ACTIVE"})
    assert (marker.read_bytes(), marker.stat().st_mtime_ns) == before  # adopted, not started again
    cli.run("doctor")

    with connect(cli.state) as cloud:
        cloud.ask("DELETE", f"/compute/v2.1/servers/{server_id}", headers=COMPUTE)
    until(lambda: not marker.parent.exists() and statuses() == {})
    cli.run("doctor")
    assert "the server was deleted, and nothing is left" in cli.run("explain", "server", server_id)
    assert "no server web" in cli.run("explain", "server", "web", code=1)
    assert json.loads(cli.run("status", "-o", "json"))["tombstones"] == 0


@pytest.mark.slow
def test_doctor_sees_what_differs(cli: Cli, tmp_path: Path) -> None:
    cli.up(UNSTUCK_TINY=str(fake_tiny(tmp_path / "tiny")))
    with connect(cli.state) as cloud:
        server_id = create(cloud, "web")
    marker = cli.state.host / "servers" / server_id / "guest.json"
    until(marker.exists)
    stranger = cli.state.host / "servers" / "99999999-2222-4333-8444-555555555555"
    stranger.mkdir()
    found = json.loads(cli.run("doctor", "-o", "json", code=1))
    assert [(item["kind"], item["what"]) for item in found["differences"]] == [
        ("unknown-folder", stranger.name)
    ]
    assert stranger.exists()  # reported, never destroyed
    stranger.rmdir()
    assert "Ended 0 guests" in cli.run("down", "--guests")
    assert "guest-missing" in cli.run("doctor", code=1)
    assert not marker.exists()
    cli.up()
    until(marker.exists)  # what is wanted of it has not changed


@pytest.mark.slow
def test_doctor_names_a_record_that_cannot_be_read_and_the_remedy(cli: Cli, tmp_path: Path) -> None:
    cli.up(UNSTUCK_TINY=str(fake_tiny(tmp_path / "tiny")))
    with connect(cli.state) as cloud:
        server_id = create(cloud, "web")
    until((cli.state.host / "servers" / server_id / "guest.json").exists)
    with contextlib.closing(sqlite3.connect(cli.state.store, timeout=30)) as store, store:
        store.execute("UPDATE servers SET tags = '{' WHERE id = ?", (server_id,))
    for _ in range(2):  # by the control plane, then by the store itself
        said = cli.run("doctor", code=1)
        assert f"tags of server web ({server_id}) cannot be read" in said
        assert "or delete the server" in said
        cli.run("down")


@pytest.mark.slow
def test_other_settings_for_a_cloud_that_runs_are_refused_and_change_nothing(cli: Cli) -> None:
    """`up --port N` wrote N down first, and every command lost the cloud that answered on the old port."""
    cli.up()
    before = cli.state.file.read_bytes(), cli.holders()
    for words in (("--port", str(free_port())), ("--driver", "qemu"), ("--network", "10.9.0.0/24")):
        began = time.monotonic()
        said = cli.run("up", "--detach", *words, code=1)
        assert "`unstuck down` first, then `unstuck up" in said
        assert f"is up at http://127.0.0.1:{cli.port} with other settings" in said
        assert time.monotonic() - began < 30
        assert (cli.state.file.read_bytes(), cli.holders()) == before
    # The supervisor alone is gone: what it left still has the old settings.
    supervisor = before[1]["supervisor"]
    assert supervisor is not None
    end(supervisor, signal.SIGKILL, 10.0)
    assert "with other settings" in cli.run("up", "--port", str(free_port()), code=1)
    assert cli.state.file.read_bytes() == before[0]
    assert healthy(cli)


@pytest.mark.slow
def test_the_range_of_addresses_is_chosen_once(cli: Cli) -> None:
    assert "the prefix is /8 to /28" in cli.run("up", "--network", "10.9.0.0/30", code=2)
    assert "--network nonsense" in cli.run("up", "--network", "nonsense", code=2)
    words = ("up", "--detach", "--driver", "instant", "--port", str(cli.port))
    cli.run(*words, "--network", "10.9.0.0/24")
    with connect(cli.state) as cloud:
        assert [item["cidr"] for item in cloud.get("/networking/v2.0/subnets")["subnets"]] == ["10.9.0.0/24"]
    cli.run("down")
    assert "was made with 10.9.0.0/24" in cli.run(*words, "--network", "10.10.0.0/24", code=1)
    cli.run(*words)


def test_only_a_reason_of_this_start_is_told(tmp_path: Path) -> None:
    log = tmp_path / "control.log"
    log.write_text('{"reason": "an old one"}\n')
    mark = size_of(log)
    assert last_reason(log, mark) == f"see {log}"
    with log.open("a") as file:
        file.write('{"reason": "a new one"}\n{"event": "x"}\n')
    assert last_reason(log, mark) == "a new one"
    log.write_text('{"reason": "new"}\n')
    assert last_reason(log, mark) == "new"


@pytest.mark.slow
def test_a_store_that_is_damaged_is_said_at_once(cli: Cli) -> None:
    cli.up()
    cli.run("down")
    for leftover in cli.state.root.glob("store.db-*"):
        leftover.unlink()
    cli.state.store.write_bytes(b"no database" * 1000)
    began = time.monotonic()
    said = cli.run("up", "--detach", code=1)
    assert time.monotonic() - began < 45  # it took 60 s and said "see control.log"
    assert "The control plane cannot start: The store" in said
    assert "is damaged (file is not a database): put back a copy of it" in said
    assert "is damaged" in cli.run("doctor", code=1)
    assert not any(cli.holders().values())


def modes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


def test_nobody_else_can_read_anything_even_in_a_folder_that_was_there(cli: Cli, tmp_path: Path) -> None:
    cli.state.root.mkdir(mode=0o755)
    cli.state.root.chmod(0o755)
    old = os.umask(0)
    try:
        cli.up(UNSTUCK_TINY=str(fake_tiny(tmp_path / "tiny")))
        with connect(cli.state) as cloud:
            server_id = create(cloud, "web")
        until((cli.state.host / "servers" / server_id / "guest.json").exists)
    finally:
        os.umask(old)
    found = modes(cli.state.root)
    assert any(path.endswith("store.db") for path in found)
    assert any(path.endswith("-wal") for path in found)
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}


def test_a_folder_with_other_things_in_it_is_refused_not_closed(cli: Cli) -> None:
    cli.state.root.mkdir()
    cli.state.root.chmod(0o755)
    (cli.state.root / "holiday.jpg").touch()
    said = cli.run("up", "--driver", "instant", code=1)
    assert "may be entered by others and holds other things" in said
    assert cli.state.root.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in cli.state.root.iterdir()] == ["holiday.jpg"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else too")
def test_somebody_elses_cloud_is_no_bug(cli: Cli, tmp_path: Path) -> None:
    cli.up()
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    cli.home.chmod(0o777)
    for words in (("down",), ("up", "--detach"), ("status",), ("doctor",), ("logs",)):
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *cli.command(*words)],
            env=cli.environment, capture_output=True, text=True, timeout=120, check=False, cwd="/",
        )  # fmt: skip
        assert done.returncode in (1, 2), (words, done)
        assert "this is a bug" not in done.stderr, words
        assert "root" in done.stderr + done.stdout or "owner" in done.stderr, (words, done)
    assert healthy(cli)


@pytest.mark.slow
def test_without_an_image_it_says_how_to_get_one(cli: Cli) -> None:
    nowhere = str(cli.home / "nothing")
    said = cli.up(UNSTUCK_TINY=nowhere, XDG_CACHE_HOME=nowhere)
    assert "`unstuck image build` builds `tiny`" in said
    assert "`unstuck image build`" in cli.up(XDG_CACHE_HOME=nowhere)
    tiny = fake_tiny(cli.home / "tiny")
    assert "Uploaded the image `tiny`" in cli.up(UNSTUCK_TINY=str(tiny))


def test_a_process_says_a_sentence_to_a_person(cli: Cli) -> None:
    for name in ("serve", "host"):
        script = f"{' '.join(cli.command(name))} 2>&1"
        done = subprocess.run(
            ["script", "-qec", script, "/dev/null"], env=cli.environment, capture_output=True, text=True,
            timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 78
        assert done.stdout.startswith("unstuck: the ")
        assert "no cloud in" in done.stdout
        assert "{" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("sim", "replay", "nonsense"), 2, "no such schedule: nonsense"),
        (("sim", "replay", "whole_life:1:nonsense"), 2, "scenario:effect:fault"),
        (("down", "--patience", "-5"), 2, "a number of seconds, 0 or more"),
        (("explain",), 2, "KIND"),
        (("status",), 1, "no cloud in"),
        (("logs",), 1, "is not there yet"),
        (("up", "--port", "0"), 1, "a port is a number from 1 to 65535"),
        (("up", "--driver", "magic"), 2, "unstuck --help"),
        (("nonsense",), 2, "unstuck --help"),
        (("explain", "server", "x"), 1, "no cloud in"),
        (("down",), 0, "was not running"),
        (("serve",), 78, "no cloud in"),
        (("host",), 78, "no cloud in"),
    ],
)
def test_without_a_cloud_a_sentence_says_so(
    cli: Cli, words: tuple[str, ...], code: int, sentence: str
) -> None:
    assert sentence in cli.run(*words, code=code)
    assert not cli.state.prepared()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else too")
def test_set_up_in_somebody_elses_checkout_says_whose_it_is() -> None:
    """Somebody else's: outside of pytest's own folder, which is closed to other users."""
    source = Path(__file__).parents[2] / "scripts" / "setup"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        scripts = Path(folder) / "scripts"
        scripts.mkdir(mode=0o755)
        copy = scripts / "setup"
        copy.write_bytes(source.read_bytes())
        copy.chmod(0o755)
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", str(copy)],
            capture_output=True, text=True, timeout=60, check=False, cwd="/",
        )  # fmt: skip
    assert done.returncode == 1
    assert f"setup: {folder} belongs to root and may not be written by nobody: run it as root" in done.stderr


class Nobody(Cli):
    """Without root, whoever runs the test."""

    def command(self, *words: str) -> list[str]:
        who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        return [*who, *super().command(*words)]


@pytest.mark.slow
def test_without_root_a_network_is_refused_at_once_and_no_network_runs_on(tmp_path: Path) -> None:
    """The server stayed BUILD for ever."""
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("QEMU is not installed (`make setup` installs it)")
    with tempfile.TemporaryDirectory() as folder:
        cli = Nobody(Path(folder))
        if os.geteuid() == 0:
            for path in (Path(folder), cli.home):
                os.chown(path, 65534, 65534)
        tiny = fake_tiny(tmp_path / "tiny")
        for path in (tiny, *tiny.parents):
            if path == Path("/tmp"):
                break
            path.chmod(0o755)
        try:
            cli.run("up", "--detach", "--port", str(cli.port), UNSTUCK_TINY=str(tiny))
            with connect(cli.state) as cloud:
                with pytest.raises(
                    CliError, match=r"networks need root: start Unstuck as root.*--no-network"
                ):
                    create(cloud, "web")
                assert cloud.get("/compute/v2.1/servers")["servers"] == []
                create(cloud, "alone", "none")
            found = modes(cli.state.root)
            assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}
        finally:
            cli.run("down", "--guests")
