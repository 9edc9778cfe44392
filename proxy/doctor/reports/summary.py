"""What an examination comes to: a line of counts, one for an issue of the server, what to do."""

from __future__ import annotations

from typing import Final

from wellspoken.proxy.doctor.probe import Report, plain

_NO_ANSWER: Final = (502, 503, 504)
"""What the proxy answers where the server did not, as one that ended between two questions."""


def summarize(report: Report) -> str:
    """Return the counts in one line, as in "Of 55, 22 right, 28 mended, 5 cannot be told."."""
    return f"Of {len(report.results)}, {', '.join(_count(report))}."


def write_badge(report: Report) -> str:
    """Return the counts in Markdown that forges show like a row of badges.

    They are code spans alone, which need no image of another host. Neither the address nor the
    model is there, since an issue may be read by everybody.
    """
    right, *others = _count(report)
    share = right.replace(" ", f"/{len(report.results)} ", 1)
    server = report.backend.partition(", from ")[0]
    known = [server] if plain(server) else []
    parts = [f"wellspoken doctor {report.version}", *known, share, *others]
    return " ".join(as_code(part, 80) for part in parts)


def as_code(text: str, most: int) -> str:
    """Return a text, also one that a server wrote, as a code span, in which nothing is markup."""
    shown = plain(text, most).replace("`", "'")
    return f"`{shown}`"


def _count(report: Report) -> list[str]:
    """Return what came out how often, the bad ends only where there are some."""
    counts = [f"{report.count('pass')} right", f"{report.count('repaired')} mended"]
    if failed := report.count("fails"):
        counts.append(f"{failed} cannot be mended")
    if skipped := report.count("skipped"):
        counts.append(f"{skipped} cannot be told")
    return counts


def advise(report: Report) -> str:
    """Return what to do about it, "" for nothing; "it" and "all" are the probes that were run."""
    failed = [result for result in report.results if result.outcome == "fails"]
    worse = [result.proxy for result in failed if result.backend.state == "ok"]
    if worse and all(verdict.status in _NO_ANSWER for verdict in worse):
        return (
            "Where the backend conforms and the proxy fails, the server gave the proxy no answer: "
            "look at its log, and run this again."
        )
    if worse:
        return "Where the backend conforms and the proxy fails, the proxy is at fault: report it."
    if failed:
        return "What fails does so behind the proxy too: the server has to be changed."
    if report.count("repaired"):
        return f"The proxy repairs all of it: wellspoken {report.url}"
    return ""
