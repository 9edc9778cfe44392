"""Recorded answers changed as a wire and a wild server change them, beside mutations.py's places.

Whole events are lost, come twice, in another order, or between those of another answer; values are
of another type, numbers beyond every range, keys doubled, texts no Unicode, arrays without end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.adapters.properties.generators import Draw, sometimes
from tests.adapters.properties.mutations import DONE, Place, places
from tests.corpus import Fixture
from tests.fold import payloads

TWIN = "@twin@"  # before a key that is to stand there twice
LITERALS = {
    b'"@huge@"': b"1e999",
    b'"@lowest@"': b"-1e999",
    b'"@deep@"': b"[" * 20_000 + b"]" * 20_000,
    b'"@deeper@"': b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    b'"@twin@': b'"',
}
"""What no writer of JSON writes: what stands for it -> its bytes."""
WILD: list[Any] = [
    None, False, 0, -0.0, 2**70, -(2**70), 2**63, 1e308, 0.5, "", "1", "\ud800", "a\udfffb",
    [], {}, [0], {"a": 1}, "@huge@", "@lowest@", "@deep@", "@deeper@",
]  # fmt: skip
ENVELOPE = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


def disturb(draw: Draw, place: Place) -> None:
    """Put a value of another type in a place, or have its key twice, once with such a value."""
    holder, key = place
    value = deepcopy(draw(st.sampled_from(WILD)))
    if isinstance(key, str) and sometimes(draw):
        holder[TWIN + key] = value
    else:
        holder[key] = value


def rearrange(draw: Draw, events: list[bytes], other: Sequence[bytes]) -> list[bytes]:
    """Lose, double, move or swap some events, or put another answer's between them."""
    events = list(events)
    for _ in range(draw(st.integers(0, 3))):
        if not events:
            break
        at, to = (draw(st.integers(0, len(events) - 1)) for _ in range(2))
        how = draw(st.sampled_from(["lose", "double", "swap", "interleave"]))
        if how == "lose":
            del events[at]
        elif how == "double":
            events.insert(to, events[at])
        elif how == "swap":
            events[at], events[to] = events[to], events[at]
        else:
            for number, event in enumerate(other):
                events.insert(min(at + 2 * number, len(events)), event)
    return events


def read(fixture: Fixture) -> list[Any]:
    """Return the JSON of a recorded answer's events, or of its body."""
    events = fixture.raw.startswith(b"data:")
    raw = payloads(fixture.raw) if events else [fixture.raw]
    return [json.loads(data) for data in raw if data != DONE]


def write(part: Any, *, ascii: bool = True) -> bytes:
    """Return a part's JSON; what no Unicode is comes as it would from a careless server."""
    data = json.dumps(part, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    for name, literal in LITERALS.items():
        data = data.replace(name, literal)
    return data


def framed(fixture: Fixture, written: Sequence[bytes]) -> bytes:
    """Return the bytes of an answer: its events, or its body."""
    if not fixture.raw.startswith(b"data:"):
        return b"".join(written)
    done = [DONE] if fixture.raw.rstrip().endswith(DONE) else []
    return b"".join(b"data: " + data + b"\n\n" for data in [*written, *done])


@st.composite
def disturbed(draw: Draw, found: list[Fixture]) -> Fixture:
    """Draw a recorded answer with values and events disturbed."""
    fixture = found[draw(st.integers(0, len(found) - 1))]
    parts = read(fixture)
    for _ in range(draw(st.integers(0, 4))):
        there = [x for part in parts if isinstance(part, dict | list) for x in places(part)]
        if there:
            disturb(draw, there[draw(st.integers(0, len(there) - 1))])
    written = [write(part, ascii=sometimes(draw)) for part in parts]
    if fixture.raw.startswith(b"data:"):
        alike = [x for x in found if x.dialect == fixture.dialect and x.raw.startswith(b"data:")]
        other = alike[draw(st.integers(0, len(alike) - 1))]
        written = rearrange(draw, written, [write(part) for part in read(other)])
    return replace(fixture, raw=framed(fixture, written))


@st.composite
def with_odd_envelopes(draw: Draw, found: list[Fixture]) -> Fixture:
    """Draw a recorded answer of which the text, the numbers and the counts are as they were."""
    fixture = found[draw(st.integers(0, len(found) - 1))]
    parts = read(fixture)
    for _ in range(draw(st.integers(1, 4))):
        part = parts[draw(st.integers(0, len(parts) - 1))]
        if isinstance(part, dict):
            disturb(draw, (part, draw(st.sampled_from([*ENVELOPE, "vendor"]))))
    return replace(fixture, raw=framed(fixture, [write(part) for part in parts]))
