"""Vendors' keys: passed, taken out or refused, and never a change to the request itself."""

from __future__ import annotations

import string
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from wellspoken.adapters.requests.caps import CAPPED, DANGEROUS, Caps
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import (
    COMPLETION_KEYS,
    OPENAI_KEYS,
    ChatRequest,
    CompletionRequest,
)
from wellspoken.adapters.requests.vendor import EXTRA_BODY, Policy, apply_policy, vendor_keys

MESSAGES = [{"role": "user", "content": "Hi", "odd": 1}]
CAPS = Caps()
KINDS = ("chat", "completions", "native")


def decoded(kind: str, **fields: Any) -> ChatRequest | CompletionRequest:
    """Return a request of a kind; its keys come before the required ones."""
    if kind == "chat":
        return decode_chat(json.encode({**fields, "model": "m", "messages": MESSAGES}))
    body = json.encode({**fields, "model": "m", "prompt": "Hi"})
    return decode_completion(body, native_names=kind == "native")


def let(
    request: ChatRequest | CompletionRequest, policy: Policy = "pass", caps: Caps = CAPS
) -> ChatRequest | CompletionRequest:
    return apply_policy(request, policy=policy, caps=caps)


def refused(request: ChatRequest | CompletionRequest, policy: Policy = "pass") -> RequestError:
    with pytest.raises(RequestError) as caught:
        let(request, policy)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def sent(request: ChatRequest | CompletionRequest) -> list[tuple[str, bytes]]:
    return [(key, bytes(value)) for key, value in request.fields.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_pass_changes_nothing(kind: str) -> None:
    request = decoded(kind, top_k=40, min_p=0.05, grammar='root ::= "a"', seed=1)
    before = sent(request)
    assert let(request) is request
    assert sent(request) == before


@pytest.mark.parametrize("kind", KINDS)
def test_strip_takes_vendors_keys_out_of_a_new_request(kind: str) -> None:
    request = decoded(kind, top_k=40, seed=1, min_p=0.05, oai_compat=False)
    before = sent(request)
    out = let(request, "strip")
    assert sent(out) == [(k, v) for k, v in before if k not in ("top_k", "min_p")]
    assert sent(request) == before
    assert out.seed == 1 and out.oai_compat is False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("oai_compat", [True, False])
def test_reject_names_the_first_one_as_openai_does(kind: str, oai_compat: bool) -> None:
    error = refused(decoded(kind, seed=1, top_k=None, min_p=0, oai_compat=oai_compat), "reject")
    assert (error.param, error.code) == ("top_k", "unknown_parameter")
    assert error.message.startswith("Unknown parameter: 'top_k'. Leave it out")
    plain = decoded(kind, seed=1, oai_compat=oai_compat)
    assert let(plain, "reject") is plain


def test_a_long_key_is_quoted_shortened() -> None:
    error = refused(decoded("chat", **{"k" * 1000: 1}), "reject")
    assert error.param is not None and len(error.param) < 70
    assert len(error.message) < 200


def test_llama_cpps_names_are_the_endpoints_own_on_its_path_alone() -> None:
    names = {"n_predict": 5, "n_probs": 2}
    assert vendor_keys(decoded("native", **names)) == ()
    assert vendor_keys(decoded("completions", **names)) == ("n_predict", "n_probs")
    out = let(decoded("native", cache_prompt=True, **names), "strip")
    assert isinstance(out, CompletionRequest)
    assert (out.max_tokens, out.logprobs) == (5, 2)
    assert "cache_prompt" not in out.fields


@pytest.mark.parametrize("policy", ["pass", "reject"])
def test_extra_body_is_told_where_its_keys_belong(policy: Policy) -> None:
    error = refused(decoded("chat", extra_body={"n_probs": 10**9}), policy)
    assert (error.param, error.code) == ("extra_body", "unknown_parameter")
    assert "at the top level" in error.message
    assert "extra_body" not in let(decoded("chat", extra_body={}), "strip").fields


def test_keys_inside_of_messages_and_tools_are_not_looked_at() -> None:
    tool = {"type": "function", "function": {"name": "f", "top_k": 1}, "top_k": 1}
    request = decoded("chat", tools=[tool])
    assert let(request, "reject") is request


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_carries_a_program_or_a_host_needs_the_routes_word(name: str) -> None:
    values: list[Any] = ["x", {}, 1, True]
    for value in values:
        request = decoded("chat", **{name: value})
        error = refused(request)
        assert (error.param, error.code) == (name, "unsupported_parameter")
        assert "caps.allow" in error.message
        assert let(request, caps=Caps(allow=(name,))) is request
        assert name not in let(request, "strip").fields
    harmless = decoded("chat", **{name: None})
    assert let(harmless) is harmless


@pytest.mark.parametrize("name", ["tokenize", "chat_template"])
def test_template_arguments_may_not_be_the_renderers_own(name: str) -> None:
    request = decoded("chat", chat_template_kwargs={"enable_thinking": False, name: True})
    assert refused(request).param == f"chat_template_kwargs.{name}"
    assert let(request, caps=Caps(allow=("chat_template",))) is request
    values: list[Any] = [{"enable_thinking": False}, None, 5]
    for value in values:
        plain = decoded("chat", chat_template_kwargs=value)
        assert let(plain) is plain


NAMES = st.text(string.ascii_lowercase + "_é\n", min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
LOOKED_AT = OPENAI_KEYS | COMPLETION_KEYS | CAPPED | {"oai_compat", EXTRA_BODY}
OTHERS = st.dictionaries(
    NAMES.filter(lambda name: name not in LOOKED_AT),
    VALUES,
    max_size=6,
)
OPENAIS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 9),
        "temperature": st.sampled_from([None, 0, 1.5]),
        "stop": st.sampled_from(["x", ["a", "b"]]),
        "oai_compat": st.booleans(),
    },
)


@given(OTHERS, OPENAIS, st.sampled_from(["chat", "completions"]), st.randoms())
def test_whatever_the_keys(others: dict[str, Any], own: dict[str, Any], kind: str, r: Any) -> None:
    pairs = list((others | own).items())
    r.shuffle(pairs)
    request = decoded(kind, **dict(pairs))
    request.fields["spaced"] = Raw(b'{ "a" : 1.50e1 }')
    before = deepcopy(sent(request))
    known = (OPENAI_KEYS if kind == "chat" else COMPLETION_KEYS) | {"oai_compat"}
    assert sent(let(request, "strip")) == [(k, v) for k, v in before if k in known]
    assert sent(let(request)) == before
    assert refused(request, "reject").code == "unknown_parameter"
    assert sent(request) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key", ["Model", "STREAM", "max_to\u212aens", "u\u017fer", "N_Discard", "Options"]
)
def test_a_known_key_in_other_letters_is_no_way_past_route_and_caps(kind: str, key: str) -> None:
    """Go's JSON reads "MODEL" as "model", U+212A as k and U+017F as s, and the later one counts."""
    request = decoded(kind, **{key: "x"})
    for policy in ("pass", "reject"):
        error = refused(request, policy)
        assert (error.param, error.code) == (key, "unknown_parameter")
    assert refused(request).message.endswith(f"Write it as '{key.casefold()}'.")
    assert key not in let(request, "strip").fields
    other = decoded(kind, Top_K=5, X=1)
    assert let(other) is other
