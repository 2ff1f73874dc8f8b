"""Routes for guest agents, through their hosts: a process says hello, and what it sees.

A guest is its tenant: all that it says is taken for a claim about its own instance, checked for size here and
fenced in the store.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unstuck.api.agents.guard import Refusal, body, guarded
from unstuck.api.routes import Call, Reply, Route, route
from unstuck.core.archive.data import LogSeen
from unstuck.core.instance.guestwire import PROTOCOL
from unstuck.core.instance.view import DatabaseView
from unstuck.core.instance.wire import GuestRegister, GuestReport, Who
from unstuck.store.instance_guests import guest_register, guest_report

ID_MAX: Final = 64
WORD_MAX: Final = 64
TEXT_MAX: Final = 2000
FACTS_MAX: Final = 32
FACT_MAX: Final = 256
LOG_MAX: Final = 512
_NUMBER_MAX: Final = 2**53

_register = msgspec.json.Decoder(GuestRegister)
_report = msgspec.json.Decoder(GuestReport)


@guarded
async def register(call: Call, host_id: str) -> Reply:
    """A process of a guest agent says hello."""
    ask = await body(call, _register)
    _check_who(ask.who)
    _check_number("sequence", ask.sequence)
    if ask.protocol != PROTOCOL:
        raise Refusal(
            400, "guest-protocol",
            f"The guest agent speaks version {ask.protocol} of the guests' protocol, the control plane "
            f"speaks {PROTOCOL}: rebuild the instance with an image of this version.",
        )  # fmt: skip
    if not 0 < len(ask.start) <= ID_MAX:
        raise _invalid("start", f"it must have 1 to {ID_MAX} characters")
    _check_text("agent_version", ask.agent_version, WORD_MAX)
    answer = await call.store.run(guest_register, host_id, ask)
    _wake(call, host_id, ask.who)  # a backup that its predecessor held is given up
    return Reply(answer)


@guarded
async def report(call: Call, host_id: str) -> Reply:
    """What a guest sees, or that it is silent."""
    ask = await body(call, _report)
    _check_who(ask.who)
    _check_number("sequence", ask.sequence)
    if ask.view is not None:
        _check_view(ask.view)
    _check_log(ask.log)
    noted = await call.store.run(guest_report, host_id, ask)
    if noted.bumped:
        _wake(call, host_id, ask.who)
    if noted.changed:
        call.app.notifier.wake("control")
        call.app.notifier.wake(f"instance:{noted.instance_id}")
    return Reply(status=204)


def _wake(call: Call, host_id: str, who: Who) -> None:
    call.app.notifier.wake("control")
    call.app.notifier.wake(f"host:{host_id}")
    call.app.notifier.wake(f"server:{who.server_id}")


def _check_who(who: Who) -> None:
    _check_text("who.server_id", who.server_id, ID_MAX)
    for name, number in (("who.incarnation", who.incarnation), ("who.guest", who.guest)):
        _check_number(name, number)


def _check_view(view: DatabaseView) -> None:
    _check_text("view.generation", view.generation, WORD_MAX)
    for name in ("restart", "volume_used_mb", "volume_size_mb", "done", "total"):
        _check_number(f"view.{name}", getattr(view, name))
    if len(view.facts) > FACTS_MAX:
        raise _invalid("view.facts", f"it holds more than {FACTS_MAX}")
    for key, value in view.facts.items():
        _check_text("view.facts", key, WORD_MAX)
        _check_text(f"view.facts.{key}", value, FACT_MAX)
    if view.trouble is not None:
        _check_text("view.trouble.code", view.trouble.code, WORD_MAX)
        _check_text("view.trouble.reason", view.trouble.reason, TEXT_MAX)
        _check_text("view.trouble.remedy", view.trouble.remedy, TEXT_MAX)


def _check_log(log: tuple[LogSeen, ...]) -> None:
    if len(log) > LOG_MAX:
        raise _invalid("log", f"it holds more than {LOG_MAX}")
    for one in log:
        _check_text("log.position", one.position, WORD_MAX)
        _check_number("log.timeline", one.timeline)
        if not (0.0 <= one.first <= _NUMBER_MAX and 0.0 <= one.last <= _NUMBER_MAX):
            raise _invalid("log", "ages must be seconds, 0 or more")


def _check_text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise _invalid(field, f"it is longer than {most} characters")


def _check_number(field: str, number: int) -> None:
    if not 0 <= number <= _NUMBER_MAX:
        raise _invalid(field, f"it must be a number from 0 to {_NUMBER_MAX}")


def _invalid(field: str, why: str) -> Refusal:
    return Refusal(400, "invalid", f"Invalid input: `{field[:100]}`: {why}.")


_HOST = "/agents/v1/hosts/{host_id}/guests"

# As for hosts: their credential is checked by ``guarded``, and bodies are read after that.
ROUTES: list[Route] = [
    route("POST", f"{_HOST}/register", register, "public", body=GuestRegister, raw=True),
    route("POST", f"{_HOST}/reports", report, "public", body=GuestReport, raw=True, status=204),
]
