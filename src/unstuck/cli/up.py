"""``unstuck up``: make the state folder, start what is missing, wait for the first answer."""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from unstuck.cli import clouds, ranges
from unstuck.cli.errors import CliError
from unstuck.cli.supervisor import Supervisor, failed_file, last_reason, size_of
from unstuck.runtime.files import write_whole
from unstuck.runtime.locks import FileLock, Held, holder
from unstuck.runtime.processes import ProcessId, end_for_sure
from unstuck.runtime.state import State, StateError, default_state, prepare, prepare_folder

START_SECONDS = 60.0
_UNUSABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO})


class Running(msgspec.Struct):
    """What ``run/control.json`` and ``run/host.json`` have in common."""

    pid: int
    start: int


def up(
    *,
    detach: Annotated[bool, Parameter(negative="")] = False,
    state: Path | None = None,
    port: int | None = None,
    driver: Literal["qemu", "instant"] | None = None,
    network: str | None = None,
    backups: str | None = None,
    backups_name: str = "remote",
    backups_endpoint: str | None = None,
    backups_region: str | None = None,
    backups_credentials: Path | None = None,
    clouds_yaml: bool = True,
) -> None:
    """Start the cloud on this machine and say how to use it.

    Parameters
    ----------
    detach
        Go on in the background; `unstuck down` ends it.
    state
        Where everything lies (default: $UNSTUCK_STATE, /var/lib/unstuck, or ~/.local/state/unstuck).
    port
        TCP port of the APIs; kept for the next time.
    driver
        What runs the guests: qemu, or instant (marker files, for trying out and for tests).
    network
        Addresses of the first network, chosen when the cloud is made (default: the first free one of
        10.77.0.0/24, 10.77.1.0/24, ...).
    backups
        Where new backups go from now on: s3://bucket/prefix, or file:///folder (default: in the state
        folder).
    backups_name
        What that store of objects is called; backups remember the name.
    backups_endpoint
        URL of an S3 service that is not Amazon's.
    backups_region
        Its region (default: us-east-1).
    backups_credentials
        File with AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=…, for its owner only; without it they come
        from the environment. They are kept in the state folder.
    clouds_yaml
        Merge the entries `unstuck` and `unstuck-admin` into ~/.config/openstack/clouds.yaml.
    """
    os.umask(0o077)
    if port is not None and not 0 < port < 65536:
        raise CliError(f"--port {port}: a port is a number from 1 to 65535.")
    # Before anything is written: the settings are those of whoever runs.
    found = State(state or default_state())
    if _runs(found):
        _refuse_other_settings(found, {"port": port, "driver": driver, "network": network})
    if backups is not None:
        prepare_folder(found)
        _send_backups(found, backups_name, backups, backups_endpoint, backups_region, backups_credentials)
    elif backups_endpoint or backups_region or backups_credentials:
        raise CliError("--backups-endpoint and the others say more about --backups, which is not given.")
    running = holder(found.supervisor_lock)
    if running is not None:
        Waiter(found, running).wait()
        print(f"Unstuck is up already at {found.url()} (supervisor: process {running.pid}).")
        _upload_once(found)
        return
    prepared = _prepare(found, port, driver, network)
    try:
        if not detach:
            _foreground(prepared, clouds_yaml)
            return
        _wait_detached(prepared)
        _welcome(prepared, clouds_yaml)
        print("Everything goes on in the background; `unstuck down` ends it and leaves guests running.")
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        what = f"{error.filename or prepared.root}: {error.strerror or error}"
        raise CliError(f"The state folder {prepared.root} cannot be used: {what}.") from error


def _send_backups(
    state: State, name: str, url: str, endpoint: str | None, region: str | None, credentials: Path | None
) -> None:
    """Write down where backups go. What runs reads it anew by itself."""
    from unstuck.blobs.stores import StoresUnusable, add
    from unstuck.cli.storeat import location

    try:
        if add(state.backup_stores, name, location(url, endpoint, region, credentials)):
            print(f"New backups go to {url} from now on; older ones stay where they are.")
    except StoresUnusable as error:
        raise CliError(f"--backups {url}: {error}.") from None


