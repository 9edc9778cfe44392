"""A request that a server does not take goes to the next one; metrics and headers say so."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.conforming import MODEL, body, choice, chunk, finish, role
from tests.fakes.upstream import (
    DONE,
    Cut,
    Gate,
    Reset,
    Script,
    Stall,
    Upstream,
    event,
    head,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.waiting import until
from wellspoken.proxy.balance import affinity
from wellspoken.proxy.relay import way

CLOSED: Final = "http://127.0.0.1:9"  # the discard port, where nobody listens
OK: Final = whole(body())
STREAM: Final = stream(*map(event, (role(), chunk({"content": "Hi"}), finish())), DONE)
BUSY: Final = whole({"error": {"message": "busy"}}, status=503)
TEXT: Final = {
    "id": "cmpl-1", "object": "text_completion", "created": 1_741_570_283, "model": MODEL,
    "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
VECTORS: Final = {
    "object": "list", "model": MODEL, "usage": {"prompt_tokens": 1, "total_tokens": 1},
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
}  # fmt: skip
REQUESTS: Final[dict[str, tuple[str, dict[str, Any], Script]]] = {
    "chat": (CHAT, {"messages": MESSAGES}, OK),
    "stream": (CHAT, {"messages": MESSAGES, "stream": True}, STREAM),
    "synthesised": (CHAT, {"messages": MESSAGES, "stream": True}, OK),
    "n": (CHAT, {"messages": MESSAGES, "n": 2}, whole(body(choice(), choice(1)))),
    "untouched": (CHAT, {"messages": MESSAGES, "oai_compat": False}, OK),
    "large": (CHAT, {"messages": [{"role": "user", "content": "a" * 200_000}]}, OK),
    "completions": ("/v1/completions", {"prompt": "Hi"}, whole(TEXT)),
    "embeddings": ("/v1/embeddings", {"input": "Hi"}, whole(VECTORS)),
    "large embeddings": ("/v1/embeddings", {"input": "a" * 200_000}, whole(VECTORS)),
    "passing": ("/v1/rerank", {"query": "a", "documents": ["b"]}, whole({"results": []})),
}
Servers = Callable[..., Any]


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    """Start a scripted server for each list of scripts."""
    async with AsyncExitStack() as stack:

        async def start(*scripts: list[Script]) -> list[Upstream]:
            return [await stack.enter_async_context(Upstream(*each)) for each in scripts]

        yield start


async def start(start_proxy: StartProxy, *urls: str, **more: Any) -> Proxy:
    """Start a proxy in front of one backend's servers, which nobody looks at."""
    backend = {"url": urls, "endpoints": ["/v1/embeddings", "/v1/rerank"]}
    tables = {"health": {"interval": 0}, **more.pop("tables", {})}
    return await start_proxy({**backend, **more}, **tables)


async def post(proxy: Proxy, path: str, sent: dict[str, Any]) -> tuple[int, str, dict[str, str]]:
    async with proxy.session.post(proxy.url(path), json={"model": MODEL, **sent}) as response:
        return response.status, await response.text(), dict(response.headers)


def moves(samples: dict[str, float]) -> dict[str, float]:
    """Return the failovers that were counted: from, why, to -> how many."""
    name = "wellspoken_failovers_total"
    return {key.removeprefix(name): value for key, value in samples.items() if name in key}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_what_reached_no_server_goes_to_the_next_at_once(
    start_proxy: StartProxy, servers: Servers, kind: str
) -> None:
    path, sent, script = REQUESTS[kind]
    (there,) = await servers([script])
    proxy = await start(start_proxy, CLOSED, there.url, CLOSED + "/b")
    for _ in range(3):  # whichever has its turn
        status, text, headers = await post(proxy, path, sent)
        assert status == 200, text
        assert headers["x-wellspoken-backend"] == "default/2"
        assert "x-wellspoken-fallback" not in headers
        assert "error" not in text
    samples = await proxy.metrics()
    counted = moves(samples)
    assert sum(counted.values()) >= 2
    assert all('reason="refused"' in key and 'to="server"' in key for key in counted)
    for key, value in samples.items():
        if key.startswith("wellspoken_backend_outstanding"):
            assert value == 0


@pytest.mark.parametrize("end", [Cut(), Reset()], ids=["cut", "reset"])
@pytest.mark.parametrize("kind", ["chat", "stream", "n", "embeddings", "untouched", "completions"])
async def test_a_connection_that_closes_before_a_byte_moves_once(
    start_proxy: StartProxy, servers: Servers, kind: str, end: Cut | Reset
) -> None:
    path, sent, script = REQUESTS[kind]
    first, second = await servers([[end]], [script])
    proxy = await start(start_proxy, first.url, second.url)
    status, text, headers = await post(proxy, path, sent)
    assert status == 200, text
    assert headers["x-wellspoken-backend"] == "default/2"
    second.scripts = [[end]]
    status, text, _ = await post(proxy, path, sent)
    assert status == 502, text
    # Of each server one request was lost, and no third was made of it.
    assert len(first.requests) + len(second.requests) <= 4


