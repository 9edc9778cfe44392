"""vLLM's own request keys through the proxy, and its errors."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from tests.conformance import check_error, check_stream
from tests.corpus import checked_request
from tests.live.vllm.asking import CHAT, NO_CONTROLS, Asking, conforms, question
from tests.live.vllm.conftest import StartProxy
from tests.live.vllm.server import MODEL
from tests.models.tiny_hf import CONTEXT, Tokens
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

LISTEN = {"listen": "127.0.0.1:0"}

SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 5}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def test_prompt_logprobs_pass_exactly(ask: Asking) -> None:
    asked = question(prompt_logprobs=2, logprobs=True, top_logprobs=1)
    raw = (await ask.post(ask.direct, asked)).json
    out = (await ask.post(ask.proxy, asked)).json
    assert raw["prompt_logprobs"][0] is None and len(raw["prompt_logprobs"]) > 5
    assert out["prompt_logprobs"] == raw["prompt_logprobs"]
    refused = await ask.post(ask.direct, asked | {"stream": True})
    assert refused.status == 400  # so the proxy makes the stream of a body
    streamed = await ask.post(ask.proxy, asked | {"stream": True})
    conforms(check_stream(streamed.data, checked_request(asked)), streamed)
    told = [c["prompt_logprobs"] for c in streamed.chunks if "prompt_logprobs" in c]
    assert told == [raw["prompt_logprobs"]]


async def test_token_ids_pass_exactly(ask: Asking) -> None:
    both = await ask.both(question(return_token_ids=True, logprobs=True, top_logprobs=1))
    raw, out = both.raw, both.body
    assert out["prompt_token_ids"] == raw["prompt_token_ids"]
    assert out["choices"][0]["token_ids"] == raw["choices"][0]["token_ids"] == both.given[0].ids
    ids: list[int] = []
    prompts = []
    for chunk in both.client_stream.chunks:
        if "prompt_token_ids" in chunk:
            prompts.append(chunk["prompt_token_ids"])
        for choice in chunk["choices"]:
            ids += choice.get("token_ids") or ()
    assert ids == both.given_stream[0].ids
    assert prompts == [raw["prompt_token_ids"]]


async def test_without_their_switch_they_do_not_come(ask: Asking) -> None:
    out = await ask.post(ask.proxy, question())
    assert set(out.json) == {
        "id", "object", "created", "model", "choices", "usage", "system_fingerprint",
    }  # fmt: skip
    assert set(out.json["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert set(out.json["choices"][0]["message"]) == {"role", "content", "refusal"}


async def test_all_extensions_are_vllms_own_keys(ask: Asking) -> None:
    asked = question(return_token_ids=True, prompt_logprobs=1)
    raw = (await ask.post(ask.direct, asked)).json
    out = (await ask.post(ask.proxy, asked, x_wellspoken_extensions="all")).json
    for key in ("prompt_logprobs", "prompt_token_ids"):
        assert out[key] == raw[key]
    assert out["choices"][0]["token_ids"] == raw["choices"][0]["token_ids"]
    none = (await ask.post(ask.proxy, asked, x_wellspoken_extensions="none")).json
    assert not {"prompt_logprobs", "prompt_token_ids"} & none.keys()
    assert "token_ids" not in none["choices"][0]


async def test_the_sdk_sends_and_reads_vendor_keys(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello world"}],
        max_tokens=4,
        extra_body={"return_token_ids": True, "prompt_logprobs": 0, "top_k": 1},
    )
    extra = body.model_extra or {}
    assert len(extra["prompt_token_ids"]) == len(extra["prompt_logprobs"])
    assert len((body.choices[0].model_extra or {})["token_ids"]) == 4


async def test_tokens_as_ids_without_a_vocabulary(ask: Asking) -> None:
    """vLLM tells the bytes of whole characters beside `token_id:N`; a part's stay unknown."""
    asked = question(return_tokens_as_token_ids=True, logprobs=True, top_logprobs=2, **SAMPLED)
    both = await ask.both(asked)
    raw = both.raw["choices"][0]["logprobs"]["content"]
    named = [f"token_id:{n}" for n in both.given[0].ids]
    assert [entry["token"] for entry in raw] == named
    entries = both.body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == named[: len(entries)]
    top = [{one["token"] for one in entry["top_logprobs"]} for entry in entries]
    told = [{one["token"] for one in entry["top_logprobs"]} for entry in raw]
    assert top == told[: len(entries)]


@pytest.mark.parametrize("seed", range(3))
async def test_tokens_as_ids_with_a_vocabulary_have_true_bytes(
    vllm: str, start_proxy: StartProxy, model_folder: Any, seed: int
) -> None:
    proxy = await start_proxy(vllm, tokenizer=str(model_folder / "tokenizer.json"))
    async with ClientSession() as session:
        ask = Asking(session, vllm, proxy)
        asked = question(return_tokens_as_token_ids=True, logprobs=True, top_logprobs=3)
        both = await ask.both(asked | {"temperature": 1.3, "seed": seed})
    for given, answer in ((both.given, both.body), (both.given_stream, both.stream)):
        entries = answer["choices"][0]["logprobs"]["content"]
        true, ids = given[0].bytes, given[0].ids
        assert len(true) - len(entries) < 4  # of a last character that never became whole
        assert [bytes(entry["bytes"] or ()) for entry in entries] == true[: len(entries)]
        assert [entry["token"] for entry in entries] == [f"token_id:{n}" for n in ids][
            : len(entries)
        ]


