"""Ours: a user for one task, who ends by itself: for exports and imports by the client's own tools."""

from __future__ import annotations

import re
import secrets
from typing import Final

from unstuck.api.database.common import BASE, missing, number
from unstuck.api.database.guest import ask, naming_of
from unstuck.api.database.names import database_name, password_verifier
from unstuck.api.routes import Body, Call, Reply, Route, route
from unstuck.core.instance.requests import EndLoan, Lend

LONGEST: Final = 86400
_NAME: Final = re.compile(r"unstuck_loan_[a-z0-9]{8,40}")


class NewLoan(Body, frozen=True, kw_only=True):
    """``write``: what the user makes belongs to the database; else it reads all there is. Seconds."""

    database: str
    write: bool = False
    seconds: int = 3600


class LoanBody(Body, frozen=True, kw_only=True):
    loan: NewLoan


async def lend(call: Call) -> Reply:
    """``POST``: the password is shown here, and kept nowhere."""
    asked: NewLoan = call.body.loan
    naming = await naming_of(call)
    database = database_name(asked.database, "loan.database", naming)
    seconds = number(asked.seconds, "loan.seconds", least=1, most=LONGEST)
    name, password = f"unstuck_loan_{secrets.token_hex(8)}", secrets.token_urlsafe(18)
    verifier = password_verifier(password, "password", naming)
    await ask(call, Lend(name, verifier, database, float(seconds), asked.write))
    return Reply(
        {"loan": {"user": name, "password": password, "database": database, "seconds": seconds,
                  "write": asked.write}}
    )  # fmt: skip


async def end(call: Call) -> Reply:
    """``DELETE``: with its sessions; harmless where it has ended."""
    name = call.params["user"]
    if not _NAME.fullmatch(name):
        raise missing("Loan", name)
    await ask(call, EndLoan(name))
    return Reply()


_ALL: Final = f"{BASE}/instances/{{id}}/loans"

ROUTES: list[Route] = [
    route("POST", _ALL, lend, "member", body=LoanBody),
    route("DELETE", f"{_ALL}/{{user}}", end, "member", status=202),
]
