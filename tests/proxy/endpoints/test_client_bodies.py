"""What real clients send by default is answered, in front of every kind of server.

tests/fixtures/client_bodies.jsonl holds one request a line: who sends it, whether it was recorded
(the version is named; the model is called tiny, ids of calls are alike) or constructed after the
client's source, the path, and the body. Those bodies are read by no other test.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from openai.types import chat, completion_create_params

from tests.conformance import (
    Request,
    Violation,
    check_body,
    check_completion_body,
    check_completion_stream,
    check_stream,
)
from tests.corpus import FIXTURES, checked_request
from tests.fakes.upstream import DONE, Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy, envelope
from wellspoken.adapters.requests.shapes import COMPLETION_KEYS, OPENAI_KEYS
from wellspoken.adapters.servers.registry import BACKENDS, find

Json = dict[str, Any]
BODIES: list[Json] = [
    json.loads(line) for line in (FIXTURES / "client_bodies.jsonl").read_text().splitlines()
]
ADAPTERS = sorted(BACKENDS.keys() - {"llamacpp-native"})  # which asks another endpoint

_PLAIN_TEXT = {"completions prompt": 1, "completions logprobs": 4, "completions best_of": 1}
REFUSED: dict[str, dict[str, int]] = {
    "cortex": {"chat/completions tool_choice": 7},
    "furiosa": {"completions echo": 2},
    "llama-cpp-python": {"completions prompt": 2},
    "lmstudio": {"chat/completions logprobs": 6, **_PLAIN_TEXT},
    "mlx-lm": {
        "chat/completions response_format": 12,
        "chat/completions tool_choice": 7,
        **_PLAIN_TEXT,
    },
    "ollama": {"chat/completions tool_choice": 7, **_PLAIN_TEXT},
    "tgi": {"chat/completions response_format": 3, **_PLAIN_TEXT},
}
"""adapter -> endpoint and `param` of a 400 -> how many of the bodies get it.

These servers cannot do it, as their files say with sources; an adapter that is not here refuses
none of the bodies.
"""


def tokens(text: str, sent: Json) -> Json:
    """Return a chat choice's logprobs, in one entry."""
    row = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
    top = [row] if sent.get("top_logprobs") else []
    return {"content": [{**row, "top_logprobs": top}], "refusal": None}


def chats(sent: Json) -> Script:
    """Answer a chat request, each choice with the same words."""
    lists = tokens("Hi", sent) if sent.get("logprobs") else None
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    head = {"id": "chatcmpl-0123456789", "created": 1_760_000_000, "model": "tiny"}
    indexes = range(sent.get("n") or 1)
    if not sent.get("stream"):
        said = {"role": "assistant", "content": "Hi"}
        last = {"message": said, "finish_reason": "stop", "logprobs": lists}
        choices = [{"index": index, **last} for index in indexes]
        return whole({**head, "object": "chat.completion", "choices": choices, "usage": usage})
    head["object"] = "chat.completion.chunk"
    parts: list[Json] = []
    for index in indexes:
        delta = {"role": "assistant", "content": "Hi"}
        open_ = {"index": index, "delta": delta, "finish_reason": None, "logprobs": lists}
        done = {"index": index, "delta": {}, "finish_reason": "stop"}
        parts += [{**head, "choices": [open_]}, {**head, "choices": [done]}]
    parts.append({**head, "choices": [], "usage": usage})
    return stream(b"".join(map(event, parts)) + DONE)


