"""Contract rule 10 where the backend tells no count, and its tokenize endpoint is to be asked."""

from __future__ import annotations

import itertools
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from tests.adapters.stages.test_usage import answered, asked_of, byte_tokens, usage, without_usage
from tests.answers import (
    DONE,
    USAGE,
    Json,
    ask,
    call,
    choice,
    chunk,
    completion,
    counted,
    data,
    end,
    entries,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.events import End, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs.counts import from_timings
from wellspoken.adapters.stages.tiling import EntryCounts
from wellspoken.adapters.stages.usage import UsageStage
from wellspoken.adapters.tokens.tokenize import NOTHING, Counted, Tokenize, Wanted
from wellspoken.adapters.tokens.vocabulary import Vocabulary
from wellspoken.adapters.translate import StreamTranslator

OPTIONS: Json = {"stream_options": {"include_usage": True}}
HI = [role(), say("Hi"), end()]
FORM = Tokenize(path="/tokenize", text="prompt")
ENDS = Tokenize(path="/tokenize", text="content", ends=True)
THINKING = message("Hi", reasoning_content="So.")


def counting_of(form: Tokenize = FORM, vocabulary: Vocabulary | None = None, **more: Any) -> Any:
    """Return the exchange of a request to a server that counts tokens."""
    found = asked_of(vocabulary, **more)
    found = replace(found, tokenize=form)
    return found


def translated(asked: Exchange, given: Json) -> tuple[StreamTranslator, Any]:
    """Return what translates a body, and its answer unless that waits for counts."""
    translator = StreamTranslator(asked, fold=True)
    translator.whole(200, "application/json", json.dumps(given).encode())
    return translator, translator.answer() if translator.done else None


def ended(translator: StreamTranslator, found: Counted) -> Json:
    translator.add_counts(found)
    usage: Json = json.loads(translator.answer().body)["usage"]
    return usage


def test_a_body_without_counts_waits_for_the_tokenize_endpoint() -> None:
    asked = counting_of(vocabulary=byte_tokens(), logprobs=True)
    given = without_usage(choice("Hi you", logprobs=entries("Hi", " you")))
    translator, answer = translated(asked, given)
    assert answer is None
    assert translator.missing_counts() == Wanted(True, True, ("Hi you",), ())
    assert ended(translator, Counted(9, 3, None)) == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
    }
    assert asked.result.usage_source == "tokenize"
    assert asked.notes.counts == {"usage_missing": 1}


@pytest.mark.parametrize(
    ("found", "counts", "source"),
    [
        (Counted(9, 3), (9, 3), "tokenize"),
        (Counted(9, None), (9, 6), "tokenizer"),
        (Counted(None, 3), (1, 3), "estimate"),
        (NOTHING, (1, 6), "estimate"),
    ],
)
def test_what_the_endpoint_does_not_tell_comes_from_the_next_source(
    found: Counted, counts: tuple[int, int], source: str
) -> None:
    """The prompt is estimated, since a template makes it; the weaker source is told."""
    asked = counting_of(vocabulary=byte_tokens())
    translator, _ = translated(asked, without_usage(choice("Hi you")))
    usage = ended(translator, found)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == counts
    assert asked.result.usage_source == source


def test_only_what_is_missing_is_wanted() -> None:
    translator, _ = translated(counting_of(), {**completion(), "usage": {"prompt_tokens": 5}})
    assert translator.missing_counts() == Wanted(False, True, ("Hi",), ())
    assert ended(translator, Counted(None, 2))["prompt_tokens"] == 5
    translator, answer = translated(counting_of(), completion())
    assert translator.missing_counts() is None and json.loads(answer.body)["usage"] == USAGE


def test_a_constant_is_asked_for_again() -> None:
    constant = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    translator, _ = translated(counting_of(), completion(usage=constant))
    assert translator.missing_counts() == Wanted(True, True, ("Hi",), ())


