"""A real llama.cpp's other endpoints: embeddings as asked for, and what passes byte for byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from tests.conformance.embeddings import check_embeddings
from tests.live.tee import Tee
from tests.models.tiny import TEXT
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

Json = dict[str, Any]
TEXTS = ["hello", "the time", "what is the user"]
PASSED: list[tuple[str, Json]] = [
    ("/tokenize", {"content": "hello world"}),
    ("/detokenize", {"tokens": [300, 301]}),
    ("/v1/responses", {"model": "tiny", "input": "hi", "temperature": 0}),
    ("/v1/responses", {"model": "tiny", "input": "hi", "temperature": 0, "stream": True}),
    ("/responses", {"model": "tiny", "input": "hi", "temperature": 0, "stream": True}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 8, "messages": "hi"}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 64, "messages": "hi", "stream": True}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": "hi"}),
]


def _serve(model: Path, pooling: str) -> Iterator[str]:
    import xllamacpp  # native: only the tests that ask for a server pay for it

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 2048
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.ui = False
    params.verbosity = -1
    params.embedding = True
    params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
    server = xllamacpp.Server(params)
    yield str(server.listening_address).rstrip("/")
    del server


@pytest.fixture(scope="module")
def embedder(tiny_model: Path) -> Iterator[str]:
    """The base URL of a llama.cpp that gives the mean of the tokens' embeddings."""
    yield from _serve(tiny_model, "MEAN")


@pytest.fixture(scope="module")
def reranker(tiny_model: Path) -> Iterator[str]:
    """The base URL of a llama.cpp that ranks."""
    yield from _serve(tiny_model, "RANK")


async def _proxy(url: str, **more: Any) -> AsyncIterator[str]:
    backend = {"url": url, "adapter": "llamacpp", **more}
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}, {}))
    host, port = await service.start()
    yield f"http://{host}:{port}"
    await service.stop()


@pytest.fixture
async def embedding_proxy(embedder: str) -> AsyncIterator[str]:
    """The base URL of a proxy in front of the embedder, which has another name for the model."""
    async for url in _proxy(embedder, aliases={"text-embedding-3-small": "tiny"}):
        yield url


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    async with ClientSession() as one:
        yield one


async def post(session: ClientSession, url: str, body: Json) -> tuple[int, bytes]:
    async with session.post(url, json=body) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("given", [TEXTS, TEXTS[0], [5, 6, 300], [[5, 6], [300]]])
async def test_the_sdks_default_is_the_servers_floats(
    embedding_proxy: str, embedder: str, session: ClientSession, given: Any
) -> None:
    status, raw = await post(session, f"{embedder}/v1/embeddings", {"input": given})
    assert status == 200
    own = [row["embedding"] for row in json.loads(raw)["data"]]
    async with openai.AsyncOpenAI(
        base_url=f"{embedding_proxy}/v1", api_key="none", max_retries=0
    ) as client:
        asked: Json = {"model": "text-embedding-3-small", "input": given}
        default = await client.embeddings.create(**asked)  # base64, which the SDK decodes
        floats = await client.embeddings.create(**asked, encoding_format="float")
    assert [row.embedding for row in default.data] == own
    assert [row.embedding for row in floats.data] == own
    for answer in (default, floats):
        assert (answer.object, answer.model) == ("list", "text-embedding-3-small")
        assert [(row.object, row.index) for row in answer.data] == [
            ("embedding", at) for at in range(len(own))
        ]
        assert answer.usage.prompt_tokens == json.loads(raw)["usage"]["prompt_tokens"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("endpoints", [None, ["/embeddings"]])
async def test_llama_cpps_own_list_is_openais(
    embedder: str, session: ClientSession, encoding: str, endpoints: list[str] | None
) -> None:
    _, raw = await post(session, f"{embedder}/embeddings", {"input": TEXTS})
    own = [row["embedding"][0] for row in json.loads(raw)]
    async for proxy in _proxy(embedder, endpoints=endpoints):
        body = {"model": "tiny", "input": TEXTS, "encoding_format": encoding}
        status, data = await post(session, f"{proxy}/embeddings", body)
        assert status == 200
        assert check_embeddings(data, model="tiny", encoding=encoding, vectors=own) == []


async def test_what_llama_cpp_ignores_or_refuses_is_said(
    embedding_proxy: str, llama_server: str, session: ClientSession
) -> None:
    body: Json = {"model": "tiny", "input": "hello", "dimensions": 8}
    status, data = await post(session, f"{embedding_proxy}/v1/embeddings", body)
    error = json.loads(data)["error"]
    assert (status, error["param"], error["code"]) == (400, "dimensions", "unsupported_parameter")
    async for proxy in _proxy(llama_server):
        status, data = await post(session, f"{proxy}/v1/embeddings", body)
        assert status == 501
        assert "--embeddings" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize(("path", "body"), PASSED, ids=lambda x: x if isinstance(x, str) else "")
async def test_an_endpoint_passes_byte_for_byte(
    llama_server: str, session: ClientSession, path: str, body: Json
) -> None:
    if body.get("messages") == "hi":
        body = {**body, "messages": [{"role": "user", "content": "hi"}]}
    async with Tee(llama_server) as tee:
        async for proxy in _proxy(tee.here, responses="pass"):
            sent = json.dumps(body, indent=1).encode()
            kind = {"Content-Type": "application/json"}
            async with session.post(proxy + path, data=sent, headers=kind) as response:
                data = await response.read()
                assert response.status == 200, data
                streamed = response.content_type == "text/event-stream"
        assert (tee.body, tee.request_body) == (data, sent)
    assert streamed == bool(body.get("stream"))
    if streamed:
        lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
        deltas = [json.loads(line).get("delta") for line in lines]
        texts = [x.get("text", "") if isinstance(x, dict) else x or "" for x in deltas]
        assert "".join(texts) == TEXT


async def test_the_ranks_pass(reranker: str, session: ClientSession) -> None:
    body = {"model": "nice", "query": "hello", "documents": ["the time", "hello you"]}
    async with Tee(reranker) as tee:
        async for proxy in _proxy(tee.here, aliases={"nice": "tiny"}):
            for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"):
                status, data = await post(session, proxy + path, body)
                assert (status, data) == (200, tee.body)
                assert len(json.loads(data)["results"]) == 2
                assert json.loads(tee.request_body) == {**body, "model": "tiny"}


@pytest.mark.parametrize("path", ["/slots", "/slots/0", "/lora-adapters", "/props", "/metrics/x"])
async def test_what_administers_the_server_is_not_reached(
    llama_server: str, session: ClientSession, path: str
) -> None:
    async with Tee(llama_server) as tee:
        async for proxy in _proxy(tee.here):
            for method in ("GET", "POST"):
                async with session.request(method, proxy + path, json={}) as response:
                    error = (await response.json())["error"]
                    assert (response.status, error["code"]) == (404, "unknown_url")
        assert tee.asked == b""


async def test_errors_of_the_two_families(llama_server: str, session: ClientSession) -> None:
    async with Tee(llama_server) as tee:
        async for proxy in _proxy(tee.here, responses="pass"):
            status, data = await post(session, f"{proxy}/v1/messages", {"model": "tiny"})
            assert (status, data) == (500, tee.body)
            status, data = await post(session, f"{proxy}/v1/responses", {"model": "tiny"})
            assert (status, set(json.loads(data)["error"])) == (
                400,
                {"message", "type", "param", "code"},
            )
