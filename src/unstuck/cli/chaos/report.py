"""The report: one page that holds everything it shows, and one line for programs."""

from __future__ import annotations

import html
from collections import defaultdict
from statistics import median

import msgspec

from unstuck.cli.chaos.lanes import Record


class Result(msgspec.Struct, frozen=True):
    """What a run came to. Seconds; ``ok``: nothing was violated."""

    ok: bool
    seed: int
    minutes: float
    seconds: float
    kills: int
    faults: int
    skipped: int
    acknowledged: dict[str, int]
    backups: dict[str, int]
    worst_settled: float
    violations: list[str]
    held: list[str]
    not_driven: list[str]


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; margin: 1em 0; }
th, td { text-align: left; padding: .25em .7em; border-bottom: 1px solid #ddd; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: #b00020; font-weight: 600; }
.good { color: #1b6e2a; }
"""


def page(result: Result, records: list[Record]) -> str:
    """The report as HTML: loads nothing, runs nothing."""
    said = html.escape
    verdict = (
        '<p class="good">Nothing was lost, nothing is stuck, nothing is left over.</p>'
        if result.ok else f'<p class="bad">{len(result.violations)} claims do not hold.</p>'
    )  # fmt: skip
    figures = [
        ("seed", str(result.seed)),
        ("faults for", f"{result.minutes:g} minutes"),
        ("altogether", f"{result.seconds:.0f} s"),
        ("kills (SIGKILL)", str(result.kills)),
        ("faults", f"{result.faults}, and {result.skipped} times there was nothing to hit"),
        ("acknowledged rows", ", ".join(f"{name}: {count}" for name, count in result.acknowledged.items())),
        ("backups", ", ".join(f"{count} {status}" for status, count in result.backups.items()) or "none"),
        ("slowest to settle", f"{result.worst_settled:.1f} s"),
        ("registered, not driven", ", ".join(result.not_driven) or "none"),
    ]
    rows = "".join(f"<tr><th>{said(name)}</th><td>{said(value)}</td></tr>" for name, value in figures)
    claims = "".join(f'<li class="bad">{said(one)}</li>' for one in result.violations)
    claims += "".join(f'<li class="good">{said(one)}</li>' for one in result.held)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Chaos</title>'
        f"<style>{_STYLE}</style></head><body><h1>Chaos</h1>{verdict}<table>{rows}</table>"
        f"<h2>What must hold</h2><ul>{claims}</ul><h2>By what was hit</h2>{_lanes(records)}"
        f"<h2>Each fault</h2>{_faults(records)}</body></html>\n"
    )


def _lanes(records: list[Record]) -> str:
    by: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by[record.lane].append(record)
    rows = ""
    for lane, found in sorted(by.items()):
        took = [record.settled for record in found if record.settled is not None]
        cells = [str(len(found)), str(sum(record.kills for record in found))]
        cells += [f"{median(took):.1f}", f"{max(took):.1f}"] if took else ["-", "-"]
        rows += f"<tr><td>{html.escape(lane)}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells)
        rows += "</tr>"
    head = "<tr><th>lane</th><th>faults</th><th>kills</th><th>settled, median s</th><th>slowest s</th></tr>"
    return f"<table>{head}{rows}</table>"


def _faults(records: list[Record]) -> str:
    rows = ""
    for record in sorted(records, key=lambda one: one.at):
        took = '<span class="bad">not</span>' if record.settled is None else f"{record.settled:.1f}"
        rows += (
            f'<tr><td class="n">{record.at:.1f}</td><td>{html.escape(record.what)}</td>'
            f'<td>{html.escape(record.seen)}</td><td class="n">{took}</td></tr>'
        )
    head = "<tr><th>at s</th><th>fault</th><th>over when</th><th>settled after s</th></tr>"
    return f"<table>{head}{rows}</table>"