@pytest.mark.parametrize(("reason", "more"), [("stop", 1), ("length", 0)])
def test_the_end_of_text_token_counts_where_the_servers_own_usage_has_it(
    reason: str, more: int
) -> None:
    translator, _ = translated(counting_of(ENDS), without_usage(choice(finish_reason=reason)))
    assert ended(translator, Counted(1, 2))["completion_tokens"] == 2 + more
    translator, _ = translated(counting_of(), without_usage(choice(finish_reason=reason)))
    assert ended(translator, Counted(1, 2))["completion_tokens"] == 2


def test_each_choice_is_counted_by_itself() -> None:
    """Joined, the end of one and the beginning of the next could be one token."""
    two = without_usage(choice("ab"), choice("cd", index=1))
    translator, _ = translated(counting_of(n=2), two)
    wanted = translator.missing_counts()
    assert wanted is not None and wanted.texts == ("ab", "cd")


def streamed(asked: Exchange, parts: list[Json], cuts: list[int], found: Counted) -> bytes:
    """Return a stream that is read in these pieces, its counts given when it wants them."""
    sent = b"".join(map(data, parts)) + DONE
    places = [0, *sorted(cuts), len(sent)]
    translator = StreamTranslator(asked)
    out = b"".join(translator.feed(sent[a:b]) for a, b in itertools.pairwise(places))
    if translator.missing_counts() is not None:
        assert not translator.done and translator.sources[0].ended
        out += translator.add_counts(found)
    assert translator.done
    return out + translator.close()


@hypothesis.settings(deadline=None)
@hypothesis.given(cuts=st.lists(st.integers(0, 900), max_size=12), two=st.booleans())
def test_the_counts_are_the_same_however_a_stream_is_split(cuts: list[int], two: bool) -> None:
    parts = [role(), chunk({"reasoning_content": "So"}), chunk({"reasoning_content": "."})]
    parts += [say("He"), say("llo"), chunk({"tool_calls": [{**call(), "index": 0}]})]
    parts += [end("tool_calls")]
    if two:
        other = [role(1), say("x", index=1), say("y", index=1), end("length", index=1)]
        parts = [*parts[:4], *other[:2], *parts[4:], *other[2:]]
    wanted = Wanted(True, True, ("Hellof{}", "xy") if two else ("Hellof{}",), ("So.",))
    asked = counting_of(ENDS, stream=True, n=2 if two else 1, **OPTIONS)
    asked = replace(asked, tokenize=ENDS)
    translator = StreamTranslator(asked)
    translator.feed(b"".join(map(data, parts)) + DONE)
    assert translator.missing_counts() == wanted
    asked = counting_of(ENDS, stream=True, n=2 if two else 1, **OPTIONS)
    out = streamed(asked, parts, cuts, Counted(7, 4, 2))
    last = json.loads(list(payloads(out))[-2])
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 7,  # one end-of-text token, not two: the other choice met its limit
        "total_tokens": 14,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert asked.result.usage_source == "tokenize"


def test_a_stream_that_tells_no_usage_asks_for_no_count() -> None:
    asked = counting_of(stream=True)
    assert b"usage" not in streamed(asked, [*HI], [], NOTHING)
    assert asked.result.usage_source == "estimate"


@pytest.mark.parametrize("last", [chunk({}, "error"), {"error": {"message": "no"}}])
def test_a_failed_answer_wants_no_count(last: Json) -> None:
    translator = StreamTranslator(counting_of(stream=True, **OPTIONS))
    translator.feed(data(role()) + data(say("Hi")) + data(last))
    assert translator.done and translator.missing_counts() is None
    translator = StreamTranslator(counting_of(stream=True, **OPTIONS))
    translator.feed(data(role()) + data(say("Hi")))
    translator.close()
    assert translator.fault is not None and translator.missing_counts() is None


def test_the_backends_reasoning_tokens_win() -> None:
    told = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}}
    given = completion(choice(message=THINKING), usage=told)
    asked = counting_of(vocabulary=byte_tokens())
    translator, answer = translated(asked, given)
    assert translator.missing_counts() is None and json.loads(answer.body)["usage"] == told
    assert "reasoning_tokens_counted" not in asked.notes.counts