async def test_a_head_without_a_token_is_no_beginning(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """vLLM sends a stream's head before the prefill, in which it may be killed."""
    first, second = await servers([[head(content_type="text/event-stream"), Reset()]], [STREAM])
    proxy = await start(start_proxy, first.url, second.url)
    status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES, "stream": True})
    assert status == 200 and "error" not in text and "Hi" in text
    assert len(first.requests) == 1


async def test_what_has_begun_is_never_repeated(start_proxy: StartProxy, servers: Servers) -> None:
    began = stream(event(role()), event(chunk({"content": "Hi"})), Reset(), end=False)
    first, second = await servers([began], [STREAM])
    proxy = await start(start_proxy, first.url, second.url)
    status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES, "stream": True})
    assert status == 200
    assert text.count("Hi") == 1 and text.count('"error"') == 1
    assert not second.requests


async def test_a_slow_server_keeps_its_request(start_proxy: StartProxy, servers: Servers) -> None:
    first, second = await servers([[Stall()]], [OK])
    tables = {"timeouts": {"first_token_body": 0.2}}
    proxy = await start(start_proxy, first.url, second.url, tables=tables)
    status, _, _ = await post(proxy, CHAT, {"messages": MESSAGES})
    assert status == 504
    assert not second.requests


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("kind", ["chat", "stream", "embeddings", "untouched", "passing"])
async def test_a_busy_server_keeps_its_answer_unless_the_configuration_says_otherwise(
    start_proxy: StartProxy, servers: Servers, kind: str, status: int
) -> None:
    path, sent, script = REQUESTS[kind]
    busy = whole({"error": {"message": "busy"}}, status=status)
    first, second = await servers([busy], [script])
    proxy = await start(start_proxy, first.url, second.url)
    assert (await post(proxy, path, sent))[0] == status
    proxy = await start(start_proxy, first.url, second.url, retry="unstarted")
    found, text, headers = await post(proxy, path, sent)
    assert found == 200, text
    assert headers["x-wellspoken-backend"] == "default/2"
    (key,) = moves(await proxy.metrics())
    assert f'reason="{status}"' in key


async def test_an_error_within_a_200_before_any_token_is_one_too(
    start_proxy: StartProxy, servers: Servers
) -> None:
    said = {"error": {"message": "busy", "code": 503}}
    first, second = await servers([stream(event(said))], [STREAM])
    proxy = await start(start_proxy, first.url, second.url, retry="unstarted")
    status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES, "stream": True})
    assert status == 200 and "Hi" in text and "busy" not in text


async def test_repeating_has_a_share_of_the_requests(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """Where every server is busy, the load on them grows by the share, and not by the servers."""
    both = await servers([BUSY], [BUSY])
    tables = {"limits": {"retries": 0.1}}
    urls = [server.url for server in both]
    proxy = await start(start_proxy, *urls, retry="unstarted", tables=tables)
    for _ in range(100):
        assert (await post(proxy, CHAT, {"messages": MESSAGES}))[0] == 503
    sent = sum(len(server.requests) for server in both)
    assert 110 <= sent <= 100 + 10 + 10  # the share, and what a quiet time had saved


async def test_no_share_repeats_nothing(start_proxy: StartProxy, servers: Servers) -> None:
    first, second = await servers([BUSY], [OK])
    tables = {"limits": {"retries": 0}}
    proxy = await start(start_proxy, first.url, second.url, retry="unstarted", tables=tables)
    assert (await post(proxy, CHAT, {"messages": MESSAGES}))[0] == 503
    assert not second.requests


async def test_the_last_failure_is_told_where_no_server_is_reached(
    start_proxy: StartProxy,
) -> None:
    proxy = await start(start_proxy, CLOSED, CLOSED + "/b")
    status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES})
    assert status == 502
    assert json.loads(text)["error"]["code"] == "backend_unavailable"
    samples = await proxy.metrics()
    errors = {k: v for k, v in samples.items() if "wellspoken_upstream_errors_total" in k}
    assert sum(errors.values()) == 2  # each server's own, counted once


async def test_the_least_busy_server_gets_the_next_request(
    start_proxy: StartProxy, servers: Servers
) -> None:
    gates = [Gate(), Gate()]
    first, second = await servers([[gates[0], *OK]], [OK])
    proxy = await start(start_proxy, first.url, second.url)
    held = asyncio.create_task(post(proxy, CHAT, {"messages": MESSAGES}))
    await first.request()
    for _ in range(4):
        assert (await post(proxy, CHAT, {"messages": MESSAGES}))[0] == 200
    assert len(first.requests) == 1 and len(second.requests) == 4
    gates[0].open()
    assert (await held)[0] == 200


