"""``unstuck doctor``: is this machine fit, and is here what the store says?

It changes nothing, but where an operator accepts what it showed after the store was set back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from cyclopts import Parameter

from unstuck.cli.checks import Check, machine
from unstuck.cli.cloud import CLOCK_STANDS, connect, show_json, state_of
from unstuck.cli.errors import CliError
from unstuck.cli.reality import Difference, Expected, compare, look
from unstuck.cli.words import counted, plain
from unstuck.runtime.locks import holder
from unstuck.runtime.processes import stopped
from unstuck.runtime.state import HostFile, State, StateError

if TYPE_CHECKING:
    from unstuck.store.readable import Unreadable
    from unstuck.store.tx import Tx

T = TypeVar("T")

SETTLE = 5.0
"""Seconds over which a difference must stay to be one: what is just being done is none."""


def doctor(
    *,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    accept: str | None = None,
    project: str | None = None,
    give_up: Annotated[list[str] | None, Parameter(negative="")] = None,
    recovery_saved: Annotated[bool, Parameter(negative="")] = False,
    state: Path | None = None,
) -> int:
    """Check this machine, and compare the store with what is here; changes nothing, but with --accept.

    Exit code 1 where something does not work or differs.

    Parameters
    ----------
    output
        text or json.
    accept
        Settle what is in dispute after the store was set back, exactly as doctor showed it under this id.
    project
        With --accept: the project of servers whose own project the store does not know.
    give_up
        With --accept: id of a server that the store had lost, to be deleted with its disk.
    recovery_saved
        Say that a copy of the recovery file is kept elsewhere; doctor reminds of it until then.
    state
        The state folder.
    """
    found = state_of(state)
    if recovery_saved:
        return _saved(found)
    if accept is not None:
        return _accept(found, accept, project, give_up or [])
    try:
        driver = found.read().driver if found.prepared() else "qemu"
    except StateError as error:
        raise CliError(str(error)) from None
    checks = [*machine(found, driver), *_processes(found), *_records(found), *_keys(found)]
    checks += _databases(found)
    differing = differences(found, driver) if found.prepared() else []
    recovery = _recovery(found) if found.prepared() else None
    bad = bool(differing or recovery) or any(check.level == "fault" for check in checks)
    if output == "json":
        show_json({"ok": not bad, "checks": checks, "differences": differing, "recovery": recovery})
    else:
        _print(checks, differing)
        _print_recovery(recovery)
    return 1 if bad else 0


def _keys(state: State) -> list[Check]:
    """Whether backups can be opened here, and elsewhere when this machine is lost."""
    from unstuck.blobs import keyring

    folder = Path(os.environ.get("UNSTUCK_KEYS") or state.keys)
    if not state.prepared() or not state.store.exists():
        return []
    out = []
    try:
        found = keyring.load(folder)
        out.append(Check("keys", "ok", f"backups of cloud {found.public.cloud_id} can be opened here"))
    except keyring.KeysUnusable as error:
        detail = f"no backup can be made or restored: {error}"
        out.append(Check("keys", "fault", detail, "Servers and databases go on meanwhile."))
    if state.recovery.exists() and not keyring.recovery_saved(folder):
        remedy = "Keep a copy elsewhere, then say: unstuck doctor --recovery-saved"
        out.append(Check("recovery key", "note", f"{state.recovery} may be the only copy", remedy))
    return out


def _databases(state: State) -> list[Check]:
    """Of the cloud that runs."""
    from unstuck.cli.dbcheck import datastore_versions

    if not state.prepared() or holder(state.control_lock) is None:
        return []
    with connect(state) as cloud:
        return datastore_versions(cloud, state)


def _saved(state: State) -> int:
    from unstuck.blobs import keyring

    folder = Path(os.environ.get("UNSTUCK_KEYS") or state.keys)
    if not (folder / "cloud.json").exists():
        raise CliError(f"There are no keys in {folder} yet; `unstuck up` makes them.")
    keyring.say_recovery_saved(folder)
    print("Noted: the recovery key is kept elsewhere, too.")
    return 0


def _recovery(state: State) -> dict[str, Any] | None:
    """What is in dispute after the store was set back, as the running control plane says."""
    try:
        with connect(state) as cloud:
            found: dict[str, Any] | None = cloud.get("/unstuck/v1/recovery")["recovery"]
    except CliError:
        return None  # it does not answer, which is told elsewhere
    return found


def _accept(state: State, diff_id: str, project: str | None, give_up: list[str]) -> int:
    body = {"id": diff_id, "project": project, "give_up": give_up}
    with connect(state) as cloud:
        done = cloud.ask("POST", "/unstuck/v1/recovery/accept", json=body).json()
    for item in done["accepted"]:
        given_up = item["id"] in give_up
        action = "it is deleted with its disk, as you said" if given_up else item["action"]
        print(f"{item['kind']} {item['name']} ({item['id']}): {action}")
    print("Settled: store and hosts agree again.")
    return 0


def _print_recovery(found: dict[str, Any] | None) -> None:
    if found is None:
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found["since"]))
    print(f"The store was set back; noticed {when}: {found['why']}.")
    print("What store and hosts agree on goes on by itself. Nothing is collected meanwhile.")
    for name in found["waiting_for"]:
        print(f"WAIT  host {name} has not said what it holds: start its agent, or disable the host")
    for item in found["items"]:
        print(f"DISPUTE  {item['kind']}: {item['name']} ({item['id']}): {item['detail']}")
        print(f"      -> when accepted: {item['action']}")
    if any(item["kind"] == "server-unknown" for item in found["items"]):
        print("A server that the store had lost is deleted instead with --give-up ITS-ID.")
    if found["items"] and not found["waiting_for"]:
        print(f"To settle all of it: unstuck doctor --accept {found['id']}")


def _processes(state: State) -> list[Check]:
    """Whether ours run, and are not frozen."""
    if not state.prepared():
        return []
    out = []
    places = (
        ("supervisor", state.supervisor_lock),
        ("control", state.control_lock),
        ("host", state.host_lock),
    )
    for name, lock in places:
        found = holder(lock)
        if found is None:
            out.append(Check(name, "note", "not running", "`unstuck up` starts it."))
        elif stopped(found.pid):
            out.append(Check(name, "fault", f"process {found.pid} is stopped", f"kill -CONT {found.pid}"))
        else:
            out.append(Check(name, "ok", f"process {found.pid}"))
    return out


def _records(state: State) -> list[Check]:
    """Rows of the store that cannot be read (each spoils itself only), and whether its clock goes."""
    from unstuck.store import readable

    if not state.prepared():
        return []
    out: list[Check] = []
    control = holder(state.control_lock)
    if control is not None:
        with connect(state) as cloud:
            rows = msgspec.convert(
                cloud.get("/unstuck/v1/unreadable")["unreadable"], list[readable.Unreadable]
            )
            out.append(_clock(float(cloud.get("/unstuck/v1/status")["clock_age"]), control.pid))
    elif state.store.exists():
        rows = _read_store(state, readable.find_unreadable)
    else:
        return []
    return out + [Check("store", "fault", _unreadable(row), row.remedy) for row in rows]


def _clock(age: float, pid: int) -> Check:
    """The control plane may answer while its loop is dead: then no deadline comes and no delete ends."""
    if age <= CLOCK_STANDS:
        return Check("clock", "ok", f"advanced {age:.1f} s ago")
    detail = f"the store's clock has stood still for {age:.0f} s: no lease ends and nothing overdue is seen"
    return Check("clock", "fault", detail, f"Look at `unstuck logs control`; kill {pid} starts it anew.")


def _unreadable(row: Unreadable) -> str:
    return f"{', '.join(row.columns)} of {row.kind} {row.name} ({row.id}) cannot be read"


def differences(state: State, driver: str) -> list[Difference]:
    """Between store and machine, those that stay. With the control plane down nothing is on its way, so one
    look is enough."""
    expected, live = read_expected(state)
    if expected is None:
        return []
    found = compare(expected, look(state), driver)
    end = time.monotonic() + SETTLE
    while found and live and time.monotonic() < end:
        time.sleep(0.5)
        expected, live = read_expected(state)
        again = compare(expected or [], look(state), driver)
        kept = {(item.kind, item.what) for item in found}
        found = [item for item in again if (item.kind, item.what) in kept]
    return found


def read_expected(state: State) -> tuple[list[Expected] | None, bool]:
    """What should be on this host, and whether the control plane said it. None: there is no store yet."""
    host_id = _host_id(state)
    if holder(state.control_lock) is not None:
        with connect(state) as cloud:
            answer = cloud.get("/unstuck/v1/inventory")
        hosts: list[dict[str, Any]] = answer["hosts"]
        mine: list[Any] = next((host["placements"] for host in hosts if host["id"] == host_id), [])
        return msgspec.convert(mine, list[Expected]), True
    if not state.store.exists():
        return None, False
    return _from_store(state, host_id), False


def _from_store(state: State, host_id: str) -> list[Expected]:
    """The same function that the API uses, on the file itself; a read-only transaction."""
    from unstuck.store.overview import inventory

    found = _read_store(state, inventory).placements.get(host_id, [])
    return msgspec.convert(msgspec.to_builtins(found), list[Expected])


def _read_store(state: State, question: Callable[[Tx], T]) -> T:
    from unstuck.store.engine import Store, StoreUnavailable

    store = Store(state.store_url)
    try:
        return store.read(question)
    except StoreUnavailable as error:
        raise CliError(f"The store {state.store} cannot be read: {error}.") from None
    finally:
        store.close()


def _host_id(state: State) -> str:
    try:
        return msgspec.json.decode((state.host / "host.json").read_bytes(), type=HostFile).host_id
    except (OSError, msgspec.DecodeError) as error:
        raise CliError(f"The host's identity in {state.host} cannot be read: {error}.") from None


def _print(checks: list[Check], differences: list[Difference]) -> None:
    marks = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}
    for check in checks:
        print(plain(f"{marks[check.level]} {check.name}: {check.detail}"))
        if check.remedy and check.level != "ok":
            print(plain(f"      -> {check.remedy}"))
    for item in differences:
        print(plain(f"DIFF  {item.kind}: {item.what}: {item.detail}"))
        print(plain(f"      -> {item.remedy}"))
    faults = sum(check.level == "fault" for check in checks)
    if faults or differences:
        found = f"{counted(faults, 'fault')}, {counted(len(differences), 'difference')}"
        print(f"{found} between the store and this machine.")
    else:
        print("This machine is fit, and everything is as the store says.")
