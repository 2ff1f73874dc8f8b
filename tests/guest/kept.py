"""A guest whose log is kept, whichever datastore it has."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tests.guest.guest import Guest
from unstuck.blobs.age import new_identity, recipient_of
from unstuck.core.archive.data import ArchiveWant
from unstuck.core.instance.want import Origin


class KeptLog:
    """``more``: of its archive."""

    timeout: ClassVar = 60
    """Seconds after which the server ends a file of its log by itself."""

    def __init__(self, guest: Guest, origin: Origin, **more: Any) -> None:
        self.guest = guest
        self.identity = new_identity()
        guest.host.wants(guest.want(origin=origin, archive=self.archive("a-1", **more)))
        guest.start()
        guest.ready()

    def archive(self, name: str, **more: Any) -> ArchiveWant:
        return ArchiveWant(
            id=name, recipient=recipient_of(self.identity), digest_key="k", chunk_size=4 << 20,
            **{"budget_mb": 256, "timeout": self.timeout, **more},
        )  # fmt: skip

    def wants(self, **more: Any) -> None:
        assert self.guest.host.want is not None
        self.guest.host.wants(msgspec.structs.replace(self.guest.host.want, **more))
