"""What llama.cpp's POST /completion and /apply-template are sent, and what they are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ChatRequest
from wellspoken.adapters.servers.forms import RANDOM
from wellspoken.adapters.servers.known.llamacpp_native import (
    LLAMACPP_NATIVE,
    prepare_native,
    read_template,
    template_request,
)

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**more: Any) -> ChatRequest:
    given = {"model": "m", "messages": MESSAGES, **more}
    return decode_chat(json.dumps(given).encode(), bounds="openai")


def sent(request: Any = None, **more: Any) -> Json:
    found: Json = json.loads(prepare_native(request or chat(), **{"prompt": "P", **more}))
    return found


def text(**more: Any) -> Any:
    given = {"model": "m", "prompt": "hi", **more}
    return decode_completion(json.dumps(given).encode(), native_names=True)


def test_a_chat_becomes_a_prompt_with_llamacpps_names() -> None:
    request = chat(
        temperature=0.25,
        top_p=None,
        presence_penalty=1,
        max_completion_tokens=7,
        max_tokens=9,
        seed=3,
        stop="x",
        logprobs=True,
        top_logprobs=4,
        stream=True,
        user="someone",
        metadata={"a": "b"},
        top_k=5,
        min_p=0.5,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert sent(request) == {
        "prompt": "P",
        "temperature": 0.25,
        "presence_penalty": 1,
        "top_k": 5,
        "min_p": 0.5,
        "cache_prompt": True,
        "n_predict": 7,
        "n_probs": 4,
        "seed": 3,
        "stop": ["x"],
        "stream": True,
    }


def test_what_the_caller_says_stands_in_the_place_of_the_requests_own() -> None:
    request = chat(seed=3, stop=["x"], stream=True, max_tokens=9, logprobs=True, n=2)
    asked: Json = {"stops": False, "seed": 8, "stream": False, "limit": 1, "n": 1, "n_probs": 6}
    assert sent(request, **asked, prompt=[1, 2]) == {
        "prompt": [1, 2],
        "cache_prompt": True,
        "n_predict": 1,
        "n_probs": 6,
        "seed": 8,
    }
    assert "n_probs" not in sent(request, n_probs=0)
    assert sent(request)["n_cmpl"] == 2


def test_one_alternative_is_asked_for_where_none_is_wanted() -> None:
    """At 0 llama.cpp gives no logprobs."""
    assert sent(chat(logprobs=True))["n_probs"] == 1
    assert sent(text(logprobs=0), prompt=None)["n_probs"] == 1
    assert "n_probs" not in sent(text(), prompt=None)


def test_a_completion_has_its_own_prompt_and_limit() -> None:
    found = sent(text(n_probs=2, n_predict=5, response_fields=["content"], n_cmpl=3), prompt=None)
    assert found == {"prompt": "hi", "cache_prompt": True, "n_predict": 5, "n_probs": 2}
    assert sent(text(), prompt=None)["n_predict"] == 16
    assert "n_predict" not in sent(text(n_predict=-1), prompt=None)
    assert "n_predict" not in sent(chat())
    assert sent(text(cache_prompt=False), prompt=None)["cache_prompt"] is False
    with pytest.raises(ValueError, match="apply-template"):
        prepare_native(chat())


def test_an_untouched_request_stays_so() -> None:
    found = sent(text(oai_compat=False, n_predict=4, stop=["x"]), prompt=None, stops=False)
    assert found == {"model": "m", "prompt": "hi", "n_predict": 4, "stop": ["x"]}


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [(0, 0), (-2, RANDOM - 1), (-1, RANDOM // 2), (RANDOM, RANDOM // 2), (2**40 + 3, 3)],
)
def test_no_seed_means_a_random_one(seed: int, wanted: int) -> None:
    assert sent(chat(seed=seed))["seed"] == wanted


def test_biases_are_pairs_and_the_least_bans() -> None:
    found = sent(chat(logit_bias={"17": -100, "18": 100, "19": -99.5}))
    assert found["logit_bias"] == [[17, False], [18, 100], [19, -99.5]]


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_object", "schema": {"type": "array"}}, {"type": "array"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string"}}},
            {"type": "string"},
        ),
    ],
)
def test_response_format_is_a_schema(given: Json, schema: Json | None) -> None:
    assert sent(chat(response_format=given)).get("json_schema") == schema


def test_two_forms_of_an_answer_are_refused() -> None:
    with pytest.raises(RequestError) as told:
        sent(chat(response_format={"type": "json_object"}, grammar='root ::= "a"'))
    assert (told.value.status, told.value.param) == (400, "grammar")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"functions": [TOOL["function"]]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"messages": [*MESSAGES, {"role": "user", "content": [IMAGE]}]}, "messages[1].content[0]"),
    ],
)
def test_what_the_endpoint_cannot_do_is_refused(more: Json, param: str) -> None:
    with pytest.raises(RequestError) as told:
        sent(chat(**more))
    assert (told.value.status, told.value.code) == (400, "unsupported_parameter")
    assert told.value.param == param and "llama" in told.value.message


def test_tools_that_are_not_to_be_called_pass() -> None:
    found = sent(chat(tools=[TOOL], tool_choice="none"))
    assert not {"tools", "tool_choice"} & set(found)
    with pytest.raises(RequestError) as told:
        sent(text(suffix="s"), prompt=None)
    assert told.value.param == "suffix"


def test_the_template_is_asked_with_what_it_reads() -> None:
    request = chat(
        tools=[TOOL],
        tool_choice="none",
        chat_template_kwargs={"x": 1},
        logprobs=True,
        stream=True,
        temperature=0,
    )
    assert json.loads(template_request(LLAMACPP_NATIVE, request)) == {
        "messages": MESSAGES,
        "chat_template_kwargs": {"x": 1},
    }


def test_the_templates_answer_is_a_prompt() -> None:
    assert read_template(b'{"prompt": "<s>hi", "more": 1}') == "<s>hi"
    for data in (b'{"prompt": 1}', b"<html>", b"\xff"):
        with pytest.raises(RequestError) as told:
            read_template(data)
        assert told.value.status == 502


def test_the_backend_speaks_its_own_dialect_on_both_endpoints() -> None:
    for endpoint in (LLAMACPP_NATIVE.chat, LLAMACPP_NATIVE.completions):
        assert endpoint is not None
        assert (endpoint.path, endpoint.dialect) == ("/completion", "llamacpp")
