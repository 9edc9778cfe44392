"""Chat completions answered as a body, in front of a scripted upstream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.clock import skip
from tests.conforming import MODEL, body
from tests.fakes.upstream import (
    Cut,
    Gate,
    Pause,
    Reset,
    Stall,
    Upstream,
    chunk,
    event,
    head,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, MESSAGES, StartProxy, envelope, raw
from tests.waiting import until

PLAIN = json.dumps(body(), ensure_ascii=False, separators=(",", ":")).encode()
BROKEN = {
    "id": "cmpl-1234567890",
    "object": "chat.completion",
    "created": 12345,
    "model": "backend-name",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi"},
            "finish_reason": "eos_token",
            "stop_reason": None,
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


async def test_a_conforming_body_passes_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert await response.read() == PLAIN
        assert "x-wellspoken-repairs" not in response.headers
        assert response.headers["x-request-id"]


async def test_a_broken_body_is_repaired_and_the_repairs_are_named(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(BROKEN)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        answer = await response.json()
        repairs = response.headers["x-wellspoken-repairs"].split(", ")
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["model"] == MODEL
    assert "finish_reason_eos_token" in repairs
    assert len(repairs) == len(set(repairs))
    scraped = await proxy.metrics()
    for rule in repairs:
        assert scraped[f'wellspoken_repairs_total{{backend="default",rule="{rule}"}}'] == 1


@pytest.mark.parametrize("path", ["/chat/completions", CHAT, f"{CHAT}?api-version=1"])
async def test_the_path_works_with_and_without_v1(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    asked = {"model": MODEL, "messages": MESSAGES}
    async with proxy.session.post(proxy.url(path), json=asked) as response:
        assert response.status == 200
    assert upstream.requests[0].target == CHAT


async def test_the_upstream_request_is_built_anew(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    headers = {
        "Authorization": "Bearer client-secret",
        "Cookie": "a=b",
        "X-Forwarded-For": "1.2.3.4",
        "Accept-Encoding": "gzip, br",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "congo=t61rcWkgMzE, rojo=00f067aa0ba902b7",
        "x-request-id": "my-id-1",
        "OpenAI-Organization": "org",
    }
    async with await proxy.chat(headers, top_k=4) as response:
        assert response.headers["x-request-id"] == "my-id-1"
    sent = upstream.requests[0]
    assert sent.method == "POST"
    assert sent.json()["top_k"] == 4
    assert dict(sent.headers) == {
        "Host": f"127.0.0.1:{upstream.port}",
        "User-Agent": "wellspoken",
        "Accept-Encoding": "identity",
        "Accept": "application/json",
        "x-request-id": "my-id-1",
        "traceparent": headers["traceparent"],
        "tracestate": headers["tracestate"],
        "Content-Type": "application/json",
        "Content-Length": str(len(sent.body)),
    }


async def test_the_configured_key_is_sent_and_the_clients_is_not(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", " backend-secret\n")
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, key="env:BACKEND_KEY")
    async with await proxy.chat({"Authorization": "Bearer client-secret"}):
        pass
    assert upstream.requests[0].header("Authorization") == "Bearer backend-secret"


async def test_auth_pass_sends_the_clients_key(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, auth="pass")
    async with await proxy.chat({"Authorization": "Bearer client-secret"}):
        pass
    async with await proxy.chat():
        pass
    assert upstream.requests[0].header("Authorization") == "Bearer client-secret"
    assert upstream.requests[1].header("Authorization") is None


async def test_an_insane_request_id_is_replaced(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat({"x-request-id": "a b" * 100}) as response:
        made = response.headers["x-request-id"]
    assert made.startswith("req_")
    assert upstream.requests[0].header("x-request-id") == made


async def test_models_and_aliases_are_renamed(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"})
    for model in ("gpt-4o", "anything"):
        async with await proxy.chat(model=model) as response:
            assert (await response.json())["model"] == model
    assert [request.json()["model"] for request in upstream.requests] == ["llama", "anything"]


async def test_one_name_for_every_model(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, upstream_model="the-one")
    async with await proxy.chat(model="anything"):
        pass
    assert upstream.requests[0].json()["model"] == "the-one"


async def test_several_backends_are_found_by_model_and_alias(start_proxy: StartProxy) -> None:
    async with Upstream(whole(PLAIN)) as one, Upstream(whole(PLAIN)) as two:
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["a"], "bounds": "backend"},
            {"name": "two", "url": two.url, "aliases": {"b": "real-b"}},
        )
        async with await proxy.chat(model="a"):
            pass
        async with await proxy.chat(model="b"):
            pass
        error = await proxy.error(404, model="c")
        too_many_stops: dict[str, Any] = {"model": "a", "stop": ["1", "2", "3", "4", "5"]}
        async with await proxy.chat(**too_many_stops) as response:
            assert response.status == 200
        await proxy.error(400, **{**too_many_stops, "model": "b"})
    assert [request.json()["model"] for request in one.requests] == ["a", "a"]
    assert [request.json()["model"] for request in two.requests] == ["real-b"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "a, b" in error["message"]


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (whole({"detail": "no"}, status=422), 422, "no"),
        (whole({"object": "error", "message": "bad", "code": 40001}, status=400), 400, "bad"),
        (whole(b"<html>Bad gateway</html>", 502, "text/html"), 502, ""),
        (whole(b"<html>Welcome</html>", 200, "text/html"), 502, ""),
        (whole({"error": "no key"}, status=401), 502, ""),
        (whole({}, status=302, headers=[("Location", "http://127.0.0.1:1/")]), 502, ""),
        (whole(b"", status=200), 502, ""),
        (whole(b'{"choices": [', status=200), 502, ""),
        ([b"SSH-2.0-OpenSSH_9.2\r\n", Cut()], 502, "not HTTP"),
        ([Cut()], 502, "closed the connection"),
        ([Reset()], 502, "closed the connection"),
        ([head(length=100) + b'{"choices"', Cut()], 502, "closed the connection"),
        ([head(length=100) + b'{"choices"', Reset()], 502, "closed the connection"),
        ([head(chunked=True) + chunk(b'{"choices"'), Cut()], 502, "closed the connection"),
        ([head() + b'{"choices"', Pause(0.05), Reset()], 502, "closed the connection"),
        (whole(PLAIN, headers=[("Content-Encoding", "gzip")]), 502, "compression"),
    ],
)
async def test_what_goes_wrong_becomes_openais_error(
    upstream: Upstream, start_proxy: StartProxy, script: object, status: int, words: str
) -> None:
    upstream.scripts = [script]  # type: ignore[list-item]
    proxy = await start_proxy(upstream)
    error = await proxy.error(status)
    assert words in error["message"]
    assert "Traceback" not in error["message"]


async def test_a_body_that_ends_with_the_connection_is_complete(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[head() + PLAIN]]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        assert await response.read() == PLAIN


async def test_interim_responses_are_skipped(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [[b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", *whole(PLAIN)]]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        assert await response.read() == PLAIN


async def test_an_empty_answer_is_an_error(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [[b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"]]
    proxy = await start_proxy(upstream)
    await proxy.error(502)


async def test_a_stream_for_a_body_is_folded(upstream: Upstream, start_proxy: StartProxy) -> None:
    part = {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = [{"id": "x", "object": "chat.completion.chunk", "choices": [c]} for c in (part, last)]
    upstream.scripts = [stream(*(event(c) for c in chunks), event("[DONE]"))]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        answer = await response.json()
    assert answer["choices"][0]["message"]["content"] == "Hi"


async def test_backend_down_names_the_url_and_what_to_do(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    await upstream.refuse()
    proxy = await start_proxy(upstream)
    error = await proxy.error(502)
    assert upstream.url in error["message"]
    assert "Start it" in error["message"]
    assert error["code"] == "backend_unavailable"
    scraped = await proxy.metrics()
    assert scraped['wellspoken_upstream_errors_total{backend="default",reason="refused"}'] == 1


async def test_an_unknown_host_is_502(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://name.invalid:8000")
    error = await proxy.error(502)
    assert "http://name.invalid:8000" in error["message"]


@pytest.mark.parametrize("script", [[Stall()], [head(length=9), Stall()]])
async def test_a_backend_that_says_nothing_is_504(
    upstream: Upstream, start_proxy: StartProxy, script: object
) -> None:
    upstream.scripts = [script]  # type: ignore[list-item]
    proxy = await start_proxy(upstream, timeouts={"first_token_body": 0.1})
    error = await proxy.error(504)
    assert "first_token_body" in error["message"]
    await upstream.requests[0].closed.wait()
    assert upstream.requests[0].by_peer


async def test_a_backend_that_stops_in_the_middle_is_504(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[head(length=9) + b"{", Stall()]]
    proxy = await start_proxy(upstream, timeouts={"between_chunks": 0.1})
    error = await proxy.error(504)
    assert "between_chunks" in error["message"]


async def test_a_slow_but_steady_body_is_no_timeout(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Each wait is shorter than the timeouts, and any two together are longer."""
    parts = [PLAIN[:1], PLAIN[1:60], PLAIN[60:]]
    gates = [Gate() for _ in parts]
    steps = [step for one in zip(gates, parts, strict=True) for step in one]
    upstream.scripts = [[head(length=len(PLAIN)), *steps]]
    timeouts = {"between_chunks": 100.0, "first_token_body": 100.0}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    (target,) = proxy.service.state.router.targets
    backend = target.upstream
    assert backend is not None
    asked = asyncio.create_task(proxy.chat())
    heard = -1.0  # when the proxy had what was sent before
    for gate in gates:
        await gate.reached.wait()
        await until(lambda heard=heard: backend.heard > heard)  # type: ignore[misc]
        heard = asyncio.get_running_loop().time()
        skip(60)
        await asyncio.sleep(0.01)
        gate.open()
    async with await asked as response:
        assert await response.read() == PLAIN


