"""What servers are asked for a count, and what of their answers is one.

The shapes are constructed from the sources that adapters/tokens/tokenize.py names, llama.cpp's from
what b11549 answers (tests/live/test_counting.py asks it).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from wellspoken.adapters.servers.known.llama_cpp_python import LLAMA_CPP_PYTHON
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.known.llamacpp_native import LLAMACPP_NATIVE
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.tokens.tokenize import (
    Tokenize,
    chat_request,
    prompts_in,
    read_count,
    read_ids,
    read_prompt,
    request_fields,
    text_request,
)

MODEL = Raw(b'"m"')
COUNTS: dict[str, tuple[Any, int]] = {
    "vllm": ({"count": 3, "max_model_len": 512, "tokens": [1, 2, 3], "token_strs": None}, 3),
    "sglang": ({"tokens": [1, 2, 3], "count": 3, "max_model_len": 512}, 3),
    "llama-cpp-python": ({"count": 0}, 0),
    "llama.cpp": ({"tokens": [1, 2, 3, 4]}, 4),
    "llama.cpp with pieces": ({"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": [195]}]}, 2),
    "llama.cpp, an empty text": ({"tokens": []}, 0),
    "koboldcpp": ({"value": 5, "ids": [1, 2, 3, 4, 5]}, 5),
    "text-generation-webui": ({"length": 6}, 6),
    "text-generation-inference": ([{"id": 1, "text": "a", "start": 0, "stop": 1}], 1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_of_every_known_shape(name: str) -> None:
    answer, count = COUNTS[name]
    assert read_count(json.dumps(answer).encode()) == count
    assert read_count(b" \n" + json.dumps(answer, indent=1).encode()) == count


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"7",
        b'"7"',
        b"{}",
        b'{"count": null}',
        b'{"count": -1}',
        b'{"count": 1.5}',
        b'{"count": "3"}',
        b'{"count": [3]}',
        b'{"count": 1e30}',
        b'{"tokens": 3}',
        b'{"tokens": [1, 2',
        b"<html>",
        b'{"count": 3',
        b"\xff\xfe",
        b'{"detail": "Not Found"}',
    ],
)
def test_what_tells_no_count_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a count, or a list of tokens"):
        read_count(data)


def test_a_templates_prompt() -> None:
    assert read_prompt(b'{"prompt": "<s>Hi"}') == "<s>Hi"
    for data in (b"{}", b'{"prompt": 1}', b'{"prompt": "\xff"}', b"[]"):
        with pytest.raises(ValueError, match="a text as prompt"):
            read_prompt(data)


def form_of(backend: Any) -> Tokenize:
    form = backend.tokenize
    assert isinstance(form, Tokenize)
    return form


@pytest.mark.parametrize(
    ("backend", "prompt", "wanted"),
    [
        (VLLM, False, {"model": "m", "prompt": "é", "add_special_tokens": False}),
        (VLLM, True, {"model": "m", "prompt": "é", "add_special_tokens": True}),
        (LLAMACPP, False, {"content": "é", "add_special": False}),
        (LLAMACPP, True, {"content": "é", "add_special": True}),
        (LLAMACPP_NATIVE, True, {"content": "é", "add_special": True}),
        (LLAMA_CPP_PYTHON, False, {"input": "é"}),
        (LLAMA_CPP_PYTHON, True, {"input": "é"}),
    ],
)
def test_what_a_server_is_asked_of_a_text(backend: Any, prompt: bool, wanted: Any) -> None:
    found = text_request(form_of(backend), "é", MODEL, prompt=prompt)
    assert json.loads(found) == wanted
    unnamed = json.loads(text_request(form_of(backend), "é", None, prompt=prompt))
    assert unnamed == {key: value for key, value in wanted.items() if key != "model"}


def asked_of(form: Tokenize, **fields: Any) -> Any:
    payload = json.dumps({"model": "m", "stream": True, "temperature": 0, **fields}).encode()
    found = chat_request(form, request_fields(payload))
    return None if found is None else json.loads(found)


def test_what_a_server_is_asked_of_a_chat() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    known = {"messages": messages, "tools": tools, "chat_template_kwargs": {"thinking": False}}
    given = {**known, "tool_choice": "auto"}
    # vLLM 0.5 refuses keys that it does not know
    assert asked_of(form_of(VLLM), **given) == {"model": "m", **known}
    assert asked_of(form_of(LLAMACPP), **given) == given
    assert asked_of(form_of(LLAMA_CPP_PYTHON), **given) is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_audio"}]}],
        [{"role": "user", "content": ["a"]}],
        "Hi",
        None,
    ],
)
def test_a_chat_that_is_not_text_alone_is_not_asked_for(messages: Any) -> None:
    assert asked_of(form_of(VLLM), messages=messages) is None


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "you"], ["Hi", "you"]),
        ([1, 2, 3], [3]),
        ([[1, 2], "Hi", []], [2, "Hi", 0]),
        ([], None),
        ([1, "Hi"], None),
        ([True], None),
        ([[1, "a"]], None),
        ({"prompt_string": "Hi"}, None),
    ],
)
def test_the_prompts_of_a_completions_request(value: Any, prompts: Any) -> None:
    assert prompts_in(Raw(json.dumps(value).encode())) == prompts


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ({"count": 2, "tokens": [1, 2], "max_model_len": 9}, (1, 2)),
        ({"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": [195]}]}, (1, 2)),
        ({"value": 2, "ids": [1, 2]}, (1, 2)),
        ([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}], (1, 2)),
        ({"count": 2}, None),
        ({"tokens": ["a", "b"]}, None),
        ({"tokens": [True]}, None),
        ([], None),
        (5, None),
    ],
)
def test_the_ids_of_a_texts_tokens(answer: Any, ids: tuple[int, ...] | None) -> None:
    assert read_ids(json.dumps(answer).encode()) == ids
    assert read_ids(b"{") is None
