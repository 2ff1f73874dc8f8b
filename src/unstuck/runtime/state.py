"""The state folder: the only place that spells the names of what lies in it.

::

    state.json        format, port, driver, first network
    secrets/          passwords of the first users, one file each, readable by the owner only
    store.db          the embedded store
    store-mark.json   how far the store had come: so that an older copy of it, put back, is noticed
    host/             the host agent's own folder: host.json, secret, images, servers
    local-host.json   who the local host is, for the control plane (the hash of its secret, not the secret)
    keys/             what opens backups and vouches for them (blobs/keyring.py); needed to restore
    recovery-key.json opens backups without this cloud: to be kept elsewhere
    backups/          the store of objects called "local"
    backup-stores.json other stores of objects, with their credentials
    run/              locks and what is known of running processes
    logs/
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import socket
import uuid
from pathlib import Path

import msgspec

from unstuck.runtime.files import private_folder, write_once, write_whole

FORMAT = 1
PREFERRED_PORT = 8780
DEFAULT_NETWORK = "10.77.0.0/24"
USERS = ("admin", "demo")
_OURS = frozenset(
    {"tiny", "secrets", "host", "run", "logs", "local-host.json", "keys", "recovery-key.json", "backups"}
)
"""What lies in a folder before it is a cloud: an image that was built, and what a killed start left."""


class StateError(Exception):
    """The state folder cannot be used; the message says why and what helps."""


class StateFile(msgspec.Struct, frozen=True):
    format: int
    port: int
    address: str = "127.0.0.1"
    driver: str = "qemu"
    network: str = DEFAULT_NETWORK
    """Addresses of the first network; chosen once."""


class HostFile(msgspec.Struct, frozen=True):
    """``host/host.json``. The machine id makes a cloned folder visible."""

    format: int
    host_id: str
    machine_id: str = ""


class LocalHost(msgspec.Struct, frozen=True):
    """``local-host.json``: the host that the control plane lets in at its start."""

    host_id: str
    hostname: str
    secret_hash: str
    machine_id: str


def default_state() -> Path:
    """``$UNSTUCK_STATE``, else the customary place for root or for a user."""
    given = os.environ.get("UNSTUCK_STATE")
    if given:
        return Path(given).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/unstuck")
    return Path("~/.local/state/unstuck").expanduser()


class State:
    """Paths, and reading what lies there."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root.expanduser()))
        self.file = self.root / "state.json"
        self.secrets = self.root / "secrets"
        self.store = self.root / "store.db"
        self.host = self.root / "host"
        self.store_mark = self.root / "store-mark.json"
        self.keys = self.root / "keys"
        self.recovery = self.root / "recovery-key.json"
        self.backups = self.root / "backups"
        self.backup_stores = self.root / "backup-stores.json"
        self.local_host = self.root / "local-host.json"
        self.run = self.root / "run"
        self.logs = self.root / "logs"
        self.supervisor_lock = self.run / "supervisor.lock"
        self.control_lock = self.run / "control.lock"
        self.host_lock = self.host / "lock"
        self.control_ready = self.run / "control.json"
        self.host_ready = self.run / "host.json"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store}"

    def prepared(self) -> bool:
        return self.file.exists()

    def read(self) -> StateFile:
        try:
            found = msgspec.json.decode(self.file.read_bytes(), type=StateFile)
        except FileNotFoundError:
            raise StateError(f"There is no cloud in {self.root} yet; `unstuck up` makes one.") from None
        except PermissionError:
            raise StateError(not_allowed(self.file)) from None
        except (OSError, msgspec.DecodeError) as error:
            raise StateError(f"{self.file} cannot be read: {error}") from error
        if found.format != FORMAT:
            raise StateError(
                f"{self.root} has format {found.format}, this version of Unstuck knows {FORMAT}: "
                "use the version that made it, or upgrade."
            )
        return found

    def url(self) -> str:
        found = self.read()
        return f"http://{found.address}:{found.port}"

    def password(self, user: str) -> str:
        try:
            return (self.secrets / f"{user}-password").read_text().strip()
        except FileNotFoundError:
            raise StateError(f"{self.secrets} holds no password of {user}: run `unstuck up` once.") from None
        except PermissionError:
            raise StateError(not_allowed(self.secrets)) from None

    def metrics_token(self) -> str | None:
        """What lets other machines read the metrics; None in a folder that has none."""
        try:
            return (self.secrets / "metrics-token").read_text().strip() or None
        except FileNotFoundError:
            return None


