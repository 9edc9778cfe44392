"""Contract, "Requests": `echo` that a backend ignored is put right, or the answer fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.adapters.text_events import asked, entry, lp
from wellspoken.adapters.events import End, Event, Fault, Finish, Text
from wellspoken.adapters.stages.echo import EchoStage
from wellspoken.adapters.stages.stop import StopStage

PROMPT = "Say it: "


def run(
    pieces: Sequence[str], prompt: str | None = PROMPT, end: bool = True, **more: Any
) -> tuple[str, dict[str, int]]:
    """Return the text that leaves for these pieces, and what was noted."""
    exchange = asked(echo=True, prompts=(prompt,), **more)
    stage = EchoStage(exchange)
    events = [event for piece in pieces for event in stage([Text(0, piece)])]
    if end:
        events += stage([Finish(0, "stop"), End(True)])
        assert [type(event) for event in events[-2:]] == [Finish, End]
    text = "".join(event.text for event in events if isinstance(event, Text))
    return text, exchange.notes.counts


@pytest.mark.parametrize(
    "pieces",
    [
        ["Say it: hello"],
        ["Say", " it", ": ", "hello"],
        list("Say it: hello"),
        ["", "Say it: ", "hello"],
    ],
)
def test_a_backend_that_echoes_is_passed_on(pieces: list[str]) -> None:
    assert run(pieces) == ("Say it: hello", {})


def test_nothing_leaves_while_it_may_still_be_the_prompt_and_all_of_it_once_it_is() -> None:
    assert run(["Say", " it"], end=False) == ("", {})
    assert run(["Say", " it", ": "], end=False) == ("Say it: ", {})


@pytest.mark.parametrize("pieces", [["hello"], list("hello"), ["Say", " what?"], ["Say it"], []])
def test_a_prompt_that_does_not_come_is_put_before(pieces: list[str]) -> None:
    assert run(pieces) == (PROMPT + "".join(pieces), {"echo_missing": 1})


@pytest.mark.parametrize("prompt", ["  Say", "Say", "\n\nSay"])
@pytest.mark.parametrize("text", ["Say hi", "  Say hi", "\nSay hi"])
def test_white_space_that_a_tokenizer_adds_or_drops_is_no_difference(
    prompt: str, text: str
) -> None:
    assert run([text], prompt) == (text, {})


@pytest.mark.parametrize("prompt", ["", None])
def test_an_empty_or_unknown_prompt_is_not_looked_for(prompt: str | None) -> None:
    assert run(["hi"], prompt) == ("hi", {})
    assert run([], prompt) == ("", {})


def test_each_choice_has_its_own_prompt() -> None:
    exchange = asked(echo=True, n=4, prompts=("a", "b"))
    stage = EchoStage(exchange)
    events: list[Event] = [Text(n, text) for n, text in enumerate(("a1", "2", "b3", "a4"))]
    out = [*stage(events), *stage([End(True)])]
    joined = [
        "".join(x.text for x in out if isinstance(x, Text) and x.choice == n) for n in range(4)
    ]
    assert joined == ["a1", "a2", "b3", "ba4"]
    assert exchange.notes.counts == {"echo_missing": 2}


def test_with_logprobs_an_ignored_echo_is_an_error() -> None:
    exchange = asked(echo=True, prompts=(PROMPT,), logprobs=True)
    stage = EchoStage(exchange)
    out = stage([Text(0, "hello", lp(entry("hello")))])
    (fault,) = out
    assert isinstance(fault, Fault)
    assert (fault.status, fault.code, fault.retry) == (502, "echo_ignored", False)
    assert stage([Text(0, "more"), Finish(0, "stop"), End(True)]) == []


def test_with_logprobs_an_echo_is_passed_on_with_its_entries() -> None:
    exchange = asked(echo=True, prompts=(PROMPT,), logprobs=True)
    rows = [lp(entry("Say")), lp(entry(" it: ")), lp(entry("x"))]
    events: list[Event] = [
        Text(0, text, row) for text, row in zip(("Say", " it: ", "x"), rows, strict=True)
    ]
    assert EchoStage(exchange)(list(events)) == events


def stopped(pieces: Sequence[str], prompt: str | None, stop: str, **more: Any) -> str:
    exchange = asked(echo=True, prompts=(prompt,), stops=(stop,), **more)
    echo, stop_stage = EchoStage(exchange), StopStage(exchange)
    out = [event for piece in pieces for event in stop_stage(echo([Text(0, piece)]))]
    out += stop_stage(echo([Finish(0, "length"), End(True)]))
    assert sum(isinstance(event, Finish) for event in out) == 1
    return "".join(event.text for event in out if isinstance(event, Text))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Q: a\nA: b\nQ: c", "Q: a\nA: b"),
        ("Q: a\nA: b", "Q: a\nA: b"),
        ("Q: a\nA:\nQ", "Q: a\nA:\nQ"),
        ("Q: a\nA:\nQ: x", "Q: a\nA:"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_in_the_echoed_prompt_cuts_nothing(text: str, kept: str, size: int) -> None:
    """OpenAI's `stop` ends the generated text: few-shot prompts hold their own stop strings."""
    prompt = "Q: a\nA:"
    stop = "\nQ:" if "\nQ" in text else "\nA"
    pieces = [text[n : n + size] for n in range(0, len(text), size)]
    assert stopped(pieces, prompt, stop) == kept


def test_a_stop_string_does_not_begin_in_the_prompt() -> None:
    assert stopped(["one#", "#two", "##"], "one#", "##") == "one##two"


def test_a_stop_string_right_behind_a_prompt_without_its_white_space() -> None:
    assert stopped(["Hi", "#b"], "  Hi", "#") == "Hi"
    assert stopped(["  ", "Hi", "#b"], "Hi", "#") == "  Hi"
    assert stopped([" ", " x#y"], "  ", "#") == "  x"


def test_a_prompt_of_token_ids_is_the_backends_to_stop_behind() -> None:
    assert stopped(["a#b", "c#d"], None, "#") == "a#bc#d"


def test_an_echo_that_the_proxy_puts_before_does_not_move_the_stop() -> None:
    assert stopped(["b#c"], "a#", "#") == "a#b"
    assert stopped(["b#c"], "a#", "#", stream=True) == "a#b"
