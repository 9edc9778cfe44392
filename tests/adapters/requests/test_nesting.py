"""Requests as deep and as broad as are accepted: no later step fails, or takes long, for it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.nesting import filled, further_down
from wellspoken.adapters.nesting import DEEPEST
from wellspoken.adapters.requests.caps import Caps
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.embeddings import decode_embeddings
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.parsing import MOST_KEYS
from wellspoken.adapters.requests.renaming import decode_named
from wellspoken.adapters.requests.vendor import apply_policy
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import BACKENDS
from wellspoken.adapters.tokens.tokenize import chat_request, request_fields

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


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_request_nests_so_deep_and_no_deeper(place: str) -> None:
    assert decode_chat(nested(place, DEEPEST)).fields
    for depth in (DEEPEST + 1, 20_000):
        with pytest.raises(RequestError, match=f"nested too deeply, and {DEEPEST} levels"):
            decode_chat(nested(place, depth))


def nested(place: str, depth: int) -> bytes:
    """Return a request that nests so deep in all."""
    return filled(json.loads(PLACES[place](b'"@"')), depth)


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("name", ["llamacpp", "vllm", "general", "ollama"])
def test_what_is_accepted_is_not_too_deep_for_what_follows(place: str, name: str) -> None:
    """The deepest request was answered 500 where an interpreter's own limit was what bounds it."""
    backend = BACKENDS[name]

    def follows() -> None:
        request = decode_chat(nested(place, DEEPEST))
        let = apply_policy(request, policy="pass", caps=Caps())
        payload = prepare(backend, let, model="other")
        if backend.tokenize is not None:
            chat_request(backend.tokenize, request_fields(payload))

    further_down(follows)


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