def _say_recovery(state: State) -> None:
    """Until somebody has said that the recovery file is kept elsewhere, too."""
    from unstuck.blobs.keyring import recovery_saved

    if state.recovery.exists() and not recovery_saved(state.keys):
        print(
            f"The recovery key is in {state.recovery}. It opens the backups when this machine is lost: keep "
            "a copy elsewhere, then say `unstuck doctor --recovery-saved`."
        )


def _runs(state: State) -> bool:
    """Whether anything of it runs, the supervisor or what it left."""
    return any(holder(lock) for lock in (state.supervisor_lock, state.control_lock, state.host_lock))


def _refuse_other_settings(state: State, asked: dict[str, Any]) -> None:
    kept = state.read()
    other = {name: value for name, value in asked.items() if value not in (None, getattr(kept, name))}
    if other:
        words = " ".join(f"--{name} {value}" for name, value in other.items())
        raise CliError(
            f"Unstuck is up at {state.url()} with other settings, and nothing was changed: "
            f"`unstuck down` first, then `unstuck up {words}`."
        )


def _prepare(state: State, port: int | None, driver: str | None, network: str | None) -> State:
    if driver is None and not state.prepared() and shutil.which("qemu-system-x86_64") is None:
        raise CliError(
            "qemu-system-x86_64 is not installed: install it (Debian: apt-get install qemu-system-x86 "
            "qemu-utils), or try out without guests: unstuck up --driver instant."
        )
    try:
        prepare_folder(state)
        chosen = _network(state, driver, network)
        return prepare(state.root, port=port, driver=driver, network=chosen)
    except StateError as error:
        raise CliError(str(error)) from None


def _network(state: State, driver: str | None, network: str | None) -> str | None:
    """The range to write down; None keeps what is there."""
    given = None if network is None else str(ranges.parse(network))
    made = state.prepared()
    kept = state.read() if made else None
    if kept is not None and given not in (None, kept.network) and state.store.exists():
        raise CliError(
            f"--network {given}: this cloud was made with {kept.network}, where its servers have addresses."
        )
    runs = driver or (kept.driver if kept is not None else "qemu")
    if runs != "qemu" or os.geteuid() != 0:
        return given  # no links are made
    if kept is not None and given in (None, kept.network):
        ranges.keep(state)
        return None
    return ranges.choose(state, given)


