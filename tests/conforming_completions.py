"""Conforming answers of the completions endpoint, written by hand after OpenAI's reference."""

from __future__ import annotations

from typing import Any

from tests.conformance import ChoiceFacts, Facts, Request, Row
from tests.conforming import CREATED, FACTS, TEXT, TOKENS, Sample

ID = "cmpl-uqkvlQyYK7bGYrRHQ0eXlWi7"
MODEL = "gpt-3.5-turbo-instruct"
USAGE = {"prompt_tokens": 19, "completion_tokens": 6, "total_tokens": 25}
PROMPT = "Oß "
# where the six tokens of TEXT begin, in whole characters from its start
OFFSETS = (0, 2, 3, 4, 4, 5)


def name(data: bytes) -> str:
    """Return a token's name as OpenAI spells it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")


def arrays(start: int = 0, stop: int | None = None, base: int = len(PROMPT)) -> dict[str, Any]:
    """Return a slice of the tokens as a completion's logprobs; `base` is the text's own offset."""
    rows = TOKENS[start:stop]
    tops = []
    for data, logprob, top in rows:
        found = {name(other): value for other, value in top} | {name(data): logprob}
        tops.append(dict(sorted(found.items(), key=lambda item: -item[1])))
    return {
        "tokens": [name(data) for data, *_ in rows],
        "token_logprobs": [logprob for _, logprob, _ in rows],
        "top_logprobs": tops,
        "text_offset": [base + offset for offset in OFFSETS[start:stop]],
    }


def echoed(stop: int | None = None) -> dict[str, Any]:
    """Return the logprobs of an echoed prompt, a begin of text before it, and of the tokens."""
    first = {
        "tokens": ["<s>", "Oß "],
        "token_logprobs": [None, -3.5],
        "top_logprobs": [None, {"A": -0.5, "Oß ": -3.5}],
        "text_offset": [0, 0],
    }
    rest = arrays(0, stop)
    return {key: [*first[key], *rest[key]] for key in first}  # type: ignore[misc]


def choice(index: int = 0, text: str = TEXT, **more: Any) -> dict[str, Any]:
    """Return one choice of a body."""
    head: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
    return {**head, "finish_reason": "stop", **more}


def body(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a text_completion."""
    head = {"id": ID, "object": "text_completion", "created": CREATED, "model": MODEL}
    return {**head, "choices": list(choices) or [choice()], "usage": USAGE, **more}


def piece(text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    """Return a chunk of one choice."""
    chunk = body(choice(index, text, **{"finish_reason": None, **more}))
    del chunk["usage"]
    return chunk


def end(reason: str = "stop", index: int = 0) -> dict[str, Any]:
    """Return a choice's last chunk."""
    return piece("", index, finish_reason=reason)


def columns(*rows: tuple[str, float, dict[str, float], int]) -> dict[str, Any]:
    """Return logprobs of rows (token, logprob, alternatives, offset)."""
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return dict(zip(keys, (list(column) for column in zip(*rows, strict=True)), strict=True))


ASKED = Request(model=MODEL, prompts=(PROMPT,))
SCORED = Request(model=MODEL, prompts=(PROMPT,), logprobs=True, k=2)
ECHO = Request(model=MODEL, prompts=(PROMPT,), logprobs=True, k=2, echo=True)
IDS = Request(model=MODEL, prompts=(None,), logprobs=True, k=2)
NONE = Request(model=MODEL, prompts=(PROMPT,), logprobs=True)
FOUR = Request(model=MODEL, prompts=(PROMPT, "A"), n=4)

SPLIT = columns(("", -1.0, {"x": -2.0}, 3), ("é", -1.0, {"é": -1.0}, 3), ("!", 0.0, {"!": 0.0}, 4))
BROKEN = columns(
    ("a", -1.0, {"a": -1.0}, 3),
    ("bytes:\\xf0\\x9f", -1.0, {"bytes:\\xf0\\x9f": -1.0}, 4),
    ("!", 0.0, {"!": 0.0}, 5),
)
NAMELESS = columns(
    ("Hi", -1.0, {"Hi": -1.0}, 3),
    ("token_id:7", -1.0, {"token_id:7": -1.0}, 5),
    ("!", 0.0, {"!": 0.0}, 8),
)
ZERO = columns(("A", -3.5, {"A": -3.5}, 3))

BODIES: dict[str, Sample] = {
    "plain": Sample(body(system_fingerprint="fp_1"), ASKED),
    "scored": Sample(body(choice(logprobs=arrays())), SCORED, FACTS),
    "unscored": Sample(body(), SCORED),
    "k 0": Sample(body(choice(text="A", logprobs=ZERO)), NONE),
    "echo": Sample(body(choice(text=PROMPT + TEXT, logprobs=echoed())), ECHO),
    "prompt of ids": Sample(body(choice(logprobs=arrays(base=40))), IDS),
    "split unknown": Sample(body(choice(text="é!", logprobs=SPLIT)), SCORED),
    "broken character": Sample(body(choice(text="a\ufffd!", logprobs=BROKEN)), SCORED),
    "text unknown": Sample(body(choice(text="Hi é!", logprobs=NAMELESS)), SCORED),
    "no text": Sample(
        body(choice(text="", logprobs={key: [] for key in arrays()})),
        SCORED,
        Facts(choices={0: ChoiceFacts(rows=(Row(-0.5),), drops={"logprobs_eos_entry": 1})}),
    ),
    "four": Sample(body(*(choice(n, "abcd"[n]) for n in range(4))), FOUR),
    "length": Sample(body(choice(finish_reason="length")), ASKED),
}
STREAMS: dict[str, Sample] = {
    "plain": Sample([piece("Hi"), piece("!"), end()], ASKED),
    "empty": Sample([end("content_filter")], ASKED),
    "scored": Sample(
        [
            piece("Hi", logprobs=arrays(0, 1)),
            piece(" é", logprobs=arrays(1, 3)),
            piece("😀!", logprobs=arrays(3)),
            end(),
        ],
        SCORED,
        FACTS,
    ),
    "echo": Sample(
        [
            piece(PROMPT + "Hi", logprobs=echoed(1)),
            piece(" é😀!", logprobs=arrays(1)),
            end(),
        ],
        ECHO,
    ),
    "usage": Sample(
        [c | {"usage": None} for c in (piece(TEXT), end("length"))]
        + [{**piece(""), "choices": [], "usage": USAGE}],
        Request(model=MODEL, prompts=(PROMPT,), include_usage=True),
        FACTS,
    ),
    "four": Sample(
        [
            *(piece("abcd"[n], n) for n in range(4)),
            end("length", 2),
            piece("e", 1),
            *(end(index=n) for n in (3, 0, 1)),
        ],
        FOUR,
    ),
}
