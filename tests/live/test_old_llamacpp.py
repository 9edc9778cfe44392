"""An older llama.cpp (b7376, late 2025) behind the proxy: what the newest build's tests ask of it.

It runs in a virtual environment of its own, which `make check` creates: two builds of one wheel do
not fit in one. What it answers is read by a reader of the tests' own, and no number may differ.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance import (
    Facts,
    check_body,
    check_completion_body,
    check_completion_stream,
    check_error,
    check_stream,
)
from tests.corpus import Dialect, Fixture, checked_request
from tests.fold import chunks_of, comparable, fold, fold_completion
from tests.live.effects import EFFECTS, Ask, Effect
from tests.live.effects_chat import (
    CHAT_EFFECTS,
    TOOL_EFFECTS,
    formed_beside_tools,
    formed_without_call,
)
from tests.models.tiny import TEXT
from tests.reading import facts_of
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-llamacpp-old" / "bin" / "python"
INSTALLED = ROOT / ".venv-llamacpp-old" / ".installed"
SERVE = Path(__file__).with_name("serve_xllamacpp.py")
BUILD = "b7376"

pytestmark = pytest.mark.skipif(
    not INSTALLED.exists(), reason="no older llama.cpp here: make .venv-llamacpp-old/.installed"
)

CHAT, TEXTS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Tells the time.",
            "parameters": {"type": "object", "properties": {"tz": {"type": "string"}}},
        },
    }
]
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
ADAPTERS = ["llamacpp", "llamacpp-native", "openai", "auto"]


@pytest.fixture(scope="module")
def old_llamacpp(tiny_model: Path) -> Iterator[str]:
    """The base URL of the older llama.cpp, a child process."""
    command = [str(PYTHON), str(SERVE), str(tiny_model)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, f"{' '.join(command)} ended without a word; run it to see why"
        said = json.loads(line)
        assert said["version"] == "0.2.7"
        yield str(said["url"])
        child.terminate()


@pytest.fixture(params=["llamacpp"])
async def old_proxy(old_llamacpp: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The base URL of a proxy in front of it; parametrize indirectly for another adapter."""
    backend = {"url": old_llamacpp, "adapter": request.param}
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}, {}))
    host, port = await service.start()
    yield f"http://{host}:{port}"
    await service.stop()


def question(content: str = "hi", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "temperature": 0, "seed": 1, "messages": messages, **more}


def prompt(script: str = "", **more: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "temperature": 0, "seed": 1, "max_tokens": 40}
    return {**asked, "prompt": PROMPT + script, **more}


async def ask(url: str, path: str, asked: dict[str, Any], status: int = 200) -> bytes:
    async with ClientSession() as session, session.post(f"{url}{path}", json=asked) as answer:
        data = await answer.read()
        assert answer.status == status, data
        return data


async def facts(
    url: str, path: str, sent: dict[str, Any], asked: dict[str, Any], dialect: Dialect
) -> Facts:
    """Return what the server itself answers, asked in its own words."""
    raw = await ask(url, path, sent)
    kind = "text/event-stream" if sent.get("stream") else "application/json"
    found = facts_of(Fixture("live", "live", asked, 200, kind, raw, "captured", SERVE, dialect))
    assert found is not None and found.choices[0].rows
    return replace(found, id=None)  # of another answer


EVERY_TEXT: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("", {"logprobs": 3}),
    ("", {"logprobs": 3, "stop": [" done"]}),
    ("", {"logprobs": 0}),
    ("", {"logprobs": 2, "n": 2}),
    ("<|loop|>", {"logprobs": 2, "max_tokens": 9}),
    ("<|cut|>", {"logprobs": 2}),
    ("<|empty|>", {"logprobs": 2}),
]


def loses(more: dict[str, Any]) -> bool:
    """Say whether llama.cpp's own answer would lack entries: only its adapters know of that."""
    return more.keys() >= {"stop", "logprobs"}


async def test_it_is_that_build(old_llamacpp: str) -> None:
    async with ClientSession() as session, session.get(f"{old_llamacpp}/props") as answer:
        props = await answer.json()
    assert props["build_info"].startswith(f"{BUILD}-")


EVERY: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("", {"stop": " done"}),
    ("", LOGPROBS),
    ("", LOGPROBS | {"stop": " done"}),
    ("", {"logprobs": True}),
    ("", {"n": 2, **LOGPROBS}),
    ("@tool", {"tools": TOOLS}),
    ("@think", LOGPROBS),
    ("@cut", LOGPROBS),
    ("@loop", {"max_tokens": 9, **LOGPROBS}),
    ("@empty", LOGPROBS),
]


