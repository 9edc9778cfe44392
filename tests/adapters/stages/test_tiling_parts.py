"""Contract rule 7, tiling: characters in several tokens, text that comes late, and bounded time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    DONE,
    Json,
    bare,
    body,
    choice,
    chunk,
    completion,
    data,
    end,
    entries,
    entry,
    lp,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.linear import linear
from tests.replay import body as translate
from tests.replay import stream as translate_pieces
from wellspoken.adapters.alignment.costs import Costs
from wellspoken.adapters.alignment.cover import PRICED
from wellspoken.adapters.stages.tiling import BUDGET


def part(data: list[int] | None, value: float = -0.5) -> Json:
    """Return an entry that is a part of a character, its bytes known or not."""
    token = "\ufffd" if data is None else bytes(data).decode("utf-8", "replace")
    return {"token": token, "logprob": value, "bytes": data, "top_logprobs": []}


def test_a_token_that_ends_one_character_and_begins_the_next_waits_for_it() -> None:
    chunks = [
        say("", logprobs=lp(part([0xE4]))),
        say("世", logprobs=lp(part([0xB8, 0x96, 0xE7]))),
        say("界", logprobs=lp(part([0x95, 0x8C]))),
    ]
    said = stream([role(), *chunks, end()], scored())
    assert said.message["content"] == "世界"
    assert [row["bytes"] for row in said.entries] == [[0xE4], [0xB8, 0x96, 0xE7], [0x95, 0x8C]]


def test_known_bytes_before_an_unknown_part_give_it_the_rest() -> None:
    given = completion(choice("世", logprobs=lp(part([228]), part(None))))
    assert body(given, scored()).joined == "世".encode()


def test_a_part_between_known_parts_is_what_the_content_has_there() -> None:
    rows = [entry("a"), part([0xF0, 0x9F]), part(None), part([0x80]), entry("b")]
    said = body(completion(choice("a😀b", logprobs=lp(*rows))), scored())
    assert [row["bytes"] for row in said.entries] == [[97], [0xF0, 0x9F], [0x98], [0x80], [98]]


@pytest.mark.parametrize("reasoning", ["Paris", "Paris is it. Paris"])
def test_reasoning_that_holds_the_answer_keeps_its_entries(reasoning: str) -> None:
    rows = [entry(reasoning, -0.1), entry("</think>", -0.2), entry("Paris", -0.3)]
    thought = message("Paris", reasoning_content=reasoning)
    given = completion(choice(message=thought, logprobs=lp(*rows)))
    assert [row["logprob"] for row in body(given, scored()).entries] == [-0.3]


def test_entries_behind_their_text_are_kept() -> None:
    late = [role(), say("Hello"), say(" world", logprobs=entries("Hello", " world"))]
    said = stream([*late, end()], scored(), waived=["7.chunk"])
    assert said.joined == b"Hello world"
    ends = chunk({}, "stop", logprobs=entries("Hello", " world"))
    chunks = [role(), say("Hello"), say(" world"), ends]
    said = stream(chunks, scored(), waived=["7.chunk"])
    assert said.joined == b"Hello world"


def test_many_characters_in_parts_lose_no_entry() -> None:
    rows = [bare("", bytes=[]), bare("", bytes=[]), bare("", bytes=[]), entry("😀")] * 200
    given = completion(choice("😀" * 200, logprobs=lp(*rows)))
    assert len(body(given, scored()).entries) == 800


def test_two_characters_in_unknown_parts_have_no_more_parts_than_bytes() -> None:
    given = completion(choice("…世", logprobs=lp(*[part(None)] * 5)))
    owners = [len(row["bytes"] or ()) for row in body(given, scored()).entries]
    assert owners in ([0, 0, 3, 0, 3], [0, 3, 0, 0, 3])


def test_a_sole_entry_without_text_is_the_text() -> None:
    given = lp({"token": None, "logprob": -0.1, "bytes": None, "top_logprobs": []})
    said = stream([role(), say("Hi", logprobs=given), end()], scored())
    assert said.rows == [("Hi", -0.1, [72, 105])]


def _slow(size: int) -> dict[str, bytes]:
    """Return answers of `size` positions whose alignment once took quadratic time or worse."""
    tops: list[Any] = [{f"{'a' * (n % 4 + 1)}{m}": -1.0 for m in range(20)} for n in range(size)]
    half = [bare("", bytes=[]), entry("zz", top=[("", -1.0), ("a", -2.0)])] * (size // 2)
    return {
        "only alternatives": json.dumps(
            completion(choice("aaaa" * size, logprobs={"top_logprobs": tops}))
        ).encode(),
        "half unknown": json.dumps(completion(choice("é" * size, logprobs=lp(*half)))).encode(),
        "undecodable": json.dumps(
            completion(choice("\ufffd." * size, logprobs=lp(*[part([255, 46])] * size)))
        ).encode(),
    }


@pytest.mark.no_cover
@pytest.mark.parametrize("name", list(_slow(2)))
def test_an_answer_that_does_not_fit_takes_bounded_time(name: str) -> None:
    translate(scored(5), 200, "application/json", _slow(20)[name])
    answers = {size: _slow(size)[name] for size in (500, 2_000)}
    linear(lambda size: translate(scored(5), 200, "application/json", answers[size]), 500)


def test_texts_left_out_are_priced_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways over 1,000 entries where four are right; `_follow` that spends nothing prices 167,602.

    A way over the content costs as much to price as several states to look at.
    """
    priced, price_lost = [], Costs.price_lost

    def count(costs: Costs, *given: Any) -> int:
        priced.append(costs)
        return price_lost(costs, *given)

    monkeypatch.setattr(Costs, "price_lost", count)
    rows = [bare("\ufffd"), bare("é")] * 500
    said = body(completion(choice("éé", logprobs=lp(*rows))), scored())
    assert said.joined == "éé".encode()
    assert 0 < len(priced) <= BUDGET / PRICED


@pytest.mark.no_cover
def test_entries_far_ahead_of_their_text_take_bounded_time() -> None:
    def work(size: int) -> None:
        words = [f"w{n} " for n in range(size)]
        first = say("", logprobs=entries(*words))
        pieces = [data(role()), data(first), *[data(say(w)) for w in words]]
        translate_pieces({**scored(), "stream": True}, [*pieces, data(end()), DONE])

    linear(work, 300)