async def test_a_fallback_is_another_model_and_is_told(
    start_proxy: StartProxy, servers: Servers
) -> None:
    (other,) = await servers([OK])
    proxy = await start_proxy(
        {"name": "a", "url": CLOSED, "models": ["big"], "fallback": ["small"]},
        {"name": "b", "url": other.url, "models": ["small"], "adapter": "openai"},
        health={"interval": 0},
    )
    async with proxy.session.post(
        proxy.url(CHAT), json={"model": "big", "messages": MESSAGES}
    ) as response:
        found = await response.json()
        assert response.status == 200
        assert response.headers["x-wellspoken-fallback"] == "small"
        assert response.headers["x-wellspoken-backend"] == "b"
    assert found["model"] == "big"  # what the client asked for, as always
    assert json.loads(other.requests[0].body)["model"] == "small"
    (key,) = moves(await proxy.metrics())
    assert 'backend="a"' in key and 'to="fallback"' in key


async def test_a_fallback_may_be_a_backend(start_proxy: StartProxy, servers: Servers) -> None:
    (other,) = await servers([STREAM])
    proxy = await start_proxy(
        {"name": "a", "url": CLOSED, "models": ["big"], "fallback": ["b"]},
        {"name": "b", "url": other.url, "models": ["small"], "adapter": "openai"},
        health={"interval": 0},
    )
    sent = {"model": "big", "messages": MESSAGES, "stream": True}
    async with proxy.session.post(proxy.url(CHAT), json=sent) as response:
        assert response.headers["x-wellspoken-fallback"] == "b"
        assert '"model":"big"' in await response.text()
    assert json.loads(other.requests[0].body)["model"] == "small"


async def test_choices_that_are_asked_for_one_by_one_go_on_together(
    start_proxy: StartProxy, servers: Servers
) -> None:
    (there,) = await servers([OK])
    proxy = await start(start_proxy, CLOSED, there.url, adapter="llama-cpp-python")
    for _ in range(2):
        status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES, "n": 3})
        assert status == 200, text
        assert [each["index"] for each in json.loads(text)["choices"]] == [0, 1, 2]
    assert len(there.requests) == 6


LONG: Final[dict[str, Any]] = {
    "models": [MODEL],
    "tables": {"health": {"interval": 0, "pause": 60}},  # longer than a test takes
}


def aborted(streams: bool, text: str = "") -> Script:
    """Return what vLLM answers once it has got SIGTERM: nothing, by the reason "abort"."""
    if streams:
        said = [event(chunk({"content": text}))] if text else []
        return stream(event(role()), *said, event(finish("abort")), DONE)
    message = {"role": "assistant", "content": text}
    return whole(body(choice(message=message, finish_reason="abort")))


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_ends_loses_what_it_has_not_begun_and_gets_no_more(
    start_proxy: StartProxy, servers: Servers, streams: bool
) -> None:
    ending, other = await servers([aborted(streams)], [STREAM if streams else OK])
    proxy = await start(start_proxy, ending.url, other.url, retry="unstarted", **LONG)
    sent = {"messages": MESSAGES, "stream": streams}
    for _ in range(4):
        status, text, headers = await post(proxy, CHAT, sent)
        assert status == 200 and "error" not in text, text
        assert headers["x-wellspoken-backend"] == "default/2"
    assert len(ending.requests) == 1  # it answers at once, so it would be the least busy one
    samples = await proxy.metrics()
    assert moves(samples) == {'{backend="default/1",reason="abort",to="server"}': 1}
    assert samples['wellspoken_backend_state{backend="default/1",state="out"}'] == 1


@pytest.mark.parametrize("retry", ["unsent", "unstarted"])
@pytest.mark.parametrize("text", ["", "Hi"])
async def test_an_aborted_answer_that_has_begun_is_an_error(
    start_proxy: StartProxy, servers: Servers, retry: str, text: str
) -> None:
    ending, other = await servers([aborted(False, text)], [OK])
    proxy = await start(start_proxy, ending.url, other.url, retry=retry, **LONG)
    status, said, _ = await post(proxy, CHAT, {"messages": MESSAGES})
    moved = retry == "unstarted" and not text
    assert (status == 200) == moved == ("upstream_abort" not in said), said
    assert bool(moves(await proxy.metrics())) == moved
    out = (await proxy.metrics())['wellspoken_backend_state{backend="default/1",state="out"}']
    assert out == (not text)


