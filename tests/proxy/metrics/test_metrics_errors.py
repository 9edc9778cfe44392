"""upstream_errors_total: what fails is counted once, also where the status says nothing of it."""

from __future__ import annotations

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.upstream import DONE, Cut, Script, Stall, Upstream, event, stream, whole
from tests.proxy.conftest import StartProxy

OPENED = event(role()) + event(chunk({"content": "Hi"}))
ERROR = {"error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        (stream(OPENED + event(finish()) + DONE), {}),
        (stream(OPENED + event(ERROR)), {"error_event": 1}),
        (stream(OPENED, Cut()), {"cut": 1}),
        (stream(OPENED, Stall()), {"chunk_timeout": 1}),
        (stream(OPENED), {"error_event": 1}),  # it ends without a reason and without [DONE]
        (whole(ERROR, 500), {}),  # its status says it
        ([Stall()], {"first_byte_timeout": 1}),
        (whole(body()), {}),
    ],
)
async def test_each_failure_of_a_stream_is_counted_once(
    upstream: Upstream, start_proxy: StartProxy, script: Script, reasons: dict[str, int]
) -> None:
    upstream.scripts = [script]
    names = {"chunk_timeout": "between_chunks", "first_byte_timeout": "first_token_stream"}
    limits = {name: 0.2 for reason, name in names.items() if reason in reasons}
    proxy = await start_proxy(upstream, timeouts=limits)
    async with await proxy.chat(stream=True) as response:
        await response.read()
    prefix = 'wellspoken_upstream_errors_total{backend="default",reason="'
    scraped = await proxy.metrics()
    found = {name[len(prefix) : -2]: n for name, n in scraped.items() if name.startswith(prefix)}
    assert found == reasons
