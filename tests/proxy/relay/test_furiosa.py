"""Furiosa-LLM behind the proxy, read by the real OpenAI client: both kinds of logprobs, exact.

The upstream replays fixtures that are made after the Furiosa SDK's documentation and furiosa-llm
2026.4.0. What has to come out is computed from the bytes that the upstream sends, never from the
proxy's.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.corpus import ROOT
from tests.fakes.upstream import Step, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.relay.furiosa_listing import EXTENSIONS

BODY = (ROOT / "furiosa/2026.4-listing.json").read_bytes()
STREAM = (ROOT / "furiosa/2026.4-listing.sse").read_bytes()
OWN_STREAM = (ROOT / "furiosa/2026.4-token-ids.sse").read_bytes()
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "furiosa-ai"}]}

Json = dict[str, Any]
ASKED: Json = {
    "model": "m",
    "messages": [{"role": "user", "content": "Capital of France?"}],
    "logprobs": True,
    "top_logprobs": 3,
}


def parts(raw: bytes) -> list[Json]:
    """Return the objects that an upstream sends: one body, or the chunks of a stream."""
    if raw.startswith(b"data: "):
        events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
        return [json.loads(one) for one in events if one != b"[DONE]"]
    return [json.loads(raw)]


def told(raw: bytes) -> tuple[str, list[Json], list[int], list[Any], list[int]]:
    """Return text, entries, token ids, the prompt's logprobs and its ids as the upstream says."""
    text = ""
    entries: list[Json] = []
    scores: list[Any] = []
    ids: list[int] = []
    prompt: list[int] = []
    for part in parts(raw):
        for choice in part["choices"]:
            said = choice.get("message") or choice.get("delta")
            text += said.get("content") or ""
            entries += (choice["logprobs"] or {}).get("content") or []
            ids += choice["token_ids"] or []
        scores += part.get("prompt_logprobs") or []
        prompt += part.get("prompt_token_ids") or []
    return text, entries, ids, scores, prompt


def expected(raw: bytes) -> Iterator[str]:
    """Yield the lines that the documentation's listing has of the upstream's bytes."""
    text, entries, ids, scores, prompt = told(raw)
    yield f"answer {text!r}"
    for place, (entry, number) in enumerate(zip(entries, ids, strict=True)):
        yield f"token {place} {number} {entry['token']!r} {entry['logprob']!r}"
        for row in entry["top_logprobs"]:
            chosen = " chosen" if row["token"] == entry["token"] else ""
            yield f"    {row['token']!r} {row['logprob']!r}{chosen}"
    for place, rows in enumerate(scores):
        yield f"prompt {place} {prompt[place]}" + ("" if rows else " first")
        for name in rows or {}:
            lp, rank, token = (rows[name][key] for key in ("logprob", "rank", "decoded_token"))
            actual = " actual" if name == str(prompt[place]) else ""
            yield f"    {name} {lp!r} {rank!r} {token!r}{actual}"


def script(raw: bytes) -> list[Step]:
    """Return the upstream's script: a stream goes out event by event."""
    if not raw.startswith(b"data: "):
        return list(whole(raw))
    return list(stream(*(one + b"\n\n" for one in raw.split(b"\n\n") if one)))


async def front(start_proxy: StartProxy, upstream: Upstream, raw: bytes) -> Proxy:
    upstream.script("/v1/models", whole(MODELS))
    upstream.script(CHAT, script(raw))
    return await start_proxy(upstream, adapter="furiosa")


def sdk(proxy: Proxy) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=proxy.url("/v1"), api_key="unused", max_retries=0)


