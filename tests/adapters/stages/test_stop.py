"""Contract, "Requests": `stop` is enforced whoever forgot it, and holds back just enough."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.answers import (
    TOOL,
    Json,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    entries,
    entry,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.examples import examples
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator

ASKED = ask(stop=["###", "END"])
LATE = scored(stop="s.The")


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


@pytest.mark.parametrize("asked", [ASKED, {**ASKED, "logprobs": True}], ids=["text", "scored"])
def test_a_reason_on_every_chunk_ends_no_stop_string(asked: Json) -> None:
    """The mutant that writes what is held for any reason lets the stop string through."""
    parts = [say(text, finish_reason="length") for text in ("Hi", "E", "N", "D", "!")]
    if "logprobs" in asked:
        for part in parts:
            shown = part["choices"][0]
            shown["logprobs"] = {"content": [entry(shown["delta"]["content"])], "refusal": None}
    for size, content in ((5, "Hi"), (3, "HiEN")):
        for done in (True, False):
            said = stream([role(), *parts[:size]], asked, done=done)
            assert said.message["content"] == content
            assert said.choice["finish_reason"] == ("stop" if size == 5 else "length")
            if "logprobs" in asked:
                assert "".join(row["token"] for row in said.entries) == content


@pytest.mark.parametrize("content", ["Hi #!", "Hi #!#### more"])
def test_what_was_held_without_entries_takes_none_of_the_next_text(content: str) -> None:
    """The mutant that joins them writes the token "#!"."""
    bare = say(" #")
    bare["choices"][0]["logprobs"] = None
    first, last = (say(text, logprobs=entries(text)) for text in ("Hi", content[4:]))
    said = stream([role(), first, bare, last, end()], scored(stop="###"), waived=["7.tiling"])
    assert said.message["content"] == "Hi #!"
    assert [row["token"] for row in said.entries] == ["Hi", "!"]


@pytest.mark.parametrize("reason", ["stop", None])
def test_entries_of_a_closing_message_find_what_is_held(reason: str | None) -> None:
    """The mutant that holds "s." back from them writes the tokens " Pari" and "s."."""
    tokens = ["The", " city", ":", " Paris", "."]
    text = "".join(tokens)
    closing = completion(choice(text, logprobs=entries(*tokens)))
    parts = [role(), say(text[:9]), say(text[9:], finish_reason=reason), closing]
    said = stream(parts, LATE, waived=["7.chunk"])
    assert said.message["content"] == text
    assert [row["token"] for row in said.entries] == tokens


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


@settings(max_examples=examples(200), deadline=None, database=None)
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


TOKENS = st.lists(st.text("ab#", min_size=1, max_size=4), min_size=1, max_size=8)


def rows_of(tokens: list[str]) -> list[dict[str, object]]:
    """Return an entry for each token, each with a number of its own."""
    return [entry(token, -1.0 - place) for place, token in enumerate(tokens)]


def told(seen: bytes) -> tuple[str, list[str]]:
    """Return the text and the tokens that a client has after these bytes of a stream."""
    choices = fold(seen)["choices"]
    if not choices:
        return "", []
    rows = (choices[0]["logprobs"] or {}).get("content", ())
    return choices[0]["message"]["content"], [row["token"] for row in rows]


def ends(text: str, stops: list[str]) -> list[tuple[int, int]]:
    """Return end and start of each stop string's first place in a text, the first end first."""
    return sorted((text.find(x) + len(x), text.find(x)) for x in stops if x in text)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(TOKENS, STOPS)
