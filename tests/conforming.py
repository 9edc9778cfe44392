"""Conforming answers, written by hand after OpenAI's API reference, for the checker's own tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.conformance import ChoiceFacts, Facts, Request, Row

ID = "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT"
CREATED = 1_741_570_283
MODEL = "gpt-4o-2024-08-06"
USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 6,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "rejected_prediction_tokens": 0},
}
ERROR = {
    "error": {
        "message": "The model `gpt-9` does not exist or you do not have access to it.",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }
}
# "Hi é😀!" in six tokens, of which four are parts of characters: bytes, logprob, alternatives
TOKENS: tuple[tuple[bytes, float, tuple[tuple[bytes, float], ...]], ...] = (
    (b"Hi", -0.25, ((b"Hi", -0.25), (b"Hello", -1.5))),
    (b" \xc3", -2.0, ((b" you", -0.5), (b" \xc3", -2.0))),
    (b"\xa9", -0.125, ((b"\xa9", -0.125), (b"\xa8", -3.0))),
    (b"\xf0\x9f", -4.0, ((b"!", -0.75), (b".", -1.0))),
    (b"\x98\x80", -0.0625, ((b"\x98\x80", -0.0625), (b"\x99\x82", -9999.0))),
    (b"!", 0.0, ((b"!", 0.0), (b"\n", -12.0))),
)
TEXT = "Hi é😀!"
FACTS = Facts(
    choices={
        0: ChoiceFacts(
            rows=tuple(
                Row(lp, tuple(v for _, v in top), names=tuple(name for name, _ in top))
                for _, lp, top in TOKENS
            ),
            drops={},
            text=TEXT,
        )
    },
    usage=(19, 6),
    id=ID,
)


def spelled(data: bytes) -> dict[str, Any]:
    """Return a token's two spellings."""
    return {"token": data.decode("utf-8", "backslashreplace"), "bytes": list(data)}


def entries(start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
    """Return a slice of the tokens as logprob entries."""
    return [
        {
            **spelled(data),
            "logprob": logprob,
            "top_logprobs": [{**spelled(other), "logprob": value} for other, value in top],
        }
        for data, logprob, top in TOKENS[start:stop]
    ]


def message(content: str | None = TEXT, **more: Any) -> dict[str, Any]:
    """Return an assistant's message."""
    return {"role": "assistant", "content": content, "refusal": None, **more}


def choice(index: int = 0, reason: str = "stop", **more: Any) -> dict[str, Any]:
    """Return one choice of a body."""
    head: dict[str, Any] = {"index": index, "message": message(), "logprobs": None}
    return {**head, "finish_reason": reason, **more}


def body(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a chat.completion."""
    return {
        "id": ID,
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": list(choices) or [choice()],
        "usage": USAGE,
        **more,
    }


def chunk(delta: dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    """Return a chat.completion.chunk of one choice; `top` are keys of the chunk itself."""
    top = more.pop("top", {})
    part = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "system_fingerprint": "fp_fc9f1d7035",
        "choices": [part],
        **top,
    }


def role(index: int = 0, content: str | None = "") -> dict[str, Any]:
    """Return a choice's first chunk."""
    return chunk(message(content), index)


def finish(reason: str = "stop", index: int = 0) -> dict[str, Any]:
    """Return a choice's last chunk."""
    return chunk({}, index, finish_reason=reason)


def sse(chunks: list[Any], *, done: bool = True) -> bytes:
    """Frame chunks as a stream."""
    lines = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *["[DONE]"] * done]).encode()


CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
    {"id": "call_2", "type": "function", "function": {"name": "get_time", "arguments": '{"a":1}'}},
]


def call(n: int, arguments: str, **opening: Any) -> dict[str, Any]:
    """Return a chunk with a piece of a call; `id` and `name` open it."""
    function: dict[str, Any] = {"arguments": arguments}
    head: dict[str, Any] = {"index": n}
    if opening:
        head |= {"id": opening["id"], "type": "function"}
        function = {"name": opening["name"], **function}
    return chunk({"tool_calls": [{**head, "function": function}]})


