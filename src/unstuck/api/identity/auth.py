"""Who is asking: from a token in a header to the verified context of a call."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from unstuck.api.context import Token
from unstuck.api.errors import unauthorized
from unstuck.api.identity.passwords import Passwords
from unstuck.api.identity.tokens import Claim, verify
from unstuck.api.routes import Call
from unstuck.core.errors import Refused
from unstuck.store import identity_tokens as tokens
from unstuck.store.engine import Store, Tx

_CACHED: Final = 10_000


class Authenticator:
    """Verifies tokens. One point read per request tells whether a token verified before still holds."""

    def __init__(self, passwords: Passwords | None = None) -> None:
        self.passwords = passwords or Passwords()
        self._key: bytes | None = None
        self._known: OrderedDict[str, tuple[int, Token]] = OrderedDict()

    async def __call__(self, call: Call) -> Token:
        text = call.http.headers.get("x-auth-token", "")
        if not text:
            raise unauthorized()
        return await self.check(call.store, text)

    async def key(self, store: Store) -> bytes:
        """The key that signs tokens: written once, so read once."""
        if self._key is None:
            self._key = await store.run_read(tokens.token_key)
        return self._key

    async def check(self, store: Store, text: str) -> Token:
        """The verified token, or 401."""
        version, wall = await store.run_read(tokens.state)
        known = self._known.get(text)
        if known is not None and known[0] == version:
            token = known[1]
        else:
            self._known.pop(text, None)
            claim = verify(await self.key(store), text)
            try:
                token = await store.run_read(resolve, claim)
            except Refused:
                raise unauthorized() from None
            # The version was read before the rows: a change in between makes the next call look again.
            self._known[text] = (version, token)
            while len(self._known) > _CACHED:
                self._known.popitem(last=False)
        if token.expires_at <= wall:
            self._known.pop(text, None)
            raise unauthorized()
        return token


def resolve(tx: Tx, claim: Claim) -> Token:
    """What a claim allows now; refused when its user, project, role or credential is gone."""
    user = tokens.active_user(tx, claim.user_id, claim.epoch)
    if any(tokens.is_revoked(tx, audit_id) for audit_id in claim.audit_ids):
        raise unauthorized()
    scope, unrestricted = tokens.Scope(project=None, roles=[]), True
    if claim.app_credential_id is not None:
        credential, scope = tokens.credential_scope(tx, claim.app_credential_id)
        unrestricted = credential.unrestricted
    elif claim.project_id is not None:
        scope = tokens.project_scope(tx, user.id, project_id=claim.project_id, name=None)
    elif claim.domain_id is not None:
        scope = tokens.domain_scope(tx, user.id)
    project = scope.project
    return Token(
        user_id=user.id, user_name=user.name,
        project_id=project.id if project else None, project_name=project.name if project else None,
        roles=tuple(role.name for role in scope.roles), role_ids=tuple(role.id for role in scope.roles),
        methods=claim.methods, audit_ids=claim.audit_ids, epoch=claim.epoch,
        issued_at=claim.issued_at, expires_at=claim.expires_at, domain_id=claim.domain_id,
        app_credential_id=claim.app_credential_id, unrestricted=unrestricted,
    )  # fmt: skip
