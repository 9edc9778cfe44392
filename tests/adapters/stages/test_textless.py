"""Content without text: its entries stay, and where it has none the logprobs given still show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters import completions
from tests.answers import (
    TOOL,
    Json,
    Said,
    body,
    body_of,
    call,
    choice,
    chunk,
    completion,
    end,
    entry,
    lp,
    message,
    role,
    say,
    scored,
    stream,
    stream_of,
)
from tests.replay import body as replay_body
from tests.replay import exchange, stream_of_body
from tests.replay import stream as replay_stream
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.merge import Merge
from wellspoken.adapters.translate import StreamTranslator

EMPTY: Json = {"content": [], "refusal": None}
EMPTY_ARRAYS: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
BLANK: Json = {"token": "", "logprob": -1.5, "bytes": [], "top_logprobs": []}  # vLLM 0.32
PART: Json = {"token": "\ufffd", "logprob": -2.5, "bytes": [195], "top_logprobs": []}
EOS = entry("</s>", -0.25)


def both(
    logprobs: Any, reason: Any = "stop", request: Json | None = None, **more: Any
) -> list[Said]:
    """Return what comes of an answer without text, as a body and as a stream."""
    asked_for = request or scored(2)
    whole = choice("", logprobs=logprobs, finish_reason=reason, **more)
    parts = [role(), chunk({}, logprobs=logprobs), end(reason)]
    return [body_of(whole, asked_for), stream(parts, asked_for)]


def told(said: Said) -> int:
    """Return how many chunks have logprobs."""
    chunks = said.chunks
    return sum(x["choices"][0]["logprobs"] is not None for x in chunks)


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("rows", [[], [EOS], [entry("dog")]], ids=["none", "eos", "stop string"])
def test_logprobs_without_an_entry_of_content_are_an_empty_list(
    rows: list[Json], reason: str
) -> None:
    if rows == [EOS] and reason == "length":
        return  # at a limit it ended nothing: see below
    for said in both(lp(*rows), reason):
        assert said.choice["logprobs"] == EMPTY
        assert said.repairs.get("logprobs_outside_content", 0) == len(rows)


@pytest.mark.parametrize("given", [{}, [], {"content": None}, {"content": None, "refusal": None}])
def test_an_object_or_list_without_entries_was_given(given: Any) -> None:
    for said in both(given):
        assert said.choice["logprobs"] == EMPTY


@pytest.mark.parametrize("more", [{"logprobs": None}, {}], ids=["null", "no key"])
def test_logprobs_are_null_where_the_backend_gave_nothing(more: Json) -> None:
    for said in (
        body_of({"index": 0, "message": message(""), "finish_reason": "stop", **more}),
        stream_of(asked=scored()),
    ):
        assert said.choice["logprobs"] is None


def test_logprobs_are_null_where_none_were_asked_for() -> None:
    assert body_of(choice("", logprobs=EMPTY)).choice["logprobs"] is None


@pytest.mark.parametrize(
    ("rows", "reason", "kept"),
    [
        ([BLANK], "length", [-1.5]),
        ([PART], "length", [-2.5]),
        ([BLANK, PART], "length", [-1.5, -2.5]),
        ([BLANK], "stop", []),
        ([BLANK, PART, BLANK], "stop", [-1.5, -2.5]),
        ([BLANK, EOS], "stop", [-1.5]),
        ([entry("<|im_end|>"), EOS], "stop", []),
        ([BLANK, entry(" "), BLANK], "length", [-1.5, -1.5]),
        ([BLANK, PART], "content_filter", [-1.5, -2.5]),
        ([{**PART, "token": "\\xc3"}], "length", [-2.5]),
    ],
)
def test_entries_whose_text_is_unknown_are_content_but_for_the_end_token(
    rows: list[Json], reason: str, kept: list[float]
) -> None:
    for said in both(lp(*rows), reason):
        assert said.rows == [("", number, None) for number in kept]
        assert said.repairs.get("logprobs_outside_content", 0) == len(rows) - len(kept)


def test_control_tokens_at_a_limit_ended_nothing() -> None:
    for said in both(lp(entry("<s>", -1, [("<s>", -1)]), EOS), "length"):
        assert said.rows == [("<s>", -1, None), ("</s>", -0.25, None)]
        assert said.entries[0]["top_logprobs"] == [{"token": "<s>", "logprob": -1, "bytes": None}]


def test_names_of_ids_stay_for_texts_that_are_unknown() -> None:
    for said in both(lp({**BLANK, "token": "token_id:7"}), "length"):
        assert said.rows == [("token_id:7", -1.5, None)]


TOPS: list[tuple[Json, str, list[float]]] = [
    ({"\ufffd": -2.5, "Hi": -0.5}, "length", [-2.5, -2.5]),
    ({"\ufffd": -2.5, "Hi": -0.5}, "stop", [-2.5]),
    ({"</s>": -0.25, "Hi": -3.0}, "length", [-0.25, -0.25]),
    ({"</s>": -0.25, "Hi": -3.0}, "stop", []),
    ({"\ufffd": -2.5, "": -0.5}, "length", [-9999, -9999]),
    ({"Hi": -0.5}, "length", []),
    ({}, "length", [-9999, -9999]),
]


@pytest.mark.parametrize(("top", "reason", "kept"), TOPS)
def test_of_alternatives_alone_the_one_without_text_is_the_token(
    top: Json, reason: str, kept: list[float]
) -> None:
    parts = [role(), *[say("", logprobs={"top_logprobs": [top]})] * 2, end(reason)]
    said = stream(parts, scored(2))
    assert [row["logprob"] for row in said.entries] == kept
    unknown = kept.count(-9999)
    assert said.repairs.get("logprobs_sampled_unknown", 0) == unknown
    assert said.repairs.get("logprobs_sampled_inferred", 0) == len(kept) - unknown
    assert all(row["bytes"] is None for row in said.entries)


def test_the_alternative_that_is_the_token_reads_as_it_does() -> None:
    part = {"token": "\ufffd", "logprob": -2.5, "bytes": [195]}
    row = {**PART, "top_logprobs": [part, {**part, "logprob": -3}]}
    for said in both(lp(row), "length"):
        assert [x["bytes"] for x in said.entries[0]["top_logprobs"]] == [None, [195]]
    given = completions.arrays(["\ufffd"], [-0.5], [{"\ufffd": -0.5, "a": -1.0, "b": -2.0}])
    chunks = [completions.piece("", given), completions.piece("", reason="length")]
    assert completions.streamed(*chunks)[1]["logprobs"]["top_logprobs"] == [{"": -0.5, "a": -1.0}]


@pytest.mark.parametrize(("limit", "kept"), [(2, 2), (3, 1), (None, 1)])
def test_without_a_reason_the_limit_tells(limit: int | None, kept: int) -> None:
    for said in both(lp(BLANK, BLANK), None, scored(max_tokens=limit)):
        assert len(said.entries) == kept
        assert said.choice["finish_reason"] == ("length" if kept == 2 else "stop")


def test_what_a_stream_gives_piece_by_piece_is_told_at_the_end() -> None:
    parts = [role(logprobs=EMPTY), chunk({}, logprobs=lp(BLANK)), say("", logprobs=EMPTY)]
    said = stream([*parts, end("length", logprobs=EMPTY)], scored())
    assert said.rows == [("", -1.5, None)]
    assert told(said) == 1


def test_a_list_without_entries_says_nothing_of_a_text_that_comes_later() -> None:
    parts = [role(logprobs=EMPTY), say("Hi", logprobs=lp(entry("Hi"))), end(logprobs=EMPTY)]
    said = stream(parts, scored())
    assert [row["token"] for row in said.entries] == ["Hi"]
    assert told(said) == 1
    bare = stream([role(logprobs=EMPTY), say("Hi"), end(logprobs=EMPTY)], scored())
    assert bare.choice["logprobs"] is None
    assert bare.repairs["logprobs_missing"] == 1


def test_text_whose_list_is_empty_has_null() -> None:
    for said in (
        body_of(choice("Hi", logprobs=EMPTY), scored()),
        stream_of(say("Hi", logprobs=EMPTY), asked=scored()),
    ):
        assert said.choice["logprobs"] is None
        assert said.repairs.keys() >= {"logprobs_empty", "logprobs_missing"}


# --- beside something else --------------------------------------------------------------------


def test_the_entries_of_calls_are_none_of_the_content() -> None:
    request = scored(tools=[TOOL])
    rows = lp(BLANK, entry("{}"), BLANK)
    called = message(None, tool_calls=[call()])
    whole = choice(message=called, logprobs=rows, finish_reason="tool_calls")
    head = chunk({"role": "assistant", "content": None, "refusal": None})
    delta = {"tool_calls": [{"index": 0, **call()}]}
    late = chunk({}, logprobs=lp(BLANK, BLANK))
    for parts in (
        [head, chunk(delta, logprobs=rows), end("tool_calls")],
        [head, chunk(delta), late, end("tool_calls")],
    ):
        said = stream(parts, request)
        assert said.choice["logprobs"] == EMPTY
        assert said.message["content"] is None
    assert body_of(whole, request).choice["logprobs"] == EMPTY


def test_the_entries_of_reasoning_are_none_of_the_content() -> None:
    rows = lp(BLANK, entry("Hm"))
    whole = choice(message=message("", reasoning_content="Hm"), logprobs=rows)
    parts = [role(), chunk({"reasoning_content": "Hm"}, logprobs=rows), end("length")]
    late = [role(), chunk({"reasoning_content": "Hm"}), chunk({}, logprobs=lp(BLANK, BLANK)), end()]
    for said in (
        body_of({**whole, "finish_reason": "length"}, scored()),
        stream(parts, scored()),
        stream(late, scored()),
    ):
        assert said.choice["logprobs"] == EMPTY


def test_a_refusals_entries_stand_beside_an_empty_list_or_null_as_given() -> None:
    rows = [entry("No")]
    lists: tuple[list[Json] | None, ...] = (None, [])
    for given in lists:
        logprobs = {"content": given, "refusal": rows}
        whole = choice(message={**message(None), "refusal": "No"}, logprobs=logprobs)
        parts = [role(), chunk({"refusal": "No"}, logprobs=logprobs), end()]
        for said in (body_of(whole, scored()), stream(parts, scored())):
            assert said.choice["logprobs"] == logprobs


def test_one_choice_of_several_may_be_empty() -> None:
    request = scored(n=2)
    full = choice("Hi", logprobs=lp(entry("Hi")))
    whole = completion(full, {**choice("", logprobs=lp(EOS)), "index": 1})
    parts = [
        role(), say("Hi", logprobs=lp(entry("Hi"))), end(),
        role(1), chunk({}, index=1, logprobs=lp(EOS)), end(index=1),
    ]  # fmt: skip
    for said in (body(whole, request), stream(parts, request)):
        first, second = said.answer["choices"]
        assert [row["token"] for row in first["logprobs"]["content"]] == ["Hi"]
        assert second["logprobs"] == EMPTY


# --- bytes as they are ------------------------------------------------------------------------


@pytest.mark.parametrize("content", [[], None])
def test_a_conforming_empty_answer_passes_byte_for_byte(content: list[Json] | None) -> None:
    refusal = None if content == [] else [entry("No")]
    said = {"content": content, "refusal": refusal}
    whole = choice(message={**message(""), "refusal": refusal and "No"}, logprobs=said)
    sent = json.dumps(completion(whole), indent=1).encode()
    assert body(sent, scored()).raw == sent


def test_our_own_empty_stream_passes_byte_for_byte() -> None:
    once = stream_of(chunk({}, logprobs=lp(EOS)), asked=scored())
    again = replay_stream({**scored(), "stream": True}, [once.raw])
    assert again.body == once.raw
    assert not again.repairs


def test_a_synthesised_stream_and_a_folded_one_say_it_too() -> None:
    whole = completion(choice("", logprobs=lp(BLANK), finish_reason="length"))
    sent = json.dumps(whole).encode()
    made = stream_of_body({**scored(), "stream": True}, "application/json", sent)
    assert b'"content":[{"token":"","logprob":-1.5,"bytes":null,"top_logprobs":[]}]' in made.body
    folded = StreamTranslator(exchange(scored()), fold=True)
    folded.feed(stream_of(chunk({}, logprobs=lp(EOS)), asked=scored()).raw)
    assert json.loads(folded.answer().body)["choices"][0]["logprobs"] == EMPTY


# --- no answer at all -------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False], ids=["clean", "cut"])
def test_an_empty_list_is_no_answer(done: bool) -> None:
    said = stream([role(), chunk({}, logprobs=EMPTY)], scored(), done=done)
    assert said.error is not None and said.status == 502
    assert said.raw == b""


def test_several_sources_each_tell_their_own() -> None:
    whole = exchange(scored(n=2))
    parts = [whole.part(None) for _ in range(2)]
    merged = StreamTranslator(
        whole, sources=[BackendAnswer(x) for x in parts], merge=Merge(whole, parts, 2), fold=True
    )
    for place, rows in enumerate([lp(EOS), lp(BLANK, BLANK)]):
        sent = (completion(choice("", logprobs=rows)),)
        merged.whole(200, "application/json", json.dumps(*sent).encode(), place)
    first, second = json.loads(merged.answer().body)["choices"]
    assert first["logprobs"] == EMPTY
    assert [row["logprob"] for row in second["logprobs"]["content"]] == [-1.5]


# --- the completions endpoint -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (EMPTY_ARRAYS, []),
        (completions.arrays(["</s>"], [-0.5], [{"</s>": -0.5}], text_offset=[5]), []),
        (completions.arrays(["", ""], [-0.5, -1.0], [{}, {}], text_offset=[5, 5]), [-0.5]),
        (lp(BLANK), []),
        ({}, []),
    ],
    ids=["empty", "eos", "blank", "chat", "nothing"],
)
def test_a_completion_without_text_has_four_arrays(given: Json, kept: list[float]) -> None:
    chunks = [completions.piece("", given), completions.piece("", reason="stop")]
    for found in (completions.body("", given), completions.streamed(*chunks)[1]):
        arrays = found["logprobs"]
        assert arrays["token_logprobs"] == kept
        assert arrays["tokens"] == [""] * len(kept)
        assert arrays["text_offset"] == [5] * len(kept)
        assert len(arrays["top_logprobs"]) == len(kept)


def test_a_completion_has_null_where_nothing_was_given() -> None:
    chunks = [completions.piece(""), completions.piece("", reason="stop")]
    for found in (completions.body("", None), completions.streamed(*chunks)[1]):
        assert found["logprobs"] is None


def test_an_echoed_prompt_is_the_text() -> None:
    given = completions.arrays(["Say", ": "], [None, -1.0], [None, {": ": -1.0}])
    request = completions.ask(echo=True)
    empty = completions.piece("", EMPTY_ARRAYS, "stop")
    for found in (
        completions.body("Say: ", given, request),
        completions.streamed(completions.piece("Say: ", given), empty, request=request)[1],
    ):
        assert found["logprobs"]["tokens"] == ["Say", ": "]


def test_a_list_without_entries_scores_no_echoed_prompt() -> None:
    answer = completions.piece("Hi", completions.arrays(["Hi"], [-1.0], [{"Hi": -1.0}]), "stop")
    sent = completions.sse(completions.piece("Say: ", EMPTY_ARRAYS), answer)
    request = completions.ask(echo=True, stream=True)
    outcome = replay_stream(request, [sent], "completions")
    assert outcome.fault is not None and outcome.fault["code"] == "echo_ignored"


def test_offsets_of_no_entries_are_not_wrong() -> None:
    given = {**EMPTY_ARRAYS, "token_ids": None}  # no key of OpenAI's, so that it is repaired
    chunks = [completions.piece("", given), completions.piece("", reason="stop")]
    outcome, found = completions.streamed(*chunks)
    assert found["logprobs"] == EMPTY_ARRAYS
    assert "text_offset_shifted" not in outcome.repairs


def test_logprobs_of_an_unended_answer_come_with_its_reason() -> None:
    """A reason beside text may be on each chunk, so that more text may come behind it."""
    parts = [chunk(message(""), "stop", logprobs=EMPTY)]
    parts.append(chunk({"content": "Hi"}, "stop", logprobs=lp(entry("Hi"))))
    said = stream(parts, scored())
    assert [row["token"] for row in said.entries] == ["Hi"]
    assert told(said) == 1


@pytest.mark.parametrize("rows", [[], [BLANK]])
def test_llama_cpps_own_answer_tells_its_empty_list(rows: list[Json]) -> None:
    sent = {"content": "", "stop": True, "stop_type": "eos", "completion_probabilities": rows}
    counts = {"tokens_predicted": 1, "tokens_evaluated": 2}
    request = completions.ask()
    raw = json.dumps({**sent, **counts}).encode()
    outcome = replay_body(request, 200, "application/json", raw, "llamacpp")
    assert json.loads(outcome.body)["choices"][0]["logprobs"] == EMPTY_ARRAYS