async def test_an_answer_above_the_limit_is_502(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[head(chunked=True), *[chunk(b" " * 60_000)] * 100, Stall()]]
    proxy = await start_proxy(upstream, limits={"response": 100_000})
    error = await proxy.error(502)
    assert "limits.response" in error["message"]
    await upstream.requests[0].closed.wait()


async def test_oai_compat_false_passes_the_answer_untouched(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    strange = b'{"any":  "thing", "x": NaN}'
    upstream.scripts = [whole(strange, 418, "application/vnd.x+json; a=b")]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(oai_compat=False, top_k=1) as response:
        assert response.status == 418
        assert response.headers["Content-Type"] == "application/vnd.x+json; a=b"
        assert await response.read() == strange
        assert "x-wellspoken-repairs" not in response.headers
    asked = upstream.requests[0].json()
    assert asked == {"model": MODEL, "messages": MESSAGES, "top_k": 1}


async def test_oai_compat_true_is_not_forwarded(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(oai_compat=True) as response:
        assert await response.read() == PLAIN
    assert "oai_compat" not in upstream.requests[0].json()


async def test_keep_and_extensions_headers(upstream: Upstream, start_proxy: StartProxy) -> None:
    extra = json.loads(json.dumps(BROKEN))
    extra["choices"][0]["stop_reason"] = 42
    extra["choices"][0]["message"]["reasoning_content"] = "Hm"
    upstream.scripts = [whole(extra)]
    proxy = await start_proxy(upstream, keep=["stop_reason"])

    async def choice(headers: dict[str, str]) -> dict[str, object]:
        async with await proxy.chat(headers) as response:
            found: dict[str, object] = (await response.json())["choices"][0]
            return found

    assert (await choice({}))["stop_reason"] == 42
    assert "stop_reason" not in await choice({"x-wellspoken-keep": "other"})
    bare = await choice({"x-wellspoken-extensions": "none"})
    assert "reasoning_content" not in bare["message"]  # type: ignore[operator]
    known = await choice({"x-wellspoken-extensions": "Known"})
    assert known["message"]["reasoning_content"] == "Hm"  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-wellspoken-extensions", "some"),
        ("x-wellspoken-keep", "a b"),
        ("x-wellspoken-keep", ",".join(["a"] * 33)),
    ],
)
async def test_bad_values_of_our_headers_are_400(
    upstream: Upstream, start_proxy: StartProxy, name: str, value: str
) -> None:
    proxy = await start_proxy(upstream)
    async with await proxy.chat({name: value}) as response:
        assert response.status == 400
        assert envelope(await response.text())["param"] == name
    assert upstream.requests == []


