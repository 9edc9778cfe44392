"""Contract rule 7, tiling: content in several runs of entries, and entries far from their text.

Rejected mutants: entries dropped at a call (`Run.pause`), one stretch alone (MOST_GAPS 0), no price
for a token behind that closes reasoning (MARKED 0), parts dropped at a limit (`_count_parts` 0), a
stop string held in a body, the text before never looked at (`bare`). Those of FRONT, FAR,
PARTS, TAIL, MARKED, SHOWN and GUESS are rejected by properties/runs; no test rejects one of SPACE,
AFTER, LEFT, GAP, UNMARKED or SURPLUS alone.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    DONE,
    TOOL,
    Json,
    Said,
    bare,
    body_of,
    call,
    choice,
    chunk,
    data,
    end,
    entry,
    lp,
    message,
    role,
    say,
    scored,
    stream_of,
)
from tests.replay import stream as translate_pieces

THOUGHT = ["<think>", "Sun", "ny", "</think>"]
MARKUP = ["<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>"]


def rows_of(*tokens: str, start: int = 1) -> list[Json]:
    """Return an entry for each token, whose numbers are -1, -2 and so on."""
    return [entry(token, -n) for n, token in enumerate(tokens, start)]


def numbers(said: Said) -> list[float]:
    return [row["logprob"] for row in said.entries]


def called(delta: Json) -> Json:
    return {"tool_calls": [{"index": 0, **delta}]}


def whole(content: str, rows: list[Json], **more: Any) -> Said:
    """Return a body with a call and shown reasoning."""
    part = message(content, tool_calls=[call()], **more)
    given = choice(message=part, logprobs=lp(*rows), finish_reason="tool_calls")
    return body_of(given, scored(tools=[TOOL]))


# --- runs of content ---------------------------------------------------------------------------


def test_markup_between_two_runs_of_a_body_is_left_out() -> None:
    said = whole("Let me see. Done", rows_of("Let me", " see.", *MARKUP, " Done", "<|im_end|>"))
    assert said.rows == [
        ("Let me", -1, list(b"Let me")),
        (" see.", -2, list(b" see.")),
        (" Done", -6, list(b" Done")),
    ]
    assert said.repairs["logprobs_outside_content"] == 4


def test_reasoning_and_markup_between_runs_are_left_out_though_they_say_the_same() -> None:
    rows = rows_of(*THOUGHT, "Sun", *MARKUP, "ny", "</s>")
    said = whole("Sunny", rows, reasoning_content="Sunny")
    assert numbers(said) == [-5, -9]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_markup_between_two_runs_of_a_stream_is_left_out(lag: int) -> None:
    """`lag`: how many entries come before their text."""
    opening, closing = (
        called({"id": "c", "type": "function", "function": f})
        for f in ({"name": "f", "arguments": ""}, {"arguments": "{}"})
    )
    del closing["tool_calls"][0]["id"], closing["tool_calls"][0]["type"]
    deltas: list[Json] = [{"content": "I see"}, {"content": " it"}, opening, {}, closing]
    deltas += [{"content": " Done"}, {"content": " now"}]
    rows: list[Json | None] = [*rows_of("I see", " it", *MARKUP, " Done", " now"), *[None] * lag]
    padded: list[Json] = [*[{"content": ""}] * lag, *deltas]
    parts = [
        chunk(delta, logprobs=lp(row) if row else None)
        for delta, row in zip(padded, rows, strict=True)
    ]
    said = stream_of(*parts, asked=scored(tools=[TOOL]), reason="tool_calls", waived=["7.chunk"])
    assert numbers(said) == [-1, -2, -6, -7]
    assert said.joined == b"I see it Done now"


def test_the_first_run_of_a_stream_may_come_with_the_reasonings_entries() -> None:
    """A server that holds text back: the content's first entry stands in reasoning's last chunk."""
    parts = [
        chunk({"reasoning_content": "Sun"}, logprobs=lp(*rows_of("Sun", "ny"))),
        chunk({"reasoning_content": "ny"}, logprobs=lp(*rows_of("</think>", "Yes", start=3))),
        say("Yes", logprobs=lp(*rows_of(".", start=5))),
        say("."),
    ]
    said = stream_of(*parts, asked=scored())
    assert numbers(said) == [-4, -5]


def test_a_word_of_the_reasoning_is_not_the_contents() -> None:
    rows = rows_of("The", " answer", "</think>", "The", " end")
    for said in (
        body_of(choice("The end", logprobs=lp(*rows)), scored()),
        stream_of(say("The end", logprobs=lp(*rows)), asked=scored()),
    ):
        assert numbers(said) == [-4, -5]


def test_a_long_thought_with_parts_of_characters_leaves_the_contents_entries() -> None:
    parts = [bare("", -0.25)] * 2
    thought = [x for _ in range(400) for x in (*parts, bare(" so", -0.25))]
    rows = [*thought, bare("</think>", -0.25), *(bare("", -n) for n in (1, 2)), bare(" so", -3)]
    said = body_of(choice("é so", logprobs=lp(*rows)), scored())
    assert said.rows == [("", -1, None), ("é", -2, [0xC3, 0xA9]), (" so", -3, list(b" so"))]


# --- unknown parts, and text that is held back --------------------------------------------------


def test_parts_that_come_ahead_leave_each_character_some() -> None:
    """Text three characters behind its entries, of which none tells a text."""
    rows = [bare("", -n) for n in range(1, 13)]
    texts = ["", "", "", "", "", "", "日", "", "", "本", "", "", "語", "人"]
    parts = [say("ab", logprobs=lp(*rows_of("a", "b", " c", start=20)))]
    parts += [
        say(text, logprobs=lp(row) if row else None)
        for text, row in zip([" c", *texts[1:]], [*rows, None, None], strict=True)
    ]
    said = stream_of(*parts, asked=scored(), waived=["7.chunk"])
    assert numbers(said) == [-20, -21, -22, *(-n for n in range(1, 13))]
    owners = [bytes(row["bytes"]).decode() for row in said.entries[3:] if row["bytes"]]
    assert owners == ["日", "本", "語", "人"]


def test_a_character_that_never_came_keeps_its_parts_at_a_limit() -> None:
    rows = [entry("a", -1), bare("\ufffd", -2), bare("\ufffd", -3)]
    for said in (
        body_of(choice("a", logprobs=lp(*rows), finish_reason="length"), scored()),
        stream_of(say("a", logprobs=lp(*rows)), asked=scored(), reason="length"),
    ):
        assert said.rows == [("a", -1, [97]), ("", -2, None), ("", -3, None)]


def test_a_text_in_two_pieces_is_not_lost_where_its_entries_come_later() -> None:
    parts = [
        say("你"),
        say("你", logprobs=lp(entry("你", -1))),
        say("", logprobs=lp(entry("你", -2))),
    ]
    said = stream_of(*parts, asked=scored(), waived=["7.chunk"])
    assert numbers(said) == [-1, -2]
    assert said.joined == "你你".encode()


def test_a_body_that_ends_as_a_stop_string_begins_has_its_own_entries() -> None:
    rows = rows_of("\n", "\n", "\n", "User:")
    said = body_of(choice("\n\n", logprobs=lp(*rows)), scored(stop=["\nUser:"]))
    assert numbers(said) == [-1, -2]


def test_leading_white_space_waits_for_the_text_that_tells_whose_it_is() -> None:
    rows = rows_of("Hm", " ", "so", " #", " ")
    parts = [
        *(chunk({"content": ""}, logprobs=lp(row)) for row in rows[:4]),
        say(" ", logprobs=lp(rows[4])),
        say("# "),
    ]
    said = stream_of(*parts, asked=scored())
    assert numbers(said) == [-4, -5]


def test_one_changed_token_in_a_thousand_costs_no_other_its_number() -> None:
    tokens = [f" w{n}" for n in range(1000)]
    rows = [entry(token, -1 - n / 1000) for n, token in enumerate(tokens)]
    content = "".join(tokens).replace(" w500 ", " W500 ")
    said = body_of(choice(content, logprobs=lp(*rows)), scored(), waived=["7.tiling"])
    assert len(said.entries) >= 999
    assert set(numbers(said)) <= {row["logprob"] for row in rows}


def test_no_split_of_the_bytes_changes_what_is_covered() -> None:
    rows = rows_of(*THOUGHT, "I", *MARKUP, " am")
    whole_call = {"name": "f", "arguments": "{}"}
    parts = [
        role(),
        chunk({"reasoning_content": "Sunny"}, logprobs=lp(*rows[:4])),
        say("I", logprobs=lp(rows[4])),
        chunk(called({"id": "c", "function": whole_call}), logprobs=lp(*rows[5:8])),
        say(" am", logprobs=lp(rows[8])),
        end("tool_calls"),
    ]
    raw = b"".join([*[data(part) for part in parts], DONE])
    request = {**scored(tools=[TOOL]), "stream": True}
    once = translate_pieces(request, [raw])
    assert translate_pieces(request, [raw[n : n + 1] for n in range(len(raw))]).body == once.body
    shown = [json.loads(x[6:]) for x in once.body.split(b"\n\n") if x[:7] == b"data: {"]
    kept = [
        row["logprob"]
        for x in shown
        for row in (x["choices"][0]["logprobs"] or {}).get("content", ())
    ]
    assert kept == [-5, -9]
