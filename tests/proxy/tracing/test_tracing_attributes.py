"""What a request's body says of itself in a span, whatever a client wrote there."""

from __future__ import annotations

from typing import Any

import pytest

from wellspoken.adapters.events import Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.tracing.attributes import address, of_answer, parameters


def of(payload: bytes, *, stream: bool = False) -> dict[str, Any]:
    """Return what a body gives, without the prefix that the names share."""
    found = parameters(BackendRequest("/v1/chat/completions", payload, stream))
    return {key.removeprefix("gen_ai."): value for key, value in found.items()}


def test_numbers_have_the_conventions_names_and_types() -> None:
    payload = b"""{"max_tokens": 5, "temperature": 1, "top_p": 0.5, "top_k": 40, "seed": -7, "n": 3,
        "frequency_penalty": -0.5, "presence_penalty": 2, "model": "m", "top_logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"""
    found = of(payload, stream=True)
    assert found == {
        "output.type": "json",
        "request.choice.count": 3,
        "request.frequency_penalty": -0.5,
        "request.max_tokens": 5,
        "request.presence_penalty": 2.0,
        "request.seed": -7,
        "request.stream": True,
        "request.temperature": 1.0,
        "request.top_k": 40.0,
        "request.top_p": 0.5,
    }
    doubles = ("frequency_penalty", "presence_penalty", "temperature", "top_k", "top_p")
    assert all(type(found[f"request.{name}"]) is float for name in doubles)


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"]
)
def test_the_limit_goes_by_many_names(name: str) -> None:
    assert of(b'{"%b": 5}' % name.encode()) == {"request.max_tokens": 5}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"[" * 100_000,
        b'{"n": ' + b"[" * 100_000,
        b'{"n": 1}',
        b'{"temperature": "secret", "seed": "secret", "n": "secret", "max_tokens": "secret"}',
        b'{"temperature": true, "seed": true, "n": false, "max_tokens": true, "top_k": [1]}',
        b'{"temperature": null, "seed": 1.5, "n": {}, "max_tokens": 1e3, "top_p": 1e999}',
        b'{"seed": 9223372036854775808, "max_tokens": -9223372036854775809}',
        b'{"response_format": "json", "encoding_format": ["float"], "dimensions": "x"}',
        b'{"response_format": {"type": "secret"}, "encoding_format": "secret"}',
        b'{"response_format": {"type": ["json_object"]}}',
    ],
)
def test_what_is_no_number_of_its_kind_is_left_out(payload: bytes) -> None:
    assert of(payload) == {}


def test_an_answers_counts_and_reasons() -> None:
    exchange = Exchange(model="m", now=0, new_id=lambda: "x")
    assert of_answer(None) == of_answer(exchange) == {}
    exchange.result.usage = Usage(19, 6)
    exchange.result.usage_source = "tokenizer"
    exchange.result.id = "chatcmpl-1"
    exchange.result.reasons = {1: "length", 0: "stop"}
    assert of_answer(exchange) == {
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.usage.input_tokens": 19,
        "gen_ai.usage.output_tokens": 6,
        "wellspoken.usage.source": "tokenizer",
    }


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://gpu:8000", "gpu", 8000),
        ("https://api.example/x", "api.example", 443),
        ("http://[::1]", "::1", 80),
        ("unix:/run/a.sock", "/run/a.sock", None),
    ],
)
def test_where_a_backend_is(url: str, host: str, port: int | None) -> None:
    wanted = {"server.address": host, **({"server.port": port} if port else {})}
    assert address(url) == wanted
