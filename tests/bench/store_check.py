"""What was acknowledged against what is there, and the lines that say whether a target is met.

Nothing here measures: a check is a function of what was seen, so that a test can show it failing.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import DecodeError, Struct, json

Stored = tuple[str, bytes]
"""A row as read without the store: its id, and its answer's JSON."""


@dataclass(frozen=True)
class Ack:
    """An answer that the client has whole: when (loop seconds), and what it said.

    `body` is the CRC of a whole answer's JSON, None for a stream; `text` that of the content.
    """

    at: float
    body: int | None
    text: int


@dataclass
class Ledger:
    """What the clients saw."""

    acks: dict[str, Ack] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    repeated: int = 0

    def acknowledge(self, id: str, ack: Ack) -> None:
        """Note one answer."""
        self.repeated += id in self.acks
        self.acks[id] = ack


@dataclass(frozen=True)
class Found:
    """What is wrong with what is there: ids acknowledged and not there, there twice, altered.

    `unseen` counts rows that no client has an answer to, which an interruption explains.
    """

    acknowledged: int
    there: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    altered: tuple[str, ...]
    unseen: int


def crc(data: bytes) -> int:
    """Return what stands for some bytes in a ledger."""
    return zlib.crc32(data)


def compare(acks: Mapping[str, Ack], stored: Iterable[Stored]) -> Found:
    """Return how the rows differ from what was acknowledged."""
    seen: Counter[str] = Counter()
    altered = []
    for id, answer in stored:
        seen[id] += 1
        ack = acks.get(id)
        if ack is None:
            continue
        text = crc(content(answer))
        if text != ack.text or (ack.body is not None and crc(answer) != ack.body):
            altered.append(id)
    return Found(
        acknowledged=len(acks),
        there=len(seen),
        lost=tuple(id for id in acks if id not in seen),
        doubled=tuple(id for id, count in seen.items() if count > 1),
        altered=tuple(altered),
        unseen=sum(id not in acks for id in seen),
    )


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Answer(Struct):
    choices: list[_Choice]


_decode = json.Decoder(_Answer).decode


def content(answer: bytes) -> bytes:
    """Return the text of an answer; b"" where it is no answer, which no text's CRC is."""
    try:
        return (_decode(answer).choices[0].message.content or "").encode()
    except (DecodeError, IndexError):
        return b""


def oldest_lost(acks: Mapping[str, Ack], lost: Sequence[str], killed: float) -> float:
    """Return how many milliseconds before the kill the oldest lost answer was acknowledged.

    0 where nothing was lost, or only what was read after the kill.
    """
    return max([0.0, *((killed - acks[id].at) * 1e3 for id in lost)])


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed; NaN for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


@dataclass(frozen=True)
class Line:
    """One measurement: `bound` is its target, None where it is told for comparison only.

    `hard`: a miss is a fault, whatever the machine, and fails the run; a slow machine does not.
    `baseline` says what the number is compared with in the same run.
    """

    section: str
    engine: str
    what: str
    value: float
    unit: str
    sense: Literal["<=", ">=", "=="] = "<="
    bound: float | None = None
    hard: bool = False
    baseline: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without one. What could not be measured is not."""
        if self.bound is None:
            return None
        if self.sense == "<=":
            return self.value <= self.bound
        return self.value >= self.bound if self.sense == ">=" else self.value == self.bound


def exit_code(lines: Iterable[Line]) -> int:
    """Return 1 if a target that no machine may miss was missed, else 0."""
    return int(any(line.hard and line.ok is False for line in lines))


def correctness(section: str, engine: str, found: Found, what: str) -> list[Line]:
    """Return the lines that hold wherever nothing may be lost."""
    counts = {
        f"lost of {found.acknowledged:,}": found.lost,
        "doubled": found.doubled,
        "altered": found.altered,
    }
    return [
        Line(section, engine, f"{name}, {what}", len(ids), "rows", "==", 0, True)
        for name, ids in counts.items()
    ]


def some(section: str, engine: str, what: str, count: int) -> Line:
    """Return a line that fails where nothing happened: a loss of 0 of 0 shows nothing."""
    return Line(section, engine, what, count, "", ">=", 1, True)


def table(lines: Sequence[Line]) -> str:
    """Return the lines for people."""
    rows = [["section", "engine", "what", "measured", "target", "", "compared with"]]
    marks = {None: "", True: "ok", False: "MISS"}
    for line in lines:
        target = "" if line.bound is None else f"{line.sense} {_number(line.bound)}"
        measured = f"{_number(line.value)} {line.unit}".rstrip()
        mark = marks[line.ok]
        rows.append([line.section, line.engine, line.what, measured, target, mark, line.baseline])
    widths = [max(len(row[n]) for row in rows) for n in range(7)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n in (3, 4) else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _number(value: float) -> str:
    if math.isnan(value):
        return "nothing"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def failed(section: str, engine: str, why: str) -> Line:
    """Return the line of a section that could not be measured."""
    told = " ".join(why.split())
    return Line(
        section,
        engine,
        told if len(told) < 200 else f"... {told[-200:]}",
        math.nan,
        "",
        "==",
        0,
        True,
    )
