"""Streams for the hot lane: much that is plain, and between it anything that may come of a server.

A stream is a request, the form of its plain chunks, and a list of items, each a kind and a seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
Draw = Callable[..., Any]

TOKENS = ["a", " b", "é", "you", "\n", "你", '"', "7", "zz", "one", " two", "</s>", "\u2028"]
ODD_TOKENS = [*TOKENS, "\ufffd", "", "token_id:7", " ", "\\xe4", "bytes:\\xe4"]
ENVELOPE = {
    "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "object": "chat.completion.chunk",
    "created": 1_741_570_283,
    "model": "m",
}
ODD_NUMBERS = [0, -0.0, -9999, -1e-9, 0.5, -3.4e38, None, "x", -1, -123456789.125, 1e999]
CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
CHOICE_KEYS: list[Json] = [
    {"token_ids": None},
    {"token_ids": [1]},
    {"stop_reason": None},
    {"stop_reason": "x"},
    {"index": 1},
    {"index": "0"},
    {"finish_reason": "length"},
    {"finish_reason": "stop"},
    {"finish_reason": "weird"},
    {"odd": 1},
    {"logprobs": None},
    {"logprobs": {}},
    {"logprobs": {"content": []}},
    {"logprobs": {"content": None, "refusal": None}},
    {"delta": {}},
    {"delta": {"content": ""}},
    {"delta": {"content": "", "role": "assistant"}},
    {"delta": {"role": "assistant", "content": "r"}},
    {"delta": {"content": "x", "reasoning_content": "t"}},
    {"delta": {"reasoning": "t"}},
    {"delta": {"content": "x", "refusal": None}},
    {"delta": {"refusal": "no"}},
    {"delta": {"tool_calls": [CALL]}},
    {"delta": {"content": None}},
    {"delta": {"content": [{"type": "text", "text": "p"}]}},
]
TOP_KEYS: list[Json] = [
    {"id": "chatcmpl-otherone1"},
    {"created": 1_741_570_284},
    {"created": "1741570283"},
    {"model": "n"},
    {"model": 1},
    {"system_fingerprint": "fp"},
    {"system_fingerprint": "other"},
    {"system_fingerprint": None},
    {"system_fingerprint": ""},
    {"service_tier": "default"},
    {"service_tier": None},
    {"obfuscation": "xyz"},
    {"usage": None},
    {"usage": USAGE},
    {"object": "chat.completion"},
    {"timings": {"prompt_n": 1}},
    {"prompt_token_ids": [1, 2]},
    {"choices": []},
    {"choices": None},
]
ODD_EVENTS = [
    b": comment\n\n",
    b"\n",
    b"\r",
    b"event: error\ndata: {}\n\n",
    b"event: message\ndata: {}\n\n",
    b'error: {"code":500,"message":"m"}\n\n',
    b"data: [DONE]\n\n",
    b"data: null\n\n",
    b'data: {"error":{"message":"m"}}\n\n',
    b"data: {\n\n",
    b"data:\n\n",
    b"data: x",
    b"id: 1\nretry: 5\n\n",
    b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n",
]


@dataclass(frozen=True)
class Form:
    """What a stream's plain chunks are like; `top` and `choice` are keys that all of them have."""

    shape: str
    k: int
    top: Json
    choice: Json
    ascii: bool


def _row(dice: Random, token: str, odd: bool) -> Json:
    row: Json = {"token": token, "logprob": _number(dice, odd), "bytes": list(token.encode())}
    told = dice.choice(["none", "null", "other", "text", "own", "id"]) if odd else "own"
    if told == "none":
        del row["bytes"]
    elif told == "id":
        row["id"] = dice.randrange(3)
    elif told != "own":
        row["bytes"] = {"null": None, "other": [228, 189], "text": token}[told]
    return row


def _rank(row: Json) -> float:
    value = row["logprob"]
    return 0.0 if value in (None, "x") else float(value)


def _number(dice: Random, odd: bool) -> Any:
    if odd and dice.randrange(3) == 0:
        return dice.choice(ODD_NUMBERS)
    return round(-20 * dice.random(), 3)


