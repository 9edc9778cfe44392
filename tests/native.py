"""llama.cpp's own answers (POST /completion), built and read as events.

The shapes are those of b11549 (captured: the held back text, `data: null`), of b4240 (samples and
examples/server/server.cpp of 2024) and of pull request #10627; the texts are ours.
"""

from __future__ import annotations

import json
from typing import Any

from wellspoken.adapters.events import (
    Event,
    Fault,
    Finish,
    Text,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative

Json = dict[str, Any]
NOW = 1_700_000_000
SAME = ("kind", "logprobs", "k", "n", "prompts", "switches")


def exchange(**more: Any) -> Exchange:
    given: Json = {"kind": "completions", "logprobs": True, "k": 2, **more}
    return Exchange(model="asked", now=NOW, new_id=lambda: "fresh-0123456789", **given)


def row(id: int, text: str | bytes, logprob: float, *own: Json) -> Json:
    data = text.encode() if isinstance(text, str) else text
    token = data.decode("utf-8", "ignore")
    found: Json = {"id": id, "token": token, "bytes": list(data), "logprob": logprob}
    return {**found, "top_logprobs": list(own)} if own else found


def entry(id: int, sent: str, own: str | bytes, logprob: float = -0.5) -> Json:
    """One entry of b11549: what was sent, and the token itself among the alternatives."""
    return row(id, sent, logprob, row(id, own, logprob), row(999, "other", -7.0))


def piece(text: str, *entries: Json, index: int = 0, **more: Any) -> Json:
    found: Json = {"index": index, "content": text, "tokens": [1], "stop": False, "id_slot": -1}
    if entries:
        found["completion_probabilities"] = list(entries)
    return {**found, **more}


def last(reason: str = "eos", *entries: Json, index: int = 0, text: str = "", **more: Any) -> Json:
    """The last event of a stream, or with a text a body, of 2025."""
    return piece(
        text,
        *entries,
        index=index,
        **{
            "stop": True,
            "model": "m.gguf",
            "tokens_predicted": 3,
            "tokens_evaluated": 11,
            "generation_settings": {"n_probs": 2},
            "prompt": "<s>hi",
            "truncated": False,
            "stop_type": reason,
            "stopping_word": "",
            "timings": {"prompt_n": 1, "cache_n": 10, "predicted_n": 3},
            **more,
        },
    )


def old(text: str, *entries: Json, stop: bool = False, **more: Any) -> Json:
    """An event or body of b4273 and before."""
    found: Json = {"content": text, "id_slot": 0, "stop": stop, "multimodal": False}
    return {**found, "completion_probabilities": list(entries), **more}


def spread(text: str, **probs: float) -> Json:
    rows = [{"tok_str": text, "prob": probs.pop("own")}] if "own" in probs else []
    return {"content": text, "probs": rows + [{"tok_str": k, "prob": v} for k, v in probs.items()]}


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def read(asked: Exchange, *events: Any) -> list[Event]:
    """Return the events of a stream; read byte by byte they are the same."""
    data = sse(*events)
    reader = LlamaCppNative(asked)
    found = reader.feed(data) + reader.close()
    again = Exchange(
        model="asked",
        now=NOW,
        new_id=asked.new_id,
        **{
            name: getattr(asked, name)
            for name in ("kind", "logprobs", "k", "n", "prompts", "switches")
        },
    )
    slow = LlamaCppNative(again)
    slowly = [x for n in range(len(data)) for x in slow.feed(data[n : n + 1])] + slow.close()
    assert [repr(x) for x in map(plain, slowly)] == [repr(x) for x in map(plain, found)]
    assert again.notes.counts == asked.notes.counts
    return found


def body(asked: Exchange, answer: Any) -> list[Event]:
    return LlamaCppNative(asked).body(json.dumps(answer).encode())


def plain(event: Event) -> Any:
    """Return an event as plain values: raw JSON has no readable repr."""
    if isinstance(event, Text):
        return (event.choice, event.text, tokens([event]))
    if isinstance(event, Usage):
        return ("usage", event.prompt, event.completion)
    return event


def texts(events: list[Event], choice: int = 0) -> str:
    return "".join(x.text for x in events if isinstance(x, Text) and x.choice == choice)


def tokens(events: list[Event], choice: int = 0) -> list[tuple[str, float]]:
    return [
        (entry.token, round(entry.logprob, 6))
        for event in events
        if isinstance(event, Text) and event.choice == choice and event.lp is not None
        for entry in event.lp.entries
    ]


def reasons(events: list[Event]) -> dict[int, str | None]:
    return {x.choice: x.reason for x in events if isinstance(x, Finish)}


def counts(events: list[Event]) -> list[tuple[int | None, int | None]]:
    return [(x.prompt, x.completion) for x in events if isinstance(x, Usage)]


def fault(events: list[Event]) -> Fault:
    assert isinstance(events[-1], Fault)
    return events[-1]
