"""Lines of the log for a window: a request is one line that fits, the least important left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple, TextIO

from wellspoken.proxy.logs.lines import Request, TextLines, duration_text, encode_line, word
from wellspoken.proxy.terminal.colour import Colour
from wellspoken.proxy.terminal.width import columns_of, count_columns, cut_to

_SEVERE: Final = {"warning": "yellow", "error": "red"}
_LEAST: Final = 40  # columns for which a line is made, however narrow the window is
_SHORTEST: Final = 4  # columns that a part is cut to: five such fit behind time and status


class _Part(NamedTuple):
    """A part of a request's line. `rank`: those of the highest are left out first; 0: it stays."""

    text: str
    rank: int
    colour: str = ""
    comma: bool = True


class TerminalLines(TextLines):
    """Lines for people, with the time of day, in colours where they are welcome.

    `verbose`: of a request everything, however wide, its repairs by name.
    """

    def __init__(self, file: TextIO, colour: Colour, *, verbose: bool) -> None:
        self._file, self._colour, self._verbose = file, colour, verbose

    def now(self) -> str:
        """Return the time that the clock on the wall shows."""
        return time.strftime("%H:%M:%S")

    def shown_level(self, level: str) -> str:
        """Return how a message begins."""
        name = _SEVERE.get(level, "dim")
        return "" if level == "info" else f"{self._colour.put(name, f'{level}:')} "

    def shown_time(self) -> str:
        """Return the time as a line begins with it."""
        return self._colour.put("dim", self.now())

    def request(self, request: Request) -> bytes:
        """Return the line of a request, no wider than the window unless all of it is wanted."""
        parts = list(_parts_of(request, names=self._verbose))
        if not self._verbose:
            # A line as wide as the window makes some terminals begin an empty one.
            _fit(parts, max(columns_of(self._file) - 1, _LEAST))
        shown = "".join(
            f"{',' if part.comma and at else ''}{' ' if at else ''}"
            f"{self._colour.put(part.colour, part.text) if part.colour else part.text}"
            for at, part in enumerate(parts)
        )
        return encode_line(shown)


def _parts_of(request: Request, *, names: bool) -> Iterator[_Part]:
    """Yield the parts of a request's line in their order."""
    yield _Part(request.time, 0, "dim")
    yield _Part(str(request.status), 0, _colour_of(request), comma=False)
    if request.outcome != "ok":
        said = f"{request.outcome} {word(request.error)}".removesuffix(' ""')
        yield _Part(said, 0, comma=False)
    yield _Part(request.method, 10 if request.method == "POST" else 0, comma=False)
    yield _Part(word(request.path or request.route), 0, comma=False)
    if request.model:
        yield _Part(word(request.model), 1, comma=False)
    if request.backend:
        yield _Part(f"on {word(request.backend)}", 9, comma=False)
    if request.client:
        yield _Part(f"for {request.client}", 11, comma=False)
    if request.stream:
        yield _Part("stream", 7)
    yield _Part(duration_text(request.duration), 0)
    if request.ttft is not None:
        yield _Part(f"first token {duration_text(request.ttft)}", 5)
    if request.overhead is not None:
        yield _Part(f"overhead {duration_text(request.overhead)}", 8)
    if request.prompt_tokens is not None:
        yield _Part(f"{request.prompt_tokens}+{request.completion_tokens} tokens", 4)
    if count := len(request.repairs):
        listed = f"repairs {' '.join(request.repairs)}"
        yield _Part(listed if names else f"{count} repair{'s' if count > 1 else ''}", 3)
    # By the id a failure is found again, in the answer and at the backend.
    yield _Part(request.id, 6 if request.outcome == "ok" else 2)


def _colour_of(request: Request) -> str:
    if request.level in ("warning", "error"):  # also of a stream that began with a 200
        return "red"
    return "green" if request.status < 400 else "yellow"


def _fit(parts: list[_Part], columns: int) -> None:
    """Leave out what is least important until the line fits, then cut its longest parts."""
    while (over := _width(parts) - columns) > 0:
        last = max(parts, key=lambda part: part.rank)
        if last.rank > 1:
            parts.remove(last)
            continue
        longest = max(parts[2:], key=lambda part: count_columns(part.text))
        columns_left = max(count_columns(longest.text) - over, _SHORTEST)
        parts[parts.index(longest)] = longest._replace(text=cut_to(longest.text, columns_left))


def _width(parts: list[_Part]) -> int:
    return sum(count_columns(part.text) + 1 + part.comma for part in parts) - 1 - parts[0].comma
