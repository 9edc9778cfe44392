"""POST /v1/responses: what a backend is asked, what the client gets, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import Cut, Gate, Upstream, chunk, whole
from tests.proxy.conftest import CHAT, StartProxy
from tests.proxy.endpoints.responses.asking import (
    PATH,
    ask,
    create,
    create_stream,
    events_of,
    says,
    streams,
    text_of,
)
from tests.waiting import until

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def sent(upstream: Upstream, number: int = -1) -> Any:
    """Return a chat request that the backend got."""
    request = upstream.requests[number]
    assert request.target == CHAT
    return request.json()


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_a_chat_answer_leaves_as_a_response(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [says("Hello")]
    proxy = await start_proxy(upstream)
    body = {"model": MODEL, "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 20}
    async with proxy.session.post(proxy.url(path), json=body) as answer:
        response = await answer.json()
        assert (answer.status, answer.content_type) == (200, "application/json")
    asked = sent(upstream)
    assert [(x["role"], x["content"]) for x in asked["messages"]] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert 20 in (asked.get("max_tokens"), asked.get("max_completion_tokens"))
    assert response["object"] == "response" and response["status"] == "completed"
    assert text_of(response) == "Hello"
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert (response["instructions"], response["max_output_tokens"]) == ("Be brief.", 20)


async def test_a_stream_says_what_the_body_says(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [streams("Hel", "lo"), says("Hello")]
    proxy = await start_proxy(upstream)
    events = await create_stream(proxy)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    told, body = events[-1]["response"], await create(proxy)
    assert told.keys() == body.keys()
    for response in (told, body):
        suffix = response["id"].removeprefix("resp_")[:-8]
        for key in ("id", "created_at", "completed_at"):
            del response[key]
        for item in response["output"]:
            assert item.pop("id").startswith(f"msg_{suffix}")
    assert told == body


async def test_calls_go_there_and_back(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [says(None, "tool_calls", tool_calls=[CALL]), says("Done")]
    proxy = await start_proxy(upstream)
    first = await create(proxy, tools=[TOOL])
    [called] = first["output"]
    assert (called["type"], called["call_id"], called["name"]) == ("function_call", "call_1", "f")
    output = {"type": "function_call_output", "call_id": "call_1", "output": "7"}
    again = [{"role": "user", "content": "Hi"}, called, output]
    assert text_of(await create(proxy, tools=[TOOL], input=again)) == "Done"
    roles = [x["role"] for x in sent(upstream)["messages"]]
    assert roles == ["user", "assistant", "tool"]


async def test_repairs_are_named_and_counted(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [says("Hello", "eos_token")]
    proxy = await start_proxy(upstream)
    async with proxy.session.post(proxy.url(PATH), json={"model": MODEL, "input": "Hi"}) as answer:
        assert answer.headers["x-wellspoken-repairs"] == "finish_reason_eos_token"
    metrics = await proxy.metrics()
    assert [name for name in metrics if 'rule="finish_reason_eos_token"' in name]
    assert [name for name in metrics if 'route="responses"' in name]


async def test_what_of_a_request_leads_nowhere_is_named(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [says()]
    proxy = await start_proxy(upstream)
    search = {"type": "web_search", "external_web_access": False}  # as Codex CLI 0.171 sends it
    body = {"model": MODEL, "input": "Hi", "tools": [TOOL, search]}
    await create(proxy, tools=[TOOL])
    for _ in range(2):
        async with proxy.session.post(proxy.url(PATH), json=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-wellspoken-stripped"] == "tools[1]"
    assert [tool["function"]["name"] for tool in sent(upstream)["tools"]] == ["f"]


async def test_caps_are_told_in_the_clients_names(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [says()]
    proxy = await start_proxy(upstream, caps={"max_tokens": 20})
    error = await create(proxy, 400, max_output_tokens=21)
    assert error["param"] == "max_output_tokens" and "max_output_tokens" in error["message"]
    await create(proxy)
    assert 20 in (sent(upstream).get("max_tokens"), sent(upstream).get("max_completion_tokens"))
    assert len(upstream.requests) == 1


async def test_a_vendors_key_goes_on(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [says()]
    proxy = await start_proxy(upstream)
    await create(proxy, top_k=7)
    assert sent(upstream)["top_k"] == 7
    strict = await start_proxy(upstream, vendor="reject")
    assert (await create(strict, 400, top_k=7))["param"] == "top_k"


async def test_an_error_of_the_backends_is_a_status(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({"object": "error", "message": "No.", "code": 400}, status=400)]
    proxy = await start_proxy(upstream)
    for streams_wanted in (False, True):
        error = await create(proxy, 400, stream=streams_wanted)
        assert "No." in error["message"]


@pytest.mark.parametrize(
    "cut", [Cut(), chunk(b'data: {"error": {"message": "Gone.", "code": 500}}\n\n')]
)
async def test_a_failure_in_a_stream_is_told_last(
    upstream: Upstream, start_proxy: StartProxy, cut: Any
) -> None:
    upstream.scripts = [[*streams("Hel", end=False), cut]]
    proxy = await start_proxy(upstream)
    events = await create_stream(proxy)
    types = [event["type"] for event in events]
    assert types[-2:] == ["error", "response.failed"]
    assert "response.completed" not in types
    failed = events[-1]["response"]
    assert failed["status"] == "failed" and failed["error"]["message"] == events[-2]["message"]
    assert text_of(failed) == "Hel"
    await ask(proxy, "GET", failed["id"], 404)  # it is not kept


async def test_a_failure_behind_a_heartbeat_is_a_whole_stream(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *whole({"error": {"message": "Later."}}, status=500)]]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.05})
    body = {"model": MODEL, "input": "Hi", "stream": True}
    async with proxy.session.post(proxy.url(PATH), json=body) as answer:
        assert answer.status == 200
        gate.open()
        events = events_of(await answer.text())
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    assert "Later." in events[-1]["response"]["error"]["message"]


async def test_bad_input_reaches_no_backend(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [says()]
    proxy = await start_proxy(upstream)
    item = {"role": "user", "content": [{"type": "output_text", "text": "Hi"}]}
    error = await create(proxy, 400, input=[{"role": "user", "content": "Hi"}, item])
    assert error["param"] == "input[1].content[0].type"
    for wrong in ({"background": True}, {"conversation": "conv_1"}, {"max_tokens": 5}):
        [name] = wrong
        assert (await create(proxy, 400, **wrong))["param"] == name
    assert upstream.requests == []


async def test_a_stream_takes_room_for_what_is_kept_of_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Many short texts bring a hundred times their bytes, of which the events are not kept."""
    upstream.scripts = [streams(*["x"] * 1_000)]
    proxy = await start_proxy(upstream, limits={"memory": 60_000})
    assert text_of((await create_stream(proxy))[-1]["response"]) == "x" * 1_000
    upstream.scripts = [streams(*["x" * 1_000] * 20)]
    body = {"model": MODEL, "input": "Hi", "stream": True}
    async with proxy.session.post(proxy.url(PATH), json=body) as answer:
        assert "raise limits.memory" in await answer.text()  # a status, or the stream's end
    await until(lambda: not proxy.service.state.memory.used)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"truncation": "zz"}, "truncation"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"reasoning": {"summary": "zz"}}, "reasoning.summary"),
        ({"text": {"verbosity": "zz"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"stream_options": {}}, "stream_options"),
        ({"input": [{"role": "user", "content": "a", "id": "x" * 65}]}, "input[0].id"),
        ({"tools": [TOOL, TOOL | {"name": "x y"}]}, "tools[1].name"),
    ],
)
async def test_bounds_hold_whatever_was_asked_before(
    upstream: Upstream, start_proxy: StartProxy, wrong: Any, param: str
) -> None:
    upstream.scripts = [says()]
    proxy = await start_proxy(upstream)
    for _ in range(2):  # a second one that is alike is planned as the first was
        assert (await create(proxy, 400, **wrong))["param"] == param
        await create(proxy)


