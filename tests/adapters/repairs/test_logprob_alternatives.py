"""Contract rule 7: the value and the alternatives of a position, where they are odd or missing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.answers import (
    Json,
    body,
    choice,
    chunk,
    completion,
    end,
    entries,
    entry,
    lp,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.replay import exchange
from wellspoken.adapters.events import UNKNOWN
from wellspoken.adapters.readers import legacy
from wellspoken.adapters.readers.strict import WireLogprobs
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import logprobs


@pytest.mark.parametrize("hole", [{}, None])
def test_a_position_without_alternatives_is_kept_as_unknown(hole: Any) -> None:
    given = {"top_logprobs": [{"Hi": -0.1}, hole, {".": -0.2}]}
    said = body(completion(choice("Hi.", logprobs=given)), scored(1))
    assert said.rows == [("Hi", -0.1, [72, 105]), ("", -9999.0, None), (".", -0.2, [46])]


def test_the_sampled_token_has_its_own_value() -> None:
    rows = [entry("a", -0.1, [("x", -0.1), ("a", -2.0)])]
    said = body(completion(choice("a", logprobs=lp(*rows))), scored(2))
    assert said.entries[0]["logprob"] == -2.0
    assert said.repairs == {"logprobs_own_from_alternative": 1}


@pytest.mark.parametrize("names", ["abb", "abcb", "bacb"])
@pytest.mark.parametrize("ids", [False, True])
def test_an_alternative_told_twice_is_one(names: str, ids: bool) -> None:
    """Mutants: `_arrange` looks at the one before alone; it keeps all that have ids."""
    rows = [entry("a", -0.1, [(name, -0.1 if name == "a" else -2.0) for name in names])]
    for row in rows[0]["top_logprobs"] if ids else ():
        row["id"] = ord(row["token"])
    said = body(completion(choice("a", logprobs=lp(*rows))), scored(4))
    assert said.tops == [[(x, -0.1 if x == "a" else -2.0) for x in sorted({*names})]]
    assert said.repairs["logprobs_alternative_repeated"] == 1


@pytest.mark.parametrize(
    "given",
    [
        {**entries("Hi"), "tokens": ["Hi"], "token_logprobs": [-0.5], "top_logprobs": [{}]},
        {},
    ],
    ids=["both shapes", "none"],
)
def test_odd_logprobs_do_not_pass_as_they_are(given: Json) -> None:
    assert body(completion(choice(logprobs=given)), scored()).repairs
    assert stream([role(), say("Hi", logprobs=given), end()], scored()).repairs


def test_logprobs_of_a_refusal_pass() -> None:
    given = {"content": None, "refusal": [entry("No")]}
    refused = message(None, refusal="No")
    said = body(completion(choice(message=refused, logprobs=given)), scored())
    assert (said.repairs, said.choice["logprobs"]) == ({}, given)
    chunks = [role(), chunk({"refusal": "No"}, logprobs=given), end()]
    assert stream(chunks, scored()).repairs == {}


def arrays(tokens: list[str], numbers: Any, tops: Any, **more: Any) -> Json:
    given = {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops}
    kept = {key: value for key, value in given.items() if value is not ...}
    return completion(choice("".join(tokens), logprobs=kept, **more))


def test_alternatives_named_by_digits_that_are_not_ascii_are_text() -> None:
    said = body(arrays(["a"], [-0.1], [{"²": -0.1}]), scored(1))
    assert said.tops == [[("²", -0.1)]]


def test_refusal_entries_beside_arrays_are_no_crash() -> None:
    sent = json.dumps({"refusal": [entry("x")], "tokens": ["Hi"]}).encode()
    given = msgspec.json.decode(sent, type=WireLogprobs)
    found = legacy.logprobs(given, "Hi", Context(exchange(scored())))
    assert found is not None and [row.token for row in found.entries] == ["Hi"]
    given.tokens = msgspec.UNSET
    found = legacy.logprobs(given, "Hi", Context(exchange(scored())))
    assert found is not None and found.entries == []


def test_an_own_value_that_is_missing_is_that_of_its_alternative() -> None:
    top = [{"token": "b", "logprob": -0.1}, {"token": "Hi", "logprob": -0.7}]
    rows: list[Json] = [
        {"token": "Hi", "logprob": None, "top_logprobs": top},
        {"token": "Hi", "top_logprobs": top},
    ]
    for row in rows:
        said = body(completion(choice(logprobs={"content": [row]})), scored(2))
        assert said.entries[0]["logprob"] == -0.7
        assert said.repairs["logprobs_own_from_alternative"] == 1
        assert "logprobs_unknown" not in said.repairs


@pytest.mark.parametrize("numbers", [[None, -2.0], None, ..., [None, None]])
def test_a_column_of_values_that_is_missing(numbers: Any) -> None:
    given = arrays(["H", "i"], numbers, [{"x": -0.1, "H": -0.7}, {"i": -2.0}])
    said = body(given, scored(2))
    assert [value for _, value, _ in said.rows] == [-0.7, -2.0]
    assert said.repairs["logprobs_own_from_alternative"] >= 1


def test_old_llama_cpps_own_probabilities() -> None:
    probs = [{"tok_str": "Yo", "prob": 0.2}, {"tok_str": "Hi", "prob": 0.7}]
    given = completion(choice(), completion_probabilities=[{"content": "Hi", "probs": probs}])
    said = body(given, scored(2))
    assert said.entries[0]["logprob"] == pytest.approx(-0.35667494)
    assert said.repairs["logprobs_own_from_alternative"] == 1


def test_which_of_two_that_read_alike_is_not_known() -> None:
    top = [{"token": "Hi", "logprob": -0.1}, {"token": "Hi", "logprob": -0.7}]
    context = Context(exchange(scored(2)))
    found = logprobs([{"token": "Hi", "top_logprobs": top}], "Hi", context)
    assert found is not None and found[0][0].logprob == UNKNOWN


ID_CASES: dict[str, tuple[list[str], list[float], list[Json], bool]] = {
    "two positions": (["H", "i"], [-1, -2], [{"11": -1, "5": -3}, {"13": -2}], True),
    "placeholders": (["Hi"], [-1], [{"token_id:7": -1}], True),
    "one position, long names": (["Hi"], [-1], [{"11": -1, "12": -3}], True),
    "one position, a short name": (["Hi"], [-1], [{"11": -1, "5": -3}], False),
    "one-digit names alone": (["H", "i"], [-1, -2], [{"1": -1}, {"3": -2}], False),
    "a name that is text": (["H", "i"], [-1, -2], [{"11": -1}, {"x": -2}], False),
    "a sampled token among them": (["H", "13"], [-1, -2], [{"11": -1}, {"13": -2}], False),
    "numbers alone": (["7"], [-1], [{"12": -1.5, "35": -2}], False),
    "no alternatives": (["H", "i"], [-1, -2], [{}, {}], False),
}


@pytest.mark.parametrize("name", ID_CASES)
@pytest.mark.parametrize("tolerant", [False, True])
def test_digits_are_ids_only_where_all_say_so(name: str, tolerant: bool) -> None:
    tokens, numbers, tops, ids = ID_CASES[name]
    more: Json = {"x": 1} if tolerant else {}
    said = body(arrays(tokens, numbers, tops, **more), scored(2))
    assert ("logprobs_top_by_id" in said.repairs) is ids
    names = {token for row in said.tops for token, _ in row}
    assert (
        any(x.startswith("token_id:") for x in names)
        is (ids and any(len(top) > 1 for top in tops) and not tolerant)
        or tolerant
    )


def test_two_ids_of_one_value_are_two_tokens() -> None:
    said = body(arrays(["Hi"], [-1], [{"11": -1, "12": -1}]), scored(2))
    assert {token for token, _ in said.tops[0]} == {"token_id:11", "token_id:12"}


def test_an_alternative_that_is_given_twice_is_given_once() -> None:
    twice = [{"token": "Hi", "logprob": -0.5, "x": 1}] * 2
    alike = [{"token": "Yo", "logprob": -0.9, "id": 7}, {"token": "Yo", "logprob": -0.9, "id": 8}]
    parts = [{"token": "\ufffd", "logprob": -3.0}] * 2
    row = {"token": "Hi", "logprob": -0.5, "top_logprobs": [*twice, *alike, *parts]}
    given = completion(choice(logprobs={"content": [row]}))
    said = body(given, scored(9), waived=["7.distinct"])  # the ids that tell two apart are gone
    assert [token for token, _ in said.tops[0]] == ["Hi", "Yo", "Yo", "", ""]
    assert said.repairs["logprobs_alternative_repeated"] == 1