@pytest.mark.parametrize("old_proxy", ADAPTERS, indirect=True)
async def test_chat_conforms_and_a_stream_folds_to_its_body(
    old_proxy: str, request: pytest.FixtureRequest
) -> None:
    adapter = request.node.callspec.params["old_proxy"]
    for content, more in EVERY:
        if adapter == "openai" and loses(more):
            continue
        asked = question(content or "hi", **more)
        if adapter == "llamacpp-native" and "tools" in more:
            assert check_error(await ask(old_proxy, CHAT, asked, 400), 400) == []
            continue
        body = await ask(old_proxy, CHAT, asked)
        assert check_body(body, checked_request(asked)) == [], (content, more)
        streamed = asked | {"stream": True, "stream_options": {"include_usage": True}}
        stream = await ask(old_proxy, CHAT, streamed)
        assert check_stream(stream, checked_request(streamed)) == [], (content, more)
        if "n" not in more:  # choices that are computed together differ in the last digits
            assert comparable(fold(stream)) == comparable(json.loads(body)), (content, more)


async def test_a_tool_call_is_one(old_proxy: str) -> None:
    asked = question("@tool", tools=TOOLS)
    body = json.loads(await ask(old_proxy, CHAT, asked))
    stream = fold(await ask(old_proxy, CHAT, asked | {"stream": True}))
    for choice in (body["choices"][0], stream["choices"][0]):
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "get_time"
        assert json.loads(call["function"]["arguments"]) == {"tz": "UTC"}


async def test_the_limit_holds_under_both_names(old_proxy: str, old_llamacpp: str) -> None:
    own = question("@loop", max_completion_tokens=7)
    ignored = json.loads(await ask(old_llamacpp, CHAT, own))
    assert ignored["usage"]["completion_tokens"] > 100  # before llama.cpp's #19831
    for limit in ("max_tokens", "max_completion_tokens"):
        body = json.loads(await ask(old_proxy, CHAT, question("@loop", **{limit: 7})))
        assert body["usage"]["completion_tokens"] == 7
        assert body["choices"][0]["finish_reason"] == "length"


async def test_a_function_needs_no_description(old_proxy: str) -> None:
    asked = question("@tool", tools=[{"type": "function", "function": {"name": "get_time"}}])
    body = json.loads(await ask(old_proxy, CHAT, asked))
    assert body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_has_the_servers_own_numbers(
    old_llamacpp: str, old_proxy: str, stream: bool
) -> None:
    asked = question(**LOGPROBS, stream=stream)
    own = await facts(old_llamacpp, CHAT, asked, asked, "chat")
    answer = await ask(old_proxy, CHAT, asked)
    check = check_stream if stream else check_body
    assert check(answer, checked_request(asked), own) == []
    assert (fold(answer) if stream else json.loads(answer))["choices"][0]["message"][
        "content"
    ] == TEXT


@pytest.mark.parametrize("path", [TEXTS, NATIVE])
@pytest.mark.parametrize("old_proxy", ADAPTERS, indirect=True)
async def test_completions_conform_and_a_stream_folds_to_its_body(
    old_proxy: str, path: str, request: pytest.FixtureRequest
) -> None:
    adapter = request.node.callspec.params["old_proxy"]
    for script, more in EVERY_TEXT:
        if adapter == "openai" and loses(more):
            continue
        asked = prompt(script, **more)
        body = await ask(old_proxy, path, asked)
        assert check_completion_body(body, checked_request(asked)) == [], (script, more)
        stream = await ask(old_proxy, path, asked | {"stream": True})
        found = check_completion_stream(stream, checked_request(asked | {"stream": True}))
        assert found == [], (script, more)
        if "n" not in more:
            folded, whole = comparable(fold_completion(stream)), comparable(json.loads(body))
            assert folded == whole, (script, more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "dialect", "names"),
    [
        (TEXTS, "completions", {"logprobs": 3}),
        (NATIVE, "llamacpp", {"n_probs": 3, "n_predict": 40}),
    ],
)
async def test_completions_have_the_servers_own_numbers(
    old_llamacpp: str,
    old_proxy: str,
    path: str,
    dialect: Dialect,
    names: dict[str, int],
    stream: bool,
) -> None:
    asked = prompt(logprobs=3, stream=stream)
    sent = {k: v for k, v in asked.items() if k not in ("logprobs", "max_tokens")}
    own = await facts(old_llamacpp, path, {**sent, "max_tokens": 40, **names}, asked, dialect)
    check = check_completion_stream if stream else check_completion_body
    for at in (TEXTS, NATIVE):
        answer = await ask(old_proxy, at, asked)
        assert check(answer, checked_request(asked), own) == [], at
        found = fold_completion(answer) if stream else json.loads(answer)
        assert found["choices"][0]["text"] == TEXT