async def listed(proxy: Proxy, *flags: str) -> list[str]:
    """Run the listing script against the proxy; return its lines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.proxy.relay.furiosa_listing",
        proxy.url("/v1"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONIOENCODING": "utf-8", "PYTHONPATH": "."},
        cwd=ROOT.parents[2],
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().splitlines()


@pytest.mark.parametrize(
    ("raw", "flags"), [(BODY, []), (STREAM, ["--stream"])], ids=["body", "stream"]
)
async def test_the_documentations_listing(
    start_proxy: StartProxy, upstream: Upstream, raw: bytes, flags: list[str]
) -> None:
    proxy = await front(start_proxy, upstream, raw)
    lines = await listed(proxy, *flags)
    assert lines == list(expected(raw))
    assert "    8948 -11.958041 8063 'system' actual" in lines
    assert "prompt 0 151644 first" in lines
    sent = next(one for one in upstream.requests if one.target == CHAT).json()
    assert (sent["prompt_logprobs"], sent["return_token_ids"]) == (3, True)


def test_body_and_stream_say_the_same() -> None:
    assert list(expected(BODY)) == list(expected(STREAM))


def _value(body: Json) -> None:
    body["prompt_logprobs"][1]["8948"]["logprob"] += 1e-15 * 2**3


def _rank(body: Json) -> None:
    body["prompt_logprobs"][1]["8948"]["rank"] -= 1


def _lost(body: Json) -> None:
    del body["prompt_logprobs"][1]["8948"]


def _shifted(body: Json) -> None:
    body["prompt_token_ids"].insert(0, 1)


def _alternative(body: Json) -> None:
    body["choices"][0]["logprobs"]["content"][5]["top_logprobs"].pop()


@pytest.mark.parametrize("spoil", [_value, _rank, _lost, _shifted, _alternative])
def test_the_expected_listing_sees_any_change(spoil: Any) -> None:
    spoiled = copy.deepcopy(json.loads(BODY))
    spoil(spoiled)
    assert list(expected(json.dumps(spoiled).encode())) != list(expected(BODY))


async def test_the_client_finds_the_fields_on_the_response(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    proxy = await front(start_proxy, upstream, BODY)
    async with sdk(proxy) as client:
        response: Any = await client.chat.completions.create(**ASKED, extra_body=EXTENSIONS)
    _, entries, ids, scores, prompt = told(BODY)
    assert response.prompt_logprobs == scores and response.prompt_logprobs[0] is None
    assert response.prompt_token_ids == prompt
    assert response.choices[0].token_ids == ids
    actual = response.prompt_logprobs[1][str(prompt[1])]
    assert actual == {"logprob": -11.958041, "rank": 8063, "decoded_token": "system"}
    assert type(actual["rank"]) is int
    content = response.choices[0].logprobs.content
    assert [[row.logprob for row in entry.top_logprobs] for entry in content] == [
        [row["logprob"] for row in entry["top_logprobs"]] for entry in entries
    ]


async def streamed(proxy: Proxy, **more: Any) -> list[Any]:
    async with sdk(proxy) as client:
        opened = await client.chat.completions.create(**ASKED, stream=True, **more)
        return [chunk async for chunk in opened]


async def test_the_client_finds_the_fields_on_the_chunks(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    proxy = await front(start_proxy, upstream, STREAM)
    chunks = await streamed(proxy, extra_body=EXTENSIONS)
    _, _, ids, scores, prompt = told(STREAM)
    for name, want in (("prompt_logprobs", scores), ("prompt_token_ids", prompt)):
        assert [x.model_extra[name] for x in chunks if name in x.model_extra] == [want]
    each = [chunk.choices[0].model_extra.get("token_ids") for chunk in chunks]
    assert [found for found in each if found] == [[number] for number in ids]
    # the ids of a chunk are those of its own entries
    assert [len(x.choices[0].logprobs.content) for x in chunks if x.choices[0].logprobs] == [1] * 7


async def test_a_stream_of_the_server_itself(start_proxy: StartProxy, upstream: Upstream) -> None:
    """2026.4.0 streams no prompt_logprobs: they stay absent, and nothing else is lost."""
    proxy = await front(start_proxy, upstream, OWN_STREAM)
    usage = {"stream_options": {"include_usage": True}}
    chunks = await streamed(proxy, extra_body=EXTENSIONS, **usage)
    assert not any("prompt_logprobs" in chunk.model_extra for chunk in chunks)
    found = [x.model_extra["prompt_token_ids"] for x in chunks if x.model_extra]
    assert found == [told(OWN_STREAM)[4]]
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 11)


async def test_a_body_for_a_stream_has_them_on_a_chunk(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    proxy = await front(start_proxy, upstream, BODY)
    chunks = await streamed(proxy, extra_body=EXTENSIONS)
    _, _, ids, scores, prompt = told(BODY)
    found = [chunk.model_extra or {} for chunk in chunks]
    assert found[:2] == [{"prompt_token_ids": prompt}, {"prompt_logprobs": scores}]
    assert not any(found[2:])
    choices = [x.choices[0] for x in chunks if x.choices[0].model_extra]
    assert [choice.token_ids for choice in choices] == [ids]


@pytest.mark.parametrize("raw", [BODY, STREAM], ids=["body", "stream"])
async def test_what_was_not_asked_for_is_not_there(
    start_proxy: StartProxy, upstream: Upstream, raw: bytes
) -> None:
    proxy = await front(start_proxy, upstream, raw)
    async with await proxy.chat(stream=raw is STREAM) as response:
        text = await response.text()
    assert "Paris" in text
    for name in ("prompt_logprobs", "token_ids", "decoded_token", "stop_reason"):
        assert name not in text


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_reaches_the_client_as_openais(
    start_proxy: StartProxy, upstream: Upstream, streams: bool
) -> None:
    flat = {"object": "error", "message": "no", "type": "BadRequestError", "param": None}
    upstream.script(CHAT, whole({**flat, "code": 400}, status=400))
    proxy = await start_proxy(upstream, adapter="furiosa")
    asked: Json = {**ASKED, "stream": streams}
    async with sdk(proxy) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.chat.completions.create(**asked)
    assert refused.value.status_code == 400
    kind = "invalid_request_error"
    assert refused.value.body == {"message": "no", "type": kind, "param": None, "code": None}


async def test_a_failure_in_a_stream_ends_it(start_proxy: StartProxy, upstream: Upstream) -> None:
    raw = (ROOT / "furiosa/2026.4-error-in-stream.sse").read_bytes()
    assert event("[DONE]") in raw
    proxy = await front(start_proxy, upstream, raw)
    async with await proxy.chat(stream=True) as response:
        said = await response.text()
    assert "[DONE]" not in said
    assert said.rstrip().splitlines()[-1].startswith('data: {"error":{"message":"internal')


COMPLETIONS = "/v1/completions"
USAGE = {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}


def completion(*texts: str) -> Json:
    """Return a body of /v1/completions in the server's key order."""
    head = {"id": "cmpl-8b1b0b5c-0", "object": "text_completion", "created": 1_760_000_000}
    choices = [
        {
            "index": place,
            "text": text,
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [785],
            "prompt_logprobs": json.loads(BODY)["prompt_logprobs"],
            "prompt_token_ids": json.loads(BODY)["prompt_token_ids"],
        }
        for place, text in enumerate(texts)
    ]
    return {**head, "model": "m", "choices": choices, "usage": USAGE}


