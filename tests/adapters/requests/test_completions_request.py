"""The completions request: what is accepted, refused and sent on, and its `Exchange`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json, structs

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests import completions_bounds
from wellspoken.adapters.requests.completions import (
    decode_completion,
    exchange_for_completion,
    prompts,
)
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ALL_ALTERNATIVES, COMPLETION_KEYS, CompletionRequest
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import rows
from wellspoken.adapters.servers.prepare import prepare_completion
from wellspoken.adapters.servers.registry import BACKENDS, COMPLETIONS, find

FILLS = find("openai")
PLAIN = structs.replace(
    FILLS,
    title="a plain server",
    completion_table=COMPLETIONS | rows("user", "accepted") | rows("suffix", "refused"),
)
INT64 = 2**63


def body(**fields: Any) -> bytes:
    return json.encode({"model": "m", "prompt": "hi", **fields})


def decode(**fields: Any) -> CompletionRequest:
    return decode_completion(body(**fields))


def native(**fields: Any) -> CompletionRequest:
    return decode_completion(json.encode({"prompt": "hi", **fields}), native_names=True)


def refused(data: bytes, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        decode_completion(data, **options)
    error = raised.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert json.decode(error.body())["error"]["param"] == error.param
    return error


def send(
    request: CompletionRequest, backend: Backend = PLAIN, model: str | None = None, **options: Any
) -> dict[str, Any]:
    decoded = json.decode(prepare_completion(backend, request, model=model, **options))
    assert isinstance(decoded, dict)
    return decoded


def exchange(request: CompletionRequest, **options: Any) -> Exchange:
    return exchange_for_completion(request, now=1, new_id=lambda: "12345678", **options)


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"prompt": ""},
    {"prompt": ["a", ""]},
    {"prompt": [0, 2**31 - 1]},
    {"prompt": [[1, 2], [3]]},
    {"prompt": ["x"] * 128},
    {"prompt": ["x"] * 32, "n": 4},
    {"n": 128, "temperature": 2, "top_p": 0, "presence_penalty": -2, "frequency_penalty": 2.0},
    {"n": 2, "best_of": 20},
    {"n": 2, "best_of": 2, "stream": True},
    {"logprobs": 0},
    {"logprobs": 5, "echo": True, "max_tokens": 0},
    {"stop": ["a", "b", "c", "d"]},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"logit_bias": {"50256": -100}},
    {"seed": -INT64, "user": "u", "suffix": "x"},
    {"n_predict": "not ours", "n_probs": "nor this", "top_k": 1, "fields": 1, "native": 2},
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_accepted(fields: dict[str, Any]) -> None:
    for bounds in ("openai", "backend"):
        request = decode_completion(body(**fields), bounds=bounds)
        decoded = {key: json.decode(value) for key, value in request.fields.items()}
        assert decoded == json.decode(body(**fields))
        completions_bounds.check(request, strict=True)  # a route's own bounds are checked again


def test_null_is_accepted_for_every_optional() -> None:
    names = COMPLETION_KEYS - {"model", "prompt"} | {"oai_compat", "n_predict", "n_probs"}
    for native_names in (False, True):
        request = decode_completion(body(**dict.fromkeys(names)), native_names=native_names)
        assert {name for name in names if getattr(request, name, None) is not None} == {
            "oai_compat"
        }
        assert request.oai_compat is True and request.limit == 16
        assert set(send(request)) - {"n_predict", "n_probs"} == {"model", "prompt", "max_tokens"}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": {"prompt_string": "x"}}, "prompt", "invalid_type"),
    ({"prompt": []}, "prompt", "empty_array"),
    ({"prompt": [None]}, "prompt[0]", "invalid_type"),
    ({"prompt": [True]}, "prompt[0]", "invalid_type"),
    ({"prompt": [1.0]}, "prompt[0]", "invalid_type"),
    ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
    ({"prompt": [1, 2, "a"]}, "prompt[2]", "invalid_type"),
    ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
    ({"prompt": [[1], 2]}, "prompt[1]", "invalid_type"),
    ({"prompt": [[1], []]}, "prompt[1]", "empty_array"),
    ({"prompt": [[1], [2, "a"]]}, "prompt[1][1]", "invalid_type"),
    ({"prompt": [1, -1]}, "prompt[1]", "integer_below_min_value"),
    ({"prompt": [[1], [2**31]]}, "prompt[1][0]", "integer_above_max_value"),
    ({"prompt": ["x"] * 129}, "prompt", "array_above_max_length"),
    ({"prompt": [[1]] * 128 + [[]]}, "prompt", "array_above_max_length"),  # not looked at each
    ({"prompt": ["x"] * 65, "n": 2}, "n", "invalid_value"),
    ({"prompt": ["x"] * 65, "best_of": 2}, "best_of", "invalid_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 129}, "n", "integer_above_max_value"),
    ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
    ({"best_of": 0}, "best_of", "integer_below_min_value"),
    ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"max_tokens": INT64}, "max_tokens", "integer_above_max_value"),
    ({"seed": INT64}, "seed", "integer_above_max_value"),
    ({"stop": ["x"] * 1025}, "stop", "array_above_max_length"),
    ({"echo": 1}, "echo", "invalid_type"),
    ({"suffix": []}, "suffix", "invalid_type"),
]
ONLY_OPENAI: list[tuple[dict[str, Any], str, str]] = [
    ({"best_of": 21}, "best_of", "integer_above_max_value"),
    ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
    ({"logprobs": -1}, "logprobs", "integer_below_min_value"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"temperature": 2.5}, "temperature", "decimal_above_max_value"),
    ({"top_p": -0.5}, "top_p", "decimal_below_min_value"),
    ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value"),
    ({"stop": ["x"] * 5}, "stop", "array_above_max_length"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "integer_above_max_value"),
    ({"stream_options": {}}, "stream_options", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_refused_under_any_bounds(fields: dict[str, Any], param: str, code: str) -> None:
    for bounds in ("openai", "backend"):
        error = refused(body(**fields), bounds=bounds)
        assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(("fields", "param", "code"), ONLY_OPENAI)
def test_openais_own_bounds(fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(body(**fields))
    assert (error.param, error.code) == (param, code)
    with pytest.raises(RequestError):
        completions_bounds.check(decode_completion(body(**fields), bounds="backend"), strict=True)


def test_the_words_of_a_refusal() -> None:
    said = refused(body(prompt=[1, "a"])).message
    assert said == "Invalid type for 'prompt[1]': expected an integer, but got a string instead."
    said = refused(b'{"model":"m","prompt":[1,' + b"9" * 5000 + b"]}").message
    assert said.startswith("Invalid value for 'prompt") and len(said) < 200
    said = refused(body(prompt=[10**4000])).message
    assert "got 1000" in said and len(said) < 200
    assert '"prompt": ...' in refused(b"[]").message
    assert refused(b"").code == "invalid_json"
    assert refused(b'{"model":"m"}').code == "missing_required_parameter"
    assert refused(b'{"prompt":"hi"}').message == "you must provide a model parameter"
    assert decode_completion(b'{"prompt":"hi"}', bounds="backend").model == ""


def test_a_client_cannot_set_what_the_decoder_sets() -> None:
    keys = {"wellspoken.native": True, "wellspoken.unlimited": True, "wellspoken.fields": {}}
    request = decode(**keys)
    assert not request.native and not request.unlimited
    assert {"model", "prompt"} < set(request.fields)


def test_prompts() -> None:
    assert prompts(decode()) == ("hi",)
    assert prompts(decode(prompt=["a", "b"])) == ("a", "b")
    assert prompts(decode(prompt=[1, 2])) == ((1, 2),)
    assert prompts(decode(prompt=[[1, 2], [3]])) == ((1, 2), (3,))


def test_the_names_of_llamacpp_count_where_openais_are_absent() -> None:
    request = native(n_predict=5, n_probs=2)
    assert (request.limit, request.logprobs) == (5, 2)
    assert send(request) == {"prompt": "hi", "max_tokens": 5, "logprobs": 2}
    request = native(max_tokens=7, n_predict=5, logprobs=1, n_probs=2)
    assert (request.limit, request.logprobs) == (7, 1)
    assert send(request) == {"prompt": "hi", "max_tokens": 7, "logprobs": 1}
    request = native(n_predict=0, n_probs=0)
    assert (request.limit, request.logprobs) == (0, None)
    assert native().limit == 16


@pytest.mark.parametrize("n_predict", [-1, -2])
def test_a_negative_n_predict_is_no_limit(n_predict: int) -> None:
    request = native(n_predict=n_predict)
    assert request.unlimited and request.limit is None and exchange(request).max_tokens is None
    assert send(request) == {"prompt": "hi", "max_tokens": None}
    assert not native(n_predict=n_predict, max_tokens=3).unlimited


def test_the_names_of_llamacpp_are_checked_by_their_name() -> None:
    error = refused(body(n_probs=6), native_names=True)
    assert (error.param, error.code) == ("n_probs", "integer_above_max_value")
    assert refused(body(n_predict="5"), native_names=True).param == "n_predict"
    assert refused(body(n_predict=INT64), native_names=True, bounds="backend").param == "n_predict"
    assert refused(body(prompt=[1, "a"]), native_names=True).param == "prompt[1]"
    assert send(decode(n_predict=5))["n_predict"] == 5  # elsewhere a vendor's key


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", 1], [[1, "a"], "b"], {"prompt_string": "a"}])
def test_what_passes_untouched_may_have_llamacpps_prompts(prompt: Any) -> None:
    request = native(prompt=prompt, oai_compat=False, n_predict=-1, n_probs=9)
    assert prompts(request) == ()
    assert send(request) == {"prompt": prompt, "n_predict": -1, "n_probs": 9}
    refused(body(prompt=prompt, oai_compat=False))


def test_the_exchange() -> None:
    found = exchange(
        decode(
            prompt=["né", "b"], n=3, echo=True, logprobs=2, max_tokens=9, stop=["x", ""],
            stream=True, stream_options={"include_usage": True}, return_token_ids=True, top_k=None,
        ),
        extensions="all",
        keep=frozenset({"k"}),
    )  # fmt: skip
    assert (found.kind, found.model, found.now, found.new_id()) == (
        "completions",
        "m",
        1,
        "12345678",
    )
    assert (found.n, found.prompts, found.echo) == (6, ("né", "b"), True)
    assert [found.prompt_of(choice) for choice in (0, 2, 3, 5)] == ["né", "né", "b", "b"]
    assert (found.logprobs, found.k, found.max_tokens, found.stops) == (True, 2, 9, ("x",))
    assert (found.stream, found.include_usage, found.prompt_size) == (True, True, 4)
    assert found.switches == {"return_token_ids"}
    assert found.extensions == "all" and found.keep == {"k"}


def test_the_exchange_of_token_ids_and_defaults() -> None:
    found = exchange(decode(prompt=[[1, 2], [3]]))
    assert (found.prompts, found.n, found.prompt_size) == ((None, None), 2, 12)
    assert (found.logprobs, found.k, found.max_tokens, found.stops) == (False, 0, 16, ())
    assert (found.stream, found.include_usage, found.echo) == (False, False, False)
    assert (exchange(decode(logprobs=0)).logprobs, exchange(decode(logprobs=0)).k) == (True, 0)
    assert exchange(decode(max_tokens=0)).max_tokens == 0
    loose = decode_completion(body(logprobs=-1, max_tokens=-1), bounds="backend")
    assert (exchange(loose).k, exchange(loose).max_tokens) == (ALL_ALTERNATIVES, None)
    assert send(loose)["logprobs"] == -1 and send(loose)["max_tokens"] == -1


def test_values_go_out_as_sent_and_in_order() -> None:
    request = decode_completion(
        b'{ "top_k" : 40, "prompt": [ "caf\\u00e9" ], "big": 1e400, "temperature":0.70,"n":1,'
        b'"model":"m","nothing":null,"seed":null,"logprobs": 3,"best_of":1,"max_tokens": 5}'
    )
    expected = (
        b'{"top_k":40,"prompt":[ "caf\\u00e9" ],"big":1e400,"temperature":0.70,"n":1,'
        b'"model":"m","nothing":null,"logprobs":3,"max_tokens":5}'
    )
    for _ in range(2):  # a retry prepares again
        assert prepare_completion(PLAIN, request, model=None) == expected


def test_the_limit_is_always_said() -> None:
    for adapter in (name for name, backend in BACKENDS.items() if backend.completions):
        assert send(decode(), find(adapter)) == {"model": "m", "prompt": "hi", "max_tokens": 16}
    assert send(decode(max_tokens=0), model="served")["max_tokens"] == 0
    assert send(decode(), model="served")["model"] == "served"


def test_logprobs_0_asks_for_one() -> None:
    assert send(decode(logprobs=0))["logprobs"] == 1
    assert send(decode(logprobs=4))["logprobs"] == 4
    assert send(decode(), logprobs=0)["logprobs"] == 1
    assert send(decode(logprobs=4), logprobs=2)["logprobs"] == 2
    assert "logprobs" not in send(decode())


def test_a_part_of_the_request() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    request = decode(prompt=["a", "b"], n=3, best_of=3, seed=7, stop="x", **options)
    whole = send(request)
    assert send(request, prompt="b", n=1, seed=9) == {**whole, "prompt": "b", "n": 1, "seed": 9}
    assert send(request, prompt=(1, 2))["prompt"] == [1, 2]
    assert list(whole.keys() - send(request, without=frozenset({"stop"})).keys()) == ["stop"]
    assert send(request, enforced=True) == {k: v for k, v in whole.items() if k != "stop"}
    assert send(decode(stop="x"), enforced=True)["stream"] is True
    assert send(request) == whole and prompts(request) == ("a", "b")


def test_suffix_goes_only_where_it_is_known() -> None:
    assert send(decode(suffix="s"), FILLS)["suffix"] == "s"
    assert "suffix" not in send(decode(suffix=""))
    with pytest.raises(RequestError) as raised:
        send(decode(suffix="s"))
    assert (raised.value.status, raised.value.param) == (400, "suffix")
    assert raised.value.code == "unsupported_parameter" and "a plain server" in str(raised.value)


def test_helpful_keys_go_only_where_they_are_known() -> None:
    request = decode(user="u", safety_identifier="s", echo=False, min_p=0.1)
    assert send(request, FILLS).keys() - send(request).keys() == {"user"}
    assert send(request)["echo"] is False and send(request)["min_p"] == 0.1
    assert "safety_identifier" not in send(request, FILLS)


def test_untouched_but_for_our_key_and_the_model() -> None:
    fields = {"n": None, "suffix": "s", "logprobs": 0, "best_of": 2, "user": "u"}
    sent = send(decode(oai_compat=False, **fields), model="served")
    assert sent == {"model": "served", "prompt": "hi", **fields}


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(COMPLETION_KEYS | {"n_predict"})), anything))
def test_any_object_is_read_or_refused(fields: dict[str, Any]) -> None:
    for native_names in (False, True):
        try:
            request = decode_completion(body(**fields), bounds="backend", native_names=native_names)
        except RequestError as error:
            assert error.status == 400
        else:
            assert len(prompts(request)) == len(exchange(request).prompts) >= 1
            assert prepare_completion(FILLS, request, model="m")


requests = st.fixed_dictionaries(
    {
        "prompt": st.text(min_size=1)
        | st.lists(st.text(), min_size=1, max_size=3)
        | st.lists(st.integers(0, 99), min_size=1)
        | st.lists(st.lists(st.integers(0, 99), min_size=1), min_size=1, max_size=3)
    },
    optional={
        "logprobs": st.integers(0, 5) | st.none(),
        "max_tokens": st.integers(0, 99) | st.none(),
        "n": st.integers(1, 4) | st.none(),
        "temperature": st.floats(0, 2) | st.none(),
        "min_p": anything,
        "best_of": st.integers(4, 20),
    },
)


@given(requests)
def test_each_value_arrives_or_has_a_rule(fields: dict[str, Any]) -> None:
    request = decode(**fields)
    wanted = {"model": "m", "max_tokens": 16}
    wanted |= {k: v for k, v in fields.items() if v is not None or k == "min_p"}
    wanted.pop("best_of", None)
    if wanted.get("logprobs") == 0:
        wanted["logprobs"] = 1
    assert send(request) == wanted
    again = decode_completion(prepare_completion(PLAIN, request, model=None))
    assert send(again) == wanted and prompts(again) == prompts(request)
    assert exchange(request).n == len(prompts(request)) * (fields.get("n") or 1)
