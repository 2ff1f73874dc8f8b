"""Who is asking: the token in X-Auth-Token."""

from __future__ import annotations

from unstuck.api.context import Token
from unstuck.api.errors import unauthorized
from unstuck.api.routes import Call


class Authenticator:
    """Verifies tokens."""

    async def __call__(self, call: Call) -> Token:
        raise unauthorized()
