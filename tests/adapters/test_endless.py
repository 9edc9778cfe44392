"""What is held of a stream does not grow with it, and what depends on its text stays the same."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapters.stages.test_usage import byte_tokens
from tests.answers import DONE, Json, ask, chunk, completion, data, end, entries, role, say, scored
from tests.fold import fold, fold_completion
from tests.replay import exchange
from tests.response_facts import as_response
from wellspoken.adapters.readers.streamed import FRONT
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.tokenize import Counted, Tokenize
from wellspoken.adapters.translate import FOLD, StreamTranslator

HELD = 500_000
"""Bytes that a stream of any length may hold; a token in a list takes 70."""
EACH = 200  # events of a read
COUNTED: Json = {"stream_options": {"include_usage": True}}


def numbered(parts: list[Json]) -> bytes:
    return b"".join(map(data, parts))


def running(part: Json, tokens: int) -> Json:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return {**part, "usage": usage}


WORD = "words "
KINDS: dict[str, tuple[Json, list[Json]]] = {
    "content": (ask(), [say(WORD)] * EACH),
    "stop strings": (ask(stop=["never"]), [say(WORD)] * EACH),
    "two choices": (ask(n=2), [say(WORD, index=n % 2) for n in range(EACH)]),
    "reasoning": (ask(), [chunk({"reasoning_content": WORD})] * EACH),
    "a refusal": (ask(), [chunk({"refusal": WORD})] * EACH),
    "logprobs": (scored(), [say(WORD, logprobs=entries(WORD))] * EACH),
    "counts with each chunk": (ask(), [running(say(WORD), n) for n in range(1, EACH + 1)]),
}


def held(asked: Any, read: bytes, reads: int) -> int:
    """Return how many bytes a translation holds at most for so many of these reads."""
    translator = StreamTranslator(asked)
    translator.feed(data(role()) + read)  # what is made once is made
    tracemalloc.start()
    try:
        for _ in range(reads):
            translator.feed(read)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert translator.fault is None and not translator.done
    return peak - len(read)


def test_of_200_000_chunks_no_more_is_held_than_of_a_few() -> None:
    request, parts = KINDS["content"]
    assert held(exchange(request | {"stream": True}), numbered(parts), 1000) < HELD


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_does_not_grow(kind: str) -> None:
    request, parts = KINDS[kind]
    assert held(exchange(request | {"stream": True}), numbered(parts), 60) < HELD


@pytest.mark.parametrize("kind", ["content", "reasoning", "a refusal"])
def test_a_response_holds_its_text_which_its_last_event_says(kind: str) -> None:
    request, parts = KINDS[kind]
    asked = as_response(exchange(request | {"stream": True}))
    assert held(asked, numbered(parts), 60) < HELD
    reads = 500
    assert held(asked.apart(), numbered(parts), reads) < HELD + 2 * reads * EACH * len(WORD)


def test_a_response_holds_its_entries_as_they_are_written() -> None:
    request, parts = KINDS["logprobs"]
    reads, row = 60, len(json.dumps(entries(WORD)["content"]))
    asked = as_response(exchange(request | {"stream": True}))
    assert held(asked, numbered(parts), reads) < HELD + 2 * reads * EACH * row


def test_a_text_whose_tokens_are_counted_is_held_as_a_text() -> None:
    asked = exchange(ask(stream=True), tokens=TokenTable(byte_tokens()))
    assert held(asked, numbered([say(WORD)] * EACH), 60) < HELD


def long(texts: list[str], *, key: str = "content") -> list[bytes]:
    """Return the reads of a stream that says these texts, several times what is held."""
    assert len(texts) * len(data(say(""))) > 3 * FOLD
    return [data(chunk({key: text})) for text in texts]


def said(reads: list[bytes], **given: Any) -> tuple[Json, StreamTranslator]:
    """Return the body that a stream of these reads folds to, and its translator."""
    translator = StreamTranslator(exchange(ask(stream=True, **COUNTED), **given))
    out = [*map(translator.feed, [data(role()), *reads, data(end()), DONE])]
    if translator.missing_counts() is not None:
        out.append(translator.add_counts(Counted(texts=77)))
    return fold(b"".join(out)), translator


TEXTS = ["äh ", "so "] * 800


def test_an_estimate_is_of_all_the_text() -> None:
    answer, translator = said(long(TEXTS))
    assert answer["usage"]["completion_tokens"] == len("".join(TEXTS).encode()) // 4
    assert translator.exchange.result.usage_source == "estimate"


def test_a_vocabulary_counts_all_the_text() -> None:
    answer, _ = said(long(TEXTS), tokens=TokenTable(byte_tokens()))
    assert answer["usage"]["completion_tokens"] == len("".join(TEXTS).encode())


def test_the_backend_is_asked_to_count_all_the_text() -> None:
    translator = StreamTranslator(
        exchange(ask(stream=True, **COUNTED), tokenize=Tokenize(path="/tokenize", text="prompt"))
    )
    for read in [data(role()), *long(TEXTS), data(end()), DONE]:
        translator.feed(read)
    wanted = translator.missing_counts()
    assert wanted is not None and wanted.texts == ("".join(TEXTS),)


def test_reasoning_that_nobody_counts_is_estimated_with_the_text() -> None:
    answer, _ = said([*long(TEXTS, key="reasoning_content"), *long(TEXTS)])
    assert answer["usage"]["completion_tokens"] == 2 * len("".join(TEXTS).encode()) // 4


def test_zero_tokens_of_a_long_text_are_no_count() -> None:
    zero = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}}
    zero["usage"]["total_tokens"] = 5
    translator = StreamTranslator(exchange(ask(stream=True, **COUNTED)))
    reads = [data(role()), *long(TEXTS), b": ping\n\n" * FOLD, data(end()), data(zero), DONE]
    answer = fold(b"".join(map(translator.feed, reads)))
    assert answer["usage"]["completion_tokens"] == len("".join(TEXTS).encode()) // 4
    assert translator.exchange.notes.counts["usage_constant"] == 1


def closing(text: str, texts: list[str]) -> tuple[str, int]:
    """Return what a long stream that ends with a whole message says, and how often that is told."""
    translator = StreamTranslator(exchange(ask(stream=True)))
    last = completion({"index": 0, "message": {"role": "assistant", "content": text}})
    last["choices"][0] |= {"finish_reason": "stop", "logprobs": None}
    out = [*map(translator.feed, [data(role()), *long(texts), data(last), DONE])]
    content: str = fold(b"".join(out))["choices"][0]["message"]["content"]
    return content, translator.exchange.notes.counts.get("message_repeated", 0)


@pytest.fixture(params=["long", "longer than what is kept"])
def texts(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    found = [f"{n} " for n in range(1600 if request.param == "long" else 16_000)]
    assert (len("".join(found)) > FRONT) == (request.param != "long")
    yield found


def test_a_closing_message_of_a_long_answer_is_not_said_again(texts: list[str]) -> None:
    whole = "".join(texts)
    assert closing(whole, texts) == (whole, 1)
    assert closing(whole.strip(), texts) == (whole, 1)
    assert closing(whole + "more", texts) == (whole + "more", 1)
    assert closing("Other", texts) == (whole, 1)


def test_a_thought_told_within_a_long_text_is_not_told_again(texts: list[str]) -> None:
    thought, translator = "".join(texts), StreamTranslator(exchange(ask(stream=True)))
    message = {"role": "assistant", "content": "Yes", "reasoning_content": thought}
    last = completion({"index": 0, "message": message, "finish_reason": "stop", "logprobs": None})
    reads = [data(role()), *long(["<think>", *texts, "</think>", "Yes"]), data(last), DONE]
    answer = fold(b"".join(map(translator.feed, reads)))["choices"][0]["message"]
    assert answer["content"] == f"<think>{thought}</think>Yes"
    assert not answer.get("reasoning_content")


def text_chunk(text: str, finish: str | None = None, logprobs: Json | None = None) -> bytes:
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1_760_000_000, "model": "m"}
    return data({**head, "choices": [choice]})


def test_all_of_a_long_completion_said_again_with_its_logprobs_is_said_once() -> None:
    asked = exchange({"model": "m", "prompt": "x", "stream": True, "logprobs": 0})
    translator = StreamTranslator(asked, "completions")
    texts = [f"{n} " for n in range(1600)]
    arrays = {
        "tokens": texts,
        "token_logprobs": [-0.5] * len(texts),
        "top_logprobs": [{text: -0.5} for text in texts],
        "text_offset": [],
    }
    long(texts)
    reads = [*map(text_chunk, texts), text_chunk("".join(texts), "stop", arrays), DONE]
    answer = fold_completion(b"".join(map(translator.feed, reads)))
    assert answer["choices"][0]["text"] == "".join(texts)
    assert answer["choices"][0]["logprobs"]["tokens"] == texts


def test_a_token_that_came_before_the_text_was_let_go_has_moved() -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    source = translator.sources[0]
    translator.feed(data(role()) + numbered([say(WORD)] * 4))
    source.take_move()
    translator.feed(numbered([say(WORD)] * 4))
    translator.feed(b": ping\n\n" * FOLD)
    translator.feed(b": ping\n\n")
    assert source.take_move()
    assert not source.take_move()
