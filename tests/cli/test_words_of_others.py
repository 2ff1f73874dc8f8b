"""Names, consoles and requests of strangers on an administrator's terminal: shown, never obeyed."""

from __future__ import annotations

import io
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstuck.cli import demo, doctor, explain, showlogs, status
from unstuck.cli.checks import Check
from unstuck.cli.cloud import Cloud
from unstuck.cli.errors import CliError
from unstuck.cli.reality import Difference
from unstuck.cli.words import for_terminal, plain, plain_lines

EVIL = "\x1b]0;pwned\x07\x1b[31mred\x7f\r\n\u202efdp.exe \u009b31m [/nope] [bold]x[/bold] \ud800"
ANY = st.text(st.characters(exclude_categories=()), max_size=80)


def harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@given(ANY)
def test_one_line_stays_one_line_of_visible_characters(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)


@given(ANY)
def test_lines_stay_lines(text: str) -> None:
    assert harmless(plain_lines(text))
    assert plain_lines(text).count("\n") == text.count("\n")


def test_what_is_no_trick_is_left_alone() -> None:
    kind = "héllo 世界 🙂 [x] \\ 'quoted'"
    assert plain(kind) == kind
    assert plain_lines("a\tb\r\nc\n") == "a\tb\nc\n"


@given(st.dictionaries(st.sampled_from(["event", "path", "level", "timestamp", "traceback"]), ANY))
def test_a_line_of_the_log_cannot_be_forged_from_within(found: dict[str, str]) -> None:
    safe = {key: value.encode(errors="replace").decode() for key, value in found.items()}
    shown = showlogs.readable(msgspec.json.encode(safe))
    assert harmless(shown)
    if not safe.get("traceback"):
        assert "\n" not in shown


@given(st.binary(max_size=80))
def test_a_line_that_is_no_json_is_shown_harmless(line: bytes) -> None:
    assert showlogs.readable(line.replace(b"\n", b"")).isprintable()


def test_status_shows_any_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """[/nope] ended the command with a MarkupError, [bold] was obeyed."""
    server = {
        "id": "i", "name": EVIL, "status": "ACTIVE", "task": None, "addresses": [EVIL], "host": EVIL,
    }  # fmt: skip
    host = {
        "hypervisor_hostname": EVIL, "state": "up", "status": "enabled", "hypervisor_type": EVIL, "id": 1,
    }  # fmt: skip
    status._tables([server], [], [host])
    shown = capsys.readouterr().out
    assert harmless(shown)
    together = "".join(shown.split())
    assert "[/nope]" in together
    assert "[bold]x[/bold]" in together
    assert "\\x1b]0;pwned\\x07" in together


def test_doctor_and_demo_obey_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print([Check("n", "fault", EVIL, EVIL)], [Difference("k", EVIL, EVIL, EVIL)])
    teller = demo.Teller()
    teller.line(EVIL)
    teller.quote(EVIL)
    teller.figure(EVIL.replace("\ud800", ""), "[/nope]")
    shown = capsys.readouterr().out
    assert harmless(shown)
    assert "[/nope]" in shown
    assert "\\x1b[31mred" in shown


def test_a_console_is_harmless_on_a_terminal_and_unchanged_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert for_terminal(EVIL) == EVIL
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert harmless(for_terminal(EVIL))


def test_explain_shows_reasons_harmless() -> None:
    shown = [plain(line) for line in explain.lines({"reason": EVIL, "more": [{"a": EVIL}, EVIL]})]
    assert all(line.isprintable() for line in shown)


class FakeClient:
    """Answers like the API for one server, and its list for the name `detail`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, path: str, **_: Any) -> Any:
        self.asked.append(path)
        return FakeAnswer({"servers": []} if path.endswith("/detail") else {"server": {"id": "7"}})

    def request(self, _method: str, _path: str, **_: Any) -> Any:
        return FakeAnswer({"servers": []})


class FakeAnswer:
    status_code = 200
    is_success = True

    def __init__(self, body: Any) -> None:
        self.body = body

    def json(self) -> Any:
        return self.body


@pytest.mark.parametrize("name", ["detail", ".", "../../identity/v3/x", "a?b"])
def test_only_an_answer_about_the_server_itself_is_a_hit(name: str) -> None:
    """`explain server detail` took the 200 of .../servers/detail for a server called so."""
    client = FakeClient()
    cloud = Cloud(client, "http://cloud")  # type: ignore[arg-type]
    with pytest.raises(CliError, match="There is no server"):
        explain.find_server(cloud, name)
    assert client.asked[0].count("/") == 4
    assert "?" not in client.asked[0]
    assert explain.find_server(cloud, "7") == "7"
