"""What a fixture's backend gave, read by a small reader that shares nothing with the translation.

It knows only where the numbers, the text and the counts are, never what they should become.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.conformance import ChoiceFacts, Facts, Row
from tests.corpus import Fixture
from tests.fold import payloads

NOT_SAMPLED = "mlx-lm"  # its entry is the first of the unsorted list, not the sampled token
CONSTANT_USAGE = "koboldcpp"


@dataclass
class _Choice:
    text: str = ""
    tokens: list[bytes | None] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    scored: bool = False


def facts_of(fixture: Fixture) -> Facts | None:
    """Return what the backend gave, None where it is an error, a page or a failed answer."""
    try:
        parts = list(_objects(fixture))
    except ValueError:
        return None
    if fixture.status >= 400 or not parts or any("choices" not in part for part in parts):
        return None
    choices: dict[int, _Choice] = {}
    for part in parts:
        for piece in part["choices"]:
            choice = choices.setdefault(piece.get("index", 0), _Choice())
            message = piece.get("delta") or piece.get("message") or {}
            choice.text += message.get("content") or ""
            _read(piece.get("logprobs"), choice, fixture.server)
    stops = fixture.asked.stops
    ids = {part["id"] for part in parts}
    return Facts(
        choices={n: _facts(choice, stops) for n, choice in choices.items()},
        usage=None if fixture.server == CONSTANT_USAGE else _usage(parts),
        id=ids.pop() if len(ids) == 1 else None,
    )


def _objects(fixture: Fixture) -> Iterator[dict[str, Any]]:
    if fixture.streamed:
        for data in payloads(fixture.raw):
            if data != b"[DONE]":
                yield json.loads(data)
    else:
        yield json.loads(fixture.raw)


def _usage(parts: list[dict[str, Any]]) -> tuple[int, int] | None:
    found = [part["usage"] for part in parts if part.get("usage")]
    return (found[-1]["prompt_tokens"], found[-1]["completion_tokens"]) if found else None


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, str) else float(value)


def _value(item: dict[str, Any]) -> float | None:
    """Return a token's number; llama.cpp's post_sampling_probs calls it prob."""
    return _number(item.get("logprob", item.get("prob")))


def _read(logprobs: Any, choice: _Choice, server: str) -> None:
    """Add the rows of one logprobs object, whatever its shape."""
    if not logprobs:
        return
    choice.scored = True
    if "token" in logprobs:  # one entry, bare
        logprobs = {"content": [logprobs]}
    if "content" in logprobs:
        for entry in logprobs["content"] or ():
            top = entry.get("top_logprobs") or entry.get("top_probs") or ()
            values = tuple(_value(item) for item in top)
            inferred = server == NOT_SAMPLED and bool(top)
            choice.rows.append(Row(_value(entry), values, inferred))
            choice.tokens.append(_bytes(entry))
        return
    tops = logprobs.get("top_logprobs") or ()
    own = logprobs.get("token_logprobs")
    for n in range(len(tops) if own is None else len(own)):
        values = tuple(_number(v) for v in tops[n].values()) if n < len(tops) and tops[n] else ()
        choice.rows.append(Row(None if own is None else _number(own[n]), values, own is None))
        text = logprobs.get("tokens", ())
        choice.tokens.append(_text(text[n]) if n < len(text) else None)


def _bytes(entry: dict[str, Any]) -> bytes | None:
    """Return an entry's bytes if it tells them: a list, or a text that is no placeholder."""
    data = entry.get("bytes")
    if isinstance(data, list) and data and data != list("\ufffd".encode()):
        return bytes(data)
    return _text(entry.get("token"))


def _text(token: Any) -> bytes | None:
    odd = not isinstance(token, str) or not token or "\ufffd" in token or "token_id:" in token
    return None if odd else str(token).encode()


def _facts(choice: _Choice, stops: tuple[str, ...]) -> ChoiceFacts:
    cut = any(stop in choice.text for stop in stops)
    return ChoiceFacts(
        rows=tuple(choice.rows) if choice.scored else None,
        drops=_drops(choice),
        text=None if cut else choice.text,
    )


def _drops(choice: _Choice) -> dict[str, int] | None:
    """Say how many rows may go, where the tokens' own bytes tell: none, or the last (an EOS)."""
    if all(token is not None for token in choice.tokens):
        joined = b"".join(token or b"" for token in choice.tokens)
        if joined.decode("utf-8", "replace") == choice.text:
            return {}
    if choice.tokens and all(token is not None for token in choice.tokens[:-1]):
        joined = b"".join(token or b"" for token in choice.tokens[:-1])
        if joined.decode("utf-8", "replace") == choice.text:
            return {"logprobs_eos_entry": 1}
    return None
