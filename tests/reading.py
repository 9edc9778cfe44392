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
from tests.fold import chunks_of

NOT_SAMPLED = "mlx-lm/"  # its entry is the first of the unsorted list, not the sampled token
# They give the sampled token the best alternative's number.
MISPAIRED = ("cortex/", "/pr10627")
CONSTANT_USAGE = "koboldcpp"
COUNTED = "counted-index"  # its index counts tokens


@dataclass
class _Choice:
    text: str | None = ""  # None: some of it is no text
    tokens: list[bytes | None] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    scored: bool = False


def facts_of(fixture: Fixture) -> Facts | None:
    """Return what the backend gave, None where it is an error, a page or a failed answer."""
    try:
        parts = list(_objects(fixture))
    except ValueError:
        return None
    if fixture.dialect == "llamacpp":
        return _native(fixture, parts)
    if fixture.status >= 400 or not parts or any("choices" not in part for part in parts):
        return None
    choices: dict[int, _Choice] = {}
    mispaired = any(name in fixture.name for name in MISPAIRED)
    inferred = NOT_SAMPLED in fixture.name
    for part in parts:
        pieces = part["choices"] if isinstance(part["choices"], list) else [part["choices"]]
        for place, piece in enumerate(pieces):
            index = piece.get("index", 0) if fixture.streamed else place
            if COUNTED in fixture.name:
                index = 0
            choice = choices.setdefault(index, _Choice())
            message = piece.get("delta") or piece.get("message") or {}
            said = message.get("content") or piece.get("text") or ""
            if said == choice.text and part.get("object") == "chat.completion":
                said = ""  # a stream's closing message, which says all of it again
            whole = choice.text is not None and isinstance(said, str)
            choice.text = f"{choice.text}{said}" if whole else None
            _read(piece.get("logprobs"), choice, mispaired, inferred)
    stops = fixture.asked.stops
    ids = {part.get("id") for part in parts}
    return Facts(
        choices={n: _facts(choice, stops) for n, choice in choices.items()},
        usage=None if fixture.server == CONSTANT_USAGE else _usage(parts),
        id=ids.pop() if len(ids) == 1 else None,
    )


def _objects(fixture: Fixture) -> Iterator[dict[str, Any]]:
    """Give the answer's JSON objects; a null and a keepalive's object are not of it."""
    if fixture.streamed or fixture.raw.startswith(b"data:"):
        values = chunks_of(fixture.raw)
    else:
        whole = json.loads(fixture.raw)
        values = whole if isinstance(whole, list) else [whole]
    for value in values:
        if isinstance(value, dict) and value.keys() != {"type"}:
            yield value


def _native(fixture: Fixture, parts: list[dict[str, Any]]) -> Facts | None:
    """Return what llama.cpp's /completion gave; a stream's last chunk may repeat all rows."""
    if fixture.status >= 400 or any("error" in part for part in parts):
        return None
    choices: dict[int, _Choice] = {}
    for place, part in enumerate(parts):
        choice = choices.setdefault(part.get("index", 0 if fixture.streamed else place), _Choice())
        choice.text = f"{choice.text}{part.get('content') or ''}"
        if not (fixture.streamed and part.get("stop")):
            entries = part.get("completion_probabilities")
            _read(entries and {"content": entries}, choice)
    stops = fixture.asked.stops
    ends = [part for part in parts if part.get("stop") and "tokens_evaluated" in part]
    prompt = sum(part["tokens_evaluated"] for part in ends) // (fixture.request.get("n") or 1)
    usage = (prompt, sum(part["tokens_predicted"] for part in ends))
    return Facts(
        choices={n: _facts(choice, stops) for n, choice in choices.items()},
        usage=usage if len(ends) == len(choices) else None,
    )


def _usage(parts: list[dict[str, Any]]) -> tuple[int, int] | None:
    told = [part for part in parts if part.get("usage")]
    found = [each[0] if isinstance(each := part["usage"], list) else each for part in told]
    if not found or not found[-1].keys() >= {"prompt_tokens", "completion_tokens"}:
        return None
    if not all("timings" in part for part in told):
        found = found[-1:]  # llama.cpp's, beside timings, are of one choice each
    elif len(told[-1]["choices"]) > 1:
        return None  # of a body's it tells those of the first alone
    return found[-1]["prompt_tokens"], sum(usage["completion_tokens"] for usage in found)


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, str) else float(value)