async def test_bounds_are_those_of_a_models_backend(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [says()]
    strict = {"name": "a", "url": upstream.url, "models": ["strict"]}
    lenient = {"name": "b", "url": upstream.url, "models": ["lenient"], "bounds": "backend"}
    proxy = await start_proxy(strict, lenient)
    for _ in range(2):
        await create(proxy, model="strict")
        await create(proxy, model="lenient", text={"verbosity": "zz"})
        error = await create(proxy, 400, model="strict", text={"verbosity": "zz"})
        assert error["param"] == "text.verbosity"
        assert (await create(proxy, 400, model="lenient", truncation="zz"))["param"] == "truncation"


NATIVE = {"id": "resp_1", "object": "response", "output": []}


async def test_a_backend_may_answer_itself(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="vllm", responses="pass")
    body = {"model": MODEL, "input": "Hi", "background": True}
    async with proxy.session.post(proxy.url(PATH), json=body) as answer:
        assert (answer.status, await answer.json()) == (200, NATIVE)
    assert (upstream.requests[0].target, upstream.requests[0].json()) == (PATH, body)


async def test_one_request_may_pass_untouched(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="vllm")
    body = {"model": MODEL, "input": "Hi", "oai_compat": False}
    async with proxy.session.post(proxy.url(PATH), json=body) as answer:
        assert (answer.status, await answer.json()) == (200, NATIVE)
    del body["oai_compat"]
    assert (upstream.requests[0].target, upstream.requests[0].json()) == (PATH, body)
    none = await start_proxy(upstream, adapter="tgi")
    error = await create(none, 404, oai_compat=False)
    assert PATH in error["message"]
