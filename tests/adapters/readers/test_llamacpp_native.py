"""llama.cpp's own answers as events: POST /completion of all versions, bodies and streams."""

from __future__ import annotations

import math

import pytest

from tests.native import (
    NOW,
    Json,
    body,
    counts,
    entry,
    exchange,
    fault,
    last,
    old,
    piece,
    read,
    reasons,
    row,
    spread,
    texts,
    tokens,
)
from wellspoken.adapters.events import UNKNOWN, End, Extra, Start, Text


@pytest.mark.parametrize(("kind", "prefix"), [("completions", "cmpl-"), ("chat", "chatcmpl-")])
def test_a_body_has_an_envelope_of_its_own_and_counts_no_key_of_the_dialect(
    kind: str, prefix: str
) -> None:
    asked = exchange(kind=kind, logprobs=False)
    found = body(asked, last(text="Hello world"))
    assert found[0] == Start(f"{prefix}fresh-0123456789", NOW, "asked")
    assert (texts(found), reasons(found), counts(found)) == ("Hello world", {0: "stop"}, [(11, 3)])
    assert found[-1] == End(True)
    assert asked.notes.counts == {"native_answer": 1}


def test_a_stream_is_over_when_its_choice_has_stopped() -> None:
    asked = exchange()
    found = read(asked, piece("Hel", entry(1, "Hel", "Hel")), piece("lo", entry(2, "lo", "lo")))
    assert found[-1] == End(False) and asked.notes.counts["done_missing"] == 1
    asked = exchange()
    found = read(asked, piece("Hel", entry(1, "Hel", "Hel")), last("limit"))
    assert found[-1] == End(True) and "done_missing" not in asked.notes.counts
    assert (reasons(found), counts(found)) == ({0: "length"}, [(11, 3)])


@pytest.mark.parametrize(
    ("told", "reason", "counted"),
    [
        ({"stop_type": "eos"}, "stop", set()),
        ({"stop_type": "word", "stopping_word": "x"}, "stop", set()),
        ({"stop_type": "limit"}, "length", set()),
        ({"stop_type": "limit", "truncated": True}, "length", {"native_truncated"}),
        ({"stop_type": "eos", "truncated": True}, "stop", {"native_truncated"}),
        ({"stop_type": "none", "truncated": True}, "length", {"native_truncated"}),
        ({"stop_type": None, "stopped_eos": True, "stopped_limit": False}, "stop", set()),
        ({"stop_type": None, "stopped_word": True}, "stop", set()),
        ({"stop_type": None, "stopped_limit": True}, "length", set()),
        (
            {"stop_type": "eos_token"},
            "stop",
            {"finish_reason_stop_type", "finish_reason_eos_token"},
        ),
    ],
)
def test_the_reason_is_what_the_backend_tells(told: Json, reason: str, counted: set[str]) -> None:
    asked = exchange(logprobs=False)
    assert reasons(body(asked, last(text="Hi", **told))) == {0: reason}
    assert set(asked.notes.counts) == {"native_answer", *counted}


def test_no_reason_is_none_and_a_failure_fails() -> None:
    assert reasons(body(exchange(), last("none", text="Hi"))) == {}
    failed = fault(body(exchange(), last("abort", text="Hi")))
    assert (failed.status, failed.code) == (502, "upstream_abort")


def test_held_back_text_goes_to_its_own_tokens() -> None:
    """b11549 with stop ["d!x"]: nothing while it holds back, then all under the later token."""
    events = [
        piece("Hello", entry(1, "Hello", "Hello", -0.1)),
        piece("", entry(2, "", " world", -0.2)),
        piece("", entry(3, "", "!", -0.3)),
        piece(" world! caf", entry(4, " world! caf", " caf", -0.4)),
        last("eos", index=0),
    ]
    asked = exchange()
    wanted = [("Hello", -0.1), (" world", -0.2), ("!", -0.3), (" caf", -0.4)]
    assert tokens(read(asked, *events)) == wanted
    assert asked.notes.counts["logprobs_token_text_held"] == 3
    entries = [x for event in events[:-1] for x in event["completion_probabilities"]]
    assert tokens(body(exchange(), last("eos", *entries, text="Hello world! caf"))) == wanted