def _value(item: dict[str, Any]) -> float | None:
    """Return a token's number; llama.cpp's post_sampling_probs calls it prob."""
    return _number(item.get("logprob", item.get("prob")))


def _old(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of llama.cpp before 2024-12 under the newer names."""
    top = [{"token": item["tok_str"], "prob": item["prob"]} for item in entry["probs"]]
    own = next((item["prob"] for item in top if item["token"] == entry["content"]), None)
    return {"token": entry["content"], "prob": own, "top_probs": top}


def _name(item: dict[str, Any]) -> bytes | str:
    return _octets(item.get("bytes")) or str(item.get("token"))


def _octets(data: Any) -> bytes:
    """Return a list of bytes, also of C++'s signed ones, as bytes; b"" for none."""
    return bytes(one & 255 for one in data) if isinstance(data, list) else b""


def _read(logprobs: Any, choice: _Choice, mispaired: bool = False, inferred: bool = False) -> None:
    """Add the rows of one logprobs object, whatever its shape."""
    if not logprobs:
        return
    choice.scored = True
    if not isinstance(logprobs, dict):  # bare numbers
        numbers = logprobs if isinstance(logprobs, list) else [logprobs]
        choice.rows += [Row(_number(value)) for value in numbers]
        choice.tokens += [None for _ in numbers]
        return
    if "token" in logprobs:  # one entry, bare
        logprobs = {"content": [logprobs]}
    if logprobs.get("content") is not None or not logprobs.keys() & {"tokens", "top_logprobs"}:
        for given in logprobs.get("content") or ():
            entry = _old(given) if "probs" in given else given
            offered = entry.get("top_logprobs") or entry.get("top_probs") or ()
            rows = [item for item in offered if item is not None]
            values = tuple(_value(item) for item in rows)
            names = tuple(_name(item) for item in rows)
            own = next((v for v, n in zip(values, names, strict=True) if n == _name(entry)), None)
            value = own if mispaired and own is not None else _value(entry)
            choice.rows.append(Row(value, values, inferred and bool(rows), names))
            choice.tokens.append(_bytes(entry))
        return
    _read_arrays(logprobs, choice, mispaired)


def _read_arrays(logprobs: dict[str, Any], choice: _Choice, mispaired: bool) -> None:
    tops = logprobs.get("top_logprobs") or ()
    numbers = logprobs.get("token_logprobs")
    texts = logprobs.get("tokens", ())
    for n in range(len(tops) if numbers is None else len(numbers)):
        top = (tops[n] or {}) if n < len(tops) else {}
        values = tuple(_number(v) for v in top.values())
        text = texts[n] if n < len(texts) else None
        value = None if numbers is None else _number(numbers[n])
        own = _number(top[text]) if mispaired and text in top else value
        choice.rows.append(Row(own, values, numbers is None, tuple(top)))
        choice.tokens.append(_text(text))


def _bytes(entry: dict[str, Any]) -> bytes | None:
    """Return an entry's bytes if it tells them: a list, or a text that is no placeholder."""
    data = _octets(entry.get("bytes"))
    if data and data != "\ufffd".encode():
        return data
    token = entry.get("token")
    if isinstance(token, str) and token.startswith("byte: \\x"):  # llama.cpp before 2024-12
        return bytes.fromhex(token[8:])
    return _text(token)


def _text(token: Any) -> bytes | None:
    odd = not isinstance(token, str) or not token or "\ufffd" in token or "token_id:" in token
    return None if odd else str(token).encode()


def _facts(choice: _Choice, stops: tuple[str, ...]) -> ChoiceFacts:
    cut = choice.text is None or any(stop in choice.text for stop in stops)
    return ChoiceFacts(
        rows=tuple(choice.rows) if choice.scored else None,
        drops=None if cut else _drops(choice),
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
