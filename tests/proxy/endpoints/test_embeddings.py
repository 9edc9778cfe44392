"""POST /v1/embeddings: floats or base64 as asked, with the route's bounds, names and keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.embeddings import check_embeddings
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.posting import post, refused

Json = dict[str, Any]
VECTORS = [[0.1, -2.5], [3.0, 1e-7]]


def listed() -> Json:
    data = [{"object": "embedding", "index": at, "embedding": x} for at, x in enumerate(VECTORS)]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    return {"object": "list", "data": data, "model": "m", "usage": usage}


ASKED: Json = {"model": "m", "input": ["a", "b"]}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings_are_what_the_client_asked_for(
    upstream: Upstream, start_proxy: StartProxy, path: str, encoding: str
) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream)
    async with await post(proxy, path, {**ASKED, "encoding_format": encoding}) as response:
        data = await response.read()
        repaired = response.headers.get("x-wellspoken-repairs")
    assert check_embeddings(data, model="m", encoding=encoding, vectors=VECTORS, tokens=2) == []
    assert repaired == (None if encoding == "float" else "embedding_base64_missing")
    assert upstream.requests[0].target == "/v1/embeddings"
    assert upstream.requests[0].json() == {**ASKED, "encoding_format": encoding}
    assert (data == json.dumps(listed()).encode()) == (encoding == "float")
    scraped = await proxy.metrics()
    series = 'backend="default",source="backend"'
    assert scraped[f"wellspoken_usage_source_total{{{series}}}"] == 1


async def test_a_backend_that_refuses_base64_is_asked_for_floats(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    refusal = {"object": "error", "message": "base64 encoding is not currently supported"}
    upstream.scripts = [whole(refusal, 400), whole(listed())]
    proxy = await start_proxy(upstream, upstream_model="real")
    async with await post(proxy, "/v1/embeddings", {**ASKED, "encoding_format": "base64"}) as got:
        data = await got.read()
        names = got.headers["x-wellspoken-repairs"]
    assert names == "embedding_base64_refused, embedding_base64_missing"
    assert check_embeddings(data, model="m", encoding="base64", vectors=VECTORS) == []
    assert upstream.requests[1].json() == {"model": "real", "input": ["a", "b"]}


async def test_embeddings_of_many_dimensions_do_not_hold_up_the_loop(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    vectors = [[at / 7, *([0.123456789] * 1500)] for at in range(40)]
    body = listed()
    body["data"] = [
        {"object": "embedding", "index": at, "embedding": x} for at, x in enumerate(vectors)
    ]
    upstream.scripts = [whole(body)]
    proxy = await start_proxy(upstream)
    wanted = {"model": "m", "input": ["x"] * 40, "encoding_format": "base64"}
    async with await post(proxy, "/v1/embeddings", wanted) as response:
        data = await response.read()
    assert check_embeddings(data, model="m", encoding="base64", vectors=vectors) == []


async def test_an_untouched_answer_is_the_backends(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(b" [[1]] ")]
    proxy = await start_proxy(upstream)
    async with await post(proxy, "/v1/embeddings", {**ASKED, "oai_compat": False}) as response:
        assert await response.read() == b" [[1]] "
    assert upstream.requests[0].json() == ASKED


@pytest.mark.parametrize("vendor", ["pass", "strip", "reject"])
async def test_vendors_keys_are_the_routes_affair(
    upstream: Upstream, start_proxy: StartProxy, vendor: str
) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream, vendor=vendor)
    async with await post(proxy, "/v1/embeddings", {**ASKED, "truncate": 3}) as response:
        assert response.status == (400 if vendor == "reject" else 200)
        named = response.headers.get("x-wellspoken-stripped")
    assert named == ("truncate" if vendor == "strip" else None)
    if vendor != "reject":
        assert ("truncate" in upstream.requests[0].json()) == (vendor == "pass")


async def test_a_request_out_of_bounds_is_not_sent(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    error = await refused(proxy, "/v1/embeddings", 400, {"model": "m", "input": ""})
    assert (error["param"], error["code"]) == ("input", "empty_string")
    assert upstream.requests == []


async def test_each_backends_bounds_and_names_hold(start_proxy: StartProxy) -> None:
    async with Upstream(whole(listed())) as one, Upstream(whole(listed())) as two:
        proxy = await start_proxy(
            {"url": one.url, "name": "a", "models": ["m"]},
            {"url": two.url, "name": "b", "models": ["n"], "bounds": "backend"},
            {"url": two.url, "name": "c", "models": ["o"], "endpoints": ["/tokenize"]},
        )
        odd: Json = {"input": ["", "b"]}
        error = await refused(proxy, "/v1/embeddings", 400, {**odd, "model": "m"})
        assert error["code"] == "empty_string"
        async with await post(proxy, "/v1/embeddings", {**odd, "model": "n"}) as response:
            assert (await response.json())["model"] == "n"
        error = await refused(proxy, "/embeddings", 404, {"model": "o", "input": "x"})
        assert "backend c" in error["message"]
        assert (len(one.requests), len(two.requests)) == (0, 1)


async def test_a_model_that_is_not_named_is_the_only_one(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream, bounds="backend", models=["mine"])
    async with await post(proxy, "/v1/embeddings", {"input": ["a", "b"]}) as response:
        assert (await response.json())["model"] == "mine"
    assert upstream.requests[0].json() == {"input": ["a", "b"]}


async def test_the_clients_own_key_may_be_refused(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({"error": "no"}, 401)]
    proxy = await start_proxy(upstream, auth="pass")
    assert (await refused(proxy, "/v1/embeddings", 401, ASKED))["code"] == "invalid_api_key"