def test_a_stop_string_cuts_the_text_that_was_held() -> None:
    """b11549 with stop ["d!"]: the token that ends it carries the text of the one before."""
    found = read(
        exchange(),
        piece("", entry(2, "", " world", -0.2)),
        piece(" worl", entry(3, " worl", "!", -0.3)),
        last("word"),
    )
    assert tokens(found) == [(" world", -0.2), ("!", -0.3)]
    assert texts(found) == " worl"


def test_a_token_that_was_sent_in_part_owes_the_rest() -> None:
    found = read(
        exchange(),
        piece("a ", entry(2, "a ", "a wo", -0.2)),
        piece("wor", entry(3, "wor", "r", -0.3)),
        last(),
    )
    assert tokens(found) == [("a wo", -0.2), ("r", -0.3)]


def test_a_character_of_several_tokens_keeps_its_bytes() -> None:
    """Its first parts have no entries (b11549); held back too, they are told by the text."""
    cafe = entry(5, "\u00e9", b"\xa9", -0.4)
    asked = exchange()
    assert tokens(read(asked, piece("\u00e9", cafe), last())) == [("\u00e9", -0.4)]
    assert "logprobs_token_text_held" not in asked.notes.counts
    found = read(
        exchange(),
        piece("", entry(4, "", " caf", -0.3)),
        piece("", entry(5, "", b"\xa9", -0.4)),
        piece(" caf\u00e9 x", entry(6, " caf\u00e9 x", " x", -0.5)),
        last(),
    )
    assert tokens(found) == [(" caf", -0.3), ("\u00e9", -0.4), (" x", -0.5)]


def test_a_held_token_that_no_alternative_tells_gets_what_is_left() -> None:
    blind = row(7, "", -6.0, row(999, "other", -0.1))
    found = read(exchange(), piece("", blind), piece("Hi!", entry(3, "Hi!", "!", -0.3)), last())
    assert tokens(found) == [("Hi", -6.0), ("!", -0.3)]
    found = read(exchange(), piece("Hi", entry(3, "Hi", "Hi")), piece("", blind), last())
    assert tokens(found) == [("Hi", -0.5), ("", -6.0)]  # an end-of-text token


def test_text_that_a_stream_held_back_at_its_limit_is_restored() -> None:
    """b11549 never sends it; a body has it."""
    events = [piece("Hello", entry(1, "Hello", "Hello")), piece("", entry(2, "", " world"))]
    asked = exchange()
    found = read(asked, *events, last("limit"))
    assert texts(found) == "Hello world" and asked.notes.counts["native_text_restored"] == 1
    assert texts(read(exchange(), *events, last("word"))) == "Hello"  # that is the stop string


def test_probabilities_become_logprobs() -> None:
    """`post_sampling_probs`; a probability of 0 is not known."""
    half = {"id": 1, "token": "Hi", "bytes": [72, 105], "prob": 0.5}
    none = {"id": 2, "token": "Yo", "bytes": [89, 111], "prob": 0.0}
    asked = exchange()
    found = read(asked, piece("Hi", {**half, "top_probs": [half, none]}), last())
    assert tokens(found) == [("Hi", round(math.log(0.5), 6))]
    text = next(x for x in found if isinstance(x, Text))
    assert text.lp is not None
    assert [x.logprob for x in text.lp.entries[0].top_logprobs] == [math.log(0.5), UNKNOWN]
    assert "logprobs_bare_entries" not in asked.notes.counts


def test_old_streams_repeat_their_logprobs_at_the_end() -> None:
    """b4273 and before: the last event has them all, also those that no event before it had."""
    first, second = spread("Hi", own=0.5, Ho=0.25), spread(" you", own=0.125)
    third = spread("!", own=1.0)
    final = {"stopped_eos": True, "tokens_predicted": 3, "tokens_evaluated": 5}
    events = old("Hi", first), old(" you", second), old("!")
    asked = exchange()
    found = read(asked, *events, old("", first, second, third, stop=True, **final))
    values = [round(math.log(x), 6) for x in (0.5, 0.125, 1.0)]
    assert tokens(found) == list(zip(["Hi", " you", "!"], values, strict=True))
    assert asked.notes.counts["native_logprobs_repeated"] == 1
    assert (reasons(found), counts(found)) == ({0: "stop"}, [(5, 3)])
    found = read(exchange(), *events[:2], old("!", third), old("", stop=True, **final))
    assert len(tokens(found)) == 3
    found = read(exchange(), events[0], old("", second, stop=True, **final))
    assert [token for token, _ in tokens(found)] == ["Hi", " you"]  # new ones are no repetition


