"""The control plane's process: ``unstuck serve``.

It takes its lock and listens before it imports what it serves with: whoever connects meanwhile waits a
moment instead of being refused.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
from pathlib import Path
from typing import Final

from unstuck.runtime.locks import FileLock, Held
from unstuck.runtime.state import State, StateError, default_state

EXIT_PORT: Final = 76
EXIT_STATE: Final = 78


def listen(address: str, port: int) -> socket.socket:
    """The listening socket; the port may be taken over from a predecessor that has just ended."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unstuck serve", description="Run the control plane.")
    parser.add_argument("--state", type=Path, default=None, help="state folder")
    parser.add_argument("--store", default=None, help="database URL; default: SQLite in the state folder")
    parser.add_argument("--address", default=None, help="address to listen on")
    parser.add_argument("--port", type=int, default=None, help="port to listen on")
    parser.add_argument("--public-url", default=None, help="URL that clients use, where it is another")
    parser.add_argument("--network", default=None, help="addresses of the first network of a new cloud")
    parser.add_argument("--take-over", action="store_true", help="end a process that owns the store")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    os.umask(0o077)
    state = State(arguments.state or default_state())
    locks = [FileLock(state.control_lock)]
    try:
        known = state.read()
        arguments.network = str(ipaddress.ip_network(arguments.network or known.network))
        store_url = arguments.store or os.environ.get("UNSTUCK_STORE") or state.store_url
        if store_url.startswith("sqlite"):
            # SQLite has one owning process; PostgreSQL takes any number of equal ones. The second lock is
            # beside the file, where a control plane with another state folder meets it too.
            locks += [FileLock(Path(f"{path}.lock")) for path in _file(store_url)]
            for lock in locks:
                lock.acquire(take_over=arguments.take_over)
        address, port = arguments.address or known.address, arguments.port or known.port
        return _serve(state, store_url, arguments, address, port)
    except Held as error:
        return _refuse(f"{error}: SQLite has one control plane; --take-over ends that one", EXIT_STATE)
    except (StateError, ValueError) as error:
        return _refuse(str(error), EXIT_STATE)
    except FileNotFoundError as error:
        return _refuse(f"{error.filename} is missing; `unstuck up` makes it", EXIT_STATE)
    finally:
        for lock in locks:
            lock.release()


def _file(store_url: str) -> list[str]:
    """The path in an SQLite URL, if it is a file."""
    path = store_url.partition(":///")[2].partition("?")[0]
    return [os.path.realpath(path)] if path else []


def _refuse(reason: str, code: int) -> int:
    from unstuck.runtime import logs

    logs.refuse("control", "control plane cannot start", reason)
    return code


def _serve(state: State, store_url: str, arguments: argparse.Namespace, address: str, port: int) -> int:
    try:
        listener = listen(address, port)
    except OSError as error:
        return _refuse(f"{address}:{port} cannot be used: {error.strerror}; choose another port", EXIT_PORT)
    from unstuck.control.plane import serve
    from unstuck.runtime import logs
    from unstuck.store.engine import StoreUnavailable
    from unstuck.store.migrate import SchemaError

    logs.set_up("control")
    url = f"http://{address}:{listener.getsockname()[1]}"
    try:
        return serve(
            state, listener, store_url=store_url, url=url, public_url=arguments.public_url,
            network=arguments.network,
        )  # fmt: skip
    except (SchemaError, StoreUnavailable) as error:
        return _refuse(str(error), EXIT_STATE)


if __name__ == "__main__":
    raise SystemExit(main())
