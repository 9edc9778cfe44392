"""`system`: a strict template's refusal is answered by folding, once, and remembered by model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conforming import body, finish, role, sse
from tests.fakes.upstream import Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, StartProxy

A, B = {"role": "system", "content": "A"}, {"role": "system", "content": "B"}
U = {"role": "user", "content": "hi"}
LATE = [A, U, B]
FOLDED = [{"role": "system", "content": "A\n\nB"}, U]
SAID = {"error": {"message": "System message must be at the beginning.", "code": 400}}
REFUSED = {
    "400": whole(SAID, status=400),
    "500": whole(SAID, status=500),
    "event": stream(event(SAID)),
}
OTHER = whole({"error": {"message": "Say please."}}, status=400)


def sent(upstream: Upstream) -> list[Any]:
    return [x.json()["messages"] for x in upstream.requests if x.target == CHAT]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("refusal", REFUSED.values(), ids=REFUSED)
async def test_a_refusal_is_answered_by_folding_and_remembered(
    upstream: Upstream, start_proxy: StartProxy, refusal: Script, streams: bool
) -> None:
    answer = stream(sse([role(), finish()])) if streams else whole(body())
    upstream.script(CHAT, refusal, answer)
    proxy = await start_proxy(upstream, adapter="vllm")
    for number in (2, 3):
        async with await proxy.chat(messages=LATE, stream=streams) as response:
            assert response.status == 200, await response.text()
            assert "error" not in await response.text()
        assert sent(upstream) == [LATE, FOLDED, FOLDED][:number]
    async with await proxy.chat(messages=LATE, stream=streams, model="another") as response:
        assert response.status == 200
    assert sent(upstream)[-1] == LATE  # its template may be another


async def test_a_refusal_that_folding_does_not_mend_is_told_and_not_remembered(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, REFUSED["400"])
    proxy = await start_proxy(upstream, adapter="vllm")
    for _ in range(2):
        assert "at the beginning" in (await proxy.error(400, messages=LATE))["message"]
    assert sent(upstream) == [LATE, FOLDED] * 2


@pytest.mark.parametrize(
    ("adapter", "word", "messages", "expected"),
    [
        ("vllm", "fold", LATE, [FOLDED]),
        ("vllm", "pass", LATE, [LATE]),
        ("vllm", "auto", FOLDED, [FOLDED]),
        ("llama-cpp-python", "auto", LATE, [FOLDED]),
        ("llama-cpp-python", "pass", LATE, [LATE]),
    ],
)
async def test_the_routes_word_and_known_servers(
    upstream: Upstream,
    start_proxy: StartProxy,
    adapter: str,
    word: str,
    messages: Any,
    expected: Any,
) -> None:
    upstream.script(CHAT, REFUSED["400"])
    proxy = await start_proxy(upstream, adapter=adapter, system=word)
    await proxy.error(400, messages=messages)
    assert sent(upstream) == expected


async def test_another_error_is_no_reason_to_ask_again(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, OTHER)
    proxy = await start_proxy(upstream, adapter="vllm")
    await proxy.error(400, messages=LATE)
    assert sent(upstream) == [LATE]
