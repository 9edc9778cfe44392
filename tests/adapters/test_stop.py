"""Contract, "Requests": `stop` is enforced whoever forgot it, and holds back just enough."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    TOOL,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    entry,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator

ASKED = ask(stop=["###", "END"])


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("Hi", "Hi"),
        ("Hi###", "Hi"),
        ("Hi### more END", "Hi"),
        ("Hi END ###", "Hi "),
        ("###", ""),
        ("Hi##", "Hi##"),
    ],
)
def test_the_content_ends_before_the_first_stop_string(content: str, kept: str) -> None:
    cut = kept != content
    for said in (
        body(completion(choice(content, finish_reason="length")), ASKED),
        stream([role(), say(content), end("length")], ASKED),
        stream([role(), *(say(x) for x in content), end("length")], ASKED),
    ):
        assert said.message["content"] == kept
        assert said.choice["finish_reason"] == ("stop" if cut else "length")
        assert ("stop_enforced" in said.repairs) == cut


def test_an_answer_without_a_stop_string_passes_as_it_is() -> None:
    said = stream([role(), say("Hi"), end()], ASKED)
    assert said.repairs == {}


def test_its_entries_end_with_it() -> None:
    rows = [entry("Hi", -1), entry(" x#", -2), entry("##", -3), entry("y", -4)]
    lp = {"content": rows, "refusal": None}
    parts = [say(row["token"], logprobs={"content": [row], "refusal": None}) for row in rows]
    for said in (
        body(completion(choice("Hi x###y", logprobs=lp)), scored(stop="###")),
        stream([role(), *parts, end()], scored(stop="###")),
    ):
        assert said.message["content"] == "Hi x"
        assert [(row["token"], row["logprob"]) for row in said.entries] == [("Hi", -1), (" x", -2)]
        assert said.repairs["logprobs_clipped"] == 1


def test_what_was_held_comes_before_a_call_or_the_end() -> None:
    delta = chunk({"tool_calls": [{"index": 0, **call()}]})
    asked = ask(stop=["###"], tools=[TOOL])
    said = stream([role(), say("Hi#"), delta, end("tool_calls")], asked)
    assert said.message["content"] == "Hi#"
    assert said.message["tool_calls"]
    for done in (True, False):
        said = stream([role(), say("Hi#"), end("length")], ASKED, done=done)
        assert said.message["content"] == "Hi#"
    said = stream([role(), say("Hi#")], ASKED)
    assert said.message["content"] == "Hi#"


def test_nothing_comes_after_the_stop_string() -> None:
    delta = chunk({"tool_calls": [{"index": 0, **call()}]})
    said = stream([role(), say("Hi###"), say("more"), delta, end("length")], ASKED)
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hi", "stop")
    assert "tool_calls" not in said.message


def test_choices_stop_each_for_itself() -> None:
    asked = ask(stop="###", n=2)
    parts = [role(), role(1), say("a###"), say("b", index=1), say("x"), say("c", index=1)]
    said = stream([*parts, end(), end(index=1)], asked)
    assert [x["message"]["content"] for x in said.answer["choices"]] == ["a", "bc"]


def test_reasoning_is_not_searched() -> None:
    part = message("Hi", reasoning_content="a ### b")
    said = body(completion(choice(message=part)), ASKED)
    assert said.message["reasoning_content"] == "a ### b"
    assert said.message["content"] == "Hi"


PIECES = st.lists(st.text("ab#", max_size=4), min_size=1, max_size=8)
STOPS = st.lists(st.text("ab#", min_size=1, max_size=4), min_size=1, max_size=3)


def test_of_two_that_overlap_the_first_that_is_whole_stops() -> None:
    """A stream cannot know of a longer one, and its fold is the body."""
    asked = ask(stop=["baa", "a"])
    for said in (
        body(completion(choice("baa")), asked),
        stream([role(), say("baa"), end()], asked),
        stream([role(), say("ba"), say("a"), end()], asked),
    ):
        assert said.message["content"] == "b"


@settings(max_examples=200, deadline=None, database=None)
@given(PIECES, STOPS)
def test_any_split_stops_alike_and_holds_less_than_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    text = "".join(pieces)
    places = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    wanted = text[: min(places)[1]] if places else text  # the first that is whole
    translator = StreamTranslator(exchange(ask(stop=stops, stream=True)))
    seen = translator.feed(data(role()))
    sent = ""
    for piece in pieces:
        sent += piece
        seen += translator.feed(data(say(piece)))
        choices = fold(seen)["choices"]  # none while even the role is held
        told = choices[0]["message"]["content"] if choices else ""
        assert wanted.startswith(told)
        assert len(told) > min(len(sent), len(wanted)) - max(map(len, stops))
    seen += translator.feed(data(end("length")) + data(b"[DONE]"))
    found = fold(seen)["choices"][0]
    assert found["message"]["content"] == wanted
    assert found["finish_reason"] == ("stop" if places else "length")
