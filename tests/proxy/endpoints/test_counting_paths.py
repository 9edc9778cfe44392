"""Paths that count a request's tokens, below other endpoints, where `endpoints` names them."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy, envelope

PATHS = [
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
    "/v1/completions/count_tokens",
    "/token_count",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_named_path_reaches_the_backend(
    upstream: Upstream, start_proxy: StartProxy, path: str, method: str
) -> None:
    """The first is no stored completion's. Mutants: `counts_tokens` always False; POST alone."""
    upstream.scripts = [whole({"input_tokens": 3})]
    proxy = await start_proxy(upstream, adapter="llamacpp", endpoints=[path])
    body = {"model": "m", "input": "x"} if method == "POST" else None
    query = "" if body else "?prompt=a%20b&model=m"
    async with proxy.session.request(method, proxy.url(path) + query, json=body) as response:
        assert (response.status, await response.json()) == (200, {"input_tokens": 3})
    (request,) = upstream.requests
    assert (request.method, request.target) == (method, path + query)
    assert body is None or request.json() == body


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_path_that_is_not_named_does_not(
    upstream: Upstream, start_proxy: StartProxy, method: str
) -> None:
    proxy = await start_proxy(upstream, adapter="llamacpp")
    for path, codes in ((PATHS[0], {404}), (PATHS[1], {404}), ("/v1/messages/count_tokens", {405})):
        if method == "GET" or 405 not in codes:
            async with proxy.session.request(method, proxy.url(path), json={}) as response:
                assert response.status in codes, path
                envelope(await response.text())
    assert upstream.requests == []
