"""What a PromQL expression names: its selectors, and the labels it keeps or joins by.

No parser (promtool is one): just enough to look every name up in a scrape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

PROMETHEUS = {"up": ("job", "instance"), "ALERTS": ("alertname", "alertstate", "job", "instance")}
"""Metrics that Prometheus itself makes, and their labels."""
SCRAPED = ("job", "instance")
"""Labels that a scrape adds."""

_KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset"})
_MODIFIERS = r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
_TIMES = r"\[\d+(?:ms|[smhdwy])[\w:]*\]|\boffset\s+\w+"
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})|(?P<name>[a-zA-Z_:][\w:]*)\s*(?P<follows>\(|\{{(?:[^{{}}\"]|{_STRING})*\}})?"
)
_MADE = re.compile(rf"\blabel_replace\s*\(.*?,\s*({_STRING})\s*,", re.DOTALL)
_MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({_STRING})")

Sample = tuple[str, Mapping[str, str]]
"""A sample's name and labels."""


@dataclass(frozen=True)
class Selector:
    """A metric's name, and (label, operator, value) of each matcher."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def takes(self, sample: Sample) -> bool:
        """Say whether it selects a sample; what a scrape adds is not looked at."""
        name, labels = sample
        return name == self.name and all(
            label in SCRAPED or _holds(labels.get(label, ""), how, value)
            for label, how, value in self.matchers
        )


def _holds(value: str, how: str, wanted: str) -> bool:
    if how in ("=", "!="):
        return (value == wanted) == (how == "=")
    return bool(re.fullmatch(wanted, value)) == (how == "=~")


def selectors(expression: str) -> list[Selector]:
    """Return the selectors of an expression."""
    plain = re.sub(_TIMES, " ", re.sub(_MODIFIERS, " ", expression))
    found = []
    for token in _TOKEN.finditer(plain):
        name, follows = token["name"], token["follows"] or ""
        if name is None or follows == "(" or name in _KEYWORDS:
            continue
        matchers = ((a, b, _unquoted(c)) for a, b, c in _MATCHER.findall(follows))
        found.append(Selector(name, tuple(matchers)))
    return found


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def grouped(expression: str) -> set[str]:
    """Return the labels that an expression groups or joins by."""
    lists = (names for _, names in re.findall(_MODIFIERS, expression))
    return {name.strip() for names in lists for name in names.split(",") if name.strip()}


def samples_of(text: str) -> list[Sample]:
    """Return the samples of a scrape."""
    return [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def problems(expression: str, samples: Iterable[Sample]) -> list[str]:
    """Return what an expression names that these samples do not have."""
    known = list(samples)
    found, labels = [], {*SCRAPED, *map(_unquoted, _MADE.findall(expression))}
    for selector in selectors(expression):
        if selector.name in PROMETHEUS:
            labels.update(PROMETHEUS[selector.name])
            continue
        own = {label for name, has in known if name == selector.name for label in has}
        labels |= own
        unknown = [one for one, _, _ in selector.matchers if one not in own.union(SCRAPED)]
        if not any(name == selector.name for name, _ in known):
            found.append(f"no metric {selector.name}")
        elif unknown:
            found.append(f"{selector.name} has no label {unknown[0]}")
        elif not any(selector.takes(sample) for sample in known):
            found.append(f"no series {selector}")
    return found + [f"no label {one}" for one in sorted(grouped(expression) - labels)]
