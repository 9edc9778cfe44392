"""A prompt's logprobs on llama.cpp: what is asked, what of an answer is understood.

The answers are those of llama.cpp b11549 (xllamacpp 0.2.22) on the tiny model, shortened.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.text_events import asked
from wellspoken.adapters.events import UNKNOWN, Alternative, Entry
from wellspoken.adapters.prompt_scores import (
    DEEPER,
    FORCING,
    as_extra,
    detokenize_request,
    probe,
    prompt_logprobs,
    read_probe,
    read_text,
    read_tokens,
    read_whole,
    tokenize_request,
)
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.tokens.table import NULL, bytes_json, spell

TOKENS = {
    "tokens": [
        {"id": 1, "piece": "<s>"},
        {"id": 346, "piece": "o"},
        {"id": 198, "piece": [195]},
        {"id": 172, "piece": [169]},
    ]
}
ROWS = [
    {"id": 97, "token": "^", "bytes": [94], "logprob": -1.83},
    {"id": 343, "token": "l", "bytes": [108], "logprob": -6.48},
]


def answered(id: int, logprob: float, rows: list[dict[str, Any]]) -> bytes:
    own = {"id": id, "token": "l", "bytes": [108], "logprob": logprob, "top_logprobs": rows}
    return json.dumps({"content": "l", "completion_probabilities": [own]}).encode()


def found(data: bytes, token: int) -> Entry | None:
    return read_probe(data, token, Context(asked()))


def test_a_prompt_is_split_as_the_backend_will_do_it() -> None:
    assert json.loads(tokenize_request("a\n")) == {
        "content": "a\n",
        "add_special": True,
        "parse_special": True,
        "with_pieces": True,
    }
    assert json.loads(tokenize_request("a", alone=True))["add_special"] is False
    tokens = read_tokens(json.dumps(TOKENS).encode())
    assert tokens == [(1, b"<s>"), (346, b"o"), (198, b"\xc3"), (172, b"\xa9")]
    assert json.loads(detokenize_request([1, 2])) == {"tokens": [1, 2]}
    assert json.loads(detokenize_request([1], "m")) == {"model": "m", "tokens": [1]}
    assert read_text(b'{"prompt":"Hi"}') == "Hi"  # vLLM's
    assert read_text(b'{"content":"hi"}') == "hi"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"tokens":null}',
        b'{"tokens":[1,2]}',
        b'{"tokens":[{"id":1}]}',
        b'{"tokens":[{"id":null,"piece":"a"}]}',
        b'{"tokens":[{"id":"x","piece":"a"}]}',
        b'{"tokens":[{"id":1,"piece":null}]}',
        b'{"tokens":[{"id":1,"piece":[300]}]}',
        b'{"tokens":[{"id":1,"piece":3}]}',
        b'{"count":2,"max_model_len":512,"tokens":[1,2]}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_list_of_tokens_is_said_to_be_none(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match="a list of tokens"):
        read_tokens(nonsense)
    with pytest.raises(ValueError, match="a list of tokens"):
        read_whole(nonsense)


@pytest.mark.parametrize(
    "nonsense", [b"", b"<p>", b"[]", b"null", b"{}", b'{"content":null}', b'{"content":[1]}']
)
def test_what_is_no_text_is_said_to_be_none(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match="content"):
        read_text(nonsense)


def test_a_token_of_whole_characters_is_the_last_that_is_one() -> None:
    given: dict[str, Any] = {"tokens": [*TOKENS["tokens"], {"id": 9, "piece": ""}]}
    assert read_whole(json.dumps(given).encode()) == 346
    given = {"tokens": [{"id": 198, "piece": [195]}, {"id": 172, "piece": [169]}]}
    with pytest.raises(ValueError, match="whole characters"):
        read_whole(json.dumps(given).encode())


def test_a_probe_forces_its_token_and_asks_for_one_alternative_at_least() -> None:
    sent = json.loads(probe([1, 2, 3], 7, 0))
    assert sent == {
        "prompt": [1, 2, 3],
        "n_predict": 1,
        "n_probs": 1,
        "temperature": 0,
        "cache_prompt": True,
        "stream": False,
        "logit_bias": [[7, FORCING]],
    }
    assert json.loads(probe([1], 7, 5))["n_probs"] == 5
    assert DEEPER[0] == 0 and list(DEEPER) == sorted(DEEPER)


def test_the_forced_tokens_own_logprob_and_the_alternatives_of_its_place() -> None:
    entry = found(answered(343, -6.48, ROWS[:1]), 343)
    assert entry is not None
    assert (entry.id, entry.logprob) == (343, -6.48)
    assert [(row.id, row.logprob) for row in entry.top_logprobs] == [(97, -1.83)]


def test_of_another_token_the_alternatives_tell() -> None:
    entry = found(answered(97, -1.83, ROWS), 343)
    assert entry is not None
    assert (entry.id, entry.logprob, entry.token) == (343, -6.48, "l")
    assert [row.id for row in entry.top_logprobs] == [97, 343]


@pytest.mark.parametrize(
    "silent",
    [
        answered(97, -1.83, ROWS[:1]),
        b'{"content":""}',
        b'{"content":"","completion_probabilities":[]}',
        b'{"content":"","completion_probabilities":null}',
        b'{"content":"","completion_probabilities":{"prob":[],"top_logprobs":true}}',
    ],
)
def test_an_answer_that_does_not_tell_it(silent: bytes) -> None:
    assert found(silent, 343) is None


@pytest.mark.parametrize("nonsense", [b"", b"<html>", b"[]", b"null", b"{}", b'{"error":{}}'])
def test_what_is_no_answer_is_said_to_be_none(nonsense: bytes) -> None:
    with pytest.raises(ValueError, match="completion_probabilities"):
        found(nonsense, 343)


def row(id: int, data: bytes, logprob: float) -> Alternative:
    return Alternative(spell(data), logprob, bytes_json(data), id)


def test_vllms_form_the_token_first_then_the_best_ranks_where_they_are_known() -> None:
    top = [row(97, b"^", -1.5), row(343, b"l", -2.5), row(3, b"x", -4.0)]
    ranked = Entry("l", -2.5, bytes_json(b"l"), top, 343)
    below = Entry("o", -9.5, bytes_json(b"o"), top, 346)
    control = Entry("", -0.5, NULL, [row(2, b"", -0.5)], 2)
    entries = [None, ranked, below, control]
    pieces: list[bytes | None] = [b"<s>", b"l", None, b"</s>"]
    rows = json.loads(bytes(prompt_logprobs(entries, [1, 343, 346, 2], pieces, 2)))
    assert rows == [
        None,
        {
            "343": {"logprob": -2.5, "rank": 2, "decoded_token": "l"},
            "97": {"logprob": -1.5, "rank": 1, "decoded_token": "^"},
        },
        {
            "346": {"logprob": -9.5, "rank": None, "decoded_token": "o"},
            "97": {"logprob": -1.5, "rank": 1, "decoded_token": "^"},
            "343": {"logprob": -2.5, "rank": 2, "decoded_token": "l"},
        },
        {"2": {"logprob": -0.5, "rank": 1, "decoded_token": "</s>"}},
    ]
    assert [list(told) for told in rows[1:]] == [["343", "97"], ["346", "97", "343"], ["2"]]


def test_none_but_the_tokens_own_where_no_alternatives_were_asked_for() -> None:
    entry = Entry("l", UNKNOWN, NULL, [row(97, b"^", -1.5)], 343)
    rows = json.loads(bytes(prompt_logprobs([None, entry], [1, 343], [None, b"\xc3"], 0)))
    assert rows[1] == {"343": {"logprob": UNKNOWN, "rank": None, "decoded_token": "\ufffd"}}


def test_the_key_stands_where_vllm_has_it() -> None:
    assert as_extra("choice", NULL).choice == 0
    assert as_extra("answer", NULL).choice is None
