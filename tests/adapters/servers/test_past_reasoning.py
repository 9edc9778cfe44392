"""Past reasoning: each server gets it under the name that it reads, whatever the client calls it.

Which versions read what: vLLM's pull requests 28531, 27752, 33402 and 42664 and its issue 38488,
Ollama's issue 18534 and its openai/openai.go, llama.cpp's common/chat.cpp.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import find
from wellspoken.adapters.servers.versions import for_version

USER = {"role": "user", "content": "hi"}
BOTH = ("reasoning_content", "reasoning")


def send(backend: Backend, **given: Any) -> dict[str, Any]:
    """Return what is sent of an assistant's message with these keys."""
    said = {"role": "assistant", "content": "yes", **given}
    request = decode_chat(json.encode({"model": "m", "messages": [USER, said, USER]}))
    messages = json.decode(prepare(backend, request, model=None))["messages"]
    assert messages[0] == messages[2] == USER
    sent: dict[str, Any] = messages[1]
    assert sent.pop("role") == "assistant" and sent.pop("content") == "yes"
    return sent


READ = [
    ("vllm", "", BOTH[1:]),
    ("vllm", "0.10.2", BOTH[:1]),
    ("vllm", "0.15.1", BOTH[:1]),
    ("vllm", "0.16.0", BOTH[1:]),
    ("vllm", "0.21.0", BOTH[1:]),
    ("vllm", "0.33.0", BOTH[1:]),
    ("sglang", "", BOTH[:1]),
    ("llamacpp", "b11549", BOTH[:1]),
    ("ollama", "0.33.0", BOTH[1:]),
    ("ollama", "0.9.0", ()),
    ("mlx-lm", "", BOTH),
    ("lmstudio", "", BOTH),
    ("furiosa", "", BOTH),
    ("tgi", "", ()),
    ("llama-cpp-python", "", ()),
    ("cortex", "", ()),
]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("server", "version", "names"), READ)
def test_a_server_gets_it_under_the_name_that_it_reads(
    server: str, version: str, names: tuple[str, ...], name: str
) -> None:
    backend = for_version(find(server), version)
    assert send(backend, **{name: "I think é"}) == dict.fromkeys(names, "I think é")


@pytest.mark.parametrize("name", BOTH)
def test_where_the_name_is_not_known_it_stays_as_it_is(name: str) -> None:
    for server in ("general", "openai"):
        assert send(find(server), **{name: "I think"}) == {name: "I think"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"reasoning_content": "a", "reasoning": "b"}, {"reasoning": "b"}),
        ({"reasoning_content": "a", "reasoning": ""}, {"reasoning": "a"}),
        ({"reasoning_content": "a", "reasoning": None}, {"reasoning": "a"}),
        ({"reasoning_content": "", "reasoning": "b"}, {"reasoning": "b"}),
        ({"reasoning_content": None}, {}),
        ({"reasoning": None}, {}),
        ({"reasoning_content": "", "reasoning": ""}, {}),
        ({"reasoning_content": ""}, {}),
        ({"reasoning_content": ["a"]}, {"reasoning": ["a"]}),
        ({"name": "x", "reasoning_content": "a"}, {"name": "x", "reasoning": "a"}),
    ],
)
def test_both_names_nulls_and_nothing(given: dict[str, Any], sent: dict[str, Any]) -> None:
    """The value that goes is the client's by the server's name, if that says anything."""
    assert send(find("vllm"), **given) == sent