def _logprobs(dice: Random, form: Form, text: str, odd: bool) -> Json | None:
    names = ODD_TOKENS if odd else TOKENS
    others = dice.sample([x for x in names if x != text], dice.randrange(form.k + 2))
    if form.shape in ("tops", "arrays"):
        top = {x: _number(dice, odd) for x in [text, *others][odd and dice.randrange(2) :]}
        if form.shape == "tops":
            return {"top_logprobs": [top] * (dice.randrange(3) if odd else 1)}
        found: Json = {"tokens": [text], "token_logprobs": [top.get(text, -1.5)]}
        found |= {"top_logprobs": [top], "text_offset": [0]}
        if odd:
            key = dice.choice(list(found))
            found[key] = dice.choice([None, [], found[key] * 2])
        return found
    if form.shape == "none":
        return None
    cut = dice.randrange(len(text) + 1) if dice.randrange(3) == 0 else 0
    entries = []
    for token in filter(None, (text[:cut], text[cut:])):
        name = dice.choice(names) if odd and dice.randrange(3) == 0 else token
        entry = _row(dice, name, odd)
        rows = [dict(entry), *(_row(dice, x, odd and dice.randrange(3) == 0) for x in others)]
        if dice.randrange(3):
            rows.sort(key=_rank, reverse=True)
        entries.append(entry | {"top_logprobs": rows})
    if odd and dice.randrange(4) == 0:
        entries = dice.choice([entries * 2, entries[:-1]])
    found = {"content": entries, "refusal": None}
    if form.shape == "unrefused":
        del found["refusal"]
    return found


def _chunk(dice: Random, form: Form, odd: bool = False) -> Json:
    text = dice.choice(ODD_TOKENS if odd else TOKENS)
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **form.choice}
    choice["logprobs"] = _logprobs(dice, form, text, odd)
    return {**ENVELOPE, "choices": [choice], **form.top}


def _written(chunk: Json, form: Form, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=form.ascii).encode() + end


def _plain(dice: Random, form: Form) -> bytes:
    return _written(_chunk(dice, form), form)


def _odd_logprobs(dice: Random, form: Form) -> bytes:
    return _written(_chunk(dice, form, odd=True), form)


def _other_shape(dice: Random, form: Form) -> bytes:
    shape = dice.choice(["content", "unrefused", "tops", "arrays", "none"])
    return _written(_chunk(dice, Form(shape, form.k, form.top, form.choice, form.ascii)), form)


def _odd_choice(dice: Random, form: Form) -> bytes:
    chunk = _chunk(dice, form)
    chunk["choices"][0] |= dice.choice(CHOICE_KEYS)
    return _written(chunk, form)


def _odd_top(dice: Random, form: Form) -> bytes:
    return _written(_chunk(dice, form) | dice.choice(TOP_KEYS), form)


def _lacks(dice: Random, form: Form) -> bytes:
    chunk = _chunk(dice, form)
    holder = dice.choice([chunk, chunk["choices"][0]])
    del holder[dice.choice(list(holder))]
    return _written(chunk, form)


def _several(dice: Random, form: Form) -> bytes:
    chunk, other = _chunk(dice, form), _chunk(dice, form)
    other["choices"][0]["index"] = dice.randrange(2)
    chunk["choices"] += other["choices"]
    return _written(chunk, form)


def _odd_bytes(dice: Random, form: Form) -> bytes:
    data = _plain(dice, form)
    place = dice.randrange(6, len(data))
    found: bytes = dice.choice(
        [
            data[:place] + dice.choice([b"\xff", b"\x00", b"\\", b"}", b" "]) + data[place:],
            data.replace(b": {", b":\ndata: {", 2),  # a line more
            data.replace(b'"index": 0', b'"index": 1, "index": 0'),
            data.replace(b"bytes", b"bytes\\u0020"),
            data.replace(b'"bytes": [', b'"bytes": ["\xff", '),
            data.replace(b"data: ", b"data:", 1),
            data.replace(b"\n\n", dice.choice([b"\r\n\r\n", b"\n\n\n", b"\r\r", b"\n\r\n"])),
        ]
    )
    return found


