"""What is written without events is what reader, stages and writer make: bytes, notes and usage."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.properties.deviations import DEVIATIONS
from tests.adapters.properties.generators import ID, MODEL, Draw, cases, sometimes
from tests.adapters.properties.mutations import mutants
from tests.adapters.properties.test_properties import few
from tests.bench.data import Source
from tests.bench.forms import FORMS, Form
from tests.bench.kernels import exchange as asked_by
from tests.bench.kernels import verify_body
from tests.corpus import Fixture, fixtures
from tests.examples import examples
from tests.replay import NOW, exchange, surroundings
from wellspoken.adapters import plain_body
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator, translate_body

SOURCE = Source()
JSON = "application/json"
OUT = "left out"
ODD: list[Any] = [None, OUT, "", "a", "_", 0, 1, -1, 7.5, [], [{}], ["x"], {}, {"a": 1}, "é", True]
CHAT = [x for x in fixtures() if not x.streamed and x.status < 400 and x.dialect == "chat"]
TOKENS = ["a", "b", " the", "é", "😀", '"', "\\", "\n"]
STRANGE = ["", "\ufffd", "<s>", "token_id:7", "7", "12"]
VALUES = [-0.0, 0, -0.1, -0.25, -0.2500001, -1e-5, -3, -17.25, -9999.0, -10000.0, 0.5, None]


def outcome(asked: Exchange, data: bytes, kind: str, way: str) -> tuple[Any, ...]:
    """Return all that comes of a whole answer, by its events or without them where it is plain."""
    translator = StreamTranslator(asked, fold=True)
    if way == "events":
        translator.asks_plainly = False
    elif way == "steps":
        with patch.object(plain_body, "BLOCK", 2):
            for _ in translator.steps(200, kind, data):
                pass
    if not translator.done:
        translator.whole(200, kind, data)
    if translator.missing_counts() is not None:
        translator.add_counts(NOTHING)
    answer, result = translator.answer(), asked.result
    counted = (list(asked.notes.counts.items()), asked.notes.fields)
    told = (result.id, result.reasons, result.usage, result.usage_source)
    return answer, counted, told, translator.fault, translator.done


def check(asks: dict[str, Any], data: bytes, kind: str = JSON, **more: Any) -> None:
    """Assert that all ways come to the same."""
    by_events = outcome(exchange(asks, **more), data, kind, "events")
    assert outcome(exchange(asks, **more), data, kind, "at once") == by_events
    assert outcome(exchange(asks, **more), data, kind, "steps") == by_events


@st.composite
def scores(draw: Draw, tokens: list[str]) -> Any:
    """Draw logprobs of these tokens: arrays or entries, with alternatives in any order."""
    names = TOKENS if draw(st.integers(0, 5)) else [*TOKENS, *STRANGE]
    numbers = VALUES[:9] if draw(st.integers(0, 5)) else VALUES
    own = [draw(st.sampled_from(numbers)) for _ in tokens]
    rows = st.dictionaries(st.sampled_from(names), st.sampled_from(numbers), max_size=4)
    tops = [draw(rows) for _ in tokens]
    for token, value, top in zip(tokens, own, tops, strict=True):
        if draw(st.integers(0, 5)):
            top[token] = value
    if sometimes(draw):
        arrays = {"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}
        return {**arrays, "text_offset": [0] * len(tokens)}
    spelled = [
        [{"token": x, "logprob": y, "bytes": list(x.encode())} for x, y in top.items()]
        for top in tops
    ]
    content = [
        {"token": x, "logprob": y, "bytes": list(x.encode()), "top_logprobs": top}
        for x, y, top in zip(tokens, own, spelled, strict=True)
    ]
    return {"content": content, "refusal": None} if sometimes(draw) else {"content": content}


def usual(tokens: list[str], logprobs: Any) -> dict[str, Any]:
    """Return a body as it should be."""
    message = {"role": "assistant", "content": "".join(tokens), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    return {
        "id": ID,
        "object": "chat.completion",
        "created": NOW,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def spoil(whole: dict[str, Any], place: tuple[str, str], value: Any) -> None:
    """Put a value in the place of a key, or leave that out."""
    holder = _holder(whole, place[0])
    if value == OUT:
        holder.pop(place[1], None)
    else:
        holder[place[1]] = deepcopy(value)


@st.composite
def bodies(draw: Draw) -> tuple[dict[str, Any], bytes]:
    """Draw a body that has a few odd values, and the request for it."""
    names = TOKENS if draw(st.integers(0, 9)) else [*TOKENS, *STRANGE]
    tokens = draw(st.lists(st.sampled_from(names), min_size=1, max_size=5))
    asks = draw(st.booleans())
    whole = usual(tokens, draw(scores(tokens)) if asks else None)
    prompt, completion = draw(st.sampled_from([(11, 7), (11, 7), (100, 100), (0, 3), (8, 0)]))
    whole["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
    whole["usage"]["total_tokens"] = prompt + completion
    for place in draw(st.sets(st.sampled_from(PLACES), max_size=4)):
        if place[1] not in ("index", "message", "usage", "content"):
            spoil(whole, place, None)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from(PLACES))
        spoil(whole, place, draw(st.sampled_from(odd_values(place))))
    request = dict(REQUEST)
    if asks:
        request |= SCORED | {"top_logprobs": draw(st.integers(0, 3))}
    if not draw(st.integers(0, 4)):
        key, value = draw(st.sampled_from(sorted(ASKED.items())))
        request[key] = json.loads(value)
    return request, json.dumps(whole, ensure_ascii=sometimes(draw)).encode()


PLACES = sorted(
    [("body", x) for x in ("system_fingerprint", "service_tier", "prompt_logprobs", "timings")]
    + [("body", x) for x in ("kv_transfer_params", "metrics", "usage", "id", "created", "vendor")]
    + [("choice", x) for x in ("stop_reason", "matched_stop", "token_ids", "routed_experts")]
    + [("choice", x) for x in ("index", "finish_reason", "logprobs", "message")]
    + [("message", x) for x in ("role", "content", "refusal", "reasoning", "reasoning_content")]
    + [("message", x) for x in ("tool_calls", "function_call", "annotations", "audio")]
    + [("usage", x) for x in ("prompt_tokens_details", "completion_tokens_details")]
    + [("usage", x) for x in ("prompt_tokens", "total_tokens")]
)
USUAL: dict[str, list[Any]] = {
    "finish_reason": ["length", "content_filter", "tool_calls", "eos"],
    "stop_reason": [128009, "</s>", "x" * 600],
    "matched_stop": [151645],
    "timings": [{"prompt_n": 1, "predicted_n": 3}],
    "service_tier": ["default", "auto"],
    "prompt_tokens_details": [{"cached_tokens": 4}, {"cached_tokens": 4, "more": "é"}],
    "completion_tokens_details": [{"reasoning_tokens": 0, "audio_tokens": None}],
    "annotations": [[{"type": "url_citation"}]],
    "id": ["chatcmpl-x", "cmpl-0123456789", "0123456789abcdef"],
    "created": [12, NOW * 1000],
    "index": [2],
}
REQUEST: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
SCORED = {"logprobs": True, "top_logprobs": 1}
ASKED = {
    "n": "2",
    "stop": '["b"]',
    "max_tokens": "7",
    "return_token_ids": "true",
    "timings_per_token": "true",
    "service_tier": '"auto"',
    "store": "true",
}


def odd_values(place: tuple[str, str]) -> list[Any]:
    """Return what may stand in a place, or not at all."""
    return [*ODD, *USUAL.get(place[1], [])]


def _holder(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object of a body by its name; one of no use where it is none any more."""
    if name == "body":
        return whole
    scored = whole["choices"][0].get("logprobs")
    if name == "entry":
        return scored["content"][0] if scored else {}
    if name == "usage":
        found = whole.get("usage")
    else:
        found = whole["choices"][0] if name == "choice" else whole["choices"][0].get("message")
    return found if isinstance(found, dict) else {}


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_one_odd_value_is_the_same_both_ways(place: tuple[str, str]) -> None:
    arrays = {"tokens": ["a", "b"], "token_logprobs": [-1, -2], "top_logprobs": [{"a": -1}, {}]}
    for value, logprobs in product(odd_values(place), [None, arrays]):
        whole = usual(["a", "b"], logprobs)
        spoil(whole, place, value)
        data = json.dumps(whole).encode()
        asks = REQUEST | SCORED if logprobs else REQUEST
        check(asks, data)
        check(asks, data, extensions="all")
        check(asks | {"return_token_ids": True, "timings_per_token": True}, data)


