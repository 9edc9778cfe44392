"""Logprobs that only a message behind its deltas has are what a body with that message has."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from tests.adapters.properties.runs.draw import draw_case
from tests.adapters.properties.runs.model import Case
from tests.adapters.properties.runs.product import CHUNK_RULES, translate
from tests.adapters.properties.runs.wire import write
from tests.answers import DONE, Json, data
from tests.conformance import check_completion_stream, check_stream
from tests.corpus import checked_request
from tests.fold import fold, fold_completion
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator


def close(case: Case) -> bytes:
    """Return the body's answer as deltas without logprobs, and the body behind them."""
    dice = random.Random(case.seed)
    whole = json.loads(write(case))
    last = whole["choices"][0]
    chat = case.shape == "chat"
    deltas = list(_deltas(last["message"], dice) if chat else _cut({"text": case.content}, dice))
    reason = last["finish_reason"]
    parts = []
    for n, delta in enumerate(deltas):
        ends = n == len(deltas) - 1 and dice.random() < 0.5
        told: Json = {"index": 0, "finish_reason": reason if ends else None, "logprobs": None}
        parts.append({**told, "delta": delta} if chat else {**told, **delta})
    if dice.random() < 0.3:
        alone: Json = {"index": 0, "finish_reason": reason, "logprobs": None}
        parts.append({**alone, "delta": {}} if chat else {**alone, "text": ""})
    head = {key: whole[key] for key in ("id", "created", "model")}
    kind = "chat.completion.chunk" if chat else "text_completion"
    chunks = [{**head, "object": kind, "choices": [part]} for part in parts]
    return b"".join([*map(data, [*chunks, whole]), DONE])


def _deltas(message: Json, dice: random.Random) -> Any:
    yield {"role": "assistant", "content": ""}
    for key in ("reasoning_content", "content"):
        yield from _cut({key: message.get(key) or ""}, dice)
    for n, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": n, **call}]}


def _cut(said: dict[str, str], dice: random.Random) -> Any:
    ((key, text),) = said.items()
    ends = sorted(dice.randint(0, len(text)) for _ in range(3))
    for a, b in itertools.pairwise([0, *ends, len(text)]):
        if a < b:
            yield {key: text[a:b]}


def is_told(case: Case) -> bool:
    """Say whether the closing text can be told from one more piece, which a message always can."""
    given = close(case)
    pieces = given.count(b'"text": ') - given.count(b'"text": ""') - 1
    return case.shape == "chat" or (pieces > 1 and len(case.tokens) > 1)


def entries_of(answer: Json, case: Case) -> Any:
    found = answer["choices"][0]["logprobs"]
    if case.shape == "chat" or not found:
        return found and found["content"]
    return {key: found[key] for key in ("tokens", "token_logprobs", "top_logprobs")}


@pytest.mark.parametrize("begin", range(0, 400, 100))
def test_entries_of_a_closing_message_are_those_of_a_body(begin: int) -> None:
    for seed in range(begin, begin + 100):
        case = draw_case(seed)
        if case.form != "body" or not is_told(case):
            continue
        wanted = translate(case)
        asked = case.request(streamed=True)
        translator = StreamTranslator(exchange(asked), case.shape)
        got = translator.feed(close(case)) + translator.close()
        check = check_stream if case.shape == "chat" else check_completion_stream
        found = check(got, checked_request(asked))
        assert [x for x in found if x.rule not in CHUNK_RULES] == [], seed
        answer = fold(got) if case.shape == "chat" else fold_completion(got)
        assert entries_of(answer, case) == entries_of(wanted.answer, case), seed
