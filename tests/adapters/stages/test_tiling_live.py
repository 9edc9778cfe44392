"""The client has an event's text before the next event comes, save the stated hold-back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import (
    Json,
    ask,
    bare,
    chunk,
    data,
    end,
    entries,
    entry,
    lp,
    role,
    say,
    scored,
)
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator


class Live:
    """A translator whose client reads after each event."""

    def __init__(self, request: Json) -> None:
        self.exchange = exchange({**request, "stream": True})
        self.translator = StreamTranslator(self.exchange)
        self.seen = b""

    def feed(self, part: Any) -> str:
        """Return the client's text so far."""
        self.seen += self.translator.feed(data(part))
        return self.text

    @property
    def text(self) -> str:
        choices = fold(self.seen).get("choices") or [{"message": {}}]
        return choices[0]["message"].get("content") or ""


PAUSES: dict[str, tuple[Json, list[Json]]] = {
    "conforming": (
        scored(),
        [say("Hel", logprobs=entries("Hel")), say("lo", logprobs=entries("lo"))],
    ),
    "no logprobs": (ask(), [say("Hel"), say("lo")]),
    "legacy arrays": (
        scored(),
        [
            say(
                "Hel", logprobs={"tokens": ["Hel"], "token_logprobs": [-1], "top_logprobs": [None]}
            ),
            say("lo", logprobs={"tokens": ["lo"], "token_logprobs": [-1], "top_logprobs": [None]}),
        ],
    ),
    "top only": (
        scored(),
        [
            say("Hel", logprobs={"top_logprobs": [{"x": -1.0, "Hel": -2.0}]}),
            say("lo", logprobs={"top_logprobs": [{"lo": -2.0}]}),
        ],
    ),
    "raw": (
        scored(),
        [
            say("Hel", logprobs=lp(bare("▁Hel"))),
            say(" lo", logprobs=lp(bare("▁lo"))),
        ],
    ),
    "entries run ahead": (
        scored(),
        [say("Hel", logprobs=lp(entry("Hel"), entry("lo"))), say("lo", logprobs=None)],
    ),
    "reason and role everywhere": (
        scored(),
        [
            chunk({"role": "assistant", "content": "Hel"}, "", logprobs=lp(bare("Hel"))),
            chunk({"role": "assistant", "content": "lo"}, "", logprobs=lp(bare("lo"))),
        ],
    ),
}


@pytest.mark.parametrize("name", PAUSES)
def test_each_events_text_is_out_before_the_next(name: str) -> None:
    request, parts = PAUSES[name]
    live, sent = Live(request), ""
    for part in [role(), *parts]:
        sent += part["choices"][0]["delta"]["content"]
        assert live.feed(part) == sent


def test_less_than_one_token_is_held_back() -> None:
    """An entry that reaches over the text so far keeps its front waiting, nothing before it."""
    live = Live(scored())
    live.feed(role())
    assert live.feed(say("one tw", logprobs=lp(entry("one"), entry(" two")))) == "one"
    assert live.feed(say("o")) == "one two"
    assert live.feed(say(" th", logprobs=lp(entry(" three")))) == "one two"
    assert live.feed(end()) == "one two th"
    assert "logprobs_clipped" in live.exchange.notes.counts


def test_what_is_held_comes_with_an_error_too() -> None:
    live = Live(scored())
    live.feed(role())
    live.feed(say("a tw", logprobs=lp(entry("a"), entry(" two"))))
    assert live.feed({"error": {"message": "x"}}) == "a tw"
    assert live.translator.done


def test_less_than_the_longest_stop_string_is_held_back() -> None:
    live = Live({**scored(), "stop": ["###", "END"]})
    live.feed(role())
    assert live.feed(say("a#", logprobs=entries("a#"))) in ("a", "")
    assert live.feed(say("b", logprobs=entries("b"))) == "a#b"
    assert live.feed(say("EN", logprobs=entries("EN"))) == "a#b"
    assert live.feed(say("d", logprobs=entries("d"))) == "a#bENd"
