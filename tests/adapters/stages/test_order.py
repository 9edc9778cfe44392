"""Contract rule 5: choices first appear in the order 0, 1, 2, ..., each with its index."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    TOOL,
    Json,
    Said,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    entries,
    role,
    say,
    scored,
    stream,
)
from tests.examples import examples
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.events import End, Open, Text, Usage
from wellspoken.adapters.stages.order import OrderStage
from wellspoken.adapters.translate import StreamTranslator

N2, N3 = ask(n=2), ask(n=3)


def indexes(said: Said) -> list[int]:
    """Return the choice of each chunk, in order."""
    parts = said.chunks
    return [part["choices"][0]["index"] for part in parts]


def texts(said: Said) -> list[str]:
    return [x["message"]["content"] for x in said.answer["choices"]]


def test_a_choice_waits_for_the_lower_ones() -> None:
    parts = [role(1), say("b", index=1), role(0), say("a"), end(), end(index=1)]
    said = stream(parts, N2)
    assert indexes(said)[0] == 0
    assert texts(said) == ["a", "b"]
    assert said.repairs["choices_out_of_order"] >= 1


def test_three_backwards() -> None:
    parts = [x for n in (2, 1, 0) for x in (role(n), say(str(n), index=n), end(index=n))]
    said = stream(parts, N3)
    assert list(dict.fromkeys(indexes(said))) == [0, 1, 2]
    assert texts(said) == ["0", "1", "2"]


def test_choices_in_turn_stay_in_turn() -> None:
    parts = [role(0), role(1), say("a"), say("b", index=1), say("A"), end(index=1), end()]
    said = stream(parts, N2)
    assert indexes(said) == [0, 0, 1, 1, 0, 1, 0]  # each role right before what it opens
    assert said.repairs == {}


def test_a_single_choice_called_1_is_0() -> None:
    for said in (
        body(completion(choice(index=1))),
        stream([role(1), say("Hi", index=1), end(index=1)]),
        stream([chunk({"reasoning_content": "x"}, index=1), say("Hi", index=1), end(index=1)]),
    ):
        assert said.choice["index"] == 0
        assert texts(said) == ["Hi"]
        assert said.repairs["choice_renumbered"] >= 1


def test_numbers_that_never_come_are_closed_up() -> None:
    parts = [role(2), say("b", index=2), role(0), say("a"), end(), end(index=2)]
    said = stream(parts, N2)
    assert texts(said) == ["a", "b"]
    assert sorted(set(indexes(said))) == [0, 1]


def test_a_body_is_sorted() -> None:
    said = body(completion(choice("b", index=1), choice("a")), N2)
    assert texts(said) == ["a", "b"]
    assert said.repairs == {"choices_out_of_order": 1}


@pytest.mark.parametrize("given", [None, -1, True])
def test_an_index_that_is_none_is_the_place(given: Any) -> None:
    first, second = choice("a"), choice("b")
    for n, part in enumerate((first, second)):
        part["index"] = given
        if given is None and n:
            del part["index"]
    said = body(completion(first, second), N2)
    assert texts(said) == ["a", "b"]
    assert said.repairs["choice_index_missing"] == 2


def test_a_choice_that_is_none_is_dropped_and_counted() -> None:
    given = completion(choice())
    given["choices"].append("x")
    said = body(given)
    assert texts(said) == ["Hi"]
    assert said.repairs == {"extra_field_dropped": 1}


def test_several_choices_in_one_chunk() -> None:
    both = role()
    both["choices"].append(role(1)["choices"][0])
    parts = [both, say("a"), say("b", index=1), end(), end(index=1)]
    said = stream(parts, N2)
    assert texts(said) == ["a", "b"]
    assert said.repairs == {"chunk_of_several_choices": 1}


def test_extensions_of_a_waiting_choice_wait_with_it() -> None:
    """An extra key belongs to its choice, so it may not make the choice appear early."""
    later = say("b", index=1)
    later["choices"][0]["token_ids"] = [7]
    asked = ask(n=2, return_token_ids=True)
    said = stream([role(1), later, role(0), say("a"), end(), end(index=1)], asked)
    assert indexes(said)[0] == 0
    assert b'"token_ids":[7]' in said.raw
    with_keys = [x for x in payloads(said.raw) if b"token_ids" in x]
    assert [json.loads(x)["choices"][0]["index"] for x in with_keys] == [1]


def test_what_waits_comes_at_the_end_of_a_stream() -> None:
    translator = StreamTranslator(exchange({**N2, "stream": True}))
    assert translator.feed(data(role(1)) + data(say("b", index=1))) == b""
    assert b'"b"' in translator.feed(data(end(index=1)) + data(b"[DONE]"))


def test_entries_stay_with_their_choice() -> None:
    parts = [
        role(1),
        say("b", index=1, logprobs=entries("b")),
        role(0),
        say("a", logprobs=entries("a")),
        end(),
        end(index=1),
    ]
    said = stream(parts, scored(n=2))
    found = [x["logprobs"]["content"][0]["token"] for x in said.answer["choices"]]
    assert found == ["a", "b"]


def test_choices_that_nobody_asked_for_are_left_out() -> None:
    parts = [role(), say("a"), role(1), say("b", index=1), end(), end(index=1)]
    for said in (body(completion(choice("a"), choice("b", index=1))), stream(parts)):
        assert texts(said) == ["a"]
        assert said.repairs["choice_unasked"] == 1
    assert texts(body(completion(choice("a"), choice("b", index=1)), N2)) == ["a", "b"]


def test_llamacpps_own_name_of_n_asks_for_them() -> None:
    both = completion(choice("a"), choice("b", index=1))
    assert texts(body(both, ask(n_cmpl=2), waived=["5.count"])) == ["a", "b"]
    part = exchange(ask(n_cmpl=2, n=2)).part(None)
    assert "n_cmpl" not in part.switches  # it is one choice, whatever that says


@settings(max_examples=examples(80), deadline=None, database=None)
@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_of_too_many_any_two_stay_whole(turns: list[int]) -> None:
    made: dict[int, list[Json]] = {
        n: [role(n), say(str(n), index=n), end(index=n)] for n in (0, 1, 2)
    }
    said = stream([made[n].pop(0) for n in turns], N2)
    assert list(dict.fromkeys(indexes(said))) == [0, 1]
    assert len(texts(said)) == 2 and set(texts(said)) < {"0", "1", "2"}
    assert said.repairs["choice_unasked"] == 1


@settings(max_examples=examples(80), deadline=None, database=None)
@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_any_order_gives_the_same_answer(turns: list[int]) -> None:
    made: dict[int, list[Json]] = {
        n: [role(n), say(str(n), index=n), end(index=n)] for n in (0, 1, 2)
    }
    said = stream([made[n].pop(0) for n in turns], N3)
    assert list(dict.fromkeys(indexes(said))) == [0, 1, 2]
    assert texts(said) == ["0", "1", "2"]


def test_choices_appear_in_order_although_bare_roles_came_first() -> None:
    roles = [chunk({"role": "assistant", "content": ""}, index=n) for n in (0, 1)]
    texts = [say("b", index=1), say("a"), end(), end(index=1)]
    said = stream([*roles, *texts], ask(n=2))
    assert [c["message"]["content"] for c in said.answer["choices"]] == ["a", "b"]


CALLED = chunk({"tool_calls": [{"index": 0, **call()}]})


def test_a_role_waits_for_its_call_and_with_it_what_a_higher_choice_says() -> None:
    """The mutant that writes it as soon as the higher one speaks has "" before a call (3.null)."""
    parts = [role(), role(1), say("b", index=1), CALLED, end("tool_calls"), end(index=1)]
    said = stream(parts, ask(n=2, tools=[TOOL]))
    assert indexes(said) == [0, 0, 1, 1, 0, 1]
    assert said.chunks[0]["choices"][0]["delta"]["content"] is None
    assert said.repairs == {}  # the backend's own order was right
    three = [role(), say("c", index=2), say("b", index=1), CALLED, end("tool_calls")]
    said = stream([*three, end(index=1), end(index=2)], ask(n=3, tools=[TOOL]))
    assert list(dict.fromkeys(indexes(said))) == [0, 1, 2]
    assert said.repairs["choices_out_of_order"] == 1


def test_a_choice_that_says_nothing_does_not_keep_the_others_for_ever() -> None:
    parts = [role(), role(1), say("b", index=1), end(index=1), end()]
    said = stream(parts, ask(n=2, tools=[TOOL]))
    assert texts(said) == ["", "b"]


def test_where_no_tool_is_offered_nobody_waits_for_a_call() -> None:
    translator = StreamTranslator(exchange({**N2, "stream": True}))
    assert translator.feed(data(role()) + data(role(1))) == b""
    assert b'"b"' in translator.feed(data(say("b", index=1)))


def test_what_writes_no_chunk_begins_no_choice() -> None:
    """The mutant that takes an extra key, or reasoning that stays here, for one has 1 first."""
    later = chunk({})
    later["choices"][0]["token_ids"] = [7]
    asked = ask(n=2, return_token_ids=True)
    said = stream([later, role(1), say("b", index=1), say("a"), end(), end(index=1)], asked)
    assert indexes(said)[0] == 0
    assert b'"token_ids":[7]' in said.raw
    thought = chunk({"reasoning_content": "Hm"})
    made = exchange({**N2, "stream": True}, extensions="none")
    translator = StreamTranslator(made)
    out = translator.feed(b"".join(map(data, [role(), role(1), thought, say("b", index=1)])))
    assert [json.loads(x)["choices"][0]["index"] for x in payloads(out)] == [0, 1, 1]


def test_counts_so_far_end_no_choice() -> None:
    """The mutant that lets go of what waits at any usage calls the second choice the first."""
    made = exchange({**N2, "stream": True})
    stage = OrderStage(made)
    assert stage([Text(1, "b"), Usage(1, 1, running=True)]) == [Usage(1, 1, running=True)]
    assert stage([Text(0, "a")]) == [Text(0, "a"), Text(1, "b")]


def test_a_choice_that_has_a_role_alone_is_none() -> None:
    stage = OrderStage(exchange({**N2, "stream": True}))
    assert stage([Text(0, "a"), Open(1), End(True)]) == [Text(0, "a"), End(True)]


LONG = "1" * 5_000


@pytest.mark.parametrize(
    ("indexes", "wanted"),
    [
        ((0, 0), "ab"),
        ((None, 1), "ab"),
        ((1, None), "ab"),
        (("1", "0"), "ba"),
        ((1.0, 0), "ba"),
        ((1, 0), "ba"),
        (("²", LONG), "ab"),
    ],
)
def test_the_choices_of_a_body_are_numbered(indexes: tuple[Any, Any], wanted: str) -> None:
    given = [choice(text, index=n, x=1) for text, n in zip("ab", indexes, strict=True)]
    for one in given:
        if one["index"] is None:
            del one["index"]
    said = body(completion(*given), ask(n=2))
    assert [x["message"]["content"] for x in said.answer["choices"]] == list(wanted)
    assert [x["index"] for x in said.answer["choices"]] == [0, 1]


def test_the_text_indexes_of_a_stream_count_by_value() -> None:
    parts = [role(), say("a"), role(1), say("b", index=1), end(), end(index=1)]
    for part in parts:
        part["choices"][0]["index"] = str(part["choices"][0]["index"])
    said = stream(parts, ask(n=2))
    assert [x["message"]["content"] for x in said.answer["choices"]] == ["a", "b"]
    assert said.repairs["choice_index_text"] == 6
