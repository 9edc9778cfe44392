"""The Structs that document the answers: they hold whatever is emitted, and refuse the rest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.conforming import BODIES, STREAMS
from tests.conforming_completions import BODIES as TEXT_BODIES
from tests.conforming_completions import STREAMS as TEXT_STREAMS
from tests.corpus import Fixture, fixtures, text_fixtures
from tests.openapi.answer_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    ErrorResponse,
)

ALL = [*fixtures(), *text_fixtures()]


def pieces(data: bytes) -> list[bytes]:
    """Return a stream's JSON texts, without the comments and the end."""
    events = (event.removeprefix(b"data: ") for event in data.split(b"\n\n"))
    return [event for event in events if event not in (b"", b"[DONE]") and event[:1] != b":"]


def kind_of(fixture: Fixture, piece: bytes, streamed: bool) -> type[msgspec.Struct]:
    """Return what the document says that this answer is."""
    if piece.startswith(b'{"error"'):
        return ErrorResponse
    if "prompt" in fixture.request:
        return CompletionChunk if streamed else Completion
    return ChatCompletionChunk if streamed else ChatCompletion


@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_what_is_emitted_is_what_is_documented(fixture: Fixture) -> None:
    data = fixture.expected_path.read_bytes()
    streamed = data.startswith((b"data:", b":"))
    for piece in pieces(data) if streamed else [data] if data else []:
        msgspec.json.decode(piece, type=kind_of(fixture, piece, streamed))


def paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return where every value lies."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    inner = [path for key, item in items for path in paths(item, (*at, key))]
    return [at, *inner]


def changed(value: Any, path: tuple[str | int, ...], new: Any) -> bytes:
    """Return the JSON of a copy in which a value is another one."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return json.dumps(copy).encode()


def accepted(kind: type[msgspec.Struct], data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def samples() -> list[tuple[type[msgspec.Struct], Any]]:
    """Return conforming answers, without those to which a client asked for vendors' keys."""
    found: list[tuple[type[msgspec.Struct], Any]] = []
    named: dict[type[msgspec.Struct], dict[str, Any]] = {
        ChatCompletion: BODIES,
        ChatCompletionChunk: STREAMS,
        Completion: TEXT_BODIES,
        CompletionChunk: TEXT_STREAMS,
    }
    for kind, answers in named.items():
        for sample in answers.values():
            if sample.request.extensions != "all" and not sample.request.keep:
                whole = sample.answer if isinstance(sample.answer, list) else [sample.answer]
                found += [(kind, answer) for answer in whole]
    return found


SAMPLES = samples()
FREE = frozenset(
    {"annotations", "audio", "prompt_logprobs", "prompt_progress", "prompt_token_ids", "timings",
     "token_ids"}
)  # fmt: skip
"""Keys whose values are the backend's affair."""


def test_no_object_may_hold_a_key_more_and_no_value_another_type() -> None:
    counted = 0
    for kind, answer in SAMPLES:
        assert accepted(kind, json.dumps(answer).encode()), answer
        for path in paths(answer):
            value: Any = answer
            for step in path:
                value = value[step]
            if not path or not FREE.isdisjoint(path):
                continue
            assert not accepted(kind, changed(answer, path, {"odd": [0]})), path
            counted += 1
            alternatives = len(path) > 1 and path[-2] == "top_logprobs"  # a completion's are keys
            if isinstance(value, dict) and not alternatives:
                assert not accepted(kind, changed(answer, path, {**value, "odd": None})), path
    assert counted > 500


@pytest.mark.parametrize("key", ["id", "object", "created", "model", "choices", "usage"])
def test_no_key_may_be_missing(key: str) -> None:
    for kind, answer in SAMPLES:
        chunk = kind in (ChatCompletionChunk, CompletionChunk)
        if not (chunk and key == "usage"):
            less = {name: value for name, value in answer.items() if name != key}
            assert not accepted(kind, json.dumps(less).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"id": "cmpl-12345678"},
        {"id": "chatcmpl-1"},
        {"object": "chat.completion.chunk"},
        {"created": 12345},
        {"model": ""},
        {"system_fingerprint": None},
        {"usage": None},
        {"service_tier": "gold"},
        {"stop_reason": None},
    ],
)
def test_a_deviation_is_refused(change: dict[str, Any]) -> None:
    answer = BODIES["plain"].answer
    assert accepted(ChatCompletion, json.dumps(answer).encode())
    assert not accepted(ChatCompletion, json.dumps({**answer, **change}).encode())
