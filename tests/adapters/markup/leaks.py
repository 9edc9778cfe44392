"""Text with calls and thoughts in it, and what the translation makes of that, every way."""

from __future__ import annotations

import json
from typing import Any

from tests.answers import DONE, Json, ask, choice, completion, data, end, role, say
from tests.conformance import check_body, check_stream
from tests.corpus import checked_request
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator, translate_body

PROPERTIES = {
    "a": {"type": "integer"},
    "s": {"type": "string"},
    "l": {"type": "array", "items": {}},
    "any": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
}
F = {"type": "function", "function": {"name": "f", "parameters": {"properties": PROPERTIES}}}
G = {"type": "function", "function": {"name": "g"}}
ASKED = ask(tools=[F, G])
BOTH = ("tool_calls", "thinking")
SIZES = (1, 2, 3, 5, 8, 13, 1000)

Calls = list[tuple[str, Any]]
Got = tuple[str | None, str | None, Calls, str, dict[str, int]]
"""Content, reasoning, calls, reason, and what was recovered."""


def outcome(answer: Json, counts: dict[str, int]) -> Got:
    choice = answer["choices"][0]
    told = choice["message"]
    found = [x["function"] for x in told.get("tool_calls", ())]
    calls = [(x["name"], json.loads(x["arguments"])) for x in found]
    counted = {name: times for name, times in counts.items() if name.endswith("_recovered")}
    content, thought = told["content"], told.get("reasoning_content")
    return content or None, thought, calls, choice["finish_reason"], counted


def whole(text: str, asked: Json = ASKED, recover: tuple[str, ...] = BOTH, **more: Any) -> Got:
    """Return what a body with this content comes out as, checked against the rules."""
    made = exchange(asked, recover=frozenset(recover))
    given = json.dumps(completion(choice(text, **more))).encode()
    answer = translate_body(made, 200, "application/json", given)
    assert check_body(answer.body, checked_request(asked), None) == []
    return outcome(json.loads(answer.body), made.notes.counts)


def streamed(
    text: str,
    size: int,
    asked: Json = ASKED,
    recover: tuple[str, ...] = BOTH,
    reason: str = "stop",
) -> Got:
    """Return what a stream with this content comes out as, cut into pieces of this size."""
    asked = asked | {"stream": True}
    made = exchange(asked, recover=frozenset(recover))
    translator = StreamTranslator(made)
    pieces = [say(text[at : at + size]) for at in range(0, len(text), size)]
    parts = [*map(data, [role(), *pieces, end(reason)]), DONE]
    out = b"".join([*map(translator.feed, parts), translator.close()])
    assert check_stream(out, checked_request(asked), None) == []
    return outcome(fold(out), made.notes.counts)


def every_way(text: str, asked: Json = ASKED, recover: tuple[str, ...] = BOTH) -> Got:
    """Return what a text comes out as, which is the same for a body and every cut of a stream."""
    found = whole(text, asked, recover)
    assert [streamed(text, size, asked, recover) for size in SIZES] == [found] * len(SIZES)
    return found


ONE: Calls = [("f", {"a": 1})]
TWO: Calls = [("f", {"a": 1}), ("g", {})]
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
"""One call of f."""