def prepare(
    root: Path, *, port: int | None = None, driver: str | None = None, network: str | None = None
) -> State:
    """Make the state folder complete; whatever is there already stays as it is.

    ``port``, ``driver`` and ``network`` change what is stored: only while nothing runs there. Each step is
    whole or not done, so that a prepare that was killed is simply done again.
    """
    state = State(root)
    prepare_folder(state)
    try:
        for folder in (state.secrets, state.host, state.run, state.logs):
            private_folder(folder).chmod(0o700)
        for user in USERS:
            write_once(state.secrets / f"{user}-password", secrets.token_urlsafe(18).encode())
        write_once(state.secrets / "metrics-token", secrets.token_urlsafe(24).encode())
        _prepare_host(state)
        _prepare_file(state, port, driver, network)
    except OSError as error:
        raise _unusable(root, error) from error
    return state


def prepare_folder(state: State) -> None:
    """Make the folder itself, and close it. Raises :class:`StateError`."""
    try:
        private_folder(state.root)
        _close(state)
    except OSError as error:
        raise _unusable(state.root, error) from error


def _unusable(root: Path, error: OSError) -> StateError:
    if isinstance(error, PermissionError):
        return StateError(
            f"{error.filename or root} may not be written by this user: choose another folder with --state."
        )
    return StateError(f"The state folder {root} cannot be used: {error.strerror or error}.")


def _close(state: State) -> None:
    """Nobody but its owner may enter: names, addresses and every disk lie in it.

    A folder with other things in it is not closed, but refused: it may be somebody's home, or ``/tmp``.
    """
    info = state.root.stat()
    if info.st_uid != os.geteuid():
        raise StateError(
            f"{state.root} belongs to {owner(info.st_uid)}: run as that user, or choose another folder with "
            "--state."
        )
    if not info.st_mode & 0o077:
        return
    if not state.prepared() and {path.name for path in state.root.iterdir()} - _OURS:
        raise StateError(
            f"{state.root} may be entered by others and holds other things: choose a new or empty folder "
            "with --state."
        )
    state.root.chmod(0o700)


def not_allowed(path: Path) -> str:
    """What to say when a file is somebody else's."""
    whose = "somebody else"
    for place in [path, *path.parents]:  # what lies in a closed folder cannot be asked
        with contextlib.suppress(OSError):
            whose = owner(place.stat().st_uid)
            break
    return (
        f"{path} may only be opened by its owner, {whose}: run as that user, or name your own with --state."
    )


def owner(uid: int) -> str:
    """A user's name, or number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _prepare_file(state: State, port: int | None, driver: str | None, network: str | None) -> None:
    if not state.prepared():
        found = StateFile(
            FORMAT, port or free_port(), driver=driver or "qemu", network=network or DEFAULT_NETWORK
        )
        # Once: where several begin at the same moment, all are to read the same port.
        write_once(state.file, msgspec.json.encode(found))
        return
    old = state.read()
    new = msgspec.structs.replace(
        old, port=port or old.port, driver=driver or old.driver, network=network or old.network
    )
    if new != old:
        write_whole(state.file, msgspec.json.encode(new))


def host_identity(state: State) -> tuple[HostFile, bytes]:
    """Who the host in this folder is, and its secret: written once, only ever read by their owner."""
    secret = write_once(state.host / "secret", secrets.token_urlsafe(32).encode())
    made = HostFile(1, str(uuid.uuid4()), machine_id())
    data = write_once(state.host / "host.json", msgspec.json.encode(made))
    return msgspec.json.decode(data, type=HostFile), secret


def _prepare_host(state: State) -> None:
    from hashlib import sha256

    kept, secret = host_identity(state)
    local = LocalHost(kept.host_id, socket.gethostname(), sha256(secret).hexdigest(), kept.machine_id)
    write_once(state.local_host, msgspec.json.encode(local))


def machine_id() -> str:
    """This machine's id. Where it has none, the name has to do."""
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            found = Path(name).read_text().strip()
        except OSError:
            continue
        if found:
            return found
    return f"name:{socket.gethostname()}"


def free_port() -> int:
    """The customary port if it is free, else a free one outside the range of outgoing connections."""
    picks = [PREFERRED_PORT, *(20000 + secrets.randbelow(10000) for _ in range(50))]
    for port in picks:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise StateError("No free TCP port was found on 127.0.0.1; choose one with --port.")
