"""An examination as JSON and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import json

from wellspoken.proxy.doctor.model import OUTCOMES, plain

if TYPE_CHECKING:
    from wellspoken.proxy.doctor.model import Report, Result, Verdict

SCHEMA: Final = 1
"""The version of what `as_json` gives; keys are only added as long as it stays."""


def as_json(report: Report) -> bytes:
    """Return the report as one JSON object, with a final newline."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "wellspoken": report.version,
        "url": report.url,
        "error": report.error or None,
        "model": report.model or None,
        "backend": report.backend or None,
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
        "summary": {outcome: report.count(outcome) for outcome in OUTCOMES},
        "probes": [_probe(result) for result in report.results],
    }
    return json.format(json.encode(found), indent=2) + b"\n"


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


def told(verdict: Verdict) -> str:
    """Return a verdict in words."""
    if verdict.state == "ok":
        return "conforms"
    return {"lacks": "cannot: ", "unclear": "not known: "}.get(verdict.state, "") + verdict.said


def through(result: Result) -> str:
    """Return what the proxy makes of it, in words, with the names of its repairs."""
    names = f" ({', '.join(result.repairs)})" if result.repairs else ""
    return told(result.proxy) + names


def summary(report: Report) -> str:
    """Return the counts in one sentence."""
    counts = [f"{report.count(outcome)} {outcome}" for outcome in OUTCOMES if report.count(outcome)]
    number = len(report.results)
    noun = "probe" if number == 1 else "probes"
    return f"{number} {noun} in {report.seconds:.1f} s: {', '.join(counts)}."


def as_markdown(report: Report) -> str:
    """Return the report as a document with one table."""
    lines = [f"# wellspoken doctor {_cell(report.url)}", ""]
    if report.error:
        return "\n".join([*lines, _cell(report.error), ""])
    lines += [
        f"Model `{_cell(report.model)}`. Backend: {_cell(report.backend)}. "
        f"wellspoken {report.version}.",
        *(f"\n{_cell(note)}" for note in report.notes),
        "",
        "| probe | result | OpenAI | the backend | through the proxy |",
        "|---|---|---|---|---|",
    ]
    for result in report.results:
        cells = [
            result.probe.name,
            result.outcome,
            result.probe.contract,
            told(result.backend),
            through(result),
        ]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join([*lines, "", summary(report), ""])


def _cell(text: str) -> str:
    """Return a text that a table's cell can hold as it is, also where a server wrote it."""
    for mark in ("\\", "|", "<", "*", "`", "_", "[", "]"):
        text = text.replace(mark, "\\" + mark)
    return plain(text, 2000)
