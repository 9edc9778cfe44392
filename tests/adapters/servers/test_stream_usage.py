"""What a stream is asked for so that it tells its counts, and how servers refuse that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.answers import ask
from tests.replay import exchange
from wellspoken.adapters.servers.registry import BACKENDS, find
from wellspoken.adapters.servers.stream_usage import ask_usage, asks_usage, refuses_usage
from wellspoken.adapters.servers.versions import for_version

Json = dict[str, Any]
ALONE: Json = {"include_usage": True}
RUNNING: Json = {**ALONE, "continuous_usage_stats": True}
REFUSALS = [
    (422, '{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],'
          '"msg":"Extra inputs are not permitted","input":{"include_usage":true}}]}'),
    (400, "Unrecognized request argument supplied: stream_options"),
    (400, "Extra parameters ['stream_options'] are not allowed when extra-parameters is not set"),
    (400, "property 'stream_options' is unsupported, did you mean 'stream'?"),
    (400, "Unknown parameter: 'stream_options'."),
    (400, "Validation error at #/stream_options: Extra inputs are not permitted"),
    (422, "extra fields not permitted"),
    (400, "Additional properties are not allowed"),
    (400, "Unexpected field in the request"),
    (500, "create() got an unexpected keyword argument 'stream_options'"),
    (200, '{"error": {"message": "include_usage is not supported"}}'),
    (200, '{"object": "error", "message": "[{\'type\': \'extra_forbidden\', \'loc\': '
          "('body', 'stream_options')}]\"}"),
    (501, "stream_options: not implemented"),
]  # fmt: skip
OTHERS = [
    (401, "stream_options need a key"),
    (429, "stream_options: too many requests"),
    (500, "unexpected field"),
    (503, "stream_options"),
    (500, "Connection lost, unknown state. Request: {'stream_options': {'include_usage': True}}"),
    (500, "KeyError: 'stream_options'"),
    (200, '{"error": "unexpected end", "asked": {"stream_options": {"include_usage": true}}}'),
    (200, '{"choices": [{"delta": {"content": "an error of stream_options"}}]}'),
    (200, '{"choices": []}'),
]


SENT = (b'{"model":"m","messages":[],"max_tokens":5,"n":1,"stream":true,'
        b'"stream_options":{"include_usage":true}}')  # fmt: skip
UNTELLING = [
    (400, ""),
    (422, ""),
    (400, "Bad Request"),
    (400, "<html><body><h1>400 Bad Request</h1>\n</body></html>"),
    (422, '{"detail":"Validation error"}'),
    (400, '{"error":{"message":"Invalid request","type":"invalid_request_error","param":null}}'),
    (400, '{"error":{"code":"1210","message":"API 调用参数有误"}}'),  # Zhipu
    (400, '{"error":{"message":"model m: 400 Bad Request\\nstream failed","param":""}}'),
]
TELLING = [
    (400, "max_tokens is too large"),
    (422, '{"detail":[{"type":"list_type","loc":["body","messages"],"msg":"Input should be"}]}'),
    (400, "n must be 1"),
    (400, '{"error":{"message":"Invalid value","param":"tools"}}'),
    (400, '{"error":{"message":"Invalid prompt","code":"context_length_exceeded"}}'),
    (400, "the request has 5000 tokens, the limit is 4096"),
]
"""What names its cause; `messages`, `max_tokens` and `n` are keys of the request."""


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize(("status", "said"), REFUSALS)
def test_a_refusal_by_its_words(status: int, said: str, taken: bool) -> None:
    """What the server has taken it refuses by name alone, as another one of a gateway's may."""
    named = "stream_options" in said or "include_usage" in said
    assert refuses_usage(status, said.encode(), sent=SENT, taken=taken) == (named or not taken)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize(("status", "said"), OTHERS + TELLING)
def test_what_is_no_refusal_of_it(status: int, said: str, taken: bool) -> None:
    assert not refuses_usage(status, said.encode(), sent=SENT, taken=taken)


@pytest.mark.parametrize(("status", "said"), UNTELLING)
def test_what_does_not_tell_may_be_one_of_what_was_sent_and_not_yet_taken(
    status: int, said: str
) -> None:
    assert refuses_usage(status, said.encode(), sent=SENT, taken=False)
    assert not refuses_usage(status, said.encode(), sent=SENT, taken=True)
    without = b'{"model":"m","messages":[{"content":"\\"stream_options\\":"}],"stream":true}'
    assert not refuses_usage(status, said.encode(), sent=without, taken=False)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_every_server_whose_table_takes_it_is_asked(name: str, kind: Any) -> None:
    backend = find(name)
    asked = replace(exchange(ask()), kind=kind)
    table = backend.chat_table if kind == "chat" else backend.completion_table
    native = bool(table) and table["stream_options"].how == "native"
    assert asks_usage(backend, asked) == native
    assert not asks_usage(backend, replace(asked, enforced=True))


def test_not_a_version_that_does_not_know_it() -> None:
    asked = exchange(ask())
    assert not asks_usage(for_version(find("vllm"), "0.4.2"), asked)
    assert asks_usage(for_version(find("vllm"), "0.5.0"), asked)


@pytest.mark.parametrize("name", ["llamacpp", "general"])
def test_timings_that_the_client_gets_stay_on_its_last_chunk(name: str) -> None:
    """llama.cpp b11549 has them on the usage's chunk where it was asked for that."""
    asked = exchange(ask(timings_per_token=True))
    assert not asks_usage(find(name), asked)
    assert asks_usage(find(name), replace(asked, include_usage=True))
    assert asks_usage(find(name), replace(asked, extensions="none"))
    assert asks_usage(find("vllm"), replace(exchange(ask()), extensions="all"))


@pytest.mark.parametrize(
    ("given", "running", "wanted"),
    [
        (None, False, ALONE),
        (ALONE, False, ALONE),
        ({"include_usage": False}, False, ALONE),
        ({"include_obfuscation": False}, False, {"include_obfuscation": False, **ALONE}),
        ({"include_usage": False, "continuous_usage_stats": True}, False, ALONE),
        (RUNNING, False, RUNNING),
        (ALONE, True, RUNNING),
    ],
)
def test_it_is_merged_into_the_clients_own(given: Any, running: bool, wanted: Json) -> None:
    sent: Json = {} if given is None else {"stream_options": Raw(json.dumps(given).encode())}
    ask_usage(sent, running)
    assert {k: json.loads(bytes(v)) if isinstance(v, Raw) else v
            for k, v in sent["stream_options"].items()} == wanted  # fmt: skip
