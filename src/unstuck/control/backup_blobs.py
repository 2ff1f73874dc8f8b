"""The loop's work at the blob store, on worker threads with deadlines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from unstuck.blobs import archive as logs
from unstuck.blobs import manifest as manifests
from unstuck.blobs import verify as checks
from unstuck.blobs.chunks import prefix_of
from unstuck.blobs.keyring import Keyring
from unstuck.blobs.objects import BlobError, Objects
from unstuck.blobs.stores import Stores
from unstuck.control.backups import Unknown
from unstuck.core.backup.control import Collect, Verify
from unstuck.core.backup.data import Done, Present, Rotten, Verified
from unstuck.runtime.lanes import LaneFull, Lanes, TookTooLong
from unstuck.store.archive_work import Trim
from unstuck.store.backup_work import Work, Written

T = TypeVar("T")


class ThreadedLogs:
    """:class:`unstuck.control.archives.ArchiveBlobs` over the operator's stores."""

    def __init__(self, stores: Stores, lanes: Lanes | None = None) -> None:
        self._stores = stores
        self._lanes = lanes or Lanes()

    async def tries(self, trim: Trim, seconds: float) -> list[tuple[str, str]]:
        return await self._run(trim, seconds, lambda objects: list(_tries(objects, trim.prefix)))

    async def remove(self, trim: Trim, gone: set[tuple[str, str]], seconds: float) -> int:
        def work(objects: Objects) -> int:
            keys = [key for one in _tries(objects, trim.prefix).items() if one[0] in gone for key in one[1]]
            # Its manifest first: what is half removed is no piece any more.
            keys.sort(key=lambda key: not key.endswith(f"/{logs.NAME}"))
            if keys:
                objects.delete(keys)
            return len(gone & _tries(objects, trim.prefix).keys()) if keys else 0

        return await self._run(trim, seconds, work)

    async def _run(self, trim: Trim, seconds: float, call: Callable[[Objects], T]) -> T:
        try:
            return await self._lanes.run(
                trim.location, seconds, lambda: call(self._stores.objects(trim.location))
            )
        except BlobError as error:
            raise Unknown(f"{error.problem}: {error.reason}") from error
        except (LaneFull, TookTooLong) as error:
            raise Unknown(str(error)) from error


def _tries(objects: Objects, prefix: str) -> dict[tuple[str, str], list[str]]:
    """Keys by (piece, try)."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in objects.list(prefix):
        piece, _, rest = entry.key.removeprefix(f"{prefix}/").partition("/")
        found.setdefault((piece, rest.partition("/")[0]), []).append(entry.key)
    return found


class ThreadedBlobs:
    """:class:`unstuck.control.backups.BlobWork` over the operator's stores."""

    def __init__(self, stores: Stores, keyring: Keyring, lanes: Lanes | None = None) -> None:
        self._stores = stores
        self._keyring = keyring
        self._lanes = lanes or Lanes()

    async def _run(self, work: Work, seconds: float, call: Callable[[Objects], T]) -> T:
        place = work.row.location

        def body() -> T:
            return call(self._stores.objects(place))

        try:
            return await self._lanes.run(place, seconds, body)
        except BlobError as error:
            raise Unknown(f"{error.problem}: {error.reason}") from error
        except (LaneFull, TookTooLong) as error:
            raise Unknown(str(error)) from error

    async def look(self, work: Work, seconds: float) -> Present | None:
        cloud_key = self._keyring.public.signing
        found = await self._run(work, seconds, lambda objects: checks.look(objects, work.row.id, cloud_key))
        return None if found is None else Present(found.attempt, found.digest)

    async def verify(self, work: Work, seconds: float) -> tuple[Verified, Written] | Rotten:
        answer = await self._run(work, seconds, functools.partial(self._verify, work))
        if isinstance(answer, Rotten):
            return answer
        manifest = answer.manifest
        written = Written(answer.prefix, answer.digest, manifest.size, manifests.in_short(manifest))
        return Verified(manifest.size), written

    def _verify(self, work: Work, objects: Objects) -> checks.Sound | Rotten:
        plan, row = work.plan, work.row
        assert isinstance(plan, Verify)
        latest = row.backup.attempt
        reported = latest.report.digest if isinstance(latest.report, Done) else None
        if reported is not None and plan.attempt == latest.number:
            prefix: str | None = prefix_of(row.id, latest.number, latest.nonce)
        else:
            prefix = checks.prefix_with(objects, row.id, plan.attempt, plan.digest)
        if prefix is None:
            return Rotten("its manifest is not in the blob store any more")
        nonces = {prefix_of(row.id, known.number, known.nonce): known.host_id for known in work.attempts}
        expected = checks.Expected(
            cloud_id=self._keyring.public.cloud_id, cloud_key=self._keyring.public.signing,
            project_id=row.project_id, instance_id=row.instance_id, backup_id=row.id,
            recipients=row.recipients, key=row.key, attempt=plan.attempt, host_id=nonces.get(prefix),
            digest=plan.digest, parent=work.parent, generation=row.generation,
        )  # fmt: skip
        return checks.verify(objects, prefix, expected)

    async def remove(self, work: Work, seconds: float) -> int:
        row, plan = work.row, work.plan
        assert isinstance(plan, Collect)
        keep = None if plan.everything else row.prefix
        if not plan.everything and keep is None:
            raise ValueError(f"backup {row.id} is complete, and where it lies is not known")
        return await self._run(work, seconds, lambda objects: checks.remove(objects, row.id, keep))
