"""The page at a console's address: a small terminal of our own, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re
from typing import Final

from unstuck.api.context import HOST
from unstuck.api.routes import Call, Reply

_PAGE: Final = (importlib.resources.files(__package__) / "page.html").read_bytes()


def _hashes(tag: str) -> str:
    """What a browser compares an inline element with, so that no other one is run."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), _PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


_SCRIPTS: Final = _hashes("script")
_STYLES: Final = _hashes("style")


async def page(call: Call) -> Reply:
    """The page; whether the token in its address opens anything, only its WebSocket asks."""
    host = call.http.headers.get("host", "")
    # Not every browser takes 'self' for a WebSocket at the same address.
    there = f" ws://{host} wss://{host}" if HOST.fullmatch(host) else ""
    policy = (
        f"default-src 'none'; script-src {_SCRIPTS}; style-src {_STYLES}; connect-src 'self'{there}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    return Reply(_PAGE, headers=headers)
