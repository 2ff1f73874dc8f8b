"""Which keys are this cloud's, and projects' keys: public halves, and what is wrapped."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.blobs.keyring import CloudKeys, Keyring, ProjectKey
from unstuck.store.engine import Tx
from unstuck.store.schema.database import cloud_keys, project_keys


class OtherKeys(Exception):
    """This control plane has other keys than the cloud was set up with; nothing was changed."""


def known_folder(tx: Tx) -> str | None:
    """The folder of the cloud's backups; None: the cloud has no keys yet, and may be given some."""
    found: str | None = tx.execute(sa.select(cloud_keys.c.folder)).scalar_one_or_none()
    return found


def agree_on_keys(tx: Tx, ours: CloudKeys, folder: str) -> str:
    """The first control plane says which; every other has to have the same. Returns the id of the folder
    that backups are in. Raises :class:`OtherKeys`."""
    row = tx.execute(sa.select(cloud_keys)).first()
    mine = {name: value for name, value in msgspec.structs.asdict(ours).items() if name != "format"}
    if row is None:
        tx.execute(sa.insert(cloud_keys).values(id=1, folder=folder, **mine))
        return folder
    if {name: row._mapping[name] for name in mine} != mine:
        raise OtherKeys(
            f"the keys of this control plane are those of cloud {ours.cloud_id}, and its store was set up "
            f"with cloud {row.cloud_id}'s: give it that cloud's folder of keys (--keys)"
        )
    return str(row.folder)


def project_key(tx: Tx, project_id: str) -> ProjectKey | None:
    row = tx.execute(sa.select(project_keys).where(project_keys.c.project_id == project_id)).first()
    return None if row is None else ProjectKey(row.public, row.wrapped)


def ensure_project_key(tx: Tx, project_id: str, keyring: Keyring) -> ProjectKey:
    """Made on first use; the caller holds the project's row, so that nobody makes another meanwhile."""
    found = project_key(tx, project_id)
    if found is not None:
        return found
    made = keyring.new_project_key()
    tx.execute(
        sa.insert(project_keys).values(
            project_id=project_id, public=made.public, wrapped=made.wrapped, created_wall=tx.now.wall
        )
    )
    return made
