"""A real llama.cpp: a prompt's logprobs are those that its whole vocabulary has at each place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance import Request, check_completion_body, check_completion_stream
from tests.fold import fold_completion
from tests.models.tiny import TEXT

Json = dict[str, Any]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
NEAR = 1e-4
ALL = 1_000_000

pytestmark = pytest.mark.parametrize("proxy", ["llamacpp", "llamacpp-native"], indirect=True)


async def asked(url: str, path: str, **more: Any) -> tuple[bytes, Json]:
    """POST and return the bytes, and what a body or a completions stream is."""
    async with ClientSession() as session, session.post(url + path, json=more) as response:
        data = await response.read()
        assert response.status == 200, data
    return data, fold_completion(data) if more.get("stream") else json.loads(data)


async def ids_of(llamacpp: str, text: str) -> list[int]:
    more: Json = {"content": text, "add_special": True, "parse_special": True}
    return list((await asked(llamacpp, "/tokenize", **more))[1]["tokens"])


async def vocabulary_at(llamacpp: str, prefix: list[int]) -> dict[int, float]:
    """Return every token's logprob after a prefix, as the server itself tells them.

    It tells none where the token that it samples only begins a character: of those none may be.
    """
    banned: list[Any] = []
    while True:
        sent = {"prompt": prefix, "n_predict": 1, "n_probs": ALL, "temperature": 0}
        answer = (
            await asked(llamacpp, "/completion", **sent, logit_bias=banned, return_tokens=True)
        )[1]
        if answer.get("completion_probabilities"):
            (own,) = answer["completion_probabilities"]
            found = {row["id"]: row["logprob"] for row in own["top_logprobs"]}
            # the whole vocabulary, and what was banned took nothing from it
            assert math.isclose(sum(map(math.exp, found.values())), 1, rel_tol=1e-4)
            return found
        banned.append([answer["tokens"][0], False])


async def expected(llamacpp: str, ids: list[int]) -> list[dict[int, float]]:
    return [await vocabulary_at(llamacpp, ids[:place]) for place in range(1, len(ids))]


def ranks(table: dict[int, float]) -> list[int]:
    return sorted(table, key=lambda token: -table[token])


TEXTS = ["Hello world! café 😀 done.", f"{PROMPT}Hello", "a\n\nb\tc", "日本 é", "x"]


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("text", TEXTS)
async def test_an_echoed_texts_logprobs(
    llamacpp: str, proxy: str, text: str, wants_stream: bool
) -> None:
    more: Json = {"prompt": text, "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
    data, found = await asked(proxy, "/v1/completions", model="tiny", stream=wants_stream, **more)
    request = Request(model="tiny", logprobs=True, k=2, echo=True, prompts=(text,))
    check = check_completion_stream if wants_stream else check_completion_body
    assert check(data, request) == []
    (choice,) = found["choices"]
    assert choice["text"].startswith(text)
    ids = await ids_of(llamacpp, text)
    _begin, _, *scored = ids  # the token that begins a text is not in it, its first has no logprob
    tables = (await expected(llamacpp, ids))[1:]
    lists = choice["logprobs"]
    first, *values = lists["token_logprobs"][: len(ids) - 1]
    assert first is None and lists["top_logprobs"][0] is None
    wanted = [table[token] for table, token in zip(tables, scored, strict=True)]
    assert values == pytest.approx(wanted, abs=NEAR)
    for top, own, table in zip(lists["top_logprobs"][1:], values, tables, strict=False):
        best = [table[token] for token in ranks(table)[:2]]
        assert max(top.values()) == pytest.approx(best[0], abs=NEAR)
        for value in top.values():
            assert any(abs(value - other) < NEAR for other in (*best, own))


async def test_a_prompt_of_token_ids_that_the_model_itself_would_have_written(
    llamacpp: str, proxy: str
) -> None:
    """The byte that begins the é is the most likely there: no unforced probe tells its value."""
    ids = await ids_of(llamacpp, PROMPT)
    sent = {"prompt": ids, "n_predict": 9, "temperature": 0, "return_tokens": True}
    made = (await asked(llamacpp, "/completion", **sent))[1]
    assert made["content"] == TEXT
    ids += made["tokens"]
    more: Json = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}
    _, found = await asked(proxy, "/v1/completions", model="tiny", **more)
    lists = found["choices"][0]["logprobs"]
    tables = await expected(llamacpp, ids)
    wanted = [table[token] for table, token in zip(tables, ids[1:], strict=True)]
    assert lists["token_logprobs"] == [None, *(pytest.approx(x, abs=NEAR) for x in wanted)]
    greedy = [ranks(table)[0] for table in tables]
    assert greedy[-len(made["tokens"]) :] == made["tokens"]
    at = lists["tokens"].index("bytes:\\xc3")
    assert lists["tokens"][at + 1] == "bytes:\\xa9"
    assert lists["text_offset"][at] == lists["text_offset"][at + 1]
    text = found["choices"][0]["text"]
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert text[offset : offset + len(token)] == token  # control tokens too
    assert found["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("k", [0, 1, 5])
async def test_prompt_logprobs_of_a_text_and_of_a_chat(llamacpp: str, proxy: str, k: int) -> None:
    text = "Hello café"
    more: Json = {"model": "tiny", "max_tokens": 1, "temperature": 0, "prompt_logprobs": k}
    _, found = await asked(proxy, "/v1/completions", prompt=text, **more)
    await check_rows(llamacpp, found["choices"][0]["prompt_logprobs"], text, k)
    messages = [{"role": "user", "content": "hi"}]
    _, found = await asked(proxy, "/v1/chat/completions", messages=messages, **more)
    assert found["choices"][0]["message"]["content"] == "Hello"
    await check_rows(llamacpp, found["prompt_logprobs"], PROMPT, k)


async def check_rows(llamacpp: str, rows: list[Any], text: str, k: int) -> None:
    ids = await ids_of(llamacpp, text)
    assert len(rows) == len(ids) and rows[0] is None
    for row, token, table in zip(rows[1:], ids[1:], await expected(llamacpp, ids), strict=True):
        assert next(iter(row)) == str(token)
        order = ranks(table)
        assert {*row} == {str(token), *(map(str, order[:k]))}
        for name, told in row.items():
            assert told["logprob"] == pytest.approx(table[int(name)], abs=NEAR)
            rank = order.index(int(name)) + 1
            # of what is not among the best k the rank is not known
            assert told["rank"] == (rank if rank <= max(k, 1) else None)
    spelled = "".join(next(iter(row.values()))["decoded_token"] for row in rows[1:])
    assert spelled.replace("\ufffd", "") == text.replace("é", "")


async def test_each_probe_finds_its_prefix_in_the_cache(llamacpp: str, proxy: str) -> None:
    more: Json = {"prompt": "Hello world! " * 4, "echo": True, "logprobs": 1, "max_tokens": 1}
    _, found = await asked(proxy, "/v1/completions", model="tiny", **more)
    ids = await ids_of(llamacpp, more["prompt"])
    assert len(found["choices"][0]["logprobs"]["tokens"]) == len(ids)  # one made, one begins
    # what the last probe left in the slot is all but its own last token of the same prefix
    sent = {"prompt": ids[:-1], "n_predict": 1, "cache_prompt": True, "n_probs": 1}
    timings = (await asked(llamacpp, "/completion", **sent))[1]["timings"]
    assert timings["prompt_n"] == 1
    assert timings["cache_n"] == len(ids) - 2


async def test_the_next_prompt_of_a_batch_and_choices_of_one(llamacpp: str, proxy: str) -> None:
    more: Json = {"prompt": ["Hello", "é!"], "n": 2, "echo": True, "logprobs": 0, "max_tokens": 1}
    data, found = await asked(proxy, "/v1/completions", model="tiny", temperature=0, **more)
    request = Request(model="tiny", logprobs=True, echo=True, n=4, prompts=("Hello", "é!"))
    assert check_completion_body(data, request) == []
    sizes = [len(await ids_of(llamacpp, text)) for text in ("Hello", "é!")]
    assert found["usage"]["prompt_tokens"] == sum(sizes)
    assert found["usage"]["completion_tokens"] == 4
    values = [x["logprobs"]["token_logprobs"] for x in found["choices"]]
    assert [x[0] for x in values] == [None] * 4
    assert values[0] == pytest.approx(values[1], abs=NEAR)
    assert values[2] == pytest.approx(values[3], abs=NEAR)
