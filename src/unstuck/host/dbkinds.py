"""What differs between the datastores' images: one description each; the builders are the same for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Kind:
    """One datastore.

    ``packages``: Debian's, beside those behind ``meta`` (a prefix of names that apt is asked about, where the
    first of them only stands for others). ``user``: name, number and home of who the server runs as; numbers
    are our own, a volume outlives the image that wrote it. ``before``: shell lines that are run before the
    packages are installed, with the tree in ``$1``. ``removed``: what nobody needs of it. ``program``: the
    server, as a pattern in the tree; ``word``: the how manieth word of what it says its version is, and
    ``parts`` of that version make up the name of a datastore's version. ``wheels``: Python packages for the
    agent beside :data:`WHEELS`. ``stop``: the signal that ends the server in order. ``least_mb``: MiB of
    memory that it comes up with.
    """

    name: str
    packages: tuple[str, ...]
    meta: str
    user: tuple[str, int, str]
    before: str
    removed: tuple[str, ...]
    program: str
    word: int
    parts: int
    wheels: tuple[str, ...]
    stop: str
    least_mb: int

    def series(self, server: str) -> str:
        """The name of the datastore's version that a server of this version belongs to."""
        return ".".join(server.split(".")[: self.parts])


WHEELS: Final = ("msgspec", "pyrage", "structlog", "typing-extensions", "zstandard")

POSTGRESQL: Final = Kind(
    name="postgresql",
    packages=("postgresql", "python3", "tar", "zstd"),
    meta="postgresql-",
    user=("postgres", 901, "/var/lib/postgresql"),
    before=(
        'mkdir -p "$1/etc/postgresql-common"\n'
        "echo 'create_main_cluster = false' > \"$1/etc/postgresql-common/createcluster.conf\"\n"
    ),
    # Compiling queries costs a small guest more memory than it has; without its library it is not tried.
    removed=(
        "usr/lib/*/libLLVM*", "usr/lib/postgresql/*/lib/llvmjit*", "usr/lib/postgresql/*/lib/bitcode",
        "usr/share/postgresql/*/man", "usr/lib/*/libz3*",
    ),
    program="usr/lib/postgresql/*/bin/postgres",
    word=2,
    parts=1,
    wheels=("psycopg", "psycopg-binary"),
    stop="INT",
    least_mb=128,  # in 64 the kernel ends initdb (measured with PostgreSQL 15)
)  # fmt: skip

MARIADB: Final = Kind(
    name="mariadb",
    # Without `mariadb-server`, which brings services, tools in Perl and a cluster's library.
    packages=(
        "mariadb-server-core", "mariadb-backup", "mariadb-client-core", "openssl", "python3", "tar", "zstd",
    ),
    meta="mariadb-",
    user=("mysql", 902, "/var/lib/mysql"),
    before="",
    removed=("usr/bin/innochecksum", "usr/bin/resolveip"),
    program="usr/sbin/mariadbd",
    word=2,
    parts=2,
    wheels=("pymysql",),
    stop="TERM",
    least_mb=128,
)  # fmt: skip

KINDS: Final = {kind.name: kind for kind in (POSTGRESQL, MARIADB)}