def test_reasoning_is_counted_by_the_endpoint_where_the_backend_tells_the_totals() -> None:
    given = completion(choice(message=THINKING), usage={**USAGE, "prompt_tokens_details": {}})
    asked = counting_of()
    translator, _ = translated(asked, given)
    assert translator.missing_counts() == Wanted(False, False, (), ("So.",))
    details = {"completion_tokens_details": {"reasoning_tokens": 1}}
    assert ended(translator, Counted(None, None, 1)) == {**USAGE, **details}
    assert asked.result.usage_source == "backend"
    assert asked.notes.counts["reasoning_tokens_counted"] == 1
    for unknown in (NOTHING, Counted(None, None, 2), Counted(None, None, 9)):
        translator, _ = translated(counting_of(), given)
        assert ended(translator, unknown) == USAGE  # never an estimate, nor more than can be


def test_reasoning_is_counted_by_a_tokenizer_without_asking() -> None:
    given = completion(choice(message=THINKING), usage={**USAGE, "completion_tokens": 6})
    given["usage"]["total_tokens"] = 11
    translator, answer = translated(counting_of(vocabulary=byte_tokens()), given)
    assert translator.missing_counts() is None
    told = json.loads(answer.body)["usage"]["completion_tokens_details"]
    assert told == {"reasoning_tokens": len("So.")}
    assert "completion_tokens_details" not in answered(asked_of(), given)


def test_reasoning_is_counted_by_the_entries_that_came_with_it() -> None:
    """Of a stream; in a body they stand in one list with the content's."""
    thought = [
        chunk({"reasoning_content": "So "}, logprobs=entries("So", " ")),
        chunk({"reasoning_content": "on."}, logprobs=entries("on.")),
    ]
    parts = [role(), *thought, say("Hi", logprobs=entries("H", "i")), end()]
    request = scored(stream_options={"include_usage": True})
    said = stream(parts, request)
    assert usage(said)["completion_tokens"] == 5
    assert usage(said)["completion_tokens_details"] == {"reasoning_tokens": 3}
    said = stream([*parts, {**counted(), "usage": {**USAGE, "completion_tokens": 6}}], request)
    assert usage(said)["completion_tokens"] == 6
    assert usage(said)["completion_tokens_details"] == {"reasoning_tokens": 3}


@pytest.mark.parametrize(
    ("more", "texts"),
    [({}, ("Hi you",)), ({"echo": True}, (" you",))],
    ids=["an answer", "after its echoed prompt"],
)
def test_an_echoed_prompt_is_not_counted_as_the_answer(more: Json, texts: tuple[str]) -> None:
    asked = exchange({"model": "m", "prompt": "Hi", **more})
    asked = replace(asked, tokenize=FORM)
    answer = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1_741_570_283}
    only = {"index": 0, "text": "Hi you", "logprobs": None, "finish_reason": "stop"}
    translator = StreamTranslator(asked, "completions", fold=True)
    whole = json.dumps({**answer, "model": "m", "choices": [only]}).encode()
    translator.whole(200, "application/json", whole)
    assert not translator.done
    assert translator.missing_counts() == Wanted(True, True, texts, ())


@pytest.mark.parametrize("enforced", [False, True])
def test_timings_that_the_proxy_itself_asks_for_are_no_deviation(enforced: bool) -> None:
    asked = replace(exchange(ask(stop=["!"])), enforced=enforced)
    found = from_timings({"timings": {"prompt_n": 3, "cache_n": 2, "predicted_n": 4}})
    assert found == Usage(5, 4, Raw(b'{"cached_tokens":2}'), timed=True)
    stage = UsageStage(asked, EntryCounts())
    assert stage([found, End(True)])[0] == found
    assert ("usage_from_timings" in asked.notes.counts) == (not enforced)
