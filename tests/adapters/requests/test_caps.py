"""The caps: every number that one request can hurt a server with, and ids that are no tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, convert, json

from wellspoken.adapters.requests.caps import LIMITS, Caps, apply_caps, names_tokens
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Bounds, ChatRequest, CompletionRequest
from wellspoken.adapters.servers.prepare import prepare_completion
from wellspoken.adapters.servers.registry import find

MESSAGES = [{"role": "user", "content": "Hi"}]
VOCABULARY = 448
DEFAULTS = Caps()


def chat(*, bounds: Bounds = "backend", **fields: Any) -> ChatRequest:
    return decode_chat(json.encode({"model": "m", "messages": MESSAGES, **fields}), bounds=bounds)


def text(*, bounds: Bounds = "backend", native: bool = False, **fields: Any) -> CompletionRequest:
    body = json.encode({"model": "m", "prompt": "Hi", **fields})
    return decode_completion(body, bounds=bounds, native_names=native)


def refused(
    request: ChatRequest | CompletionRequest, caps: Caps = DEFAULTS, vocabulary: int | None = None
) -> RequestError:
    with pytest.raises(RequestError) as caught:
        apply_caps(request, caps, vocabulary)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


ABOVE, BELOW = "integer_above_max_value", "integer_below_min_value"
OVER: list[tuple[str, Any, str]] = [
    ("n_cmpl", 129, ABOVE),
    ("n_cmpl", 0, BELOW),
    ("best_of", 129, ABOVE),
    ("max_tokens", 2**31, ABOVE),
    ("max_completion_tokens", 2**31, ABOVE),
    ("n_predict", 10**12, ABOVE),
    ("max_new_tokens", 2**31, ABOVE),
    ("prompt_logprobs", 21, ABOVE),
    ("prompt_logprobs", -1, BELOW),
    ("n_probs", 1001, ABOVE),
    ("n_probs", 10**9, ABOVE),
    ("n_probs", -5, BELOW),
    ("top_n_tokens", 1001, ABOVE),
    ("n_discard", -1, BELOW),
    ("n_discard", -(2**31), BELOW),
    ("n_discard", 257, ABOVE),
    ("repeat_last_n", 200_000_000, ABOVE),
    ("repeat_last_n", -2, BELOW),
    ("dry_penalty_last_n", 2**31 - 1, ABOVE),
    ("n_prev", 2**63, ABOVE),
]
CAPPED = sorted({name for name, _, _ in OVER})


@pytest.mark.parametrize("bounds", ["openai", "backend"])
@pytest.mark.parametrize("oai_compat", [True, False])
@pytest.mark.parametrize(("name", "value", "code"), OVER)
def test_over_a_cap(bounds: Bounds, oai_compat: bool, name: str, value: Any, code: str) -> None:
    more = {name: value, "oai_compat": oai_compat}
    error = refused(chat(bounds=bounds, **more))
    assert (error.param, error.code) == (name, code)
    if name != "best_of":  # OpenAI's own there, refused when it is decoded
        error = refused(text(bounds="backend", **more))
        assert (error.param, error.code) == (name, code)


@pytest.mark.parametrize("name", [name for name in CAPPED if name not in LIMITS[:2]])
@pytest.mark.parametrize("value", ["many", "5", True, False, [], [1], {}, 1.5, 5.0])
def test_another_type_than_an_integer(name: str, value: Any) -> None:
    error = refused(chat(**{name: value}))
    assert (error.param, error.code) == (name, "invalid_type")
    assert "expected an integer, but got a" in error.message


@pytest.mark.parametrize("raw", [b"1e9", b"1e999", b"1" * 5000, b"-0.0"])
def test_numbers_that_are_no_integers(raw: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"prompt_logprobs":%b}' % raw
    error = refused(decode_chat(body))
    assert (error.param, error.code) == ("prompt_logprobs", "invalid_type")
    assert ("too many digits" in error.message) == (raw[:3] == b"111")
    assert len(error.message) < 200


@pytest.mark.parametrize("name", CAPPED)
def test_null_and_what_is_within_pass(name: str) -> None:
    within: list[dict[str, Any]] = [{name: None}, {name: 1}, {name: 20}]
    within += [{"n_discard": 0}, {"repeat_last_n": -1}, {"n_predict": -1}, {"n_probs": 0}]
    for fields in within:
        request = chat(**fields)
        assert apply_caps(request, DEFAULTS) is request


@pytest.mark.parametrize(
    ("name", "cap", "most"),
    [
        ("n", "n", 3),
        ("n_cmpl", "n", 3),
        ("best_of", "best_of", 3),
        ("max_tokens", "max_tokens", 30),
        ("max_completion_tokens", "max_tokens", 30),
        ("n_predict", "max_tokens", 30),
        ("prompt_logprobs", "prompt_logprobs", 0),
        ("n_probs", "n_probs", 4),
        ("n_discard", "n_discard", 0),
        ("dry_penalty_last_n", "repeat_last_n", 64),
    ],
)
def test_every_cap_can_be_set(name: str, cap: str, most: int) -> None:
    caps = convert({cap: most}, Caps)
    within: dict[str, Any] = {name: most}
    above: dict[str, Any] = {name: most + 1}
    assert apply_caps(chat(**within), caps).fields[name] == Raw(json.encode(most))
    error = refused(chat(**above), caps)
    assert (error.param, error.code) == (name, ABOVE)
    assert f"<= {most}" in error.message


def test_alternatives_are_capped_by_whichever_name() -> None:
    caps = Caps(n_probs=2)
    assert refused(chat(logprobs=True, top_logprobs=3), caps).param == "top_logprobs"
    assert refused(chat(logprobs=True, top_logprobs=-1), caps).code == BELOW
    assert refused(text(logprobs=3), caps).param == "logprobs"
    assert refused(text(logprobs=-1), caps).code == BELOW
    every = Caps(n_probs=2**20, prompt_logprobs=2**20)
    for request in (chat(logprobs=True, top_logprobs=-1), chat(prompt_logprobs=-1)):
        assert apply_caps(request, every) is request


@pytest.mark.parametrize("bounds", ["openai", "backend"])
def test_entries_of_logit_bias(bounds: Bounds) -> None:
    bias = {str(n): 1 for n in range(3)}
    assert apply_caps(chat(logit_bias=bias, bounds=bounds), Caps(logit_bias=3)).logit_bias == bias
    error = refused(chat(logit_bias=bias, bounds=bounds), Caps(logit_bias=2))
    assert (error.param, error.code) == ("logit_bias", "object_above_max_properties")
    pairs = [[n, 1] for n in range(3)]
    error = refused(chat(logit_bias=pairs), Caps(logit_bias=2))
    assert (error.param, error.code) == ("logit_bias", "array_above_max_length")


OUTSIDE: list[tuple[str, Any, str]] = [
    ("logit_bias", {"447": 1, "448": -100}, "448"),
    ("logit_bias", {"-1": 1}, "-1"),
    ("logit_bias", {" +448": 1}, "448"),
    ("logit_bias", {"9" * 5000: 1}, "99999999999999999999"),
    ("logit_bias", [[5, 1], [448, False]], "448"),
    ("logit_bias", [[-3, 1]], "-3"),
    ("prompt", [1, 448], "448"),
    ("prompt", [[1], [2, 99999]], "99999"),
    ("stop_token_ids", [448], "448"),
    ("stop_token_ids", [-1], "-1"),
    ("allowed_token_ids", [1, 448], "448"),
    ("logprob_token_ids", [448], "448"),
    ("logit_bias", {"448 ": 1}, "448"),  # Python's int, and so vLLM, reads these as 448 too
    ("logit_bias", {"4_48": 1}, "448"),
    ("logit_bias", {"\u0664\u0664\u0668": 1}, "448"),
]


@pytest.mark.parametrize(("name", "value", "shown"), OUTSIDE)
def test_ids_outside_the_vocabulary(name: str, value: Any, shown: str) -> None:
    request = text(**{name: value})
    assert names_tokens(request)
    error = refused(request, vocabulary=VOCABULARY)
    assert (error.param, error.code) == (name, "invalid_value")
    assert f"{shown} is not a token id" in error.message and "0 to 447" in error.message


@pytest.mark.parametrize("other", [448.0, "448", True, None, [448]])
def test_a_list_of_ids_holds_nothing_that_pydantic_would_make_one(other: Any) -> None:
    error = refused(text(stop_token_ids=[5, other]), vocabulary=VOCABULARY)
    assert (error.param, error.code) == ("stop_token_ids[1]", "invalid_type")


def test_llama_cpps_mixed_prompts_hold_ids_too() -> None:
    mixed = text(native=True, oai_compat=False, prompt=["a", 448, ["b", 3]])
    assert refused(mixed, vocabulary=VOCABULARY).param == "prompt"
    floats = text(native=True, oai_compat=False, prompt=[448.0])
    assert refused(floats, vocabulary=VOCABULARY).param == "prompt"
    assert apply_caps(mixed, DEFAULTS) is mixed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"0": 1, "447": -100}),
        ("logit_bias", {" word": 5, "4a": 1}),
        ("logit_bias", [["448", 1], [447, 2], "odd", [], [1.5, 1], [True, 1]]),
        ("logit_bias", {}),
        ("prompt", [0, 447]),
        ("prompt", ["448"]),
        ("stop_token_ids", [447]),
        ("stop_token_ids", "448"),
        ("stop_token_ids", None),
    ],
)
def test_ids_inside_and_what_is_no_id(name: str, value: Any) -> None:
    request = text(**{name: value})
    assert apply_caps(request, DEFAULTS, VOCABULARY) is request


def test_an_unknown_vocabulary_still_has_32_bits() -> None:
    for bias in ({"2147483648": 1}, {"4294967301": 1}, [[2**32 + 5, 1]]):
        assert refused(chat(logit_bias=bias)).code == "invalid_value"
    request = chat(logit_bias={"2147483647": 1})
    assert apply_caps(request, DEFAULTS) is request
    assert not names_tokens(chat(top_k=5)) and not names_tokens(text(prompt=["a"]))


@given(st.lists(st.integers(-2, 20), min_size=1, max_size=8), st.integers(1, 18))
def test_refused_are_just_the_ids_outside(ids: list[int], size: int) -> None:
    outside = any(not 0 <= token < size for token in ids)
    for request in (
        text(logit_bias={str(token): 1 for token in ids}),
        text(logit_bias=[[token, 1] for token in ids]),
        text(stop_token_ids=ids),
    ):
        if outside:
            assert refused(request, vocabulary=size).code == "invalid_value"
        else:
            assert apply_caps(request, DEFAULTS, size) is request


LIMIT = Caps(max_tokens=100)
LIMITED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": 100}),
    ({"max_tokens": None}, {"max_tokens": 100}),
    ({"max_tokens": -1}, {"max_tokens": 100}),
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"max_tokens": 100}, {"max_tokens": 100}),
    ({"max_tokens": 0}, {"max_tokens": 0}),
    ({"max_completion_tokens": 7}, {"max_completion_tokens": 7}),
    ({"max_completion_tokens": -1, "max_tokens": 9}, {"max_tokens": 9}),
    ({"n_predict": -1}, {"max_tokens": 100}),
    ({"n_predict": -1, "max_tokens": 9}, {"max_tokens": 9}),
    ({"n_predict": 5}, {"n_predict": 5, "max_tokens": 5}),
]


@pytest.mark.parametrize(("given", "limits"), LIMITED)
def test_a_request_without_a_limit_is_sent_the_cap(
    given: dict[str, Any], limits: dict[str, Any]
) -> None:
    for oai_compat in (True, False):
        request = chat(top_k=3, oai_compat=oai_compat, **given)
        before = dict(request.fields)
        out = apply_caps(request, LIMIT)
        told = {key: json.decode(value) for key, value in out.fields.items()}
        assert told == {
            "model": "m", "messages": MESSAGES, "top_k": 3, "oai_compat": oai_compat, **limits,
        }  # fmt: skip
        assert out.max_tokens == limits.get("max_tokens")
        assert out.max_completion_tokens == limits.get("max_completion_tokens")
        assert request.fields == before


@pytest.mark.parametrize(
    ("given", "native", "limit"),
    [
        ({}, False, 16),
        ({"max_tokens": -1}, False, 100),
        ({"max_tokens": 30}, False, 30),
        ({"n_predict": -1}, True, 100),
        ({"n_predict": 30}, True, 30),
        ({}, True, 16),
    ],
)
def test_completions_keep_openais_default(given: dict[str, Any], native: bool, limit: int) -> None:
    request = text(native=native, **given)
    out = apply_caps(request, LIMIT)
    assert out.limit == limit
    made = json.decode(prepare_completion(find("llamacpp"), out, model=None))
    assert made["max_tokens"] == limit and "n_predict" not in made
    assert apply_caps(text(), Caps(max_tokens=3)).limit == 3


@pytest.mark.parametrize("native", [False, True])
def test_an_untouched_completion_has_no_default_but_the_cap(native: bool) -> None:
    request = text(native=native, oai_compat=False, n_predict=-1)
    out = apply_caps(request, LIMIT)
    made = json.decode(prepare_completion(find("llamacpp"), out, model=None))
    assert made == {"model": "m", "prompt": "Hi", "max_tokens": 100}


@given(
    st.dictionaries(
        st.sampled_from(["max_tokens", "max_completion_tokens", "n_predict", "num_predict"]),
        st.none() | st.integers(-2, 120),
    ),
    st.booleans(),
)
def test_no_number_sent_is_over_the_cap(limits: dict[str, Any], compat: bool) -> None:
    for request in (chat(oai_compat=compat, **limits), text(oai_compat=compat, **limits)):
        if any(value is not None and value > 100 for value in limits.values()):
            assert refused(request, LIMIT).code == ABOVE
            continue
        out = apply_caps(request, LIMIT)
        told = {key: json.decode(out.fields[key]) for key in LIMITS if key in out.fields}
        assert all(0 <= value <= 100 for value in told.values())
        own = LIMITS[:2] if isinstance(out, ChatRequest) else LIMITS[:1]
        assert any(name in told for name in own)
