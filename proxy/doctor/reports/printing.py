"""What came of the probes: as JSON, as Markdown, and on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, TextIO

from msgspec import json

from wellspoken.proxy.doctor.probe import OUTCOMES, Outcome, Report, Result, Verdict, plain
from wellspoken.proxy.doctor.reports.summary import advise, as_code, summarize, write_badge

SCHEMA: Final = 1
"""The version of what `as_json` gives; keys are only added as long as it stays."""


def as_json(report: Report) -> bytes:
    """Return the report as one JSON object, with a final newline."""
    return json.format(json.encode(encode_report(report)), indent=2) + b"\n"


def as_json_list(reports: Sequence[Report]) -> bytes:
    """Return several reports as one JSON array, with a final newline."""
    return json.format(json.encode(list(map(encode_report, reports))), indent=2) + b"\n"


def encode_report(report: Report) -> dict[str, Any]:
    """Return the report as the object that `as_json` writes."""
    named = {"name": report.name} if report.name else {}
    return {
        "schema": SCHEMA,
        "wellspoken": report.version,
        **named,
        "url": report.url,
        "error": report.error or None,
        "model": report.model or None,
        "backend": report.backend or None,
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
        "summary": {outcome: report.count(outcome) for outcome in OUTCOMES},
        "probes": [_probe(result) for result in report.results],
    }


def _probe(result: Result) -> dict[str, Any]:
    return {
        "name": result.probe.name,
        "result": result.outcome,
        "contract": result.probe.contract,
        "backend": _verdict(result.backend),
        "proxy": _verdict(result.proxy),
        "repairs": list(result.repairs),
        "seconds": round(result.seconds, 3),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {"state": verdict.state, "status": verdict.status or None, "said": verdict.said or None}


def describe(verdict: Verdict) -> str:
    """Return a verdict in words."""
    if verdict.state == "ok":
        return "conforms"
    return {"lacks": "cannot: ", "unclear": "not known: "}.get(verdict.state, "") + verdict.said


MEANINGS: Final = (
    "`pass`: the server does as OpenAI says. `repaired`: the proxy makes it so. `fails`: the proxy "
    "cannot. `skipped`: the server lacks it and says so, or it cannot be told."
)


def as_markdown(report: Report) -> str:
    """Return the report as a document with one table, each row of which says all by itself."""
    lines = [f"# wellspoken doctor {escape_cell(report.title)}", ""]
    if report.error:
        return "\n".join([*lines, escape_cell(report.error), ""])
    lines += [
        f"Model {as_code(report.model, 200)}. Backend: {escape_cell(report.backend)}. "
        f"wellspoken {report.version}.",
        *(f"\n{escape_cell(note)}" for note in report.notes),
        "",
        "| probe | result | OpenAI | the backend | through the proxy |",
        "|---|---|---|---|---|",
    ]
    for result in report.results:
        cells = [result.probe.name, result.outcome, result.probe.contract, describe(result.backend)]
        cells = [
            *map(escape_cell, cells),
            escape_cell(describe(result.proxy)) + _list_repairs(result),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", MEANINGS]
    if advice := advise(report):
        lines += ["", escape_cell(advice)]
    return "\n".join([*lines, "", summarize(report), "", write_badge(report), ""])


def _list_repairs(result: Result) -> str:
    """Return what made an answer conform; an answer that did may have been repaired elsewhere."""
    if result.outcome != "repaired" or not result.repairs:
        return ""
    return f", by {', '.join(f'`{name}`' for name in result.repairs)}"


# Marks that mean something to Markdown; an underscore between letters means nothing.
_MARKS: Final = re.compile(r"[\\|<*`\[\]]|(?<![^\W_])_|_(?![^\W_])")
# What forges make of these is a message to somebody, or a link to an issue.
_MENTIONS: Final = re.compile(r"(?<!\w)[@#](?=\w)")


def escape_cell(text: str) -> str:
    """Return a text that a table's cell can hold as it is, also where a server wrote it."""
    marked = plain(_MARKS.sub(r"\\\g<0>", text), 2000)
    return _MENTIONS.sub(r"\g<0><!-- -->", marked)