def test_a_byte_that_old_versions_spell_out_is_that_byte() -> None:
    answer = old(
        "\u00e9",
        spread("byte: \\xc3", own=0.5),
        spread("byte: \\xa9", own=0.25),
        stop=True,
        stopped_eos=True,
    )
    asked = exchange()
    assert [token for token, _ in tokens(body(asked, answer))] == ["\\xc3", "\\xa9"]
    assert asked.notes.counts["logprobs_byte_spelled"] == 4


def test_an_old_token_outside_its_alternatives_has_no_known_value() -> None:
    answer = old("Hi", spread("Hi", Ho=0.75, Ha=0.125), stop=True, stopped_eos=True)
    assert tokens(body(exchange(), answer)) == [("Hi", UNKNOWN)]


def test_several_prompts_are_several_choices_whose_counts_are_added_up() -> None:
    answers = [last("eos", text="b", index=1), last("limit", text="a", index=0)]
    asked = exchange(n=2, prompts=("p", "q"), logprobs=False)
    found = body(asked, answers)
    assert (texts(found, 0), texts(found, 1)) == ("a", "b")
    assert (reasons(found), counts(found)) == ({1: "stop", 0: "length"}, [(22, 6)])
    found = body(exchange(n=2, prompts=("p",), logprobs=False), answers)
    assert counts(found) == [(11, 6)]  # one prompt counts once


def test_answers_without_numbers_are_numbered_by_their_places() -> None:
    """{"results": [...]}, without `index`, is early 2024's."""
    answers = [{"content": "a", "stop": True, "stopped_eos": True}, {"content": "b", "stop": True}]
    asked = exchange(n=2, prompts=("p", "q"), logprobs=False)
    found = body(asked, {"results": answers})
    assert (texts(found, 0), texts(found, 1)) == ("a", "b")
    assert asked.notes.counts["choice_index_repeated"] == 1


def test_a_mixed_stream_of_several_prompts() -> None:
    """b11549 begins it with `data: null`."""
    asked = exchange(n=2, prompts=("p", "q"))
    found = read(
        asked,
        None,
        piece("B", entry(2, "B", "B"), index=1),
        piece("", entry(1, "", "A"), index=0),
        last("eos", index=1),
        piece("Aa", entry(3, "Aa", "a"), index=0),
        last("limit", index=0),
    )
    assert (texts(found, 0), texts(found, 1)) == ("Aa", "B")
    assert [token for token, _ in tokens(found, 0)] == ["A", "a"]
    assert (reasons(found), counts(found)) == ({1: "stop", 0: "length"}, [(22, 6)])
    assert asked.notes.counts["chunk_null"] == 1
    cut = read(exchange(n=2), piece("B", index=1), piece("A", index=0), last("eos", index=1))
    assert cut[-1] == End(False)


def test_logprobs_that_nobody_asked_for_are_left_out() -> None:
    asked = exchange(logprobs=False)
    assert tokens(body(asked, last("eos", entry(1, "Hi", "Hi"), text="Hi"))) == []
    assert asked.notes.counts["logprobs_unasked"] == 1


def test_timings_are_an_extra_where_they_are_kept() -> None:
    kept = body(exchange(keep=frozenset({"timings"})), last(text="Hi"))
    assert [x.key for x in kept if isinstance(x, Extra)] == ["timings"]
    assert not [x for x in body(exchange(), last(text="Hi")) if isinstance(x, Extra)]


def test_counts_come_from_timings_where_the_answer_has_no_others() -> None:
    asked = exchange(logprobs=False)
    answer = last(text="Hi", tokens_predicted=None, tokens_evaluated=None)
    assert counts(body(asked, answer)) == [(11, 3)]
    assert asked.notes.counts["usage_from_timings"] == 1
    assert counts(body(exchange(), {"content": "Hi"})) == []
