"""A channel over a real machine's virtio port, which keeps no connection: both ends die in mid-frame."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from bench.datapath import heard, program
from tests.guest_cloud import GuestCloud
from tests.guest_http import served
from tests.guest_sender import PIECE
from tests.guest_site import server_folder
from tests.guest_vm import built_image, machine

from unstuck.blobs import manifest as manifests
from unstuck.core.server.data import Machine

SCRIPT = """
( send 500 2 n1 2 3 )
( send 500 2 n1 2 3 )
until ( send 24 2 n2 2 ); do usleep 200000; done
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_agents_and_hosts_that_are_killed_in_mid_frame_leave_a_virtio_port_usable(tmp_path: Path) -> None:
    image = built_image()
    if image is None:
        pytest.skip("the database image is not built: python -m unstuck.host.dbimage FOLDER")
    cloud = GuestCloud(tmp_path / "objects", direct=False)
    cloud.offer("n1")
    server = server_folder(tmp_path / "host")
    want = tmp_path / "want.json"

    def offer() -> None:
        wanted = cloud.want(chunk_size=PIECE)
        spec = msgspec.structs.replace(wanted.spec, machine=Machine.VM)
        want.write_bytes(msgspec.json.encode(msgspec.structs.replace(wanted, spec=spec)))

    offer()
    with served(cloud) as url, machine(image, server, SCRIPT) as guest:
        arguments = ("guest_host", tmp_path / "host", want, url)
        with program(*arguments) as host:
            heard(host, "started")
            guest.heard("taken", 120.0)
            for _ in range(3):
                guest.heard("stored", 60.0)
            # The next process of the agent says hello behind its predecessor's half frame, and is heard.
            end = time.monotonic() + 60.0
            while len(cloud.starts) < 2:
                assert time.monotonic() < end
                time.sleep(0.05)
            os.kill(host.pid, signal.SIGKILL)
        cloud.offer("n2")
        offer()
        for last in (False, False, True):
            with program(*arguments) as host:
                for _ in range(4):
                    guest.heard("stored", 120.0)
                if last:
                    guest.heard("finished", 120.0)
                else:
                    os.kill(host.pid, signal.SIGKILL)
    written = cloud.objects.get(manifests.manifest_key(cloud.prefix))
    manifest = manifests.read(written or b"", cloud.signer.public, cloud.prefix)
    assert len(manifest.chunks) == 24
    assert manifests.missing(manifest, cloud.objects.list(cloud.prefix)) == []