async def test_a_pointless_retry_is_discouraged(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    broken = json.loads(json.dumps(BROKEN))
    broken["choices"][0]["finish_reason"] = "parse_error"
    upstream.scripts = [whole(broken)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        assert response.status == 502
        assert response.headers["x-should-retry"] == "false"


async def test_when_to_retry_is_passed_on(upstream: Upstream, start_proxy: StartProxy) -> None:
    headers = [("Retry-After", "7"), ("retry-after-ms", "x;y"), ("Set-Cookie", "a=b")]
    upstream.scripts = [whole({"error": "busy"}, status=429, headers=headers)]
    proxy = await start_proxy(upstream)
    for stream_too in (False, True):
        async with await proxy.chat(stream=stream_too) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "7"
            assert "retry-after-ms" not in response.headers
            assert "Set-Cookie" not in response.headers


async def test_bad_requests_are_refused_before_the_backend(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    error = await proxy.error(400, temperature=3)
    assert error["param"] == "temperature"
    for data in (b"", b"{", b"[" * 100_000, b'{"a": "\xff"}', b"NaN", b'"x"'):
        answer = await proxy.session.post(
            proxy.url(CHAT), data=data, headers={"Content-Type": "application/json"}
        )
        assert answer.status == 400
        envelope(await answer.read())
    assert upstream.requests == []


async def test_an_http_1_0_client_is_answered_and_closed(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    data = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
    top = b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n" % (CHAT.encode(), len(data))
    answer = await raw(proxy.port, top + b"\r\n" + data)
    assert answer.endswith(b"Connection: close\r\n\r\n" + PLAIN)
    kept = await raw(
        proxy.port, top + b"Connection: keep-alive\r\n\r\n" + data + top + b"\r\n" + data
    )
    assert kept.count(PLAIN) == 2
    assert kept.count(b"Connection: keep-alive\r\n") == 1
