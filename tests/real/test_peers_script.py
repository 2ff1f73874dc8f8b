"""The script that strangers point at their own Nova: pointed at this cloud, nothing ends wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from bench import peers
from bench.site import HERE, Site, new_site, user

from tests.tiny_image import fake_tiny
from unstuck.cli import tiny

AGENT = "python -m bench.roomy --state {state} --driver instant"
CONTROL = "python -m unstuck.control.main --state {state} --network 10.64.0.0/16"


@pytest.fixture
def site() -> Iterator[Site]:
    with new_site("instant") as made:
        yield made
        for name in ("agent", "control"):
            pid = made.folder / f"{name}.pid"
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGKILL)


def hooks(site: Site, control: int, agent: int) -> Path:
    """Shell commands as an operator would write them."""
    said = []
    for name, command, pid in (("agent", AGENT, agent), ("control", CONTROL, control)):
        kept = site.folder / f"{name}.pid"
        kept.write_text(str(pid))
        program = command.format(state=site.state.root).replace("python", sys.executable, 1)
        start = f"cd / && PYTHONPATH={HERE} setsid {program} >> {site.folder}/log 2>&1 & echo $! > {kept}"
        said += [f"kill_{name} = 'kill -9 $(cat {kept})'", f"start_{name} = '{start}'"]
    path = site.folder / "hooks.toml"
    path.write_text("\n".join(said))
    return path


def clouds(site: Site) -> Path:
    auth = {
        "auth_url": f"{site.state.url()}/identity/v3", "username": "admin", "project_name": "admin",
        "password": site.state.password("admin"), "user_domain_id": "default", "project_domain_id": "default",
    }  # fmt: skip
    path = site.folder / "clouds.yaml"
    path.write_text(yaml.safe_dump({"clouds": {"here": {"auth": auth, "region_name": "RegionOne"}}}))
    return path


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_nothing_ends_wrong_here(site: Site) -> None:
    control = site.control()
    agent, _ = site.agent()
    with user(site, fake_tiny(site.folder / "image")) as client:
        flavor = str(client.flavor["id"])
    asked = ["compute", "--cloud", "here", "--hooks", str(hooks(site, control.pid, agent.pid))]
    asked += ["--image", tiny.NAME, "--flavor", flavor, "--patience", "120"]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.peers", *asked], cwd=HERE, capture_output=True, text=True, check=False,
        env={**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds(site))}, timeout=600,
    )  # fmt: skip
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert lines, ended.stderr
    assert lines[-1] == {"faults": 5, "wrong": 0}, lines
    assert ended.returncode == 0
    assert [line["shown"] for line in lines[:-1]] == ["ACTIVE", "ACTIVE", "ACTIVE", "GONE", "ACTIVE"]


def test_hooks_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "hooks.toml"
    wrong.write_text("kill_agent = 'true'\nstart_agent = 'true'\nkill_everything = 'true'")
    with pytest.raises(SystemExit):
        peers.main(["database", "--cloud", "here", "--hooks", str(wrong), "--instance", "x"])
    assert "kill_everything" in capsys.readouterr().err
