"""OpenAI's response headers on every answer, and what they make the real client do."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conforming import MODEL, STREAMS, sse
from tests.examples import examples
from tests.fakes.upstream import Gate, Pause, Script, Upstream, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, raw
from tests.proxy.endpoints.test_chat_body import BROKEN, PLAIN
from wellspoken.proxy.relay.headers import LASTING_CODES, retry_headers
from wellspoken.proxy.upstream.failures import UpstreamError

EVENTS = sse(STREAMS["plain"].answer)
PARSE_ERROR = json.loads(json.dumps(BROKEN))
PARSE_ERROR["choices"][0]["finish_reason"] = "parse_error"
SOON = [("retry-after-ms", "5")]


def checked(headers: Any, identity: str | None = None) -> int:
    """Check the three lines that every answer has; return the milliseconds."""
    assert headers.getall("openai-version") == ["2020-10-01"]
    (given,) = headers.getall("x-request-id")
    if identity is None:
        assert re.fullmatch("req_[0-9a-f]{24}", given)
    else:
        assert given == identity
    (spent,) = headers.getall("openai-processing-ms")
    assert re.fullmatch("[0-9]{1,6}", spent)
    return int(spent)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, {"model": MODEL, "messages": MESSAGES}),
        ("POST", CHAT, {"model": MODEL, "messages": MESSAGES, "oai_compat": False}),
        ("POST", CHAT, {"model": MODEL}),
        ("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "n": 0}),
        ("GET", CHAT, None),
        ("TRACE", CHAT, None),
        ("GET", "/nowhere", None),
        ("GET", "/v1/models", None),
        ("HEAD", "/v1/models", None),
        ("GET", "/v1/models/none", None),
        ("GET", "/livez", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ],
)
async def test_every_answer_has_the_same_three(
    upstream: Upstream, start_proxy: StartProxy, method: str, path: str, body: Any
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, models=[MODEL])
    asked = {"json": body} if body is not None else {}
    async with proxy.session.request(method, proxy.url(path), **asked) as response:
        checked(response.headers)
    named = {"x-request-id": "mine-7"}
    async with proxy.session.request(method, proxy.url(path), headers=named, **asked) as response:
        checked(response.headers, "mine-7")


async def test_what_is_no_request_is_refused_with_them_too(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1", limits={"header": 1024})
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 3000):
        head = (await raw(proxy.port, data)).partition(b"\r\n\r\n")[0]
        assert head.startswith(b"HTTP/1.1 4")
        for line in (rb"x-request-id: req_[0-9a-f]{24}", rb"openai-version: 2020-10-01",
                     rb"openai-processing-ms: 0"):  # fmt: skip
            assert len(re.findall(rb"^" + line + rb"\r?$", head, re.MULTILINE)) == 1


async def spent(proxy: Proxy, gate: Gate | None = None, **more: Any) -> tuple[int, float]:
    """Chat; return the milliseconds that the head says, and those until it is here.

    The gate is opened then.
    """
    began = time.monotonic()
    async with await proxy.chat(**more) as response:
        most = (time.monotonic() - began) * 1000
        if gate is not None:
            gate.open()
        await response.read()
        return checked(response.headers), most


async def test_the_time_of_a_body_is_from_head_to_head(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[Pause(0.15), *whole(PLAIN)], whole(PLAIN)]
    proxy = await start_proxy(upstream)
    slow, until_slow = await spent(proxy)
    quick, until_quick = await spent(proxy)
    assert 150 <= slow <= until_slow
    assert quick <= until_quick


async def test_the_time_of_a_stream_is_until_its_head_leaves(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    cut = EVENTS.index(b'"!"')  # in the second piece of content
    upstream.scripts = [stream(Pause(0.15), EVENTS[:cut], gate, EVENTS[cut:])]
    proxy = await start_proxy(upstream)
    said, most = await spent(proxy, gate, stream=True)  # its head comes before the backend's end
    assert 150 <= said <= most
    heartbeat = await start_proxy(upstream, timeouts={"heartbeat": 0.1})
    gate = Gate()
    upstream.scripts = [stream(gate, EVENTS)]
    said, most = await spent(heartbeat, gate, stream=True)
    assert 100 <= said <= most


# What the backend answers, and the headers of our answer that speak of trying again.
RETRIES: dict[str, tuple[Script, int, dict[str, str]]] = {
    "429 without a word": (whole({"error": "busy"}, 429), 429, {"Retry-After": "1"}),
    "503 without a word": (whole({"error": "loading"}, 503), 503, {"Retry-After": "2"}),
    "429 that says when": (
        whole({"error": "busy"}, 429, headers=[("Retry-After", "7")]),
        429,
        {"Retry-After": "7"},
    ),
    "429 with a date": (
        whole({"error": "x"}, 429, headers=[("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT")]),
        429,
        {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"},
    ),
    "429 with nonsense": (
        whole({"error": "busy"}, 429, headers=[("Retry-After", "in a while")]),
        429,
        {"Retry-After": "1"},
    ),
    "milliseconds": (
        whole({"error": "busy"}, 503, headers=SOON),
        503,
        {"Retry-After": "2", "retry-after-ms": "5"},
    ),
    "error in a 200": (
        whole({"error": {"message": "no", "code": 503}}),
        503,
        {"Retry-After": "2"},
    ),
    "quota": (
        whole({"error": {"message": "no money", "code": "insufficient_quota"}}, 429),
        429,
        {"x-should-retry": "false"},
    ),
    "the backend says no": (
        whole({"error": "no"}, 503, headers=[("x-should-retry", "false")]),
        503,
        {"x-should-retry": "false"},
    ),
    "the backend says yes": (
        whole({"error": "no"}, 400, headers=[("x-should-retry", "true")]),
        400,
        {"x-should-retry": "true"},
    ),
    "the backend says maybe": (
        whole({"error": "no"}, 400, headers=[("x-should-retry", "maybe")]),
        400,
        {},
    ),
    "400": (whole({"error": "no"}, 400), 400, {}),
    "500": (whole({"error": "no"}, 500), 500, {}),
    "501": (whole({"error": "not supported"}, 501), 501, {"x-should-retry": "false"}),
    "key": (whole({"error": "who are you"}, 401), 502, {"x-should-retry": "false"}),
    "no completion": (whole({"hello": 1}), 502, {"x-should-retry": "false"}),
    "parse_error": (whole(PARSE_ERROR), 502, {"x-should-retry": "false"}),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("named", RETRIES)
async def test_an_error_says_whether_and_when_to_try_again(
    upstream: Upstream, start_proxy: StartProxy, named: str, streams: bool
) -> None:
    script, status, expected = RETRIES[named]
    upstream.scripts = [script]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=streams) as response:
        checked(response.headers)
        assert response.status == status, await response.text()
        names = ("Retry-After", "retry-after-ms", "x-should-retry")
        found = {name: response.headers.getall(name, []) for name in names}
    assert found == {name: [expected[name]] if name in expected else [] for name in names}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_untouched_answer_says_when_to_try_again(
    upstream: Upstream, start_proxy: StartProxy, streams: bool
) -> None:
    upstream.scripts = [whole({"error": "loading"}, 503)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=streams, oai_compat=False) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert await response.json() == {"error": "loading"}


async def test_readyz_says_when_to_ask_again(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    async with proxy.session.get(proxy.url("/readyz")) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "2")


async def test_a_missing_tokenizer_is_not_worth_a_retry(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.scripts = [whole(PLAIN)]
    (tmp_path / "odd.tiktoken").write_text("no ranks")
    proxy = await start_proxy(upstream, tokenizer=str(tmp_path / "odd.tiktoken"))
    assert await asked(upstream, proxy) == (0, 500, "tokenizer_unusable")


@pytest.mark.parametrize(
    ("reason", "retry"),
    [("tls", False), ("too_large", False), ("encoding", False), ("refused", None), ("cut", None)],
)
def test_a_failure_that_lasts_is_not_worth_a_retry(reason: Any, retry: bool | None) -> None:
    assert UpstreamError(reason, "x").fault.retry is retry


def test_lines_that_are_there_are_not_said_twice() -> None:
    body = b'{"error": {"code": "tokenizer_unusable"}}'
    for lines in (b"Retry-After: 9\r\n", b"x-should-retry: true\r\nretry-after: 9\r\n"):
        assert retry_headers(429, b"{}", lines) == lines
    assert retry_headers(500, body, b"x-should-retry: true\r\n") == b"x-should-retry: true\r\n"
    assert retry_headers(500, body, b"a: b\r\n") == b"a: b\r\nx-should-retry: false\r\n"
    assert retry_headers(404, body, b"") == b""  # no client retries it
    for odd in (b"", b"<html>", b"\xff", b"[" * 100_000, b'{"error": "x"}', b'{"error": null}'):
        assert retry_headers(500, odd, b"") == b""
    assert all(
        retry_headers(502, b'{"error":{"code":"%b"}}' % code.encode(), b"")
        for code in LASTING_CODES
    )


LINES = ["Retry-After: 9", "retry-after-ms: 50", "x-should-retry: false", "X-Should-Retry: true",
         "x-should-retry: true", "x-wellspoken-repairs: retry-after, x"]  # fmt: skip
CODES = sorted(LASTING_CODES | {"engine_not_ready", "store_full", "rate_limit_exceeded", "x"})


@settings(max_examples=examples(400), deadline=None, database=None)
@given(
    st.integers(400, 599),
    st.sampled_from(CODES),
    st.lists(st.sampled_from(LINES), unique_by=str.lower),
)
def test_no_error_says_when_to_try_again_and_not_to(
    status: int, code: str, given_lines: list[str]
) -> None:
    """Whatever a backend, a refusal of ours and the rules for a status add up to."""
    body = json.dumps({"error": {"code": code}}).encode()
    lines = "".join(f"{line}\r\n" for line in given_lines).encode()
    told = retry_headers(status, body, lines)
    names = [line.partition(":")[0].lower() for line in told.decode().splitlines()]
    final = b"x-should-retry: false" in told.lower()
    assert not final or not {"retry-after", "retry-after-ms"}.intersection(names)
    assert not final or names.count("x-should-retry") == 1
    assert final or "x-should-retry: false" not in given_lines
    assert names.count("retry-after") <= 1
    assert ("x-wellspoken-repairs" in names) == (LINES[-1] in given_lines)
    assert retry_headers(status, body, told) == told


async def asked(upstream: Upstream, proxy: Proxy, **more: Any) -> tuple[int, int, str | None]:
    """Ask as OpenAI's client does by default; return what the backend was asked and the error."""
    async with openai.AsyncOpenAI(base_url=proxy.url("/v1"), api_key="none") as client:
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], **more
            )
    assert failed.value.request_id
    return len(upstream.requests), failed.value.status_code, failed.value.code


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (whole(PARSE_ERROR), (1, 502, "upstream_parse_error")),
        (whole({"hello": 1}), (1, 502, "upstream_not_a_completion")),
        (whole({"error": "who"}, 401), (1, 502, "backend_auth_failed")),
        (whole({"error": "not supported"}, 501), (1, 501, None)),
        (whole({"error": {"message": "x", "code": "insufficient_quota"}}, 429),
         (1, 429, "insufficient_quota")),
        (whole({"error": "bad messages"}, 400), (1, 400, None)),
        (whole({"error": "busy"}, 429, headers=SOON), (3, 429, None)),
        (whole({"error": "busy"}, 503, headers=SOON), (3, 503, None)),
        (whole({"error": "odd"}, 500, headers=SOON), (3, 500, None)),
    ],
)  # fmt: skip
async def test_the_python_client_tries_again_only_where_it_helps(
    upstream: Upstream,
    start_proxy: StartProxy,
    script: Script,
    expected: tuple[int, int, str | None],
    streams: bool,
) -> None:
    upstream.scripts = [script]
    proxy = await start_proxy(upstream)
    assert await asked(upstream, proxy, stream=streams) == expected


async def test_the_python_client_waits_as_long_as_it_is_told(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({"error": "busy"}, 429), whole(PLAIN)]
    proxy = await start_proxy(upstream)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with openai.AsyncOpenAI(base_url=proxy.url("/v1"), api_key="none") as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
    assert loop.time() - begun >= 1.0  # its own first wait is half a second at most
    assert len(upstream.requests) == 2
    assert answer._request_id
