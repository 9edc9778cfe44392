"""A client's headers that go on to a backend, and those that every request to it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from tests.conforming import MODEL
from tests.fakes.upstream import Request, Upstream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.lifecycle.test_reload import config, table
from tests.proxy.upstream.trials import pass_trial
from wellspoken.proxy.config.tables import FORWARDED
from wellspoken.proxy.lifecycle.reload import Reloader

Given = list[tuple[str, str]]
SENT: Given = [
    ("X-Session-ID", "s 1"),
    ("x-session-affinity", "a"),
    ("Session_Id", "b"),
    ("X-Data-Parallel-Rank", "1"),
    ("x-request-priority", "high"),
    ("Baggage", "k=v"),
    ("Baggage", "l=w"),
]
OTHERS: Given = [
    ("x-other", "no"),
    ("Cookie", "no=1"),
    ("x-api-key", "no"),
    ("x-wellspoken-keep", "stop_reason"),
    ("User-Agent", "client"),
]
PATHS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, "n": 2, "temperature": 0}),
    (CHAT, {"messages": MESSAGES, "oai_compat": False}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/embeddings", {"input": "x"}),
    ("/v1/messages", {"messages": MESSAGES}),
    ("/tokenize", {"prompt": "x"}),
]


async def ask(proxy: Proxy, headers: Given, path: str = CHAT, **fields: Any) -> None:
    data = {"model": MODEL, **(fields or {"messages": MESSAGES})}
    given = CIMultiDict([*headers])
    async with proxy.session.post(proxy.url(path), json=data, headers=given) as response:
        await response.read()


def forwarded(request: Request) -> Given:
    """Return the headers of a request that the proxy does not say itself."""
    own = (
        *("host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"),
        "x-request-id",
    )
    return [(name.lower(), value) for name, value in request.headers if name.lower() not in own]


@pytest.mark.parametrize(("path", "fields"), PATHS)
async def test_sessions_and_routes_go_on_with_every_request(
    upstream: Upstream, start_proxy: StartProxy, path: str, fields: dict[str, Any]
) -> None:
    """Each as often as it came. Mutants: one value of each; `names` without the configured."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, adapter="vllm")
    await ask(proxy, [*SENT, *OTHERS], path, **fields)
    expected = sorted((name.lower(), value) for name, value in SENT)
    assert upstream.requests
    for request in upstream.requests:
        assert sorted(forwarded(request)) == expected
        assert request.header("User-Agent") == "wellspoken"


async def test_the_backend_says_which(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    trace = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    none = await start_proxy(upstream, forward_headers=[])
    await ask(none, [*SENT, *OTHERS, *trace])
    one = await start_proxy(upstream, forward_headers=["X-Other"])
    await ask(one, [*SENT, *OTHERS, *trace])
    assert [forwarded(request) for request in upstream.requests] == [trace, [*trace, OTHERS[0]]]


async def test_what_connection_lists_goes_no_further(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """RFC 9110, 7.6.1. Mutant: `kept` without the difference."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    await ask(proxy, [("Connection", "keep-alive, X-Session-Id ,baggage"), *SENT])
    names = [name for name, _ in forwarded(upstream.requests[0])]
    assert sorted(names) == sorted({*FORWARDED} - {"x-session-id", "baggage"})


async def test_a_client_does_not_say_what_is_set(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, headers={"X-Session-Id": "ours", "x-tenant": "blue"})
    await ask(proxy, SENT[:1])
    assert forwarded(upstream.requests[0]) == [("x-session-id", "ours"), ("x-tenant", "blue")]


async def test_set_headers_are_sent_with_every_request(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that wants them wants them of what looks at the backend, too."""
    monkeypatch.setenv("GATEWAY_KEY", "canary-123")
    headers = {"x-tenant": "blue", "x-gateway-key": "env:GATEWAY_KEY"}
    proxy = await start_proxy(upstream, adapter="auto", headers=headers)
    proxy.service.state.router.targets[0].detector.start()  # type: ignore[union-attr]
    await ask(proxy, [])
    for path in ("/v1/models", "/readyz"):
        await proxy.get(path)
    assert {request.method for request in upstream.requests} == {"GET", "POST"}
    for request in upstream.requests:
        assert (request.header("x-tenant"), request.header("x-gateway-key")) == (
            "blue",
            "canary-123",
        )
    await proxy.service.state.router.targets[0].detector.stop()  # type: ignore[union-attr]


async def test_a_secret_header_is_read_again_and_the_old_one_stays_hidden(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """Mutants: `use` without secrets, or without lines."""
    file = tmp_path / "key"
    file.write_text("canary-12345")
    said = b'{"error": {"message": "canary-12345, canary-67890, blue", "code": 400}}'
    upstream.scripts = [whole(said, status=400)]
    backend = table(upstream, headers={"x-gateway-key": f"file:{file}", "x-tenant": "blue"})
    proxy = await start_proxy(backend)
    messages = [(await proxy.error(400))["message"]]
    file.write_text("canary-67890\n")
    (target,) = proxy.service.state.router.targets
    assert target.upstream is not None
    await pass_trial(target.upstream.connections)
    assert await Reloader(proxy.service).apply(config(backend)) == []
    messages.append((await proxy.error(400))["message"])
    assert messages == ["[the key], canary-67890, blue", "[the key], [the key], blue"]
    sent = [request.header("x-gateway-key") for request in upstream.requests]
    assert sent == ["canary-12345", "canary-67890"]
    assert upstream.opened == 1
    file.write_text("")
    gone = proxy.service.state.config
    with pytest.raises(Exception, match=r"backend\[0\]\.headers\.x-gateway-key: "):
        await Reloader(proxy.service).apply(config(backend))
    assert proxy.service.state.config is gone
