"""A table with two columns, each of whose values is held against what it must be."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

LABEL, COLUMN = 26, 42


@dataclass(frozen=True)
class Must:
    """An expectation that is no single value: `holds` decides, `said` words it."""

    said: str
    holds: Callable[[object], bool]


@dataclass
class Tables:
    """Prints tables, and keeps what was not as expected."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    _title: str = ""

    def title(self, text: str) -> None:
        self._title = text
        print(f"\n{text}")
        print(f"  {'':{LABEL}}{'the backend said':{COLUMN}} the client got")

    def row(self, label: str, said: object, got: object, said_is: object, got_is: object) -> None:
        """Print one line; `said_is` and `got_is` are values, or a Must."""
        self._check(f"{label} (backend)", said, said_is)
        self._check(f"{label} (client)", got, got_is)
        left, right = _lines(said), _lines(got)
        height = max(len(left), len(right))
        left += [""] * (height - len(left))
        right += [""] * (height - len(right))
        for at, (one, other) in enumerate(zip(left, right, strict=True)):
            gap = " " * (COLUMN - len(one) - sum(map(_is_wide, one)))
            print(f"  {label if at == 0 else '':{LABEL}}{one}{gap} {other}".rstrip())

    def repairs(self, names: list[str], must: set[str]) -> None:
        """Print the repairs that the proxy named; `must` are those it may not lack."""
        missing = sorted(must - set(names))
        self._check("repairs", names, Must(f"with {missing}", lambda _: not missing))
        line = "  repairs:"
        for name in names:
            if len(line) + len(name) > 98:
                print(line)
                line = "          "
            line += f" {name}"
        print(line)

    def _check(self, what: str, value: object, expected: object) -> None:
        self.checked += 1
        if isinstance(expected, Must):
            right, wording = expected.holds(value), expected.said
        else:
            right, wording = value == expected, repr(expected)
        if not right:
            self.wrong.append(f"{self._title} / {what}: {value!r}, expected {wording}")


def _is_wide(character: str) -> bool:
    """Say whether a terminal gives this character two columns."""
    return unicodedata.east_asian_width(character) in "WF"


def _lines(value: object) -> list[str]:
    """Return how a value is shown: text and None as Python writes them, a list line by line."""
    if isinstance(value, list):
        return [str(item) for item in value] or ["[]"]
    return [repr(value)]