WIDTH: Final = 100  # columns, of what is no terminal
NARROWEST, WIDEST = 40, 160
_COLOURS: Final = {"pass": "32", "repaired": "36", "fails": "31;1", "skipped": "33"}
RESULT: Final = 10  # columns of the results


def width_of(file: TextIO) -> int:
    """Return the columns of a terminal, or of what is none."""
    if not file.isatty():
        return WIDTH
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def as_table(report: Report, width: int, *, colour: bool = False) -> str:
    """Return the report as lines of at most `width` columns, as far as its words allow."""
    if report.error:
        return "\n".join(wrap(report.error, width)) + "\n"
    peer = f"model {plain(report.model)}: {plain(report.backend)}"
    head = f"wellspoken doctor {report.title}, {peer} ({report.seconds:.1f} s)"
    lines = wrap(head, width)
    for note in report.notes:
        lines += wrap(note, width)
    lines.append("")
    left = max(len(result.probe.name) for result in report.results) + 2
    for result in report.results:
        lines += _lines(result, left, width, colour)
    mended = [result for result in report.results if result.outcome == "repaired"]
    names = dict.fromkeys(name for result in mended for name in result.repairs)
    repairs = f"Repairs: {', '.join(names)}." if names else ""
    lines.append("")
    for text in (repairs, advise(report)):
        lines += wrap(text, width)
    for text in (summarize(report), "For an issue of that server:", write_badge(report)):
        lines += wrap(text, width)
    return "\n".join(lines) + "\n"


def _lines(result: Result, left: int, width: int, colour: bool) -> Iterator[str]:
    """Yield a probe's lines: its name and result, and beside them what there is to say."""
    name = result.probe.name.ljust(left)
    shown = paint(result.outcome, colour=colour)
    beside = left + RESULT
    narrow = width - beside < 40
    indent = 4 if narrow else beside
    parts = [
        line
        for text in _describe_sides(result)
        for line in wrap(text, max(width - indent, 20), subsequent_indent="  ")
    ]
    yield f"{name}{shown}{'' if narrow else parts.pop(0)}".rstrip()
    for part in parts:
        yield " " * indent + part


def paint(outcome: Outcome, *, colour: bool) -> str:
    """Return a result's word, `RESULT` columns wide."""
    shown = outcome.ljust(RESULT)
    return f"\x1b[{_COLOURS[outcome]}m{shown}\x1b[0m" if colour else shown


def _describe_sides(result: Result) -> Iterator[str]:
    """Yield what is said of a probe: of one that passes only what was asked."""
    if result.outcome == "pass":
        yield result.probe.contract
        return
    if result.outcome == "skipped" and result.backend.said == result.proxy.said:
        yield describe(result.proxy)
        yield f"OpenAI: {result.probe.contract}"
        return
    yield f"backend: {describe(result.backend)}"
    yield f"OpenAI: {result.probe.contract}"
    yield f"proxy: {describe(result.proxy)}"


def wrap(text: str, width: int, subsequent_indent: str = "") -> list[str]:
    """Return a text as lines of at most `width` columns, as far as its words allow."""
    wrapper = textwrap.TextWrapper(width, "", subsequent_indent, break_on_hyphens=False)
    return wrapper.wrap(text)


class ProbeProgress:
    """A line that says which probe runs, on a terminal that can draw it anew."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._on = file.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, done: int, count: int, name: str) -> None:
        """Draw it anew."""
        if self._on:
            print(f"\r\x1b[2K{done + 1}/{count} {name}", end="", file=self._file, flush=True)

    def clear(self) -> None:
        """Wipe it off."""
        if self._on:
            print("\r\x1b[2K", end="", file=self._file, flush=True)
