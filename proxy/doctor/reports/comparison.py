"""Two examinations side by side: `wellspoken doctor --compare A B`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec import json

from wellspoken.proxy.doctor.probe import Report, Result, plain
from wellspoken.proxy.doctor.reports.printing import (
    MEANINGS,
    RESULT,
    SCHEMA,
    describe,
    encode_report,
    escape_cell,
    paint,
    wrap,
)
from wellspoken.proxy.doctor.reports.summary import summarize

_SIDES: Final = "A", "B"


@dataclass(frozen=True)
class Comparison:
    """Two reports. They are compared where both have a probe; they differ where its results do."""

    first: Report
    second: Report

    @property
    def reports(self) -> tuple[Report, Report]:
        """Both, in the order in which they were named."""
        return self.first, self.second

    @property
    def pairs(self) -> list[tuple[Result, Result]]:
        """What both have, in the first one's order."""
        others = {result.probe.name: result for result in self.second.results}
        return [
            (one, others[name]) for one in self.first.results if (name := one.probe.name) in others
        ]

    @property
    def alone(self) -> list[str]:
        """The names of the probes that only one side has."""
        names = [{result.probe.name for result in report.results} for report in self.reports]
        return sorted(names[0] ^ names[1])

    @property
    def differing(self) -> list[str]:
        """The names of the probes whose results are not the same."""
        return [one.probe.name for one, other in self.pairs if one.outcome != other.outcome]

    @property
    def error(self) -> str:
        """Why there is nothing to compare, "" where there is."""
        errors = [
            f"{side}: {report.error}"
            for side, report in zip(_SIDES, self.reports, strict=True)
            if report.error
        ]
        if errors or self.pairs:
            return " ".join(errors)
        return "no probe was run on both sides. Run both with the same --only and --skip."

    @property
    def code(self) -> int:
        """The command's exit code: 0 alike, 1 they differ, 2 there is nothing to compare."""
        return 2 if self.error else int(bool(self.differing))


def as_json(comparison: Comparison) -> bytes:
    """Return both reports and the names that differ as one JSON object, with a final newline."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "error": comparison.error or None,
        "differ": comparison.differing,
        "alone": comparison.alone,
        "a": encode_report(comparison.first),
        "b": encode_report(comparison.second),
    }
    return json.format(json.encode(found), indent=2) + b"\n"


def as_markdown(comparison: Comparison) -> str:
    """Return a document with one table, in which a difference is in bold."""
    lines = ["# wellspoken doctor --compare", ""]
    if comparison.error:
        return "\n".join([*lines, escape_cell(comparison.error), ""])
    lines += [f"- {escape_cell(text)}" for text in _describe_servers(comparison)]
    lines += ["", "| probe | OpenAI | A | B |", "|---|---|---|---|"]
    for pair in comparison.pairs:
        differ = pair[0].outcome != pair[1].outcome
        cells = [_write_cell(result, bold=differ) for result in pair]
        contract = escape_cell(pair[0].probe.contract)
        lines.append(f"| {escape_cell(pair[0].probe.name)} | {contract} | {' | '.join(cells)} |")
    closing = "\n\n".join(_close(comparison))
    return "\n".join([*lines, "", MEANINGS, "", closing, ""])


def _write_cell(result: Result, *, bold: bool) -> str:
    shown = f"**{result.outcome}**" if bold else result.outcome
    said = [] if result.backend.state == "ok" else [describe(result.backend)]
    said += _describe_proxy(result)
    return f"{shown}: {escape_cell('; '.join(said))}" if said else shown


def _describe_proxy(result: Result) -> list[str]:
    """Return what comes through the proxy, where that decides the result."""
    if result.proxy.state == "ok" or result.proxy == result.backend:
        return []
    return [f"through the proxy: {describe(result.proxy)}"]


def as_table(comparison: Comparison, width: int, *, colour: bool = False) -> str:
    """Return the comparison as lines of at most `width` columns, as far as its words allow."""
    lines = [line for text in _describe_servers(comparison) for line in wrap(text, width, "   ")]
    left = max(len(one.probe.name) for one, _ in comparison.pairs) + 2
    lines += ["", f"{' ' * left}{'A':{RESULT + 3}}B"]
    for one, other in comparison.pairs:
        differ = one.outcome != other.outcome
        first, second = (paint(result.outcome, colour=colour) for result in (one, other))
        between = "!= " if differ else " = "
        lines.append(f"{one.probe.name.ljust(left)}{first}{between}{second}".rstrip())
        if differ:
            for text in _describe_difference(one, other):
                lines += [f"    {line}" for line in wrap(text, width - 4, "  ")]
    lines.append("")
    for text in _close(comparison):
        lines += wrap(text, width)
    return "\n".join(lines) + "\n"


def _describe_difference(one: Result, other: Result) -> Iterator[str]:
    """Yield what OpenAI says, and what each server does."""
    yield f"OpenAI: {one.probe.contract}"
    for side, result in zip(_SIDES, (one, other), strict=True):
        yield f"{side}: {describe(result.backend)}"
        yield from (f"{side} {said}" for said in _describe_proxy(result))


def _describe_servers(comparison: Comparison) -> Iterator[str]:
    for side, report in zip(_SIDES, comparison.reports, strict=True):
        yield f"{side}: {report.url}, model {plain(report.model)}: {plain(report.backend)}"
        yield from (f"{side}: {note}" for note in report.notes)


def _close(comparison: Comparison) -> list[str]:
    """Return what it comes to; the last line is the verdict."""
    count, differ = len(comparison.pairs), len(comparison.differing)
    lines = [
        f"{side}: {summarize(report)}"
        for side, report in zip(_SIDES, comparison.reports, strict=True)
    ]
    if comparison.alone:
        lines.append(f"Run on one side alone: {', '.join(comparison.alone)}.")
    return [*lines, f"Of {count}, {count - differ} alike, {differ} differ."]
