"""Logprobs of prompts from one request: a scripted llama.cpp whose grammars name tokens.

Mutants that these reject: a run that holds a control token or a part of a character; entries that
are taken without their ids; a draft's number; a shifted context's; a backend that is asked again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.llamacpp import BEGIN, BYTE, EOS, LlamaCpp, logprob, split
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.endpoints.test_completions import answered, refused
from wellspoken.adapters import prompt_scores

Json = dict[str, Any]


@pytest.fixture
async def llamacpp() -> AsyncIterator[LlamaCpp]:
    server = LlamaCpp()
    server.forces = True
    async with server:
        yield server


@pytest.fixture(params=["llamacpp", "llamacpp-native"])
async def proxy(
    llamacpp: LlamaCpp, start_proxy: StartProxy, request: pytest.FixtureRequest
) -> Proxy:
    return await start_proxy(llamacpp, adapter=request.param)


async def score(proxy: Proxy, prompt: str | list[int]) -> list[float | None]:
    """Return the logprobs of a prompt's tokens, the first of which has none."""
    found = await answered(proxy, prompt=prompt, prompt_logprobs=0, max_tokens=0)
    rows = found["choices"][0]["prompt_logprobs"]
    return [row and next(iter(row.values()))["logprob"] for row in rows]


def expected(prompt: str) -> list[float | None]:
    ids = [BEGIN, *(id for id, _ in split(prompt))]
    return [None, *(logprob(place, ids[place]) for place in range(1, len(ids)))]


async def test_one_request_tells_a_whole_prompt(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    prompt = "one request for all of these"
    assert await score(proxy, prompt) == expected(prompt)
    targets = [request.target for request in llamacpp.requests]
    assert targets == ["/tokenize", "/tokenize", "/completion"]
    (sent,) = llamacpp.asked("/completion")
    ids = [id for id, _ in split(prompt)]
    assert sent["grammar"] == "root ::= " + " ".join(f"<[{id}]>" for id in ids)
    assert (sent["prompt"], sent["n_predict"]) == ([BEGIN], len(ids))
    assert llamacpp.asked("/tokenize")[1] == {
        "content": prompt,
        "add_special": False,
        "parse_special": False,
        "with_pieces": True,
    }


async def test_parts_of_characters_are_told_by_probes(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    prompt = "abécd"
    assert await score(proxy, prompt) == expected(prompt)
    assert [len(prefix) for prefix in llamacpp.forced_prefixes] == [1, 5]
    assert {len(prefix) for prefix in llamacpp.probed_prefixes} == {3, 4}


async def test_a_control_token_is_told_by_a_probe(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    """Where a grammar cannot follow, b7376 ends with the whole server."""
    ids = [97, 98, EOS, 99, 100]
    assert await score(proxy, ids) == [None, *(logprob(n, ids[n]) for n in range(1, 5))]
    assert [len(prefix) for prefix in llamacpp.forced_prefixes] == [3]
    assert {len(prefix) for prefix in llamacpp.probed_prefixes} == {1, 2}


async def test_a_backend_that_reads_no_literals_is_asked_once(
    llamacpp: LlamaCpp, proxy: Proxy
) -> None:
    llamacpp.forces = False
    for prompt in ("abc", "def"):
        assert await score(proxy, prompt) == expected(prompt)
    assert len(llamacpp.forced_prefixes) == 1
    assert len(llamacpp.probed_prefixes) == 3 + 3


def other_ids(answer: Json) -> None:
    """As of a server that ignores the grammar."""
    for row in answer["completion_probabilities"]:
        row["id"] += 1


def drafts(answer: Json) -> None:
    """As llama.cpp's accepted drafts: their probability is 1, and there is no alternative."""
    for row in answer["completion_probabilities"][1:]:
        row |= {"logprob": 0.0, "top_logprobs": []}


def nothing(answer: Json) -> None:
    del answer["completion_probabilities"]


@pytest.mark.parametrize("change", [other_ids, drafts, nothing])
async def test_numbers_that_are_not_the_prompts_are_not_taken(
    llamacpp: LlamaCpp, proxy: Proxy, change: Any
) -> None:
    llamacpp.forced = change
    for prompt in ("abcd", "efgh"):
        assert await score(proxy, prompt) == expected(prompt)
    assert len(llamacpp.forced_prefixes) == 1


async def test_a_context_that_was_shifted_tells_nothing(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    """`--context-shift`: numbers after a cut prefix are other ones. The next prompt may fit."""

    def shift(answer: Json) -> None:
        answer["truncated"] = True
        for row in answer["completion_probabilities"]:
            row["logprob"] = -1.0

    llamacpp.forced = shift
    assert await score(proxy, "abcd") == expected("abcd")
    # the longest prefix first, which a server refuses that has no room for it
    assert [len(prefix) for prefix in llamacpp.probed_prefixes] == [4, 1, 2, 3, 4]
    llamacpp.forced = lambda answer: None
    assert await score(proxy, "efgh") == expected("efgh")
    assert len(llamacpp.probed_prefixes) == 5


async def test_an_answer_that_a_limit_cut_is_gone_on_from(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    """`--n-predict` of the server bounds every request."""

    def cut(answer: Json) -> None:
        del answer["completion_probabilities"][3:]

    llamacpp.forced = cut
    assert await score(proxy, "abcdefgh") == expected("abcdefgh")
    assert [len(prefix) for prefix in llamacpp.forced_prefixes] == [1, 4, 7]
    assert llamacpp.probed_prefixes == []


async def test_any_other_failure_is_told(llamacpp: LlamaCpp, proxy: Proxy) -> None:
    def fail(answer: Json) -> None:
        answer.clear()

    llamacpp.forced = fail
    error = await refused(proxy, status=502, prompt="abc", prompt_logprobs=0)
    assert "POST /completion" in error["message"]


def test_a_run_has_bounds_and_is_none_for_one_token() -> None:
    ids = [BEGIN, *[97] * 5000]
    literals = frozenset({97})
    assert len(prompt_scores.run_at(ids, 1, literals, 1)) == prompt_scores.RUN
    assert len(prompt_scores.run_at(ids, 1, literals, 100)) < 500
    assert prompt_scores.run_at(ids, 5000, literals, 1) == []
    assert prompt_scores.run_at([BEGIN, 97, 98], 1, literals, 1) == []


def test_a_literal_names_whole_characters_alone() -> None:
    pieces: Json = {"tokens": [{"id": BYTE, "piece": [0xC3]}, {"id": BYTE + 1, "piece": [0xA9]}]}
    pieces["tokens"] += [{"id": 5, "piece": ""}, {"id": 6, "piece": "\0a"}, {"id": 7, "piece": "é"}]
    pieces["tokens"] += [{"id": 8, "piece": "</s>"}, {"id": 9, "piece": "<"}]
    data = prompt_scores._encode(pieces)
    assert prompt_scores.read_literals(data) == {7, 9}
