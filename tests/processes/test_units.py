"""The systemd units, read as text: what each line promises to guests is held by a line here.

`tests/real/test_systemd.py` does it with systemd itself, where that is process 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS = ("unstuck-control.service", "unstuck-host.service")
HOST = "unstuck-host.service"

Unit = dict[tuple[str, str], list[str]]

INHERITED = {
    "mounts": (
        "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ReadWritePaths", "ReadOnlyPaths",
        "InaccessiblePaths", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "PrivateMounts",
        "MountFlags", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
        "ProtectControlGroups", "ProtectProc", "ProcSubset", "RootDirectory", "RootImage", "MountAPIVFS",
    ),
    "namespaces": ("PrivateNetwork", "NetworkNamespacePath", "PrivateUsers", "PrivateIPC",
                   "RestrictNamespaces",
                   "JoinsNamespaceOf"),
    "devices": ("DeviceAllow", "DevicePolicy", "ProtectClock"),
    "privileges": ("SystemCallFilter", "CapabilityBoundingSet", "RestrictAddressFamilies",
                   "MemoryDenyWriteExecute", "RestrictSUIDSGID", "DynamicUser", "User"),
    "room": ("MemoryMax", "MemoryHigh", "CPUQuota", "IPAddressDeny"),
}  # fmt: skip
"""What a guest would keep for as long as it runs, because it was started by the agent."""


def read(name: str) -> Unit:
    """(section, key) to values. configparser knows no key that comes twice."""
    found: Unit = {}
    section = ""
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith(("#", ";")):
            key, value = line.split("=", 1)
            found.setdefault((section, key), []).append(value)
    return found


def one(unit: Unit, key: str, section: str = "Service") -> str:
    values = unit[section, key]
    assert len(values) == 1, f"{key} is there {len(values)} times"
    return values[0]


@pytest.mark.parametrize("name", UNITS)
def test_neither_is_ever_left_dead(name: str) -> None:
    unit = read(name)
    assert one(unit, "Restart") == "always"
    assert one(unit, "StartLimitIntervalSec", "Unit") == "0"
    assert ("Service", "StartLimitIntervalSec") not in unit  # it would be ignored there
    assert not any(key in ("RestartPreventExitStatus", "SuccessExitStatus") for _, key in unit)
    assert float(one(unit, "RestartSec")) <= 5
    assert one(unit, "WantedBy", "Install") == "multi-user.target"


@pytest.mark.parametrize("name", UNITS)
def test_neither_falls_with_something_else(name: str) -> None:
    """A requirement would stop it when the other one stops."""
    unit = read(name)
    bound = {"Requires", "BindsTo", "PartOf", "Requisite", "StopPropagatedFrom", "Conflicts"}
    assert not bound & {key for section, key in unit if section == "Unit"}
    assert one(unit, "OOMPolicy") == "continue"


@pytest.mark.parametrize("name", UNITS)
def test_ready_is_said_and_silence_is_noticed(name: str) -> None:
    unit = read(name)
    assert one(unit, "Type") == "notify"
    assert one(unit, "NotifyAccess") == "main"  # a guest must not speak for its agent
    assert float(one(unit, "WatchdogSec")) >= 30
    assert float(one(unit, "TimeoutStopSec")) >= 15


@pytest.mark.parametrize("name", UNITS)
def test_both_know_one_state_folder_that_nobody_else_reads(name: str) -> None:
    unit = read(name)
    assert one(unit, "StateDirectory") == "unstuck"
    assert one(unit, "StateDirectoryMode") == "0700"
    assert one(unit, "UMask") == "0077"
    assert "--state /var/lib/unstuck" in one(unit, "ExecStart")
    assert one(unit, "RequiresMountsFor", "Unit") == "/var/lib/unstuck"  # else an empty folder would be seen
    assert not any("password" in value.lower() for values in unit.values() for value in values)


def test_nothing_that_happens_to_the_agents_unit_ends_a_guest() -> None:
    unit = read(HOST)
    assert one(unit, "KillMode") == "process"
    assert not any(key in ("ExecStop", "ExecStopPost", "ExecReload", "RuntimeMaxSec") for _, key in unit)
    assert one(unit, "TasksMax") == "infinity"
    assert one(unit, "LimitMEMLOCK") == "infinity"


@pytest.mark.parametrize("kind", INHERITED)
def test_guests_inherit_nothing_that_hems_them_in(kind: str) -> None:
    assert not set(INHERITED[kind]) & {key for _, key in read(HOST)}


def test_the_control_plane_is_alone_with_its_children_and_may_do_little() -> None:
    unit = read("unstuck-control.service")
    assert one(unit, "KillMode") == "mixed"
    assert one(unit, "CapabilityBoundingSet") == ""
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictNamespaces"):
        assert one(unit, key) == "yes"
    assert one(unit, "ProtectSystem") == "strict"
    # It is the one to replace a frozen predecessor that systemd does not know of (`unstuck up`).
    assert "--take-over" in one(unit, "ExecStart")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_every_line(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8").replace("/opt/unstuck/bin/unstuck", sys.executable)
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    ours = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    assert (done.returncode, ours) == (0, [])
