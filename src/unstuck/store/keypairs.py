"""Key pairs: the public halves that users put into their servers. They belong to a user, not a project."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Forbidden, NotFound
from unstuck.store import quotas
from unstuck.store.engine import Tx
from unstuck.store.prepared import Prepared
from unstuck.store.schema.compute import keypairs
from unstuck.store.schema.identity import users


class Keypair(msgspec.Struct, frozen=True):
    user_id: str
    name: str
    type: str
    public_key: str
    fingerprint: str
    created_wall: float = 0.0


_ONE = Prepared(
    sa.select(*(keypairs.c[name] for name in Keypair.__struct_fields__)).where(
        keypairs.c.user_id == sa.bindparam("user"), keypairs.c.name == sa.bindparam("key")
    )
)


_LOCK = Prepared(sa.select(users.c.id).where(users.c.id == sa.bindparam("user")).with_for_update())


def add_keypair(tx: Tx, new: Keypair, project_id: str) -> Keypair:
    """Remember a public key; raises :class:`Conflict` where the user has one of that name.

    How many a user may have is the quota of the project that asks.
    """
    _LOCK.first(tx, user=new.user_id)  # a statement of its own, before the count
    count = tx.execute(
        sa.select(sa.func.count()).select_from(keypairs).where(keypairs.c.user_id == new.user_id)
    ).scalar_one()
    if count >= quotas.limit_of(tx, project_id, "key_pairs"):
        raise Forbidden("Quota exceeded, too many key pairs.")
    made = msgspec.structs.replace(new, created_wall=tx.now.wall)
    taken = Conflict(f"Key pair '{new.name}' already exists.")
    if find_keypair(tx, new.user_id, new.name) is not None:
        raise taken
    try:
        tx.execute(sa.insert(keypairs).values(msgspec.structs.asdict(made)))
    except sa.exc.IntegrityError:
        raise taken from None
    return made


def find_keypair(tx: Tx, user_id: str, name: str) -> Keypair | None:
    row = _ONE.first(tx, user=user_id, key=name)
    return None if row is None else Keypair(*row)


def get_keypair(tx: Tx, user_id: str, name: str) -> Keypair:
    found = find_keypair(tx, user_id, name)
    if found is None:
        raise NotFound(f"Keypair {name} not found for user {user_id}")
    return found


def list_keypairs(tx: Tx, user_id: str) -> list[Keypair]:
    query = sa.select(keypairs).where(keypairs.c.user_id == user_id).order_by(keypairs.c.name)
    return [Keypair(**row._mapping) for row in tx.execute(query)]


def delete_keypair(tx: Tx, user_id: str, name: str) -> None:
    """Servers that were given the key keep it."""
    gone = sa.delete(keypairs).where(keypairs.c.user_id == user_id, keypairs.c.name == name)
    if tx.execute(gone).rowcount != 1:
        raise NotFound(f"Keypair {name} not found for user {user_id}")