def _wait_detached(state: State) -> None:
    log = os.open(state.logs / "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "unstuck.cli.supervisor", "--state", str(state.root)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip
    finally:
        os.close(log)
    try:
        Waiter(state, None, child).wait()
    except BaseException:
        child.terminate()
        child.wait(30.0)
        raise
    child.returncode = 0  # it outlives us; nobody is to wait for it


def _foreground(state: State, clouds_yaml: bool) -> None:
    supervisor = Supervisor(state, state.read().driver)
    try:
        supervisor.acquire()
    except Held as error:
        raise CliError(f"{error}: another `unstuck up` has just begun.") from None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        if Waiter(state, None, give_up=ended).wait():
            _welcome(state, clouds_yaml)
            print("Ctrl-C stops the control plane and the agent; guests go on running.", flush=True)
            while not ended.wait(1.0) and thread.is_alive():
                pass
    finally:
        supervisor.stop()
        thread.join()
    print("Stopped the control plane and the agent; guests go on running, `unstuck up` adopts them.")


class Waiter:
    """Waits until the control plane answers and the agent has registered."""

    def __init__(
        self, state: State, supervisor: ProcessId | None, child: subprocess.Popen[bytes] | None = None,
        give_up: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self._state = state
        self._supervisor = supervisor
        self._child = child
        self._give_up = give_up or threading.Event()
        self._said = {role: size_of(state.logs / f"{role}.log") for role in ("control", "host")}

    def wait(self) -> bool:
        """False when told to give up. Raises :class:`CliError` with the reason when it cannot start."""
        end = time.monotonic() + START_SECONDS
        while not (self._answers() and _is_ready(self._state.host_lock, self._state.host_ready)):
            self._check_failures()
            if time.monotonic() > end:
                raise CliError(self._why_late())
            if self._give_up.wait(0.02):
                return False
        return True

    def _answers(self) -> bool:
        if not _is_ready(self._state.control_lock, self._state.control_ready):
            return False
        found = self._state.read()
        connection = http.client.HTTPConnection(found.address, found.port, timeout=3.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _check_failures(self) -> None:
        for role, what in (("control", "The control plane"), ("host", "The host agent")):
            path = failed_file(self._state, role)
            if path.exists():
                reason = path.read_text().strip()
                path.unlink(missing_ok=True)
                raise CliError(f"{what} cannot start: {reason}")
        if self._child is not None and self._child.poll() is not None:
            # Where several were started at once, one of them runs, and that is what was asked for.
            self._supervisor = holder(self._state.supervisor_lock)
            if self._supervisor is None:
                raise CliError(f"The supervisor has ended; see {self._state.logs / 'supervisor.log'}.")
            self._child = None

    def _why_late(self) -> str:
        role, late = ("host", "host agent") if self._answers() else ("control", "control plane")
        log = self._state.logs / f"{role}.log"
        reason = last_reason(log, self._said[role])
        if self._supervisor is not None:
            return (
                f"Unstuck was started (supervisor: process {self._supervisor.pid}), but its {late} does not "
                f"answer: {reason}; `unstuck down` ends it, then `unstuck up` starts it anew."
            )
        return f"The {late} was not ready within {START_SECONDS:.0f} s: {reason}"


def _is_ready(lock: Path, ready: Path) -> bool:
    """The process that holds the lock now is the one that has said it is ready."""
    try:
        said = msgspec.json.decode(ready.read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return False
    found = holder(lock)
    return found is not None and (found.pid, found.start) == (said.pid, said.start)


def _welcome(state: State, clouds_yaml: bool) -> None:
    url = state.url()
    print(f"Unstuck is up at {url}")
    _say_recovery(state)
    if clouds_yaml:
        target = clouds.path()
        entries: dict[str, dict[str, Any]] = {
            name: clouds.entry(url, user, project, state.password(user))
            for name, (user, project) in clouds.NAMES.items()
        }
        changed = clouds.merge(target, entries)
        print(f"{target} {'now names' if changed else 'names'} it: unstuck (demo) and unstuck-admin.")
        print("Use it:  export OS_CLOUD=unstuck;  openstack image list")
    _upload_once(state)
    sys.stdout.flush()


def _upload_once(state: State) -> None:
    """The tiny image, where it is built. Whoever deletes it later does not get it back."""
    done = state.root / "tiny-uploaded"
    if done.exists():
        return
    from unstuck.cli import tiny
    from unstuck.cli.cloud import connect

    folder = tiny.built(state)
    if folder is None:
        print(
            "There is no image to boot from yet: `unstuck image build` builds `tiny`, and `unstuck up`, said "
            "again, uploads it."
        )
        return
    lock = FileLock(state.run / "upload.lock")
    try:
        lock.acquire()
    except Held:
        return  # another `unstuck up` is at it
    try:
        with connect(state) as cloud:
            if not done.exists() and tiny.upload(cloud, folder):
                print("Uploaded the image `tiny`.")
        write_whole(done, b"")
    finally:
        lock.release()


def end_supervisor(state: State) -> bool:
    """End the supervisor, which ends what it runs; true if there was one."""
    found = holder(state.supervisor_lock)
    return found is not None and end_for_sure(found, 30.0)
