"""An examination on a terminal: a line of progress, then a table that fits its width."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from wellspoken.proxy.doctor.model import plain
from wellspoken.proxy.doctor.report import summary, told
from wellspoken.proxy.lifecycle.colour import Colour

if TYPE_CHECKING:
    from typing import TextIO

    from wellspoken.proxy.doctor.model import Outcome, Report, Result

WIDTH: Final = 100  # columns, of what is no terminal
NARROWEST, WIDEST = 40, 160
_COLOURS: Final[dict[Outcome, str]] = {
    "pass": "32",
    "repaired": "36",
    "fails": "31;1",
    "skipped": "33",
}
_RESULT: Final = 10  # columns of the results


def coloured(file: TextIO) -> bool:
    """Say whether colours are welcome there."""
    return Colour.of(file).on


def width_of(file: TextIO) -> int:
    """Return the columns of a terminal, or of what is none."""
    if not file.isatty():
        return WIDTH
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDTH, 24)).columns))


def table(report: Report, width: int, *, colour: bool = False) -> str:
    """Return the report as lines of at most `width` columns, as far as its words allow."""
    if report.error:
        return "\n".join(_wrapped(report.error, width)) + "\n"
    told_of = f"model {plain(report.model)}: {plain(report.backend)}"
    head = f"wellspoken doctor {report.url}, {told_of}"
    lines = [*_wrapped(head, width)]
    for note in report.notes:
        lines += _wrapped(note, width)
    lines.append("")
    left = max(len(result.probe.name) for result in report.results) + 2
    for result in report.results:
        lines += _rows(result, left, width, colour)
    names = dict.fromkeys(name for result in report.results for name in result.repairs)
    repairs = f"Repairs: {', '.join(names)}." if names else ""
    lines.append("")
    for text in (repairs, summary(report), _advice(report)):
        lines += _wrapped(text, width)
    return "\n".join(lines) + "\n"


def _advice(report: Report) -> str:
    failed = [result for result in report.results if result.outcome == "fails"]
    if any(result.backend.state == "ok" for result in failed):
        return "Where the backend conforms and the proxy fails, the proxy is at fault: report it."
    if failed:
        return "What fails does so behind the proxy too: the server has to be changed."
    if report.count("repaired"):
        return f"The proxy repairs all of it: wellspoken {report.url}"
    return ""


def _rows(result: Result, left: int, width: int, colour: bool) -> Iterator[str]:
    """Yield a probe's lines: its name and result, and beside them what there is to say."""
    name = result.probe.name.ljust(left)
    shown = result.outcome.ljust(_RESULT)
    if colour:
        shown = f"\x1b[{_COLOURS[result.outcome]}m{shown}\x1b[0m"
    beside = left + _RESULT
    told_lines = list(_told(result))
    narrow = width - beside < 40
    indent = 4 if narrow else beside
    parts = [line for text in told_lines for line in _hung(text, width - indent)]
    if narrow:
        yield f"{name}{shown}".rstrip()
    else:
        yield f"{name}{shown}{parts.pop(0)}".rstrip()
    for part in parts:
        yield " " * indent + part


def _told(result: Result) -> Iterator[str]:
    """Yield what is said of a probe: of one that passes only what was asked."""
    if result.outcome == "pass":
        yield result.probe.contract
        return
    if result.outcome == "skipped" and result.backend.said == result.proxy.said:
        yield told(result.proxy)
        return
    yield f"backend: {told(result.backend)}"
    yield f"OpenAI: {result.probe.contract}"
    yield f"proxy: {told(result.proxy)}"


def _hung(text: str, width: int) -> list[str]:
    """Return a text in lines, all but the first indented."""
    return textwrap.wrap(text, max(width, 20), subsequent_indent="  ", break_on_hyphens=False)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


class Progress:
    """A line that says which probe runs, on a terminal that can draw it anew."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._on = file.isatty() and os.environ.get("TERM") != "dumb"

    def tell(self, done: int, count: int, name: str) -> None:
        """Draw it anew."""
        if self._on:
            print(f"\r\x1b[2K{done + 1}/{count} {name}", end="", file=self._file, flush=True)

    def clear(self) -> None:
        """Wipe it off."""
        if self._on:
            print("\r\x1b[2K", end="", file=self._file, flush=True)