def texts(sent: Json) -> Script:
    """Answer a completions request, for each prompt its choices."""
    prompt = sent["prompt"]
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    head = {"id": "cmpl-0123456789", "created": 1_760_000_000, "model": "tiny"}
    choices: list[Json] = []
    for one in prompts:
        before = (one if isinstance(one, str) else "abc") if sent.get("echo") else ""
        said = [text for text in (before, "Hi") if text]
        lists = None
        if sent.get("logprobs") is not None:
            known = [{text: -0.5} for text in said]
            lists = {
                "tokens": said,
                "token_logprobs": [None, -0.5][-len(said) :],
                "top_logprobs": [None, *known[1:]] if before else known,
                "text_offset": [0, len(before)][-len(said) :],
            }
        for _ in range(sent.get("n") or 1):
            choices.append({"text": "".join(said), "finish_reason": "stop", "logprobs": lists})
    for index, choice in enumerate(choices):
        choice["index"] = index
    answer = {**head, "object": "text_completion", "choices": choices, "usage": usage}
    return stream(event(answer) + DONE) if sent.get("stream") else whole(answer)


class Answering(Upstream):
    """A server that answers every chat and completions request in OpenAI's form, and no other."""

    def take(self, target: str) -> Script:
        request = self.requests[-1]
        if request.method == "POST" and target.endswith("/chat/completions"):
            return chats(request.json())
        if request.method == "POST" and target.endswith("/completions"):
            return texts(request.json())
        return super().take(target)


def violations(body: Json, path: str, data: bytes) -> list[Violation]:
    """Return what in an answer is not as OpenAI answers such a request."""
    request: Request = checked_request(body)
    if path == CHAT:
        return (check_stream if body.get("stream") else check_body)(data, request)
    checks = check_completion_stream if body.get("stream") else check_completion_body
    return checks(data, request)


async def refusal(proxy: Proxy, line: Json) -> str | None:
    """Send a body; return the `param` of its 400, None for a conforming answer."""
    path, body = line["path"], line["body"]
    async with await proxy.session.post(proxy.url(path), json=body) as response:
        data = await response.read()
    if response.status == 400:
        error = envelope(data)
        assert error["code"] == "unsupported_parameter", (line["client"], error)
        return str(error["param"])
    assert response.status == 200, (line["client"], data)
    assert violations(body, path, data) == [], (line["client"], data)
    return None


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_only_what_a_server_cannot_do_is_refused(
    start_proxy: StartProxy, adapter: str
) -> None:
    backend = find(adapter)
    async with Answering() as upstream:
        proxy = await start_proxy(upstream, adapter=adapter)
        refused: Counter[str] = Counter()
        for line in BODIES:
            body = line["body"]
            if backend.scores == "proxy" and body.get("echo") and body.get("logprobs"):
                continue  # computed with many requests; tests/live does it on a real one
            if line["path"] != CHAT and backend.completions is None:
                continue
            param = await refusal(proxy, line)
            if param is not None:
                refused[f"{line['path'].removeprefix('/v1/')} {param}"] += 1
    assert refused == REFUSED.get(adapter, {})


@pytest.mark.parametrize(
    ("params", "known"),
    [
        (completion_create_params, COMPLETION_KEYS),
        (chat.completion_create_params, OPENAI_KEYS),
    ],
)
def test_the_sdk_has_no_parameter_without_a_row(params: Any, known: frozenset[str]) -> None:
    """openai-python is generated of OpenAI's document; one key more there is a row to write."""
    names = {
        name
        for kind in ("Base", "NonStreaming", "Streaming")
        for name in getattr(params, f"CompletionCreateParams{kind}").__annotations__
    }
    assert len(names) > 15
    assert names - known == set()


def test_every_line_says_where_it_comes_from() -> None:
    assert len(BODIES) >= 60
    assert len({line["client"] for line in BODIES}) == len(BODIES)
    for line in BODIES:
        assert line["origin"].startswith(("recorded from ", "constructed after ")), line["client"]
        assert line["origin"].rpartition(" ")[2], line["client"]


async def test_a_refusal_is_noticed(start_proxy: StartProxy) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    line = {"client": "?", "path": CHAT, "body": {**asked, "modalities": ["audio"]}}
    async with Answering() as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        assert await refusal(proxy, line) == "modalities"
        with pytest.raises(AssertionError, match="integer_below_min_value"):
            await refusal(proxy, {**line, "body": {**asked, "max_tokens": 0}})