def test_entries_end_with_the_text_whatever_the_tokens(tokens: list[str], stops: list[str]) -> None:
    """No number before the stop string is lost; none waits longer than the text it covers."""
    places = ends("".join(tokens), stops)
    wanted = "".join(tokens)[: places[0][1]] if places else "".join(tokens)
    rows, asked = rows_of(tokens), scored(stop=stops)
    given = {"content": rows, "refusal": None}
    parts = [
        say(token, logprobs={"content": [row], "refusal": None})
        for token, row in zip(tokens, rows, strict=True)
    ]
    for said in (
        body(completion(choice("".join(tokens), logprobs=given, finish_reason="length")), asked),
        stream([role(), *parts, end("length")], asked),
    ):
        assert said.message["content"] == wanted
        assert said.choice["finish_reason"] == ("stop" if places else "length")
        kept = said.entries if wanted else []  # none at all may be null
        assert [row["logprob"] for row in kept] == [-1.0 - place for place in range(len(kept))]
        assert "".join(row["token"] for row in kept) == wanted
    translator = StreamTranslator(exchange(asked | {"stream": True}))
    seen, sent = translator.feed(data(role())), ""
    for token, part in zip(tokens, parts, strict=True):
        sent += token
        seen += translator.feed(data(part))
        text, spelled = told(seen)
        assert wanted.startswith(text) and "".join(spelled) == text
        held = min(len(sent), len(wanted)) - len(text)
        # less than a stop string, and what else the token has that it begins in
        assert held <= max(map(len, stops)) - 1 + len(max(tokens, key=len)) - 1
        opens = any(sent.endswith(x[:size]) for x in stops for size in range(1, len(x)))
        assert opens or places or not held


KEEPING = {"include_stop_str_in_output": True}


@settings(max_examples=examples(200), deadline=None, database=None)
@given(TOKENS, STOPS, st.booleans(), st.sampled_from(["stop", "length"]))
def test_a_kept_stop_string_ends_the_text_and_holds_nothing_back(
    tokens: list[str], stops: list[str], logprobs: bool, reason: str
) -> None:
    places = ends("".join(tokens), stops)
    text = "".join(tokens)
    wanted = text[: places[0][0]] if places else text
    asked = (scored if logprobs else ask)(stop=stops, **KEEPING)
    given = {"content": rows_of(tokens), "refusal": None} if logprobs else None
    parts = [
        say(token, logprobs={"content": [row], "refusal": None} if logprobs else None)
        for token, row in zip(tokens, rows_of(tokens), strict=True)
    ]
    whole = completion(choice(text, logprobs=given, finish_reason=reason))
    for said in (
        body(whole, asked, waived=["stop"]),
        stream([role(), *parts, end(reason)], asked, waived=["stop"]),
    ):
        assert said.message["content"] == wanted
        assert said.choice["finish_reason"] == ("stop" if places else reason)
        cut = wanted != text or (bool(places) and reason != "stop")
        assert ("stop_enforced" in said.repairs) == cut
        if logprobs:
            assert said.joined == wanted.encode()
    translator = StreamTranslator(exchange(asked | {"stream": True}))
    seen, sent = translator.feed(data(role())), ""
    for part, token in zip(parts, tokens, strict=True):
        sent += token
        seen += translator.feed(data(part))
        assert told(seen)[0] == sent[: len(wanted)]


def test_a_kept_stop_string_ends_a_choice_that_goes_on_to_a_call() -> None:
    delta = chunk({"tool_calls": [{"index": 0, **call()}]})
    asked = ask(stop=["###"], tools=[TOOL], **KEEPING)
    said = stream([role(), say("Hi###"), delta, end("tool_calls")], asked, waived=["stop"])
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hi###", "stop")
    assert "tool_calls" not in said.message
    for part in (message("Hi###more"), message("Hi###")):
        said = body(completion(choice(message=part)), asked, waived=["stop"])
        assert said.message["content"] == "Hi###"


def test_an_enforced_stop_string_that_is_kept_is_the_end() -> None:
    """Nobody else would end it: the backend was not told the stop strings."""
    wanted = exchange(ask(stop=["###"], stream=True, **KEEPING))
    wanted = replace(wanted, enforced=True)
    translator = StreamTranslator(wanted)
    seen = translator.feed(data(role()) + data(say("Hi##")))
    assert told(seen)[0] == "Hi##" and not translator.done
    seen += translator.feed(data(say("#")))
    assert translator.done and seen.endswith(b"data: [DONE]\n\n")
    assert fold(seen)["choices"][0]["message"]["content"] == "Hi###"
    assert fold(seen)["choices"][0]["finish_reason"] == "stop"
