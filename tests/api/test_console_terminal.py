"""The page's terminal, its own script unchanged, with as much of a browser as it asks for."""

from __future__ import annotations

import importlib.resources
import json
import re
import shutil
import subprocess

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node to run the page's script with")

BROWSER = """
const nodes = {};
function element(id) {
  return nodes[id] ||= {
    id, textContent: "", children: [], scrollHeight: 0, scrollTop: 0, clientHeight: 0, heard: {},
    replaceChildren(...all) { this.children = all; }, focus() {},
    addEventListener(name, work) { this.heard[name] = work; },
  };
}
globalThis.document = {
  getElementById: element, createElement: () => ({}), body: { classList: { add() {} } },
  addEventListener(name, work) { element("document").heard[name] = work; },
};
globalThis.location = { href: "https://cloud.example/console?token=abc#x" };
globalThis.requestAnimationFrame = (work) => work();
globalThis.getSelection = () => "";
const sent = [];
globalThis.WebSocket = class {
  static OPEN = 1;
  constructor(address, protocols) {
    Object.assign(this, { address: String(address), protocols, readyState: 1 });
    globalThis.opened = this;
  }
  send(bytes) { sent.push(Buffer.from(bytes).toString()); }
};
"""
PLAY = """
const shown = () => nodes.screen.children.map((part) => part.textContent ?? part).join("");
const out = [];
globalThis.opened.onopen();
for (const text of JSON.parse(process.argv[1])) {
  const bytes = Buffer.from(text);
  const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  globalThis.opened.onmessage({ data: copy });
}
for (const key of JSON.parse(process.argv[2])) nodes.screen.heard.keydown({ preventDefault() {}, ...key });
console.log(JSON.stringify({
  shown: shown(), sent, address: globalThis.opened.address, protocols: globalThis.opened.protocols,
}));
"""


def play(*texts: str, keys: tuple[dict[str, object], ...] = ()) -> dict[str, object]:
    page = (importlib.resources.files("unstuck.api.console") / "page.html").read_text()
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert NODE is not None
    program = BROWSER + script.replace('"use strict";', "", 1) + PLAY
    done = subprocess.run(
        [NODE, "-e", program, json.dumps(texts), json.dumps(keys)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def screen(*texts: str) -> list[str]:
    return [line.rstrip() for line in str(play(*texts)["shown"]).rstrip().split("\n")]


def test_it_opens_a_socket_at_its_own_address() -> None:
    found = play()
    assert found["address"] == "wss://cloud.example/console?token=abc"
    assert found["protocols"] == ["binary"]


@pytest.mark.parametrize(
    ("texts", "lines"),
    [
        (("login: root\r\nPassword: ",), ["login: root", "Password:"]),
        (("abc\b\bX",), ["aXc"]),
        (("12345\r67",), ["67345"]),
        (("a\tb",), ["a       b"]),
        (("\x1b[1;32mgreen\x1b[0m plain\x1b]0;title\x07!",), ["green plain!"]),
        (("old\x1b[2J\x1b[Hnew",), ["new"]),
        (("wrong\x1b[2K\rright",), ["right"]),
        (("one\r\ntwo\x1b[A\x1b[2GX",), ["oXe", "two"]),
        (("cut \x1b[", "31mhere\x1b", "[0m on"), ["cut here on"]),
        (("caf\u00e9 \u2603",), ["caf\u00e9 \u2603"]),
        (("x" * 85,), ["x" * 80, "x" * 5]),
        (("<b>&amp;</b><script>alert(1)</script>",), ["<b>&amp;</b><script>alert(1)</script>"]),
        (("\x00\x07\x7f\x1b(B\x1b7ok",), ["ok"]),
    ],
)
def test_what_a_guest_writes_is_shown_as_text(texts: tuple[str, ...], lines: list[str]) -> None:
    assert screen(*texts) == lines


def test_it_keeps_the_end_of_much() -> None:
    shown = screen("".join(f"{number}\r\n" for number in range(5000)))
    assert shown[-1] == "4999"
    assert len(shown) <= 2000


def test_keys_are_sent_as_a_terminal_sends_them() -> None:
    keys = (
        {"key": "l"}, {"key": "Enter"}, {"key": "Backspace"}, {"key": "ArrowUp"},
        {"key": "c", "ctrlKey": True}, {"key": "]", "ctrlKey": True}, {"key": "\u00e9"}, {"key": "Shift"},
        {"key": "F5"}, {"key": "b", "altKey": True},
    )  # fmt: skip
    assert play(keys=keys)["sent"] == ["l", "\r", "\x7f", "\x1b[A", "\x03", "\x1d", "\u00e9", "\x1bb"]


def test_a_question_for_the_place_of_the_cursor_is_answered() -> None:
    assert play("ab\x1b[6n")["sent"] == ["\x1b[1;3R"]