async def test_completions_have_them_on_the_choice(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    upstream.script(COMPLETIONS, whole(completion(" Paris")))
    proxy = await start_proxy(upstream, adapter="furiosa")
    async with sdk(proxy) as client:
        response: Any = await client.completions.create(
            model="m", prompt="Capital?", max_tokens=1, extra_body=EXTENSIONS
        )
    choice = response.choices[0]
    assert choice.prompt_logprobs == json.loads(BODY)["prompt_logprobs"]
    assert (choice.prompt_token_ids, choice.token_ids) == (told(BODY)[4], [785])


async def test_several_choices_are_asked_for_one_by_one(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    """The server refuses `n` above 1."""
    upstream.script(COMPLETIONS, whole(completion(" Paris")), whole(completion(" Lyon")))
    proxy = await start_proxy(upstream, adapter="furiosa")
    async with sdk(proxy) as client:
        response = await client.completions.create(model="m", prompt="Capital?", n=2, max_tokens=1)
    assert {choice.text for choice in response.choices} == {" Paris", " Lyon"}
    assert [choice.index for choice in response.choices] == [0, 1]
    assert not any("n" in one.json() for one in upstream.requests)
    assert len(upstream.requests) == 2
    assert response.usage is not None and response.usage.prompt_tokens == 3


async def test_echo_is_refused_since_the_server_ignores_it(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    proxy = await start_proxy(upstream, adapter="furiosa")
    body = {"model": "m", "prompt": "Capital?", "echo": True}
    async with proxy.session.post(proxy.url(COMPLETIONS), json=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "echo")
    assert error["code"] == "unsupported_parameter"
    assert upstream.requests == []