def _index(dice: Random, form: Form) -> bytes:
    chunk = _chunk(dice, form)
    chunk["choices"][0]["index"] = dice.randrange(3)
    return _written(chunk, form)


def _nameless(dice: Random, form: Form) -> bytes:
    """Return a call that cannot be told, its end, and text behind them."""
    call = {"index": 0, "function": {"arguments": "{}"}}
    found = b""
    for more in ({"delta": {"tool_calls": [call]}}, {"delta": {}, "finish_reason": "stop"}, {}):
        chunk = _chunk(dice, form)
        chunk["choices"][0] |= more
        found += _written(chunk, form)
    return found


def _odd_event(dice: Random, form: Form) -> bytes:
    return dice.choice(ODD_EVENTS)


def _closing(events: list[bytes], form: Form) -> Json:
    """Return a message that says all that came once more, as MiniMax's last chunk does."""
    said = ""
    for event in events:
        try:
            chunk = json.loads(event.removeprefix(b"data: "))
            said += chunk["choices"][0]["delta"].get("content", "")
        except (ValueError, KeyError, TypeError, LookupError, AttributeError):
            continue
    message = {"role": "assistant", "content": said + "."}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **form.choice}
    return {**ENVELOPE, "object": "chat.completion", "choices": [choice], **form.top}


KINDS: dict[str, Callable[[Random, Form], bytes]] = {
    "plain": _plain,
    "odd logprobs": _odd_logprobs,
    "other shape": _other_shape,
    "odd choice": _odd_choice,
    "odd top": _odd_top,
    "lacks": _lacks,
    "several": _several,
    "odd bytes": _odd_bytes,
    "odd event": _odd_event,
    "index": _index,
    "nameless": _nameless,
}

forms = st.builds(
    Form,
    st.sampled_from(["content", "unrefused", "tops", "arrays", "none"]),
    st.integers(0, 3),
    st.sampled_from([{}, {}, {"usage": None}, {"system_fingerprint": "fp"}]),
    st.sampled_from([{}, {}, {}, {"token_ids": None}, {"index": 1}]),
    st.booleans(),
)
requests = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.just([{"role": "user", "content": "x"}])},
    optional={
        "stream_options": st.just({"include_usage": True}),
        "service_tier": st.just("auto"),
        "max_tokens": st.integers(1, 9),
        "tools": st.just([{"type": "function", "function": {"name": x}} for x in "fg"]),
    },
)
RARE: list[Json] = [*[{}] * 8, {"stop": ["you"]}, {"n": 2}]
usual = st.tuples(st.just("plain"), st.integers(0, 999))
items = st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 999))


@dataclass(frozen=True)
class Stream:
    """A request, whether the proxy alone asks for usage, and what is read of the backend."""

    request: Json
    asks_usage: bool
    reads: list[bytes]


@st.composite
def streams(draw: Draw) -> Stream:
    """Draw a stream, split anywhere or between its events."""
    form: Form = draw(forms)
    request = draw(requests) | draw(st.sampled_from(RARE)) | {"stream": True}
    if form.shape != "none" or draw(st.booleans()):
        request |= {"logprobs": True, "top_logprobs": form.k}
    role: Json = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
    first = {**ENVELOPE, "choices": [{**role, "finish_reason": None, **form.choice}], **form.top}
    drawn = draw(st.lists(st.one_of(usual, usual, items), min_size=3, max_size=14))
    events = [_written(first, form), *(KINDS[kind](Random(seed), form) for kind, seed in drawn)]
    if draw(st.integers(0, 3)) == 0:
        events.append(_written(_closing(events, form), form))
    done = b"data: [DONE]\n\n"
    events.append(draw(st.sampled_from([done, done, done + ODD_EVENTS[-1], b""])))
    data = b"".join(events)
    asks = draw(st.booleans())
    if draw(st.booleans()):
        places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
        return Stream(request, asks, [data[a:b] for a, b in pairwise([0, *places, len(data)])])
    joined = draw(st.sampled_from([1, 1, 2, 3, 20]))
    reads = [b"".join(events[n : n + joined]) for n in range(0, len(events), joined)]
    return Stream(request, asks, reads)
