"""Parameters that need a server or a route of their own: effort, llama.cpp's own forms."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.effects import CHAT, PROMPT, TEXTS, Ask
from tests.models.tiny import TEXT
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

ROOT = Path(__file__).parents[2]
OLD = ROOT / ".venv-llamacpp-old"
SERVE = Path(__file__).with_name("serve_xllamacpp.py")
OFF = "enable_thinking is defined and not enable_thinking"
TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
    "{%- endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{%- if OFF -%}<think>\n\n</think>\n\n{%- endif -%}"  # b11549 has thinking where it sees this
    "{%- if reasoning_effort == 'high' -%}<|loop|>{%- elif OFF -%}<|cut|>{%- endif -%}"
    "{%- endif -%}"
).replace("OFF", OFF)
"""Says by which script the model answers: thinking off, a great effort, or anything else."""


@contextmanager
def serving(python: Path, model: Path, **numbers: int) -> Iterator[str]:
    """Serve the model under TEMPLATE in a child process, by that interpreter's llama.cpp.

    `numbers`: parameters of llama.cpp's own.
    """
    given = [f"{name}={number}" for name, number in numbers.items()]
    command = [str(python), str(SERVE), str(model), TEMPLATE, *given]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, f"{' '.join(command)} ended without a word; run it to see why"
        yield str(json.loads(line)["url"])
        child.terminate()


@pytest.fixture(scope="module")
def newest(tiny_model: Path) -> Iterator[str]:
    with serving(Path(sys.executable), tiny_model) as url:
        yield url


@pytest.fixture(scope="module")
def older(tiny_model: Path) -> Iterator[str]:
    if not (OLD / ".installed").exists():
        pytest.skip("no older llama.cpp here: make .venv-llamacpp-old/.installed")
    with serving(OLD / "bin" / "python", tiny_model) as url:
        yield url


@asynccontextmanager
async def asking(url: str, path: str, stream: bool, **backend: Any) -> AsyncIterator[Ask]:
    settings = {"server": {"listen": "127.0.0.1:0"}, "backend": [{"url": url, **backend}]}
    service = build(load(None, settings, {}))
    host, port = await service.start()
    try:
        async with ClientSession(f"http://{host}:{port}") as session:
            yield Ask(session, url, path, stream)
    finally:
        await service.stop()


@pytest.mark.parametrize("build", ["newest", "older"])
@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_effort_is_the_templates(
    request: pytest.FixtureRequest, build: str, adapter: str, stream: bool
) -> None:
    """`none` turns thinking off, `high` is told to the template; its own variables win."""
    async with asking(request.getfixturevalue(build), CHAT, stream, adapter=adapter) as ask:
        more: dict[str, Any] = {"max_tokens": 3}
        plain = (await ask(**more)).said
        off = (await ask(reasoning_effort="none", **more)).said
        high = (await ask(reasoning_effort="high", **more)).said
        assert (off[:4], high[:8]) == ("cut:", "la di da")
        assert plain[:4] not in (off[:4], high[:4])
        for effort in ("minimal", "low", "medium"):
            assert (await ask(reasoning_effort=effort, **more)).said == plain
        own = {"enable_thinking": False}
        assert (await ask(chat_template_kwargs=own, **more)).said == off
        won = await ask(chat_template_kwargs={"enable_thinking": True}, reasoning_effort="none")
        assert not won.said.startswith("cut:")


@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_llama_cpps_own_forms_pass_where_the_route_allows_them(
    llama_server: str, adapter: str, path: str, stream: bool
) -> None:
    """Pairs, texts for token ids, and false for a ban; OpenAI's bounds know none of them."""
    settings = {"adapter": adapter, "bounds": "backend"}
    async with asking(llama_server, path, stream, **settings) as ask:
        mark, world = int(await ask.id_of("!")), int(await ask.id_of(" world"))
        biases: list[Any] = [[[mark, 100]], {str(mark): 100}, [["!", 100]], {"!": 100}]
        for bias in biases:
            assert (await ask(logit_bias=bias, max_tokens=4)).text == "!!!!", bias
        for bias in ([[world, False]], {str(world): False}, {str(world): -101}):
            text = (await ask(logit_bias=bias)).text
            assert text.startswith("Hello") and " world" not in text, bias
    async with asking(llama_server, path, stream, adapter=adapter) as ask:
        refused = await ask.refusal(logit_bias=[[mark, 100]])
        assert refused == ("logit_bias", "invalid_type")


async def test_a_form_of_a_vendors_own_is_the_backends_to_refuse(llama_server: str) -> None:
    async with asking(llama_server, TEXTS, False, adapter="llamacpp") as ask:
        text = (await ask(grammar='root ::= "no"', prompt=PROMPT)).text
        assert text == "no" != TEXT


@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_a_past_call_that_was_cut_can_be_repeated(
    llama_server: str, adapter: str, stream: bool
) -> None:
    """llama.cpp parses what past calls were given, and answers 500 where it is no JSON (b11549)."""
    messages: list[dict[str, Any]] = []
    for given in ("{}", '{"a": ', ""):
        called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ]
        async with asking(llama_server, CHAT, stream, adapter=adapter) as ask:
            assert (await ask(messages=messages, max_tokens=3)).reason == "length"
    async with ClientSession() as session:
        called["function"] = {"name": "f", "arguments": '{"a": '}
        asked = {"model": "tiny", "messages": messages, "max_tokens": 3}
        async with session.post(f"{llama_server}{CHAT}", json=asked) as response:
            assert response.status == 500  # else the form is of no use any more
