"""Recorded answers with something in them changed: what no server was ever seen to send.

`mutants()` draws a fixture, changes a few places of its JSON (or of its bytes), and perhaps asks
for stop strings that are in it. Nothing is known of what the right answer is: the translation may
fail the answer, but may not fail itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.adapters.properties.generators import Draw, sometimes
from tests.corpus import Fixture, fixtures, text_fixtures
from tests.fold import payloads

DONE = b"[DONE]"
ODD: list[Any] = [
    None, True, 0, -1, 1e300, "", " ", "\ufffd", "\ufffd\ufffd\ufffd", "é", "\\xf0", "<0xF0>",
    "<s>", "token_id:7", [], {}, [None], [[]], [300], [0xFF, 0xFF], [0xF0, 0x9F], [0x98, 0x80, 97],
]  # fmt: skip
Place = tuple[Any, Any]
"""(a list or an object, the index or key of one of its items)"""


def scored() -> list[Fixture]:
    """Return the recorded answers that hold logprobs, which the most can be wrong with."""
    found = [*fixtures(), *text_fixtures()]
    return [x for x in found if x.status < 400 and x.request.get("logprobs") not in (None, False)]


def places(value: Any) -> Iterator[Place]:
    """Give every item of every list and object within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def change(draw: Draw, place: Place) -> None:
    """Put something else in a place, leave it out, repeat it, or cut or swap what is there."""
    holder, key = place
    item = holder[key]
    how = draw(st.sampled_from(["odd", "out", "again", "cut"]))
    if how == "odd":
        holder[key] = deepcopy(draw(st.sampled_from(ODD)))
    elif how == "out":
        del holder[key]
    elif how == "again" and isinstance(holder, list):
        holder.insert(draw(st.integers(0, len(holder))), deepcopy(item))
    elif isinstance(item, str):
        at = draw(st.integers(0, len(item)))
        holder[key] = item[:at] + draw(st.sampled_from(["", "\ufffd", "x", "😀"])) + item[at + 1 :]
    elif isinstance(item, list):
        holder[key] = item[: draw(st.integers(0, len(item)))]
    elif isinstance(item, float):
        holder[key] = -item


def mutate(draw: Draw, parts: list[Any]) -> None:
    """Change up to four places of some parts, rather in their logprobs than elsewhere."""
    for _ in range(draw(st.integers(1, 4))):
        found = [x for part in parts if isinstance(part, dict | list) for x in places(part)]
        inner = [x for x in found if x[1] in ("token", "bytes", "content", "text", "logprob")]
        if found:
            within = inner if inner and sometimes(draw) else found
            change(draw, within[draw(st.integers(0, len(within) - 1))])


def stop_strings(draw: Draw, parts: list[Any]) -> list[str]:
    """Return stop strings: pieces of the answer's texts, or what stands for no text."""
    keys = ("content", "text", "token")
    texts = [holder[key] for part in parts for holder, key in places(part) if key in keys]
    words = ["\ufffd", "\ufffd\ufffd", *(x[:3] for x in texts if isinstance(x, str) and x)]
    size = len(words) - 1
    return [words[draw(st.integers(0, size))] for _ in range(draw(st.integers(1, 2)))]


@st.composite
def mutants(draw: Draw, found: list[Fixture]) -> Fixture:
    """Draw one of the recorded answers, changed."""
    fixture = found[draw(st.integers(0, len(found) - 1))]
    events = fixture.raw.startswith(b"data:")
    raw = payloads(fixture.raw) if events else [fixture.raw]
    done = DONE in raw
    parts = [json.loads(data) for data in raw if data != DONE]
    mutate(draw, parts)
    request = dict(fixture.request)
    if sometimes(draw):
        request["stop"] = stop_strings(draw, [x for x in parts if isinstance(x, dict | list)])
    written = [json.dumps(part, ensure_ascii=sometimes(draw)).encode() for part in parts]
    if events:
        written = [b"data: " + data + b"\n\n" for data in [*written, *([DONE] if done else [])]]
    data = b"".join(written)
    if not draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=2)) + data[at + draw(st.integers(0, 9)) :]
    return replace(fixture, request=request, raw=data)