BROKEN: Final[dict[str, Script]] = {
    "cut in a stream": stream(event(role()), event(chunk({"content": "Hi"})), Reset(), end=False),
    "late in a stream": stream(event(role()), event(chunk({"content": "Hi"})), Stall(), end=False),
    "no end of a stream": stream(event(role()), event(chunk({"content": "Hi"}))),
    "a head alone": [head(content_type="text/event-stream"), Stall()],
    "cut in a body": [head(length=1000) + b'{"id', Reset()],
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_server_that_answers_a_head_and_no_more_goes_out(
    start_proxy: StartProxy, servers: Servers, kind: str
) -> None:
    """A head is sent by a server whose model hangs, too."""
    first, second = await servers([BROKEN[kind]], [STREAM])
    tables = {"timeouts": {"first_token_stream": 0.1, "between_chunks": 0.1}, **LONG["tables"]}
    proxy = await start(start_proxy, first.url, second.url, tables=tables)
    ejection = proxy.service.state.router.targets[0].ejection
    assert ejection is not None
    for _ in range(6):  # of which each has three
        await post(proxy, CHAT, {"messages": MESSAGES, "stream": kind != "cut in a body"})
    assert (ejection.state, len(first.requests)) == ("out", 3)


@pytest.mark.parametrize("large", [False, True])
async def test_the_key_of_a_large_request_is_found_in_a_thread(
    start_proxy: StartProxy, servers: Servers, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """All of a conversation's beginning is read for it, which may be all of the body."""
    threads: list[int] = []

    def note(*given: Any) -> bytes | None:
        threads.append(threading.get_ident())
        return affinity.find_key(*given)

    monkeypatch.setattr(way, "find_key", note)
    first, second = await servers([OK], [OK])
    proxy = await start(start_proxy, first.url, second.url, affinity="prefix")
    path, sent, _ = REQUESTS["large" if large else "chat"]
    assert (await post(proxy, path, sent))[0] == 200
    assert [each == threading.get_ident() for each in threads] == [not large]


async def test_large_requests_that_come_together_are_spread(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """Their server is chosen when they go there, and not before they are read and checked."""
    gates = Gate(), Gate()
    first, second = await servers([[gates[0], *OK]], [[gates[1], *OK]])
    proxy = await start(start_proxy, first.url, second.url)
    targets = proxy.service.state.router.targets
    targets[0].outstanding += 2
    path, sent, _ = REQUESTS["large"]
    asked = [asyncio.create_task(post(proxy, path, sent)) for _ in range(6)]
    await until(lambda: len(first.requests) + len(second.requests) == 6, "all requests")
    assert [target.outstanding for target in targets] == [4, 4]
    for gate in gates:
        gate.open()
    assert [(await each)[0] for each in asked] == [200] * 6


async def test_what_the_server_before_would_not_have_been_sent_is_not_told(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """Servers that are not alike have their own policy for vendors' keys."""
    (there,) = await servers([OK])
    proxy = await start_proxy(
        {"name": "a", "url": CLOSED, "models": [MODEL], "vendor": "strip", "weight": 1000},
        {"name": "b", "url": there.url, "models": [MODEL]},
        health={"interval": 0},
    )
    status, _, headers = await post(proxy, CHAT, {"messages": MESSAGES, "top_k": 5})
    assert status == 200 and headers["x-wellspoken-backend"] == "b"
    assert json.loads(there.requests[0].body)["top_k"] == 5
    assert "x-wellspoken-stripped" not in headers
    assert moves(await proxy.metrics())


async def test_what_one_kind_of_server_cannot_do_goes_to_another_kind(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """llama.cpp's native endpoint has no tools; which server's turn it is must not decide."""
    native, other = await servers([OK], [OK])
    proxy = await start_proxy(
        {"name": "a", "url": native.url, "models": [MODEL], "adapter": "llamacpp-native"},
        {"name": "b", "url": other.url, "models": [MODEL]},
        health={"interval": 0},
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for _ in range(4):
        status, text, headers = await post(proxy, CHAT, {"messages": MESSAGES, "tools": tools})
        assert status == 200, text
        assert headers["x-wellspoken-backend"] == "b"
    (key,) = moves(await proxy.metrics())
    assert 'backend="a"' in key and 'reason="unsupported"' in key
    assert len(other.requests) == 4 and not native.requests


async def test_what_no_kind_can_do_is_refused_and_no_fallback_is_asked(
    start_proxy: StartProxy, servers: Servers
) -> None:
    native, other = await servers([OK], [OK])
    proxy = await start_proxy(
        {
            "name": "a",
            "url": [native.url, native.url + "/b"],
            "models": [MODEL],
            "adapter": "llamacpp-native",
            "fallback": ["b"],
        },
        {"name": "b", "url": other.url, "models": ["other"]},
        health={"interval": 0},
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    status, text, _ = await post(proxy, CHAT, {"messages": MESSAGES, "tools": tools})
    assert status == 400, text
    assert json.loads(text)["error"]["code"] == "unsupported_parameter"
    assert not moves(await proxy.metrics()) and not other.requests