async def test_its_refusals_conform(old_proxy: str) -> None:
    for asked, path in [(question("x " * 3000), CHAT), (prompt("x " * 3000), TEXTS)]:
        for stream in (False, True):
            data = await ask(old_proxy, path, asked | {"stream": stream}, 400)
            assert check_error(data, 400) == []
            assert json.loads(data)["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("path", [CHAT, TEXTS], ids=["chat", "completions"])
@pytest.mark.parametrize("old_proxy", ["llamacpp", "llamacpp-native"], indirect=True)
async def test_every_parameter_has_its_effect(
    old_proxy: str, old_llamacpp: str, path: str, stream: bool, request: pytest.FixtureRequest
) -> None:
    effects: list[Effect] = [*EFFECTS]
    if path == CHAT:
        effects += CHAT_EFFECTS
        if request.node.callspec.params["old_proxy"] == "llamacpp":
            effects += [*TOOL_EFFECTS, formed_without_call]
    async with ClientSession(old_proxy) as session:
        ask = Ask(session, old_llamacpp, path, stream)
        for effect in effects:
            await effect(ask)


async def test_a_form_beside_tools_that_may_be_called_is_its_own_failure(
    old_proxy: str, old_llamacpp: str
) -> None:
    """It puts the form into an object of its own, which it then cannot read: no 400 of ours."""
    async with ClientSession(old_proxy) as session:
        with pytest.raises(AssertionError, match=r"500.*Content path must be a string"):
            await formed_beside_tools(Ask(session, old_llamacpp, CHAT, False))


async def test_one_request_tells_a_prompts_logprobs_as_probes_do(
    old_llamacpp: str, old_proxy: str
) -> None:
    """Where a literal cannot be followed this build ends: at é's first byte, at `<|im_end|>`."""
    text = "hello world é the name<|im_end|>\nyou say hello"
    asked = prompt(prompt=text, prompt_logprobs=1, max_tokens=1)
    (choice,) = json.loads(await ask(old_proxy, TEXTS, asked))["choices"]
    _, *rows = choice["prompt_logprobs"]
    split = {"content": text, "add_special": True, "parse_special": True}
    ids = json.loads(await ask(old_llamacpp, "/tokenize", split))["tokens"]
    for place, row in enumerate(rows, 1):
        probe: dict[str, Any] = {"prompt": ids[:place], "n_predict": 1, "n_probs": 256}
        probe |= {"temperature": 0, "logit_bias": [[ids[place], 10_000.0]]}
        found = json.loads(await ask(old_llamacpp, NATIVE, probe)).get("completion_probabilities")
        own = next(iter(row.items()))
        assert own[0] == str(ids[place])
        if found:  # none for a byte that only begins a character
            assert own[1]["logprob"] == pytest.approx(found[0]["logprob"], abs=1e-6)
    assert len(rows) == len(ids) - 1


@pytest.mark.parametrize(
    ("old_proxy", "most", "tells"),
    [
        ("llamacpp", 4, True),
        ("llamacpp", 40, False),
        ("llamacpp-native", 4, True),
        ("llamacpp-native", 40, True),
    ],
    indirect=["old_proxy"],
)
async def test_token_ids_are_all_or_none(
    old_llamacpp: str, old_proxy: str, most: int, tells: bool
) -> None:
    """Its chat tells them by entries, which the two tokens of a character share one of."""
    told = await ask(old_proxy, CHAT, question(max_tokens=most, return_token_ids=True, **LOGPROBS))
    found = json.loads(told)
    sent = {"prompt": PROMPT, "n_predict": most, "temperature": 0, "return_tokens": True}
    own = json.loads(await ask(old_llamacpp, NATIVE, sent))["tokens"]
    tokens = {"content": PROMPT, "add_special": True}
    ids = json.loads(await ask(old_llamacpp, "/tokenize", tokens))["tokens"]
    assert found["prompt_token_ids"] == ids
    assert found["choices"][0].get("token_ids") == (own if tells else None)


@pytest.mark.parametrize("old_proxy", ["llamacpp", "llamacpp-native"], indirect=True)
@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"stop": " done"}])
async def test_a_completions_ids_are_all_of_them(
    old_llamacpp: str, old_proxy: str, stream: bool, more: dict[str, Any]
) -> None:
    """Those of /completion, two of a character's too. Mutant: /v1/completions, which has none."""
    asked = prompt(max_tokens=40, return_token_ids=True, stream=stream, **more)
    data = await ask(old_proxy, TEXTS, asked)
    sent: dict[str, Any] = {"prompt": PROMPT, "n_predict": 40, "temperature": 0}
    sent |= {"return_tokens": True} | ({"stop": [more["stop"]]} if "stop" in more else {})
    own = json.loads(await ask(old_llamacpp, NATIVE, sent))["tokens"]
    found = chunks_of(data) if stream else None
    choices = [x["choices"][0] for x in found or [json.loads(data)] if x["choices"]]
    assert [one for choice in choices for one in choice.get("token_ids", [])] == own
