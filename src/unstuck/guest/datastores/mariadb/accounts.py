"""The accounts that are ours, and which data it is: written before the server takes anybody in.

Everybody who is not ``localhost`` is a tenant. Ours log in over the server's socket by being a user of the
system, so no password of theirs exists; what makes a copy may do that and no more.
"""

from __future__ import annotations

from unstuck.guest.datastores.mariadb.config import Places
from unstuck.guest.datastores.mariadb.words import account, literal

LOCAL = "localhost"
TABLE = "mysql.unstuck_data"
"""One row: the generation of the data. A backup takes it with it."""
_COPIES = "RELOAD, PROCESS, LOCK TABLES, BINLOG MONITOR, CONNECTION ADMIN, REPLICATION SLAVE"


def setting_up(places: Places, generation: str) -> str:
    """Statements that make data ours; harmless when repeated. They are not for the log."""
    agent = account(places.agent, LOCAL)
    lines = [
        "SET SESSION sql_log_bin = 0",
        "FLUSH PRIVILEGES",
        f"DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> {literal('%')})",
        "DELETE FROM mysql.proxies_priv",
        "FLUSH PRIVILEGES",
        f"CREATE OR REPLACE USER {agent} IDENTIFIED VIA unix_socket",
        f"GRANT ALL PRIVILEGES ON *.* TO {agent} WITH GRANT OPTION",
    ]
    if places.owner != places.agent:
        owner = account(places.owner, LOCAL)
        lines += [
            f"CREATE OR REPLACE USER {owner} IDENTIFIED VIA unix_socket",
            f"GRANT {_COPIES} ON *.* TO {owner}",
        ]
    lines += [
        f"CREATE TABLE IF NOT EXISTS {TABLE} (id TINYINT PRIMARY KEY, generation VARCHAR(64) NOT NULL)"
        " ENGINE=InnoDB CHARACTER SET ascii",
        f"REPLACE INTO {TABLE} VALUES (1, {literal(generation)})",
    ]
    return "".join(f"{line};\n" for line in lines)
