"""What the server runs for each piece of its log."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

from unstuck.guest import push


def test_a_piece_that_is_handed_out_can_be_read_by_the_servers_group(tmp_path: Path) -> None:
    """The server uses its file again for log of its own: of a restored database nothing was kept any more."""
    way = socket.socket(socket.AF_UNIX)
    way.bind(str(tmp_path / "log.sock"))
    way.listen()

    def answer() -> None:
        line, _ = way.accept()
        with line:
            assert line.recv(100) == b"get 000000010000000000000005\n"
            line.sendall(b"OK 4\nlog!")

    agent = threading.Thread(target=answer)
    agent.start()
    target = tmp_path / "RECOVERYXLOG"
    subprocess.run(
        [sys.executable, "-I", "-S", push.__file__, way.getsockname(), "000000010000000000000005", target],
        check=True, timeout=20, umask=0o077,
    )  # fmt: skip
    agent.join()
    way.close()
    assert target.read_bytes() == b"log!"
    assert target.stat().st_mode & 0o777 == 0o640