@pytest.mark.parametrize("place", [*PLACES, ("entry", "bytes")], ids=".".join)
@pytest.mark.parametrize("value", ["é", {"cached_tokens": "é"}, ["é"]], ids=["text", "map", "list"])
def test_what_is_no_utf8_is_the_same_both_ways(place: tuple[str, str], value: Any) -> None:
    entry = {"token": "a", "logprob": -1, "bytes": [97], "top_logprobs": []}
    for logprobs in (None, {"content": [entry], "refusal": None}):
        whole = usual(["a"], logprobs)
        spoil(whole, place, value)
        data = json.dumps(whole, ensure_ascii=False).encode()
        for written in (data, data.replace("é".encode(), b"\xff")):
            check(REQUEST | SCORED if logprobs else REQUEST, written)


@pytest.mark.parametrize("key", ASKED)
def test_an_odd_request_is_answered_the_same_both_ways(key: str) -> None:
    whole = usual(["a", "b"], None)
    for more in ({}, {"token_ids": [1, 2]}, {"index": 1}):
        whole["choices"][0] |= more
        check(REQUEST | {key: json.loads(ASKED[key])}, json.dumps(whole).encode())
        made = whole | {"system_fingerprint": "_"}
        check(REQUEST | {key: json.loads(ASKED[key])}, json.dumps(made).encode())
        two = whole | {"choices": [*whole["choices"], whole["choices"][0] | {"index": 3}]}
        check(REQUEST | {key: json.loads(ASKED[key])}, json.dumps(two).encode())


