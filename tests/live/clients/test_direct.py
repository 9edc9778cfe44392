"""The numbers that the clients' are compared with are the model's: llama.cpp gives the same."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.clients.direct import Direct
from tests.models import tiny

TOLERANCE = 1e-4


async def distribution(server: str, tokens: list[int], size: int) -> dict[int, float]:
    """Return llama.cpp's own logprobs of every token after `tokens`, by id."""
    asked: dict[str, Any] = {"prompt": tokens, "n_predict": 1, "n_probs": size, "temperature": 0}
    async with (
        ClientSession() as session,
        session.post(f"{server}/completion", json=asked) as answer,
    ):
        body = await answer.json()
    rows = body["completion_probabilities"][0]["top_logprobs"]
    return {row["id"]: row["logprob"] for row in rows}


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
async def test_llama_cpp_gives_the_same_logprobs(
    tokenizer: tiny.Tokenizer, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("llama_server" if tokenizer == "spm" else "llama_server_bpe")
    direct = Direct(tokenizer)
    size = len(direct.vocabulary.texts)
    newline = direct.vocabulary.ids[direct.vocabulary.spell("\n")]
    for token in (newline, direct.best(newline), direct.vocabulary.ids["a"]):
        real = await distribution(server, [1, token], size)
        assert len(real) == size
        assert max(abs(direct.table[token, other] - real[other]) for other in real) < TOLERANCE


def test_scores_are_of_the_token_after() -> None:
    direct = Direct("bpe")
    before, after = direct.vocabulary.ids["a"], direct.vocabulary.ids["b"]
    assert direct.scores([before, after]) == [direct.table[before, after]]
    assert direct.scores([before, after]) != [direct.table[after, before]]
    total, greedy = direct.loglikelihood([after, before], [direct.best(before), after])
    assert not greedy
    assert total == pytest.approx(
        direct.table[before].max() + direct.table[direct.best(before), after]
    )


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
def test_greedy_text_is_the_script(tokenizer: tiny.Tokenizer) -> None:
    direct = Direct(tokenizer)
    pieces = [direct.vocabulary.piece(piece) for piece in tiny.SCRIPTS["text"][:-1]]
    newline = direct.vocabulary.ids[direct.vocabulary.spell("\n")]
    assert direct.greedy(newline, 100) == pieces
    assert direct.greedy(newline, 3) == pieces[:3]
