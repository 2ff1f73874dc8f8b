"""Verifiers of passwords against a real server: the same as its own, byte for byte."""

from __future__ import annotations

import base64

import psycopg
import pytest
from psycopg import sql

from unstuck.core.instance.scram import verifier

PASSWORDS = [
    "PassW0rd", "with spaces and $ : = '", "x" * 1000,
    "pässwörd", "ﬁ\u00a0ligature", "soft\u00adhyphen", "Ⅸ", "قلم", "mixed قلم abc", "tab\there",
]  # fmt: skip


def test_the_vector_of_rfc_7677() -> None:
    made = verifier("pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    assert made == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
        ":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_verifier_is_what_the_server_itself_would_store(postgres: str, password: str) -> None:
    with psycopg.connect(f"postgresql://unstuck@{postgres}/postgres", autocommit=True) as server:
        server.execute("DROP ROLE IF EXISTS scram_test")
        server.execute(sql.SQL("CREATE ROLE scram_test LOGIN PASSWORD {}").format(sql.Literal(password)))
        [(stored,)] = server.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'scram_test'")
        server.execute("DROP ROLE scram_test")
    salt = base64.b64decode(stored.split("$")[1].partition(":")[2])
    assert verifier(password, salt=salt) == stored