def logprobs(start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """Return a logprobs object with a slice of the tokens."""
    return {"content": entries(start, stop), "refusal": None}


def unknown(token: str, data: bytes | None, logprob: float = -1.0) -> dict[str, Any]:
    """Return an entry whose bytes may be unknown, with an end of text as its alternative."""
    top = [{"token": "<|eot|>", "logprob": -2.0, "bytes": None}]
    own = None if data is None else list(data)
    return {"token": token, "logprob": logprob, "bytes": own, "top_logprobs": top}


SPLIT = [unknown("", None), unknown("é", "é".encode()), unknown("!", b"!")]
NAMELESS = [unknown("Hi", b"Hi"), unknown("token_id:7", None), unknown("!", b"!")]


@dataclass(frozen=True)
class Sample:
    """A conforming answer: a body, or the chunks of a stream."""

    answer: Any
    request: Request
    facts: Facts | None = None


ASKED = Request(model=MODEL)
SCORED = Request(model=MODEL, logprobs=True, k=2)
REFUSED = message(None) | {"refusal": TEXT}

BODIES: dict[str, Sample] = {
    "plain": Sample(body(system_fingerprint="fp_1"), ASKED),
    "scored": Sample(body(choice(logprobs=logprobs())), SCORED, FACTS),
    "unscored": Sample(body(), SCORED),
    "split unknown": Sample(
        body(choice(message=message("é!"), logprobs={"content": SPLIT, "refusal": None})), SCORED
    ),
    "text unknown": Sample(body(choice(logprobs={"content": NAMELESS, "refusal": None})), SCORED),
    "no text": Sample(
        body(choice(message=message(""), logprobs={"content": [], "refusal": None})),
        SCORED,
        Facts(choices={0: ChoiceFacts(rows=(Row(-0.5),), drops={"logprobs_eos_entry": 1})}),
    ),
    "two": Sample(body(choice(), choice(1, "length")), Request(model=MODEL, n=2)),
    "tools": Sample(
        body(choice(reason="tool_calls", message=message(None, tool_calls=CALLS))), ASKED
    ),
    "forced": Sample(
        body(choice(message=message(None, tool_calls=CALLS[:1]))),
        Request(model=MODEL, forced_tool=True),
    ),
    "function": Sample(
        body(
            choice(
                reason="function_call",
                message=message(None, function_call={"name": "f", "arguments": "{}"}),
            )
        ),
        ASKED,
    ),
    "refusal": Sample(
        body(choice(message=REFUSED, logprobs={"content": None, "refusal": entries()})), SCORED
    ),
    "reasoning": Sample(body(choice(message=message(reasoning_content="Hm."))), ASKED),
    "tier": Sample(body(service_tier="default"), Request(model=MODEL, service_tier=True)),
    "kept": Sample(
        body(choice(stop_reason="x")), Request(model=MODEL, keep=frozenset({"stop_reason"}))
    ),
    "switched": Sample(
        body(prompt_logprobs=[None]), Request(switches=frozenset({"prompt_logprobs"}))
    ),
}
STREAMS: dict[str, Sample] = {
    "plain": Sample([role(), chunk({"content": "Hi"}), chunk({"content": "!"}), finish()], ASKED),
    "empty": Sample([role(), finish()], ASKED),
    "scored": Sample(
        [
            role(),
            chunk({"content": "Hi"}, logprobs=logprobs(0, 1)),
            chunk({"content": " é"}, logprobs=logprobs(1, 3)),
            chunk({"content": "😀!"}, logprobs=logprobs(3)),
            finish(),
        ],
        SCORED,
        FACTS,
    ),
    "usage": Sample(
        [c | {"usage": None} for c in (role(), chunk({"content": TEXT}), finish("length"))]
        + [chunk({}, top={"choices": [], "usage": USAGE})],
        Request(model=MODEL, include_usage=True),
        Facts(usage=(19, 6), choices={0: ChoiceFacts(text=TEXT)}),
    ),
    "two": Sample(
        [
            role(),
            chunk({"content": "a"}),
            role(1),
            chunk({"content": "b"}, 1),
            chunk({"content": "c"}),
            finish("stop", 1),
            finish(),
        ],
        Request(model=MODEL, n=2),
    ),
    "tools": Sample(
        [
            role(content=None),
            call(0, "", id="call_1", name="get_weather"),
            call(0, '{"city":'),
            call(0, '"Rome"}'),
            call(1, "{}", id="call_2", name="get_time"),
            finish("tool_calls"),
        ],
        ASKED,
    ),
    "refusal": Sample(
        [role(), chunk({"refusal": "I can"}), chunk({"refusal": "not."}), finish()], ASKED
    ),
    "reasoning": Sample(
        [role(), chunk({"reasoning_content": "Hm."}), chunk({"content": "x"}), finish()], ASKED
    ),
}
