"""The host's own signing key: made once, never leaves the host, certified by the cloud at each attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from unstuck.blobs.keys import Signer
from unstuck.runtime.files import write_once

NAME: Final = "signing.key"


def load_signer(host_dir: Path) -> Signer:
    """The key in the host's state folder (0600); made at its first use."""
    return Signer(write_once(host_dir / NAME, Signer.new().private))
