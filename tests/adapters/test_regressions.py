"""Answers that were once translated wrongly, each with the rule of the contract it broke."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import answers as a
from tests.linear import linear
from tests.replay import body as translate
from tests.replay import stream as translate_pieces


def part(data: list[int] | None, value: float = -0.5) -> a.Json:
    """Return an entry that is a part of a character, its bytes known or not."""
    token = "\ufffd" if data is None else bytes(data).decode("utf-8", "replace")
    return {"token": token, "logprob": value, "bytes": data, "top_logprobs": []}


def test_a_token_that_ends_one_character_and_begins_the_next_waits_for_it() -> None:
    chunks = [
        a.say("", logprobs=a.lp(part([0xE4]))),
        a.say("世", logprobs=a.lp(part([0xB8, 0x96, 0xE7]))),
        a.say("界", logprobs=a.lp(part([0x95, 0x8C]))),
    ]
    said = a.stream([a.role(), *chunks, a.end()], a.scored())
    assert said.message["content"] == "世界"
    assert [row["bytes"] for row in said.entries] == [[0xE4], [0xB8, 0x96, 0xE7], [0x95, 0x8C]]


def test_known_bytes_before_an_unknown_part_give_it_the_rest() -> None:
    given = a.completion(a.choice("世", logprobs=a.lp(part([228]), part(None))))
    assert a.body(given, a.scored()).joined == "世".encode()


def test_a_part_between_known_parts_is_what_the_content_has_there() -> None:
    rows = [a.entry("a"), part([0xF0, 0x9F]), part(None), part([0x80]), a.entry("b")]
    said = a.body(a.completion(a.choice("a😀b", logprobs=a.lp(*rows))), a.scored())
    assert [row["bytes"] for row in said.entries] == [[97], [0xF0, 0x9F], [0x98], [0x80], [98]]


@pytest.mark.parametrize("hole", [{}, None])
def test_a_position_without_alternatives_is_kept_as_unknown(hole: Any) -> None:
    given = {"top_logprobs": [{"Hi": -0.1}, hole, {".": -0.2}]}
    said = a.body(a.completion(a.choice("Hi.", logprobs=given)), a.scored(1))
    assert said.rows == [("Hi", -0.1, [72, 105]), ("", -9999.0, None), (".", -0.2, [46])]


def test_choices_appear_in_order_although_bare_roles_came_first() -> None:
    roles = [a.chunk({"role": "assistant", "content": ""}, index=n) for n in (0, 1)]
    texts = [a.say("b", index=1), a.say("a"), a.end(), a.end(index=1)]
    said = a.stream([*roles, *texts], a.ask(n=2))
    assert [c["message"]["content"] for c in said.answer["choices"]] == ["a", "b"]


def test_a_reason_on_every_chunk_loses_no_text() -> None:
    chunks = [
        a.chunk({"role": "assistant", "content": ""}, "stop"),
        a.chunk({"content": "Hello"}, "stop"),
        a.chunk({"content": " world"}, "stop"),
    ]
    said = a.stream(chunks)
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hello world", "stop")


def test_usage_beside_text_does_not_make_a_cut_stream_complete() -> None:
    said = a.stream([a.role(), {**a.say("a"), "usage": a.USAGE}], done=False)
    assert said.error is not None and said.error["code"] == "upstream_cut"


def test_data_in_several_lines_leaves_in_one() -> None:
    lines = json.dumps(a.say("Hi"), indent=1).encode().replace(b"\n", b"\ndata: ")
    said = a.stream([a.role(), lines, a.end()])
    assert said.message["content"] == "Hi"
    assert said.repairs == {"sse_data_lines": 1}


def test_the_sampled_token_has_its_own_value() -> None:
    rows = [a.entry("a", -0.1, [("x", -0.1), ("a", -2.0)])]
    said = a.body(a.completion(a.choice("a", logprobs=a.lp(*rows))), a.scored(2))
    assert said.entries[0]["logprob"] == -2.0
    assert said.repairs == {"logprobs_own_from_alternative": 1}


def test_an_alternative_told_twice_is_one() -> None:
    rows = [a.entry("a", -0.1, [("a", -0.1), ("b", -2.0), ("b", -2.0)])]
    said = a.body(a.completion(a.choice("a", logprobs=a.lp(*rows))), a.scored(3))
    assert said.tops == [[("a", -0.1), ("b", -2.0)]]
    assert said.repairs == {"logprobs_alternative_repeated": 1}


@pytest.mark.parametrize("reasoning", ["Paris", "Paris is it. Paris"])
def test_reasoning_that_holds_the_answer_keeps_its_entries(reasoning: str) -> None:
    rows = [a.entry(reasoning, -0.1), a.entry("</think>", -0.2), a.entry("Paris", -0.3)]
    message = a.message("Paris", reasoning_content=reasoning)
    given = a.completion(a.choice(message=message, logprobs=a.lp(*rows)))
    assert [row["logprob"] for row in a.body(given, a.scored()).entries] == [-0.3]


def test_a_call_after_a_role_chunk_opens_the_choice_with_null() -> None:
    calls = a.chunk({"tool_calls": [{"index": 0, **a.call()}]})
    said = a.stream([a.role(), calls, a.end("tool_calls")], a.ask(tools=[a.TOOL]))
    assert said.message["content"] is None


@pytest.mark.parametrize(
    "given",
    [
        {**a.entries("Hi"), "tokens": ["Hi"], "token_logprobs": [-0.5], "top_logprobs": [{}]},
        {},
    ],
    ids=["both shapes", "none"],
)
def test_odd_logprobs_do_not_pass_as_they_are(given: a.Json) -> None:
    assert a.body(a.completion(a.choice(logprobs=given)), a.scored()).repairs
    assert a.stream([a.role(), a.say("Hi", logprobs=given), a.end()], a.scored()).repairs


def test_logprobs_of_a_refusal_pass() -> None:
    given = {"content": None, "refusal": [a.entry("No")]}
    message = a.message(None, refusal="No")
    said = a.body(a.completion(a.choice(message=message, logprobs=given)), a.scored())
    assert (said.repairs, said.choice["logprobs"]) == ({}, given)
    chunks = [a.role(), a.chunk({"refusal": "No"}, logprobs=given), a.end()]
    assert a.stream(chunks, a.scored()).repairs == {}


@pytest.mark.parametrize(
    ("message", "repair"),
    [({"refusal": ""}, "refusal_empty"), ({"reasoning_content": ""}, "reasoning_empty")],
)
def test_an_empty_text_for_none_is_left_out(message: a.Json, repair: str) -> None:
    said = a.body(a.completion(a.choice(message={**a.message(), **message})))
    assert said.message == a.message()
    assert said.repairs == {repair: 1}


def test_a_fingerprint_stays_what_it_was() -> None:
    chunks = [
        a.chunk(a.message(""), system_fingerprint="fp_a"),
        {**a.say("Hi"), "system_fingerprint": "fp_b"},
        {**a.end(), "system_fingerprint": "fp_a"},
    ]
    assert a.stream(chunks).repairs == {"system_fingerprint_changes": 1}


def test_entries_behind_their_text_are_kept() -> None:
    late = [a.role(), a.say("Hello"), a.say(" world", logprobs=a.entries("Hello", " world"))]
    said = a.stream([*late, a.end()], a.scored(), waived=["7.chunk"])
    assert said.joined == b"Hello world"
    ends = a.chunk({}, "stop", logprobs=a.entries("Hello", " world"))
    chunks = [a.role(), a.say("Hello"), a.say(" world"), ends]
    said = a.stream(chunks, a.scored(), waived=["7.chunk"])
    assert said.joined == b"Hello world"


def test_many_characters_in_parts_lose_no_entry() -> None:
    rows = [a.bare("", bytes=[]), a.bare("", bytes=[]), a.bare("", bytes=[]), a.entry("😀")] * 200
    given = a.completion(a.choice("😀" * 200, logprobs=a.lp(*rows)))
    assert len(a.body(given, a.scored()).entries) == 800


def test_two_characters_in_unknown_parts_have_no_more_parts_than_bytes() -> None:
    given = a.completion(a.choice("…世", logprobs=a.lp(*[part(None)] * 5)))
    owners = [len(row["bytes"] or ()) for row in a.body(given, a.scored()).entries]
    assert owners in ([0, 0, 3, 0, 3], [0, 3, 0, 0, 3])


def test_extras_that_came_too_late_are_counted() -> None:
    timings = {**a.counted(), "timings": {"predicted_n": 1}}
    request = a.ask(timings_per_token=True)
    said = a.stream([a.role(), a.say("Hi"), a.end(), timings], request)
    assert said.repairs["extra_field_dropped"] == 1


def test_a_sole_entry_without_text_is_the_text() -> None:
    given = a.lp({"token": None, "logprob": -0.1, "bytes": None, "top_logprobs": []})
    said = a.stream([a.role(), a.say("Hi", logprobs=given), a.end()], a.scored())
    assert said.rows == [("Hi", -0.1, [72, 105])]


def _slow(size: int) -> dict[str, bytes]:
    """Return answers of `size` positions whose alignment once took quadratic time or worse."""
    tops: list[Any] = [{f"{'a' * (n % 4 + 1)}{m}": -1.0 for m in range(20)} for n in range(size)]
    half = [a.bare("", bytes=[]), a.entry("zz", top=[("", -1.0), ("a", -2.0)])] * (size // 2)
    return {
        "only alternatives": json.dumps(
            a.completion(a.choice("aaaa" * size, logprobs={"top_logprobs": tops}))
        ).encode(),
        "half unknown": json.dumps(
            a.completion(a.choice("é" * size, logprobs=a.lp(*half)))
        ).encode(),
        "undecodable": json.dumps(
            a.completion(a.choice("\ufffd." * size, logprobs=a.lp(*[part([255, 46])] * size)))
        ).encode(),
    }


@pytest.mark.parametrize("name", list(_slow(2)))
def test_an_answer_that_does_not_fit_takes_bounded_time(name: str) -> None:
    translate(a.scored(5), 200, "application/json", _slow(20)[name])
    answers = {size: _slow(size)[name] for size in (500, 2_000)}
    linear(lambda size: translate(a.scored(5), 200, "application/json", answers[size]), 500)


def test_entries_far_ahead_of_their_text_take_bounded_time() -> None:
    def work(size: int) -> None:
        words = [f"w{n} " for n in range(size)]
        first = a.say("", logprobs=a.entries(*words))
        pieces = [a.data(a.role()), a.data(first), *[a.data(a.say(w)) for w in words]]
        translate_pieces({**a.scored(), "stream": True}, [*pieces, a.data(a.end()), a.DONE])

    linear(work, 300)
