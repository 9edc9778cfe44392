"""The picture of how time and memory grow, as SVG: a column for each size, a row for either.

The points stand at equal distances, whatever their sizes, which are written below them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from tests.bench.judge.growth import Point

WIDTH, HEIGHT = 216, 130  # of a panel
LEFT, TOP, GAP = 14, 44, 14
_STYLE = """\
text { font: 11px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600 }
.note { fill: #57606a }
.frame { fill: #ffffff; stroke: #d0d7de }
path { fill: none; stroke-width: 2 }
.cpu { stroke: #0969da } circle.cpu { fill: #0969da }
.memory { stroke: #bf5700 } circle.memory { fill: #bf5700 }"""
_WORDS = {
    "tokens": "tokens of a body",
    "alternatives": "alternatives of a token",
    "streams": "streams at once",
    "connections": "connections at once",
}


def picture(points: list[Point]) -> str:
    """Return the picture of these points; those of one axis stand together, in ascending order."""
    columns = [list(each) for _, each in groupby(points, lambda point: point.axis)]
    width = LEFT * 2 + len(columns) * (WIDTH + GAP) - GAP
    height = TOP + 2 * (HEIGHT + 48)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">',
        "<title>CPU and memory of one process over what is asked of it</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for n, column in enumerate(columns):
        x = LEFT + n * (WIDTH + GAP)
        first = column[0]
        time = f"CPU of {_article(first.unit)}, over the first"
        parts.append(_text(x, 18, _WORDS.get(first.axis, first.axis), "title"))
        parts += _panel(x, TOP, time, "cpu", column, [p.cpu / first.cpu for p in column], _times)
        peaks = [point.peak for point in column]
        parts += _panel(x, TOP + HEIGHT + 48, "MB, at most", "memory", column, peaks, _whole)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    x: int,
    y: int,
    title: str,
    kind: str,
    column: list[Point],
    values: list[float],
    say: Callable[[float], str],
) -> list[str]:
    """Return one panel: its frame, line and points, each with its value above and size below."""
    most = max(values) * 1.35 or 1.0
    places = [x + WIDTH * (n + 0.5) / len(column) for n in range(len(column))]
    heights = [y + HEIGHT - 6 - value / most * (HEIGHT - 12) for value in values]
    line = " L".join(f"{a:.1f} {b:.1f}" for a, b in zip(places, heights, strict=True))
    parts = [
        _text(x, y - 8, title, "note"),
        f'<rect class="frame" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<path class="{kind}" d="M{line}"/>',
    ]
    for point, a, b, value in zip(column, places, heights, values, strict=True):
        parts.append(f'<circle class="{kind}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>')
        parts.append(_text(a, b - 8, say(value), "", "middle"))
        parts.append(_text(a, y + HEIGHT + 15, f"{point.size:,}", "note", "middle"))
    return parts


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _times(value: float) -> str:
    return f"{value:.1f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"
