"""The cloud's keys, in a folder outside the store: what opens backups, and what vouches for manifests.

::

    keys/root-key      private age key: opens projects' keys, and through them every backup
    keys/signing-key   private Ed25519 key: certifies the keys that hosts sign manifests with
    keys/cloud-id
    keys/cloud.json    the public halves, and the recovery key's: written last, makes it complete

The recovery key's private half goes into the recovery file and nowhere else. All files are readable by
their owner alone; every control plane of a cloud needs the same folder.
"""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import Final

import msgspec

from unstuck.blobs import keys
from unstuck.runtime.files import private_folder, write_once

FORMAT: Final = 1


class KeysUnusable(Exception):
    """The keys cannot be used; why, and what helps."""


class CloudKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``cloud.json``: nothing in it is a secret. Public age keys in their own form, ``signing`` base64."""

    format: int
    cloud_id: str
    root: str
    signing: str
    recovery: str


class ProjectKey(msgspec.Struct, frozen=True):
    """A project's key pair; the private half wrapped to the root key."""

    public: str
    wrapped: str


class BackupKey(msgspec.Struct, frozen=True):
    """A backup's key pair; the private half wrapped to ``recipients``."""

    recipient: str
    wrapped: str
    recipients: tuple[str, ...]


class Keyring:
    """The keys in memory. Nothing of it is ever logged or sent, but what the methods return."""

    def __init__(self, public: CloudKeys, root: str, signer: keys.Signer) -> None:
        self.public = public
        self._root = root
        self._signer = signer

    def __repr__(self) -> str:
        return f"Keyring({self.public.cloud_id})"

    def new_project_key(self) -> ProjectKey:
        identity = keys.new_identity()
        return ProjectKey(keys.recipient_of(identity), keys.wrap(identity, [self.public.root]))

    def new_backup_key(self, project: ProjectKey) -> BackupKey:
        identity = keys.new_identity()
        recipients = (project.public, self.public.recovery)
        return BackupKey(keys.recipient_of(identity), keys.wrap(identity, list(recipients)), recipients)

    def open_backup_key(self, project: ProjectKey, wrapped: str) -> str:
        """The backup's private key. Raises :class:`keys.BadKey`."""
        return keys.unwrap(wrapped, keys.unwrap(project.wrapped, self._root))

    def certify(self, host_id: str, public: str) -> keys.Certificate:
        """The cloud's word that this host signs with this key."""
        return self._signer.certify(host_id, public)


def ensure(folder: Path, recovery_file: Path) -> bool:
    """Make the keys complete; what is there stays as it is. True: the recovery file is new.

    Whoever is killed in between is simply done again: the last file makes it complete.
    """
    if (folder / "cloud.json").exists():
        return False
    private_folder(folder).chmod(0o700)
    root = write_once(folder / "root-key", keys.new_identity().encode()).decode()
    signing = write_once(folder / "signing-key", base64.b64encode(keys.Signer.new().private))
    cloud_id = write_once(folder / "cloud-id", str(uuid.uuid4()).encode()).decode()
    public = keys.Signer(base64.b64decode(signing)).public
    made = keys.Recovery(keys.FORMAT, cloud_id, keys.new_identity(), public)
    data = write_once(recovery_file, msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    try:
        kept = msgspec.json.decode(data, type=keys.Recovery)
        recipient = keys.recipient_of(kept.identity)
    except (msgspec.DecodeError, keys.BadKey) as error:
        raise KeysUnusable(f"{recovery_file} is no recovery file: move it away") from error
    if kept.cloud_id != cloud_id or kept.cloud_key != public:
        raise KeysUnusable(f"{recovery_file} belongs to another cloud: move it away")
    found = CloudKeys(FORMAT, cloud_id, keys.recipient_of(root), public, recipient)
    write_once(folder / "cloud.json", msgspec.json.encode(found))
    return True


_SAVED: Final = "recovery-saved"


def recovery_saved(folder: Path) -> bool:
    """Whether somebody has said that the recovery file is kept elsewhere."""
    return (folder / _SAVED).exists()


def say_recovery_saved(folder: Path) -> None:
    write_once(folder / _SAVED, b"")


def load(folder: Path) -> Keyring:
    """Raises :class:`KeysUnusable` unless all is there and fits."""
    try:
        public = msgspec.json.decode((folder / "cloud.json").read_bytes(), type=CloudKeys)
        root = (folder / "root-key").read_text().strip()
        signer = keys.Signer(base64.b64decode((folder / "signing-key").read_bytes(), validate=True))
        fits = keys.recipient_of(root) == public.root and signer.public == public.signing
    except FileNotFoundError as error:
        raise KeysUnusable(
            f"{error.filename} is missing: put back the folder {folder} of this cloud"
        ) from None
    except (OSError, ValueError, keys.BadKey) as error:
        raise KeysUnusable(
            f"the keys in {folder} cannot be read: put back that folder of this cloud"
        ) from error
    if public.format != FORMAT:
        raise KeysUnusable(f"the keys in {folder} have format {public.format}, this version knows {FORMAT}")
    if not fits:
        raise KeysUnusable(f"the keys in {folder} do not belong together: put back that folder of this cloud")
    return Keyring(public, root, signer)
