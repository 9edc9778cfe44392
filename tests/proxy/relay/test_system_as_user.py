"""`system`: where a template takes no system message the user says first what it does.

The refusals are what users of Gemma 2 and Mistral 7B published of vLLM: flat as it was to 2025-07
(vLLM pull request 2964, issue 2080), with each text twice since (ragflow issue 11021).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conforming import body, finish, role, sse
from tests.fakes.upstream import Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, StartProxy

A, B = {"role": "system", "content": "A"}, {"role": "system", "content": "B"}
U, V = {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}
SAID = {"role": "assistant", "content": "said"}
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
FLAT = {
    "object": "error",
    "message": "System role not supported",
    "type": "BadRequestError",
    "param": None,
    "code": 400,
}
NESTED = {
    "error": {
        "message": f"{ALTERNATE} {ALTERNATE}",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}
REFUSED = {
    "gemma": whole(FLAT, status=400),
    "mistral": whole(NESTED, status=400),
    "event": stream(event(NESTED)),
}
LATE_ONE = whole({"error": {"message": "System message must be at the beginning."}}, status=400)
ANSWER = whole(body())
FIRST = {"role": "user", "content": "A\n\nhi"}


def sent(upstream: Upstream) -> list[Any]:
    return [x.json()["messages"] for x in upstream.requests if x.target == CHAT]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("refusal", REFUSED.values(), ids=REFUSED)
async def test_the_user_says_it_once_a_template_refused_the_role(
    upstream: Upstream, start_proxy: StartProxy, refusal: Script, streams: bool
) -> None:
    """It is remembered by model. Mutant: only late messages are looked at."""
    answer = stream(sse([role(), finish()])) if streams else ANSWER
    upstream.script(CHAT, refusal, answer)
    proxy = await start_proxy(upstream, adapter="vllm")
    for _ in range(2):
        async with await proxy.chat(messages=[A, U], stream=streams) as response:
            assert response.status == 200, await response.text()
            assert "error" not in await response.text()
    assert sent(upstream) == [[A, U], [FIRST], [FIRST]]
    async with await proxy.chat(messages=[A, U], stream=streams, model="another") as response:
        assert response.status == 200
    assert sent(upstream)[-1] == [A, U]  # its template may be another


async def test_several_are_one_before_they_are_the_users(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A template that takes one is not refused the role. Mutant: the user's at once."""
    upstream.script(CHAT, REFUSED["gemma"], REFUSED["mistral"], ANSWER)
    proxy = await start_proxy(upstream, adapter="vllm")
    late = [A, U, SAID, B, V]
    one = [{**A, "content": "A\n\nB"}, U, SAID, V]
    none = [{**U, "content": "A\n\nB\n\nhi"}, SAID, V]
    for _ in range(2):
        async with await proxy.chat(messages=late) as response:
            assert response.status == 200, await response.text()
    assert sent(upstream) == [late, one, none, none]


async def test_a_template_that_takes_one_gets_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Its words say so. Mutant: any refusal of how system messages stand will do."""
    upstream.script(CHAT, LATE_ONE)
    proxy = await start_proxy(upstream, adapter="vllm")
    await proxy.error(400, messages=[A, U])
    assert sent(upstream) == [[A, U]]


async def test_what_it_does_not_mend_is_told_and_not_remembered(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, REFUSED["mistral"])
    proxy = await start_proxy(upstream, adapter="vllm")
    for _ in range(2):
        assert ALTERNATE in (await proxy.error(400, messages=[A, U, V]))["message"]
    assert sent(upstream) == [[A, U, V], [FIRST, V]] * 2
    await proxy.error(400, messages=[U, V])  # which have no system message
    assert sent(upstream)[4:] == [[U, V]]


async def test_that_an_assistant_spoke_first_says_nothing_of_the_role(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Gemma 3 takes the system's message, and refuses this. Mutant: remembered all the same."""
    upstream.script(CHAT, REFUSED["mistral"], ANSWER)
    proxy = await start_proxy(upstream, adapter="vllm")
    for messages in ([A, SAID, V], [A, U]):
        async with await proxy.chat(messages=messages) as response:
            assert response.status == 200, await response.text()
    said = {"role": "user", "content": "A"}
    assert sent(upstream) == [[A, SAID, V], [said, SAID, V], [A, U]]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("user", [[FIRST]]),
        ("pass", [[A, U]]),
        ("fold", [[A, U], [FIRST]]),
        ("auto", [[A, U], [FIRST]]),
    ],
)
async def test_the_routes_word(
    upstream: Upstream, start_proxy: StartProxy, word: str, expected: Any
) -> None:
    upstream.script(CHAT, REFUSED["gemma"])
    proxy = await start_proxy(upstream, adapter="vllm", system=word)
    await proxy.error(400, messages=[A, U])
    assert sent(upstream) == expected


async def test_choices_that_are_asked_for_one_by_one_each_learn_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Mutant: the second change of what is the user's already changes it again."""
    upstream.script(CHAT, REFUSED["gemma"], REFUSED["gemma"], ANSWER)
    proxy = await start_proxy(upstream, adapter="ollama")
    async with await proxy.chat(messages=[A, U], n=2) as response:
        answer = await response.json()
        assert response.status == 200, answer
    assert len(answer["choices"]) == 2
    assert sent(upstream) == [[A, U], [A, U], [FIRST], [FIRST]]
