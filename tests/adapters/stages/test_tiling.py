"""Contract rule 7, tiling: the entries of a choice are those that cover its content, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import (
    TOOL,
    Json,
    Said,
    bare,
    body,
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
)


def whole(content: str, rows: list[Json], request: Json | None = None, **more: Any) -> Said:
    return body(completion(choice(content, logprobs=lp(*rows), **more)), request or scored())


# --- what is outside the content -------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "content", "kept", "dropped"),
    [
        (["Hi", "</s>"], "Hi", ["Hi"], 1),
        (["Hi", ""], "Hi", ["Hi"], 1),
        (["<think>", "hm", "</think>", "Hi"], "Hi", ["Hi"], 3),
        (["H", "i", "\n", "###"], "Hi", ["H", "i"], 2),
    ],
    ids=["eos", "empty eos", "reasoning", "stop string"],
)
def test_entries_outside_the_content_are_dropped(
    tokens: list[str], content: str, kept: list[str], dropped: int
) -> None:
    rows = [entry(token) for token in tokens]
    for said in (
        whole(content, rows),
        stream([role(), say(content, logprobs=lp(*rows)), end()], scored()),
    ):
        assert [row["token"] for row in said.entries] == kept
        assert said.repairs["logprobs_outside_content"] == dropped


def test_the_contents_entries_are_kept_not_those_of_reasoning_that_reads_alike() -> None:
    rows = [entry("Yes", -1), entry(", so", -2), entry("</think>", -3), entry("Yes", -4)]
    part = message("Yes", reasoning_content="Yes, so")
    said = body(completion(choice(message=part, logprobs=lp(*rows))), scored())
    assert said.rows == [("Yes", -4, list(b"Yes"))]


def test_streamed_entries_of_reasoning_are_its_own() -> None:
    parts = [
        role(),
        chunk({"reasoning_content": "Yes"}, logprobs=lp(entry("Yes", -1))),
        say("Yes", logprobs=lp(entry("Yes", -2))),
        end(),
    ]
    said = stream(parts, scored())
    assert said.rows == [("Yes", -2, list(b"Yes"))]
    assert said.repairs["logprobs_outside_content"] == 1


def test_entries_of_tool_markup_are_dropped() -> None:
    part = message(None, tool_calls=[call()])
    rows = [entry("<tool>"), entry("f")]
    given = choice(message=part, logprobs=lp(*rows), finish_reason="tool_calls")
    said = body(completion(given), scored(tools=[TOOL]))
    assert said.choice["logprobs"] is None or said.entries == []
    assert said.repairs["logprobs_outside_content"] == 2


def test_an_entry_at_the_edge_is_clipped_not_its_numbers() -> None:
    rows = [entry("Hi", -1, [("Hi", -1), ("x", -2)]), entry(" there###", -3, [(" there###", -3)])]
    said = whole("Hi there", rows, scored(2))
    assert said.rows == [("Hi", -1, list(b"Hi")), (" there", -3, list(b" there"))]
    assert said.tops == [[("Hi", -1), ("x", -2)], [(" there###", -3)]]
    assert said.repairs == {"logprobs_clipped": 1}


def test_the_leading_space_is_clipped() -> None:
    said = whole("Hi", [entry(" Hi", -1)])
    assert said.rows == [("Hi", -1, list(b"Hi"))]
    assert said.repairs == {"logprobs_clipped": 1}


def test_a_clipped_character_is_spelled_in_escapes() -> None:
    rows = [
        entry("a"),
        {**entry("\\xc3"), "bytes": [0xC3]},
        {**entry("\\xa9b"), "bytes": [0xA9, 98]},
    ]
    said = whole("aé", rows)
    assert [row["token"] for row in said.entries] == ["a", "\\xc3", "\\xa9"]
    assert said.joined == "aé".encode()


# --- parts of characters ----------------------------------------------------------------------


def test_the_last_part_owns_the_character() -> None:
    rows = [bare("a", -1), bare("\ufffd", -2), bare("\ufffd", -3)]
    said = whole("aé", rows)
    assert said.rows == [("a", -1, [97]), ("", -2, None), ("é", -3, [0xC3, 0xA9])]
    assert said.repairs["logprobs_bytes_from_content"] == 1


def test_the_sampled_tokens_alternative_reads_as_it_does() -> None:
    top = [{"token": "\ufffd", "logprob": -2, "bytes": None}]
    said = whole("é", [bare("\ufffd", -2, top_logprobs=top)], scored(1))
    assert said.entries[0]["top_logprobs"][0]["token"] == "é"


def test_a_texts_own_replacement_is_escaped() -> None:
    said = whole("a\ufffd", [bare("a"), bare("\ufffd")])
    assert [row["token"] for row in said.entries] == ["a", "\\xef\\xbf\\xbd"]
    assert said.joined.decode() == "a\ufffd"


def test_real_bytes_of_a_broken_character_stay() -> None:
    rows = [entry("a"), {**entry("\\xf0\\x9f"), "bytes": [0xF0, 0x9F]}]
    said = whole("a\ufffd", rows)
    assert said.joined == b"a\xf0\x9f"
    assert said.joined.decode("utf-8", "replace") == "a\ufffd"


def test_ids_without_text_are_kept_as_they_are() -> None:
    rows = [bare("token_id:5", -1), bare("token_id:6", -2)]
    for said in (
        whole("Hi", rows),
        stream([role(), say("Hi", logprobs=lp(*rows)), end()], scored()),
    ):
        assert said.rows == [("token_id:5", -1, None), ("token_id:6", -2, None)]


# --- raw spellings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "content", "wanted", "repair"),
    [
        (["▁Hello", "▁you", "<0x0A>"], " Hello you\n", [" Hello", " you", "\n"], "sentencepiece"),
        (["ĠHello", "Ġis", "Ċ"], " Hello is\n", [" Hello", " is", "\n"], "byte_level"),
        (["a", "bytes:\\xc3", "bytes:\\xa9"], "aé", ["a", "\\xc3", "\\xa9"], "escapes"),
    ],
)
def test_raw_spellings_are_undone(
    tokens: list[str], content: str, wanted: list[str], repair: str
) -> None:
    rows = [entry(token, top=[(token, -0.5)]) for token in tokens]
    rows = [{**row, "bytes": None} for row in rows]
    for said in (
        whole(content, rows, scored(1)),
        stream([role(), say(content, logprobs=lp(*rows)), end()], scored(1)),
    ):
        assert [row["token"] for row in said.entries] == wanted
        assert [row["top_logprobs"][0]["token"] for row in said.entries] == wanted
        assert said.joined == content.encode()
        assert said.repairs[f"logprobs_raw_{repair}"] >= 1


@pytest.mark.parametrize("token", ["▁Hello", "<0x0A>", "Ġis", "\\xc3\\xa9", "bytes:\\xc3"])
def test_a_spelling_that_the_model_wrote_is_not_undone(token: str) -> None:
    said = whole(token, [entry(token)])
    assert said.rows == [(token, -0.5, list(token.encode()))]
    assert said.repairs == {}


def test_the_front_space_of_a_raw_vocabulary_is_clipped() -> None:
    """vLLM 0.3.3: the first token is ▁Hello, the content begins without a space."""
    rows = [{**entry("▁Hello", -1), "bytes": None}, {**entry("▁you", -2), "bytes": None}]
    said = whole("Hello you", rows)
    assert [row["token"] for row in said.entries] == ["Hello", " you"]


# --- the sampled token -------------------------------------------------------------------------


def test_the_sampled_token_is_inferred_from_the_content() -> None:
    """vLLM <= 0.4.2 streams the alternatives alone."""
    parts = [
        role(),
        say("Hi", logprobs={"top_logprobs": [{"Ho": -0.1, "Hi": -2.0}]}),
        say(" you", logprobs={"top_logprobs": [{" you": -0.5}]}),
        end(),
    ]
    said = stream(parts, scored(2))
    assert said.rows == [("Hi", -2.0, list(b"Hi")), (" you", -0.5, list(b" you"))]


def test_a_sampled_token_that_is_no_alternative_has_an_unknown_value() -> None:
    parts = [role(), say("Hi", logprobs={"top_logprobs": [{"Ho": -0.1}]}), end()]
    said = stream(parts, scored(2))
    assert said.rows == [("Hi", -9999.0, list(b"Hi"))]
    assert said.tops == [[("Ho", -0.1)]]
    assert said.repairs["logprobs_sampled_unknown"] == 1


def test_an_own_token_that_is_not_the_contents_is_one_of_its_alternatives() -> None:
    rows = [entry("Ho", -0.1, [("Ho", -0.1), ("Hi", -2.0)])]
    said = whole("Hi", rows, scored(2))
    assert said.rows == [("Hi", -2.0, list(b"Hi"))]
    assert said.repairs == {"logprobs_sampled_mismatch": 1}


def test_entries_of_another_text_are_written_as_they_are_and_counted() -> None:
    said = body(
        completion(choice("Hi", logprobs=lp(entry("x", -1), entry("y", -2)))),
        scored(),
        waived=["7.tiling"],
    )
    assert [row["logprob"] for row in said.entries] == [-1, -2]  # no number is lost
    assert said.repairs == {"logprobs_untiled": 1}


def test_untold_tokens_of_another_text_keep_their_alternatives() -> None:
    tops = {"top_logprobs": [{"x": -1.0}, {"y": -2.0}]}
    said = stream(
        [role(), say("Hi", logprobs=tops), end()], scored(1), waived=["7.tiling", "7.chunk"]
    )
    assert said.tops == [[("x", -1.0)], [("y", -2.0)]]
    assert said.repairs["logprobs_untiled"] == 1


def test_entries_that_end_before_the_content_are_counted() -> None:
    said = body(
        completion(choice("Hi there", logprobs=lp(entry("Hi", -1)))), scored(), waived=["7.tiling"]
    )
    assert said.rows == [("Hi", -1, list(b"Hi"))]
    assert set(said.repairs) == {"logprobs_incomplete"}


LATE: dict[str, list[tuple[str, list[str]]]] = {
    "one entry": [("Hel", []), ("lo", ["Hello"])],
    "both at once": [("Hel", []), ("lo", ["Hel", "lo"])],
    "each a chunk behind": [("Hel", []), ("lo", ["Hel"]), (" x", ["lo"]), ("", [" x"])],
}


@pytest.mark.parametrize("name", LATE)
def test_entries_that_come_behind_their_text_still_cover_it(name: str) -> None:
    """No number is lost, though the text is out already."""
    chunks = [(text, [entry(token) for token in tokens]) for text, tokens in LATE[name]]
    parts = [say(text, logprobs=lp(*rows) if rows else None) for text, rows in chunks]
    said = stream([role(), *parts, end()], scored(), waived=["7.chunk"])
    tokens = [token for _, tokens in LATE[name] for token in tokens]
    assert [row["token"] for row in said.entries] == tokens
