"""Each parameter of a request, by its effect on a real llama.cpp behind the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.conftest import in_front_of
from tests.live.effects import CHAT, EFFECTS, TEXTS, Ask, Effect
from tests.live.effects_chat import (
    CHAT_EFFECTS,
    TOOL_EFFECTS,
    formed_beside_tools,
    formed_without_call,
)
from tests.models.tiny import TEXT


@pytest.fixture(params=["llamacpp", "llamacpp-native"])
async def proxy(llama_server: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The base URL of a proxy in front of the newest build."""
    service = in_front_of(llama_server, request.param)
    host, port = await service.start()
    yield f"http://{host}:{port}"
    await service.stop()


@pytest.fixture(params=[False, True], ids=["body", "stream"])
async def ask(
    proxy: str, llama_server: str, path: str, request: pytest.FixtureRequest
) -> AsyncIterator[Ask]:
    async with ClientSession(proxy) as session:
        yield Ask(session, llama_server, path, request.param)


@pytest.mark.parametrize("path", [CHAT, TEXTS], ids=["chat", "completions"])
@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
async def test_a_parameter_has_its_effect(ask: Ask, effect: Effect) -> None:
    await effect(ask)


@pytest.mark.parametrize("path", [CHAT])
@pytest.mark.parametrize("effect", CHAT_EFFECTS, ids=lambda effect: effect.__name__)
async def test_a_parameter_of_a_chat_has_its_effect(ask: Ask, effect: Effect) -> None:
    await effect(ask)


@pytest.mark.parametrize("path", [CHAT])
@pytest.mark.parametrize("proxy", ["llamacpp"], indirect=True)
@pytest.mark.parametrize(
    "effect",
    (*TOOL_EFFECTS, formed_beside_tools, formed_without_call),
    ids=lambda effect: effect.__name__,
)
async def test_tools_have_their_effect(ask: Ask, effect: Effect) -> None:
    await effect(ask)


TOOL = {"type": "function", "function": {"name": "get_time", "description": ""}}


@pytest.mark.parametrize("path", [CHAT])
@pytest.mark.parametrize("proxy", ["llamacpp-native"], indirect=True)
async def test_the_native_endpoint_refuses_tools_by_name(ask: Ask) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"functions": [TOOL["function"]]}, "functions"),
    ]
    for more, param in refused:
        assert await ask.refusal(**more) == (param, "unsupported_parameter")
    assert (await ask(tools=[TOOL], tool_choice="none")).text == TEXT
    assert (await ask(parallel_tool_calls=False)).text == TEXT
