"""A long simulation can be ended and goes on, and can be shared out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unstuck.runtime.locks import Held
from unstuck.sim import journal as journals
from unstuck.sim.campaign import run_case
from unstuck.sim.cases import random_case
from unstuck.sim.cli import Part, main
from unstuck.sim.journal import Journal, Tried

RANDOM = ["random", "--schedules", "6", "--jobs", "1"]


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, int]:
    (line,) = capfd.readouterr().out.splitlines()
    found = json.loads(line)
    del found["seconds"]
    return dict(found)


def test_what_was_tried_is_not_tried_again_and_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(RANDOM) == 0
    whole = told(capfd)
    file = tmp_path / "folder" / "journal"
    journal = Journal(file)
    for seed in (2, 5):
        journal.add(run_case(random_case(seed)))
    journal.close()
    with file.open("ab") as cut:
        cut.write(b'{"name":"3","eff')
    assert main([*RANDOM, "--resume", str(file)]) == 0
    assert told(capfd) == {**whole, "resumed": 2}
    assert main([*RANDOM, "--resume", str(file)]) == 0
    assert told(capfd) == {**whole, "resumed": 6}
    assert len(file.read_text().splitlines()) == 7


def test_a_violation_of_an_earlier_run_is_still_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add(Tried("3", 10, ("a guest ended",)))
    journal.close()
    assert main([*RANDOM, "--resume", str(tmp_path / "journal")]) == 1
    output = capfd.readouterr()
    assert "violation in 3: a guest ended" in output.err
    assert json.loads(output.out)["violations"] == 1


def test_of_other_code_a_journal_knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(Tried("3", 10))
    journal.close()
    assert set(again(path)) == {"3"}
    monkeypatch.setattr(journals, "code_digest", lambda: "another")
    assert again(path) == {}


def again(path: Path) -> dict[str, Tried]:
    journal = Journal(path)
    journal.close()
    return journal.known


def test_one_run_at_a_time_writes_a_journal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(Held):
        Journal(tmp_path / "journal")
    assert main([*RANDOM, "--resume", str(tmp_path / "journal")]) == 2
    assert "--resume" in capfd.readouterr().err
    journal.close()


def test_the_parts_together_are_the_whole() -> None:
    cases = [random_case(seed) for seed in range(10)]
    parts = [list(Part.parse(f"{number}/3").take(cases)) for number in (1, 2, 3)]
    assert sorted((case for part in parts for case in part), key=lambda case: int(case.name)) == cases
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_part_that_is_none_is_refused(wrong: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*RANDOM, "--part", wrong])
    assert ended.value.code == 2
    assert "--part" in capfd.readouterr().err