@pytest.mark.parametrize("included", [False, True])
async def test_continuous_usage_comes_once(ask: Asking, included: bool) -> None:
    options = {"include_usage": included, "continuous_usage_stats": True}
    asked = question(stream=True, stream_options=options, n=2, **SAMPLED)
    raw = await ask.post(ask.direct, asked)
    out = await ask.post(ask.proxy, asked)
    assert (raw.status, out.status) == (200, 200)
    told = [chunk["usage"] for chunk in raw.chunks if chunk.get("usage")]
    got = [chunk["usage"] for chunk in out.chunks if chunk.get("usage")]
    if not included:
        assert got == []
        return
    assert len(told) > 10 and len(got) == 1
    last = told[-1]
    assert got[0] == {k: last[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert out.chunks[-1]["choices"] == []


LONG = "Hello world " * CONTEXT
REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "temperature": ({"temperature": -1}, 400, None),
    "too many alternatives": ({"logprobs": True, "top_logprobs": 21}, 400, None),
    "context": (
        {"messages": [{"role": "user", "content": LONG}]}, 400, "context_length_exceeded",
    ),
    "limit over the context": ({"max_tokens": 10_000}, 400, "context_length_exceeded"),
    "out of the vocabulary": ({"logit_bias": {"99999": 1}}, 400, None),
    "unknown model": ({"model": "none"}, 404, "model_not_found"),
    "messages": ({"messages": []}, 400, None),
    "schema": ({"response_format": {"type": "json_schema"}}, 400, None),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("name", REFUSED)
async def test_vllms_refusals_are_in_the_envelope(
    vllm: str, start_proxy: StartProxy, name: str, stream: bool
) -> None:
    change, status, code = REFUSED[name]
    proxy = await start_proxy(vllm, bounds="backend")
    async with ClientSession() as session:
        ask = Asking(session, vllm, proxy)
        asked = question(**change) | {"stream": stream}
        raw = await ask.post(ask.direct, asked)
        out = await ask.post(ask.proxy, asked)
    late = raw.status == 200  # some are found after a stream began: an error in its only event
    assert raw.status == status or (stream and late), raw.data
    assert out.status == status, out.data
    assert check_error(out.data, out.status) == []
    error = out.json["error"]
    assert error["type"] == "invalid_request_error"
    if code is not None:
        assert error["code"] == code
    told = raw.chunks[0] if late else raw.json
    assert error["message"] == told["error"]["message"]


async def test_the_sdk_raises_what_it_should(sdk: openai.AsyncOpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": LONG}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(model=MODEL, messages=long, stream=stream)
        assert caught.value.code == "context_length_exceeded"
    short: list[Any] = [{"role": "user", "content": "Hello"}]
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(model="none", messages=short)
    assert missing.value.code == "model_not_found"


async def test_an_untouched_answer_is_vllms_own(ask: Asking) -> None:
    asked = question(logprobs=True, top_logprobs=1, max_tokens=4)
    raw = (await ask.post(ask.direct, asked)).json
    out = (await ask.post(ask.proxy, asked | {"oai_compat": False})).json
    for key in ("id", "created"):
        assert raw.pop(key) and out.pop(key)
    assert out == raw


async def test_auto_finds_vllm(vllm: str, tokens: Tokens) -> None:
    """Found by GET /version; what only vLLM's own file knows is then known."""
    asked = question(stop="ba", logit_bias={str(tokens.ids[b"a"]): 100, str(tokens.ids[b"b"]): 100})
    service = build(load(None, {"server": LISTEN, "backend": [{"url": vllm}]}, {}))
    host, port = await service.start()
    try:
        async with ClientSession() as session:
            out = await Asking(session, vllm, f"http://{host}:{port}").both(asked)
        target = service.state.router.targets[0]
    finally:
        await service.stop()
    assert out.body["choices"][0]["finish_reason"] in ("stop", "length")
    assert target.backend is VLLM
    assert target.detected is not None and "0.32" in target.detected.described


async def test_the_command_serves_it_without_a_configuration(vllm: str, tmp_path: Path) -> None:
    """`wellspoken URL`, as the README has it."""
    port = vllm.rpartition(":")[2].encode()  # the banner names both addresses
    command = Path(sys.executable).with_name("wellspoken")
    argv = [str(command), vllm, "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    try:
        said, listening = b"", re.compile(rb"http://127\.0\.0\.1:\d+\b(?<!%b)" % port)
        while not (found := listening.search(said)):
            line = await process.stdout.readline()
            assert line, said.decode()
            said += line
        async with ClientSession() as session:
            out = await Asking(session, vllm, found[0].decode()).both(question(logprobs=True))
    finally:
        process.terminate()
        await process.wait()
    assert out.body["choices"][0]["message"]["content"] == out.given[0].text
    assert process.returncode == 0


async def test_models_are_listed(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == [MODEL]


def test_the_controls_are_banned_by_id(tokens: Tokens) -> None:
    assert {int(one) for one in NO_CONTROLS} == {0, 1, 2, 3, 4}
    assert min(tokens.ids.values()) == len(NO_CONTROLS) and CHAT.endswith("completions")
