"""Deviating answers, built from conforming ones: one function per class of deviation.

`cases(name, ...)` draws an answer (any text, cut into tokens anywhere), writes it in OpenAI's form
as a body or a stream, and lets the named deviations spoil that. A `Case` knows all the while what
the backend really said, which is what the repaired answer is held to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tests.conformance import ChoiceFacts, Facts, Row

Draw = Callable[..., Any]
MODEL = "m"
CREATED = 1_741_570_283
ID = "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT"
STOP = "\n###END###"

# texts that are easily mistaken for something else
ODD = [
    " ", "\n", "é", "e\u0301", "你好", "😀", "👩\u200d👩\u200d👧", "\u2028", "\x00", '"', "\\",
    "\\xf0", "Ġ", "▁", "<0x0A>", "token_id:", "data: ", "[DONE]", "</s>", "Ã©", "\ufeff", "\u0085",
]  # fmt: skip
texts = st.lists(
    st.one_of(
        st.sampled_from(ODD),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=4),
    ),
    min_size=1,
    max_size=8,
).map("".join)
plain_texts = st.text(" abcdefghéß你😀.", min_size=1, max_size=16)
values = st.floats(-30.0, -0.002, allow_nan=False).map(lambda v: round(v, 6))


@dataclass(frozen=True)
class Token:
    """One token: its bytes, its logprob and the alternatives' (bytes, logprob), descending."""

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass
class Case:
    """An answer on its way to being spoiled, and what is true of it.

    `parts` is the one body, or the chunks. `rows` and `drops` follow the deviations.
    """

    tokens: list[Token]
    k: int
    streamed: bool
    scored: bool
    include_usage: bool
    parts: list[dict[str, Any]]
    rows: list[Row]
    text: str
    reason: str = "stop"
    drops: dict[str, int] | None = field(default_factory=dict)
    usage: tuple[int, int] | None = (11, 7)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    ascii: bool = True
    told: bool = True  # the reason can be known
    reasoning: str | None = None

    def request(self) -> dict[str, Any]:
        """Return the client's request."""
        found: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        if self.scored:
            found |= {"logprobs": True, "top_logprobs": self.k}
        if self.streamed:
            found["stream"] = True
        if self.include_usage:
            found["stream_options"] = {"include_usage": True}
        if self.stops:
            found["stop"] = self.stops
        if self.reason == "length":
            found["max_tokens"] = 7
        if self.calls:
            names = {name for name, _ in self.calls}
            found["tools"] = [
                {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
                for name in sorted(names)
            ]
        return found

    def facts(self) -> Facts:
        """Return what the backend gave."""
        rows = tuple(self.rows) if self.scored else None
        choice = ChoiceFacts(rows=rows, drops=self.drops, text=self.text)
        return Facts(choices={0: choice}, usage=self.usage)

    def raw(self) -> bytes:
        """Return the backend's bytes."""
        written = [json.dumps(part, ensure_ascii=self.ascii).encode() for part in self.parts]
        if not self.streamed:
            return written[0]
        return b"".join(b"data: " + data + b"\n\n" for data in [*written, b"[DONE]"])

    def choices(self) -> list[dict[str, Any]]:
        """Return every choice of every part."""
        return [choice for part in self.parts for choice in part["choices"]]

    def messages(self) -> list[dict[str, Any]]:
        """Return every message or delta."""
        return [choice["delta" if self.streamed else "message"] for choice in self.choices()]

    def entries(self) -> list[dict[str, Any]]:
        """Return every logprob entry, in order."""
        scored = [c["logprobs"]["content"] for c in self.choices() if c.get("logprobs")]
        return [entry for content in scored for entry in content]


# --- conforming answers ----------------------------------------------------------------------


def cut(draw: Draw, data: bytes) -> list[bytes]:
    """Cut bytes anywhere into tokens."""
    places = draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=10))
    edges = [0, *sorted(p for p in places if p < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def cut_pieces(draw: Draw, data: bytes) -> list[bytes]:
    """Cut bytes as a sentencepiece vocabulary does: whole characters, or single bytes of one."""
    found: list[bytes] = []
    for character in data.decode():
        how = draw(st.sampled_from(["join", "open", "bytes"]))
        if how == "bytes" and len(character.encode()) > 1:
            found += [bytes([b]) for b in character.encode()]
            found.append(b"")
        elif how == "join" and found:
            found[-1] += character.encode()
        else:
            found.append(character.encode())
    return [token for token in found if token]


def alternatives(draw: Draw, data: bytes, own: float, k: int) -> tuple[tuple[bytes, float], ...]:
    """Draw k alternatives, nearly always with the sampled token among them."""
    if k == 0:
        return ()
    others = st.one_of(plain_texts.map(str.encode), st.binary(min_size=1, max_size=3))
    found = {data: own} if draw(st.integers(0, 5)) else {}
    for other in draw(st.lists(others, max_size=k)):
        if other != data and b"\xef\xbf\xbd" not in other and len(found) < k:
            found[other] = draw(values)
    return tuple(sorted(found.items(), key=lambda item: -item[1]))


def spelled(data: bytes) -> dict[str, Any]:
    """Return a token's two spellings."""
    return {"token": data.decode("utf-8", "backslashreplace"), "bytes": list(data)}


def entry(token: Token) -> dict[str, Any]:
    """Return a token as OpenAI's logprob entry."""
    top = [{**spelled(data), "logprob": value} for data, value in token.top]
    return {**spelled(token.data), "logprob": token.logprob, "top_logprobs": top}


def part(kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a body or a chunk."""
    head = {"id": ID, "object": kind, "created": CREATED, "model": MODEL}
    return {**head, "choices": choices, **more}


def usage_of(case: Case) -> dict[str, int]:
    """Return the usage object."""
    prompt, completion = case.usage or (0, 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def sometimes(draw: Draw) -> bool:
    """Toss a coin."""
    return bool(draw(st.booleans()))


def groups(draw: Draw, tokens: list[Token]) -> list[list[Token]]:
    """Group tokens into chunks, each of whole characters."""
    found: list[list[Token]] = [[]]
    for token in tokens:
        found[-1].append(token)
        try:
            b"".join(t.data for t in found[-1]).decode()
        except UnicodeDecodeError:
            continue
        if draw(st.booleans()):
            found.append([])
    return [group for group in found if group]


def write(draw: Draw, case: Case) -> None:
    """Write the answer as it should be: OpenAI's body, or its stream."""
    message: dict[str, Any] = {"role": "assistant", "content": case.text, "refusal": None}
    lp = {"content": [entry(t) for t in case.tokens], "refusal": None} if case.scored else None
    if case.calls:
        message["content"] = None
        lp = None
        message["tool_calls"] = [
            {
                "id": f"call_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for n, (name, arguments) in enumerate(case.calls)
        ]
    choice = {"index": 0, "message": message, "logprobs": lp, "finish_reason": case.reason}
    if not case.streamed:
        case.parts = [part("chat.completion", [choice], usage=usage_of(case))]
        return
    deltas: list[tuple[dict[str, Any], Any]] = [({**message, "content": ""}, None)]
    if case.calls:
        calls = deltas[0][0].pop("tool_calls")
        deltas[0][0]["content"] = None
        deltas += [({"tool_calls": [{"index": n, **c}]}, None) for n, c in enumerate(calls)]
    else:
        for group in groups(draw, case.tokens):
            text = b"".join(t.data for t in group).decode()
            found = {"content": [entry(t) for t in group], "refusal": None}
            deltas.append(({"content": text}, found if case.scored else None))
    deltas.append(({}, None))
    empty = {"usage": None} if case.include_usage else {}
    for delta, logprobs in deltas:
        piece = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        case.parts.append(part("chat.completion.chunk", [piece], **empty))
    case.parts[-1]["choices"][0]["finish_reason"] = case.reason
    if case.include_usage:
        case.parts.append(part("chat.completion.chunk", [], usage=usage_of(case)))


@dataclass(frozen=True)
class Deviation:
    """A class of deviations: what spoils the answer, and which answers it needs."""

    spoil: Callable[[Draw, Case], None]
    scored: bool | None = None
    streamed: bool | None = None
    calls: bool = False
    pieces: bool = False  # tokens are whole characters or single bytes
    plain: bool = False  # texts without what the shape itself cannot carry
    tail: bytes = b""  # the tokens end in these bytes, which are not in the content
    low: float | None = None  # logprobs not below this


@st.composite
def cases(draw: Draw, *deviations: Deviation) -> Case:
    """Draw an answer and spoil it with the deviations, in their order."""
    need = [d.scored for d in deviations if d.scored is not None]
    way = [d.streamed for d in deviations if d.streamed is not None]
    text = draw(plain_texts if any(d.plain for d in deviations) else texts)
    if not text:
        text = "x"
    calls = []
    if any(d.calls for d in deviations):
        arguments = st.dictionaries(plain_texts, st.integers() | plain_texts, max_size=3)
        calls = [(n, draw(arguments)) for n in draw(st.sampled_from(["f", "fg", "ff"]))]
    k = draw(st.integers(0, 4))
    tail = b"".join(d.tail for d in deviations)
    scored = need[0] if need else draw(st.booleans())
    tokens = []
    lows = [d.low for d in deviations if d.low is not None]
    own = st.floats(max(lows), -0.01) if lows else values
    split = cut_pieces if any(d.pieces for d in deviations) else cut
    for data in [] if calls else [*split(draw, text.encode()), *(cut(draw, tail) if tail else [])]:
        value = draw(own)
        tokens.append(Token(data, value, alternatives(draw, data, value, k)))
    streamed = way[0] if way else draw(st.booleans())
    reason = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    case = Case(
        tokens=tokens,
        k=k,
        streamed=streamed,
        scored=scored and not calls,
        include_usage=streamed and draw(st.booleans()),
        parts=[],
        rows=[Row(t.logprob, tuple(v for _, v in t.top)) for t in tokens],
        text="" if calls else (text.encode() + tail).decode(),
        reason=reason,
        calls=calls,
        ascii=draw(st.booleans()),
    )
    write(draw, case)
    for deviation in deviations:
        deviation.spoil(draw, case)
    return case
