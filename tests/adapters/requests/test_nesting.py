"""Requests as deep and as broad as are accepted: no later step fails, or takes long, for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from wellspoken.adapters.requests.caps import Caps
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.embeddings import decode_embeddings
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.parsing import MOST_KEYS
from wellspoken.adapters.requests.renaming import decode_named
from wellspoken.adapters.requests.shapes import ChatRequest
from wellspoken.adapters.requests.vendor import apply_policy
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import BACKENDS
from wellspoken.adapters.tokens.tokenize import chat_request, request_fields

Made = TypeVar("Made")
START = b'{"model":"m","messages":[{"role":"user","content":"Hi"%b}]%b}'
PLACES = {
    "messages": lambda deep: START % (b',"x":' + deep, b""),
    "tools": lambda deep: (
        START
        % (
            b"",
            b',"tools":[{"type":"function","function":{"name":"f","parameters":{"x":%b}}}]' % deep,
        )
    ),
    "functions": lambda deep: (
        START % (b"", b',"functions":[{"name":"f","parameters":{"x":%b}}]' % deep)
    ),
    "chat_template_kwargs": lambda deep: START % (b"", b',"chat_template_kwargs":{"x":%b}' % deep),
}


def further_down(calls: int, step: Callable[[], Made]) -> Made:
    """Return what `step` returns, from so many calls further down."""
    return further_down(calls - 1, step) if calls else step()


def accepted(place: str, depth: int) -> ChatRequest | None:
    """Return the request that nests so deep, None where it is refused."""
    try:
        return decode_chat(PLACES[place](b"[" * depth + b"]" * depth))
    except RequestError as error:
        assert "nested too deeply" in error.message
        return None


def deepest(place: str) -> ChatRequest:
    """Return the deepest request that is accepted; how deep that is depends on the interpreter."""
    low, high = 500, 100_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(place, middle) else (low, middle)
    request = accepted(place, low)
    assert request is not None
    return request


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("name", ["llamacpp", "vllm", "general", "ollama"])
def test_what_is_accepted_is_not_too_deep_for_what_follows(place: str, name: str) -> None:
    """Such a request was answered 500, within some levels of the interpreter's limit."""
    request, backend = deepest(place), BACKENDS[name]

    def follows() -> None:
        let = apply_policy(request, policy="pass", caps=Caps())
        payload = prepare(backend, let, model="other")
        if backend.tokenize is not None:
            chat_request(backend.tokenize, request_fields(payload))

    further_down(80, follows)


@pytest.mark.parametrize(
    "decode", [decode_chat, decode_completion, decode_embeddings, decode_named]
)
def test_a_request_has_no_million_keys(decode: Callable[[bytes], object]) -> None:
    keys = b",".join(b'"%d":1' % at for at in range(MOST_KEYS + 1))
    with pytest.raises(RequestError, match=f"has {MOST_KEYS + 1} keys") as caught:
        decode(b"{%b}" % keys)
    assert caught.value.code == "object_above_max_properties"
    request, fields = decode_named(
        b'{"model":"m",%b}' % keys.rpartition(b",")[0].partition(b",")[2]
    )
    assert (request, len(fields)) == ("m", MOST_KEYS)
