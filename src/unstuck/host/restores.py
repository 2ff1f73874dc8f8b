"""Restores: a guest reads what its grants name, piece by piece, and nothing else.

A backup and each of its parents has a grant of its own, with its own key.
"""

from __future__ import annotations

from unstuck.blobs.chunks import chunk_key
from unstuck.core.backup.chain import LONGEST
from unstuck.core.instance.guestwire import AskRestore, Done, Fetch, Response, Restore
from unstuck.core.instance.wire import AskGrant, RestoreGrant, Who
from unstuck.host.guestcalls import Desk, Guest, refuse
from unstuck.host.pieces import Pieces, Through


class Restores:
    """The restore of one guest. The grants, and the keys in them, stay in memory."""

    def __init__(self, desk: Desk, guest: Guest) -> None:
        self._desk = desk
        self._guest = guest
        self._of = ""
        self._grants: dict[int, RestoreGrant] = {}

    def forget(self) -> None:
        """The data is there: the grants have served their purpose."""
        self._grants = {}

    async def ask(self, ask: AskRestore) -> Response:
        grant = await self._granted(ask.above, afresh=True)
        return Restore(grant.content, grant.identity, grant.parents)

    async def fetch(self, ask: Fetch) -> tuple[Response, bytes]:
        grant = await self._granted(ask.above)
        if not 0 <= ask.index < len(grant.content.chunks):
            raise refuse("invalid", f"the backup has no piece {ask.index}")
        chunk = grant.content.chunks[ask.index]
        key, pieces = chunk_key(grant.prefix, ask.index), self._pieces(grant)
        found = await self._desk.objects(self._guest, "fetch", lambda: pieces.get(key))
        if found is None:
            raise refuse("damaged", f"piece {ask.index} of the backup is not in the blob store")
        if len(found) != chunk.sealed_length or await self._desk.digest(found) != chunk.sealed_digest:
            raise refuse("damaged", f"piece {ask.index} of the backup is not the object that was written")
        return Done(), found

    async def _granted(self, above: int, *, afresh: bool = False) -> RestoreGrant:
        want = self._guest.database
        if want.origin.backup_id is None:
            raise refuse("gone", "the instance is not made from a backup")
        if want.data_recorded:
            raise refuse("gone", "the instance has its data")
        if not 0 <= above <= LONGEST:
            raise refuse("invalid", "`above` is none of the backup's parents")
        if self._of != want.origin.backup_id:
            self._of, self._grants = want.origin.backup_id, {}
        grant = self._grants.get(above)
        if afresh or grant is None:
            word = AskGrant(self._who(), above)
            grant = await self._desk.call("grant", "gone", lambda: self._desk.control.restore_grant(word))
            if above == 0 and grant.backup_id != want.origin.backup_id:
                raise refuse("gone", "another backup was granted than the instance is made from")
            self._grants[above] = grant
        return grant

    def _pieces(self, grant: RestoreGrant) -> Pieces:
        if grant.place is None:
            return Through(self._desk.control, self._who)
        return self._desk.place(grant.place)

    def _who(self) -> Who:
        return self._desk.who(self._guest)
