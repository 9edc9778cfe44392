"""A real llama.cpp: one request tells of a prompt what a probe for each of its tokens does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.conftest import in_front_of
from tests.live.tee import Tee
from tests.models.tiny import CONTEXT, TEXT
from wellspoken.proxy.relay.helping.scoring import scorer_of

Json = dict[str, Any]
NEAR = 1e-6
CHAT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

PROMPTS = {
    "plain": "the name is what you say, hello world! " * 6,
    "characters": f"{TEXT} and {TEXT}",  # é is two tokens
    "controls": f"{CHAT}Hello{CHAT}",
}


async def score(url: str, prompt: str | list[int], k: int, forces: bool) -> tuple[Json, int, float]:
    """Return the answer, how many /completion requests it took, and how many seconds."""
    async with Tee(url) as tee:
        service = in_front_of(tee.here, "llamacpp")
        host, port = await service.start()
        (target,) = service.state.router.targets
        scorer_of(service.state, target).forces = forces
        asked = {"model": "tiny", "prompt": prompt, "prompt_logprobs": k, "max_tokens": 0}
        began = time.perf_counter()
        async with (
            ClientSession() as session,
            session.post(f"http://{host}:{port}/v1/completions", json=asked) as response,
        ):
            answer = await response.json()
        took = time.perf_counter() - began
        assert scorer_of(service.state, target).forces is forces
        await service.stop()
        return answer, tee.asked.count(b"POST /completion "), took


def rows_of(answer: Json) -> list[Json]:
    rows: list[Json] = answer["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    return rows[1:]


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("name", PROMPTS)
async def test_runs_tell_what_probes_tell(llamacpp: str, name: str, k: int) -> None:
    probed, probes, slow = await score(llamacpp, PROMPTS[name], k, forces=False)
    told, requests, fast = await score(llamacpp, PROMPTS[name], k, forces=True)
    print(f"{name}: {probes} probes in {slow:.2f} s, {requests} requests in {fast:.2f} s")
    for found, expected in zip(rows_of(told), rows_of(probed), strict=True):
        assert found == {
            token: {**row, "logprob": pytest.approx(row["logprob"], abs=NEAR)}
            for token, row in expected.items()
        }
    assert probes >= len(rows_of(told))
    assert requests == 1 if name == "plain" else requests < probes


async def test_a_prompt_of_token_ids_that_no_text_is_split_into(llamacpp: str) -> None:
    """Single letters of a word, and after them a control token."""
    async with ClientSession() as session:
        ids: list[int] = []
        for piece in ["h", "e", "l", "l", "o", "<|im_end|>", "t", "h", "e"]:
            asked = {"content": piece, "add_special": False, "parse_special": True}
            async with session.post(f"{llamacpp}/tokenize", json=asked) as response:
                ids += (await response.json())["tokens"]
    probed, _, _ = await score(llamacpp, ids, 2, forces=False)
    told, _, _ = await score(llamacpp, ids, 2, forces=True)
    assert rows_of(told) == rows_of(probed)


async def test_a_prompt_beyond_the_context_is_refused_as_ever(llamacpp: str) -> None:
    answer, requests, _ = await score(llamacpp, "hello " * (CONTEXT // 2 + 76), 0, forces=True)
    assert answer["error"]["code"] == "context_length_exceeded"
    assert requests <= 5
