"""From a guest over its channel into S3, which its host writes by itself; also while S3 hangs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.guest_cloud import PIECE
from tests.guest_site import Site, content_of, pieces_of, play
from tests.s3_server import S3Server
from unstuck.blobs import manifest as manifests
from unstuck.blobs.objects import open_objects
from unstuck.core.instance.guestwire import AskRestore, Done, Fetch, Finish, NotNow, Restore, Store, Take
from unstuck.core.instance.wire import Place
from unstuck.host.pieces import Places


def test_a_backup_goes_to_s3_waits_while_it_hangs_and_comes_back(tmp_path: Path, s3: S3Server) -> None:
    where = s3.bucket("channel")
    site = Site(tmp_path)
    site.cloud.objects = open_objects(where)
    site.cloud.place = Place(where.url, where.endpoint, where.region, where.access_key, where.secret_key)

    async def work() -> None:
        site.cloud.offer()
        pieces = pieces_of(site.cloud, os.urandom(2 * PIECE), PIECE)
        async with site.host(places=Places(deadline=3.0)), site.guest() as guest:
            await guest.ask(Take("backup-1", "n1"))
            assert (await guest.ask(Store("n1", pieces[0][0]), pieces[0][1]))[0] == Done()
            with s3.frozen("proxy"):
                said, _ = await guest.ask(Store("n1", pieces[1][0]), pieces[1][1])
                assert isinstance(said, NotNow)
                assert said.problem == "unreachable"
            # What it had taken before it froze may be there now: the same bytes again are no conflict.
            assert (await guest.ask(Store("n1", pieces[1][0]), pieces[1][1]))[0] == Done()
            assert (await guest.ask(Finish("n1", content_of(pieces, PIECE))))[0] == Done()
        written = site.cloud.objects.get(manifests.manifest_key(site.cloud.prefix))
        manifests.read(written or b"", site.cloud.signer.public, site.cloud.prefix)
        site.cloud.may_restore(content_of(pieces, PIECE))
        async with site.host(), site.guest() as guest:
            assert isinstance((await guest.ask(AskRestore()))[0], Restore)
            for chunk, sealed in pieces:
                assert await guest.ask(Fetch(chunk.index)) == (Done(), sealed)

    play(work)