@pytest.mark.parametrize("tokens", [["a"], ["a", "b", "<|end|>"], ["a", "\ufffd"], ["ab", ""]])
@pytest.mark.parametrize("top", [{}, {"a": -1.5, "b": -0.5}, {"a": -1, "\ufffd": -2}, {"7": -1}])
def test_odd_tokens_are_the_same_both_ways(tokens: list[str], top: dict[str, float]) -> None:
    size = len(tokens)
    arrays = {"tokens": tokens, "token_logprobs": [-1] * size, "top_logprobs": [top] * size}
    for text in ("ab", "a", "a\ufffd"):
        check(REQUEST | SCORED, json.dumps(usual([text], arrays)).encode())


@pytest.mark.parametrize("key", ["tokens", "token_logprobs", "top_logprobs", "text_offset"])
@pytest.mark.parametrize("more", [1, -1])
def test_arrays_that_do_not_align_are_the_same_both_ways(key: str, more: int) -> None:
    arrays: dict[str, list[Any]] = {
        "tokens": ["a", "b"],
        "token_logprobs": [-1, -2],
        "top_logprobs": [{"a": -1, "b": -9999}, {"b": -2}],  # as what has no number, -9999
        "text_offset": [0, 1],
    }
    arrays[key] = [*arrays[key], arrays[key][0]] if more > 0 else arrays[key][:more]
    check(REQUEST | SCORED, json.dumps(usual(["a", "b"], arrays)).encode())


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_a_usual_body_needs_no_events(form: Form, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the stages were asked")

    answer = SOURCE.answer(30, k)
    monkeypatch.setattr(BackendAnswer, "__init__", fail)
    given = form.body(answer)
    made = translate_body(asked_by(answer, TokenTable(), False), 200, JSON, given).body
    verify_body(form, answer, made)


@pytest.mark.parametrize("names", ["7 8 12 13", "12 13 7 8", "12 b 13 14", "a 12 7 7", "é ü 7 8"])
@pytest.mark.parametrize("text", ["abcd", "ab12"])
def test_names_that_may_be_ids_are_told_by_the_whole_answer(text: str, names: str) -> None:
    tops = [{name: -1.5} for name in names.split()]
    arrays = {"tokens": [*text], "token_logprobs": [-1] * 4, "top_logprobs": tops}
    check(REQUEST | SCORED, json.dumps(usual([text], arrays)).encode())


def test_a_long_answer_with_arrays_is_written_in_steps() -> None:
    answer, form = SOURCE.answer(200, 20), FORMS["vllm-0.4.2"]
    data = form.body(answer)
    translator = StreamTranslator(asked_by(answer, TokenTable(), False), fold=True)
    steps = list(translator.steps(200, JSON, data))
    assert len(steps) == 3 + -(-200 // plain_body.BLOCK)
    assert translator.done
    verify_body(form, answer, translator.answer().body)


def test_a_position_whose_step_would_take_long_is_not_for_the_loop() -> None:
    top = {f"t{n}": -1.0 - n for n in range(1000)}
    for tokens, tops in (["t0"], [top]), (["t" * 5000], [{"t" * 5000: -1}]), ([], []):
        arrays = {"tokens": tokens, "token_logprobs": [-1] * len(tokens), "top_logprobs": tops}
        data = json.dumps(usual(tokens or ["a"], arrays)).encode()
        translator = StreamTranslator(exchange(REQUEST | SCORED), fold=True)
        assert len(list(translator.steps(200, JSON, data))) == 1 and not translator.done
        check(REQUEST | SCORED, data)


@pytest.mark.parametrize(
    "spoilt", [(b'"tokens":[', b'"tokens":["x",'), (b"}]}", b',"\xff":-1}]}'), (b":-", b":")]
)
def test_a_long_answer_that_is_not_plain_leaves_nothing_behind(spoilt: tuple[bytes, bytes]) -> None:
    answer = SOURCE.answer(100, 2)
    asked = asked_by(answer, TokenTable(), False)
    translator = StreamTranslator(asked, fold=True)
    data = FORMS["vllm-0.4.2"].body(answer)
    assert spoilt[0] in data
    for _ in translator.steps(200, JSON, data.replace(*spoilt)):
        assert not translator.done
    assert not translator.done and translator.given is None
    assert (asked.notes.counts, asked.result.usage, asked.result.id) == ({}, None, "")


@settings(few, max_examples=examples(2000))
@given(drawn=bodies(), stays=st.sampled_from(["none", "known", "all"]))
def test_a_body_is_the_same_both_ways(drawn: tuple[dict[str, Any], bytes], stays: str) -> None:
    check(*drawn, extensions=stays)


@settings(few, max_examples=examples(400))
@given(data=st.data())
def test_a_deviating_body_is_the_same_both_ways(data: st.DataObject) -> None:
    case = data.draw(cases(DEVIATIONS[data.draw(st.sampled_from(sorted(DEVIATIONS)))]))
    if not case.streamed:
        check(case.request(), case.raw())


@settings(few, max_examples=examples(400))
@given(fixture=mutants(CHAT))
def test_a_changed_recorded_body_is_the_same_both_ways(fixture: Fixture) -> None:
    check(fixture.request, fixture.raw, fixture.content_type, **surroundings(fixture))
