"""`system`: what llama.cpp's template leaves out is found out by its own prompt, once.

The prompts are those of b11549 with templates as tests/live/test_strict_template.py has them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conforming import body
from tests.fakes.upstream import Reset, Script, Upstream, whole
from tests.proxy.conftest import CHAT, StartProxy

TEMPLATE = "/apply-template"
A, B = {"role": "system", "content": "A"}, {"role": "system", "content": "B"}
U, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "said"}
LATE = [A, U, B]
ONE = [{**A, "content": "A\n\nB"}, U]
NONE = [{**U, "content": "A\n\nB\n\nhi"}]


def prompt(text: str) -> Script:
    return whole({"prompt": text})


def refused(said: str, status: int = 400) -> Script:
    return whole({"error": {"message": said, "code": status}}, status=status)


BOTH = prompt("<s>wsfirst</s><u>u</u><a>a</a><s>wslate</s><u>u</u><a>")
FIRST = prompt("[INST] wsfirst\nu [/INST]a</s>[INST] u [/INST]")
STRICT = refused("System message must be at the beginning.")
GONE, KEPT = prompt(""), prompt("<s>wsfirst</s><a>")
ALTERNATE = refused("Conversation roles must alternate user/assistant/user/assistant/...")
NO_ROLE = refused("System role not supported")
NO_QUERY = refused("No user query found in messages.", 500)


def asked(upstream: Upstream, path: str) -> list[Any]:
    return [x.json() for x in upstream.requests if x.target == path]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([BOTH], LATE),
        ([FIRST, KEPT], ONE),
        ([FIRST, GONE], NONE),
        ([STRICT, KEPT], ONE),
        ([STRICT, NO_QUERY], ONE),
        ([ALTERNATE, GONE], NONE),
        ([ALTERNATE, NO_ROLE], NONE),
        ([refused("File Not Found", 404)], LATE),
        ([[Reset()]], LATE),
        ([FIRST, [Reset()]], LATE),
        ([whole({"text": "wsfirst"})], LATE),
    ],
)
async def test_a_late_message_is_sent_as_the_template_takes_it(
    upstream: Upstream, start_proxy: StartProxy, prompts: list[Script], expected: Any
) -> None:
    """Nothing is refused before. Mutants: what is left out passes; one that stands alone, too."""
    upstream.script(TEMPLATE, *prompts)
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    for _ in range(2):
        async with await proxy.chat(messages=LATE) as response:
            assert response.status == 200, await response.text()
    assert [each["messages"] for each in asked(upstream, CHAT)] == [expected] * 2
    assert len(asked(upstream, TEMPLATE)) == len(prompts)


async def test_what_is_found_out_is_the_models(upstream: Upstream, start_proxy: StartProxy) -> None:
    """A router has several. Mutant: the first one's is every model's."""
    upstream.script(TEMPLATE, FIRST, GONE, BOTH)
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter="llamacpp", aliases={"gpt-4o": "theirs"})
    for model, expected in (("gpt-4o", NONE), ("mine", LATE)):
        async with await proxy.chat(messages=LATE, model=model) as response:
            assert response.status == 200
        assert asked(upstream, CHAT)[-1]["messages"] == expected
    assert [each["model"] for each in asked(upstream, TEMPLATE)] == ["theirs", "theirs", "mine"]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [([A], [{**U, "content": "A"}]), ([A, SAID, U], [{**U, "content": "A"}, SAID, U])],
)
async def test_what_would_be_lost_or_the_assistants_is_the_users(
    upstream: Upstream, start_proxy: StartProxy, messages: Any, expected: Any
) -> None:
    """Mutant: only late messages are looked at."""
    upstream.script(TEMPLATE, ALTERNATE, GONE)
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter="llamacpp", system="fold")
    async with await proxy.chat(messages=messages) as response:
        assert response.status == 200, await response.text()
    assert asked(upstream, CHAT)[0]["messages"] == expected


@pytest.mark.parametrize(
    ("adapter", "word", "messages"),
    [
        ("llamacpp", "auto", [A, U, SAID, U]),
        ("llamacpp", "auto", [U]),
        ("llamacpp", "pass", LATE),
        ("llamacpp", "user", LATE),
        ("vllm", "auto", LATE),
    ],
)
async def test_nobody_is_asked_without_need(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, word: str, messages: Any
) -> None:
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter=adapter, system=word)
    async with await proxy.chat(messages=messages) as response:
        assert response.status == 200, await response.text()
    assert [each.target for each in upstream.requests] == [CHAT]
