"""Characters that are several tokens, as a real vLLM tells them: "" without bytes, then U+FFFD."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.vllm.asking import NO_CONTROLS, Asking, Both, question
from tests.models.tiny_hf import PULLS, Tokens

SCORED: dict[str, Any] = {"logprobs": True, "top_logprobs": 4}
SEEDS = range(6)


def characters(tokens: Tokens, weight: float = 9.0) -> dict[str, float]:
    """Return a logit_bias towards the first tokens of characters that are several."""
    firsts = {before for before, _ in PULLS} - {after for _, after in PULLS}
    return NO_CONTROLS | {str(tokens.ids[first]): weight for first in firsts}


def tiled(both: Both) -> None:
    """Assert on top of `Asking.both` that entries, text and numbers are in one order."""
    for given, answer in ((both.given, both.body), (both.given_stream, both.stream)):
        for choice in answer["choices"]:
            one = given[choice["index"]]
            entries = (choice["logprobs"] or {}).get("content") or []
            joined = b"".join(bytes(entry["bytes"] or ()) for entry in entries)
            assert joined.decode("utf-8", "replace") == choice["message"]["content"] == one.text
            numbers = [row.logprob for row in one.rows]
            got = [entry["logprob"] for entry in entries]
            starts = range(len(numbers) - len(got) + 1)
            assert any(numbers[at : at + len(got)] == got for at in starts)


@pytest.mark.parametrize("seed", SEEDS)
async def test_characters_of_several_tokens(ask: Asking, tokens: Tokens, seed: int) -> None:
    asked = question(logit_bias=characters(tokens), temperature=0.8, seed=seed, **SCORED)
    both = await ask.both(asked | {"max_tokens": 40})
    raw = both.raw["choices"][0]["logprobs"]["content"]
    assert any(entry["token"] == "" and entry["bytes"] == [] for entry in raw)
    text = both.given[0].text
    assert any(character in text for character in "😀€é")
    tiled(both)


@pytest.mark.parametrize("seed", SEEDS)
async def test_whole_characters_have_their_own_bytes(
    ask: Asking, tokens: Tokens, seed: int
) -> None:
    """Only tokens of three characters, so that the text has no U+FFFD in it."""
    only = {b"\xf0\x9f": 40.0, b"\xe2": 40.0, b" caf\xc3": 40.0, b" fox": 40.0}
    bias = {str(tokens.ids[data]): value for data, value in only.items()}
    later = {b"\x98": 60.0, b"\x80": 60.0, b"\x82": 60.0, b"\xac": 60.0, b"\xa9": 60.0}
    pulled = {str(tokens.ids[data]): value - 20.0 for data, value in later.items()}
    asked = question(logit_bias=bias | pulled, temperature=0.7, seed=seed, **SCORED)
    tiled(await ask.both(asked | {"max_tokens": 32}))


@pytest.mark.parametrize("seed", SEEDS)
async def test_noise_of_a_hot_model(ask: Asking, seed: int) -> None:
    """Half of it are bytes that are no character: they print as U+FFFD, one or several a token."""
    both = await ask.both(question(temperature=2, seed=seed, n=2, **SCORED))
    assert any("\ufffd" in one.text for one in both.given.values())
    tiled(both)


@pytest.mark.parametrize("limit", range(1, 8))
async def test_a_limit_inside_a_character(ask: Asking, tokens: Tokens, limit: int) -> None:
    """vLLM leaves the parts that came out of the text, and its logprobs have them."""
    emoji = {str(tokens.ids[b"\xf0\x9f"]): 100.0}
    greedy = question(logit_bias=NO_CONTROLS | emoji, max_tokens=limit, **SCORED)
    tiled(await ask.both(greedy))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_stop_string_among_characters(ask: Asking, tokens: Tokens, seed: int) -> None:
    bias = characters(tokens) | {str(tokens.ids[b" fox"]): 8.0}
    asked = question(logit_bias=bias, temperature=0.8, seed=seed, stop=["fo", "€"], **SCORED)
    both = await ask.both(asked | {"max_tokens": 200})
    assert both.given[0].reason == "stop"
    tiled(both)


async def test_a_control_token_inside_the_text(ask: Asking, tokens: Tokens) -> None:
    """vLLM leaves it out of the text and tells it among the logprobs, even inside a character."""
    bias = {str(tokens.ids[data]): 100.0 for data in (b"a", b" fox")} | {"1": 100.0}
    tiled(await ask.both(question(logit_bias=bias, temperature=1, seed=3, **SCORED)))
