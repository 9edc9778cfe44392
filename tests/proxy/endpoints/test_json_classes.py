"""JSON of every class from clients: what is none is a 400, and the backend hears nothing of it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream, whole
from tests.json_classes import invalid, put_into, undecided, valid
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.posting import post

PATHS = (CHAT, "/v1/completions", "/v1/embeddings")
SECONDS = 5.0
"""Of work, far above what any of them needs (milliseconds), far below what somebody would wait."""
ASKED = {"model": MODEL, "messages": MESSAGES}
PLACES: list[object] = [
    {**ASKED, "metadata": {"a": "HERE"}},
    {**ASKED, "temperature": "HERE"},
    {**ASKED, "tools": "HERE"},
    {**ASKED, "messages": [{"role": "user", "content": "HERE"}]},
    {**ASKED, "x": "HERE"},
]


async def statuses(proxy: Proxy, bodies: Iterable[bytes], path: str = CHAT) -> list[int]:
    """Send every body; return the statuses, each in its time and each error in its form."""
    found = []
    for body in bodies:
        began = time.process_time()  # a machine that stands still adds nothing
        async with await post(proxy, path, body) as response:
            text = await response.text()
        assert time.process_time() - began < SECONDS, body[:100]
        if response.status >= 400:
            envelope(text)
        found.append((response.status, body[:200]))
    assert {status for status, _ in found} <= {200, 400}, found
    return [status for status, _ in found]


async def test_what_is_no_json_is_400(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    for path in PATHS:
        assert set(await statuses(proxy, invalid(), path)) == {400}
    assert upstream.requests == []


async def test_what_is_json_and_no_request_is_400(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    assert set(await statuses(proxy, (*valid(), *undecided()))) == {400}
    assert upstream.requests == []


async def test_within_a_request_each_class_is_judged_alike(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """What is no JSON spoils the request, wherever it is; what is may be taken or refused."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    for place in PLACES:
        bodies = (put_into(place, document) for document in invalid())
        assert set(await statuses(proxy, bodies)) == {400}, place
        assert upstream.requests == []
        taken = await statuses(
            proxy, (put_into(place, document) for document in (*valid(), *undecided()))
        )
        assert taken.count(200) == len(upstream.requests), place
        for request in upstream.requests:
            request.json()  # what was sent on is JSON
        upstream.requests.clear()
