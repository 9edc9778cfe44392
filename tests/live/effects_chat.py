"""What a real llama.cpp does with the parameters that only a chat has: forms, tools, messages."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.live.effects import Ask, Effect, Json
from tests.models.tiny import TEXT

SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
UTC: Final = ("get_time", {"tz": "UTC"})


def function(name: str, **properties: str) -> Json:
    kinds = {key: {"type": kind} for key, kind in properties.items()}
    return {"name": name, "parameters": {"type": "object", "properties": kinds}}


FUNCTIONS: Final = [function("get_time", tz="string"), function("other", a="integer")]
TOOLS: Final = [{"type": "function", "function": each} for each in FUNCTIONS]


def formed(**more: Any) -> Json:
    """Return parameters by which the model, whose own text is no JSON, finds an end in a form."""
    return {"temperature": 1, "max_tokens": 300, **more}


def of_schema(text: str) -> bool:
    """Say whether a text is JSON of SCHEMA."""
    value = json.loads(text)
    return value.keys() == {"a", "b"} and type(value["a"]) is int and value["b"] in ("x", "y")


async def response_format(ask: Ask) -> None:
    """`text` changes nothing; `json_object` is an object; a schema holds."""
    assert (await ask(response_format={"type": "text"})).text == TEXT
    for strict in (None, True, False):
        named = {"name": "f", "schema": SCHEMA, "strict": strict}
        wanted = {"type": "json_schema", "json_schema": named}
        assert await _complete(ask, wanted, of_schema)
    forms: list[Json] = [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "f"}},
        {"type": "json_schema", "json_schema": {"name": "f", "schema": None}},
    ]
    for form in forms:
        assert await _complete(ask, form, lambda text: isinstance(json.loads(text), dict))


async def _complete(ask: Ask, wanted: Json, holds: Any, **more: Any) -> int:
    """Return how many of some answers were not cut; each of those has to hold."""
    whole = 0
    for seed in range(1, 5):
        answer = await ask(**formed(response_format=wanted, seed=seed, **more))
        if answer.reason == "stop":
            assert holds(answer.text), (wanted, answer.text)
            whole += 1
    return whole


async def developer(ask: Ask) -> None:
    """A developer's message is a system's to the template."""
    told = [[{"role": role, "content": "@loop"}] for role in ("developer", "system")]
    one, other = [await ask(messages=messages, max_tokens=3) for messages in told]
    assert one.text == other.text == "la di da "
    assert one.usage == other.usage


async def accepted(ask: Ask) -> None:
    """What changes nothing in the answer, or asks for nothing."""
    plain = (await ask()).body["choices"]
    for more in (
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "store": False},
        {"prediction": {"type": "content", "content": "Hello"}},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"verbosity": "medium", "modalities": ["text"], "metadata": {}},
        {"logit_bias": {}, "n": 1, "stop": [], "tools": [], "top_p": 1, "presence_penalty": 0},
        {"parallel_tool_calls": True, "seed": None, "response_format": None, "service_tier": None},
    ):
        assert (await ask(**more)).body["choices"] == plain, more
    answer = await ask(service_tier="auto")
    assert answer.body["choices"] == plain and answer.body["service_tier"] == "default"


def part(kind: str, value: Json) -> list[Json]:
    content = [{"type": "text", "text": "hi"}, {"type": kind, kind: value}]
    return [{"role": "system", "content": "x"}, {"role": "user", "content": content}]


AT = "messages[1].content[1]"
PARTS: Final[tuple[tuple[Json, str], ...]] = (
    ({"messages": part("image_url", {"url": "data:image/png;base64,iVBORw0KGgo="})}, AT),
    ({"messages": part("input_audio", {"data": "AAAA", "format": "wav"})}, AT),
    ({"messages": part("file", {"file_id": "f"})}, AT),
)
REFUSED: Final[tuple[tuple[Json, str], ...]] = (
    *PARTS,
    ({"verbosity": "low"}, "verbosity"),
    ({"verbosity": "high"}, "verbosity"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"moderation": {"model": "m"}}, "moderation"),
)


async def refused(ask: Ask) -> None:
    """What it cannot do is a 400 that names it."""
    for more, param in REFUSED:
        assert await ask.refusal(**more) == (param, "unsupported_parameter"), more


CHAT_EFFECTS: Final[tuple[Effect, ...]] = (response_format, developer, accepted, refused)
"""What the chat endpoint does under both adapters, in all builds."""


async def tool_choice(ask: Ask) -> None:
    """Auto lets the model choose, none has no call, required and a name have one."""
    called = [UTC]
    for more in ({}, {"tool_choice": "auto"}):
        answer = await ask("hi", tools=TOOLS, **more)
        assert (answer.text, answer.calls) == (TEXT, [])
        assert (await ask("@tool", tools=TOOLS, **more)).calls == called
    none = await ask("@tool", tools=TOOLS, tool_choice="none")
    assert (none.calls, none.reason) == ([], "stop") and "<tool_call>" in none.text
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice in ("required", named, allowed("required", "get_time")):
        for content in ("hi", "@tool"):
            answer = await ask(content, tools=TOOLS[:1], tool_choice=choice, max_tokens=80)
            assert answer.calls == called, (choice, content)
    for choice in (named, allowed("required", "get_time")):
        assert (await ask("@tool", tools=TOOLS, tool_choice=choice)).calls == called
    auto = await ask("hi", tools=TOOLS, tool_choice=allowed("auto", "get_time"))
    assert (auto.text, auto.calls) == (TEXT, [])


def allowed(mode: str, *names: str) -> Json:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def offered(ask: Ask) -> None:
    """A tool that is not allowed, or not named, is not offered to the model at all."""
    sizes = {
        name: (await ask("hi", tools=TOOLS, **more)).usage[0]
        for name, more in {
            "all": {},
            "allowed": {"tool_choice": allowed("auto", "get_time")},
            "both": {"tool_choice": allowed("auto", "get_time", "other")},
        }.items()
    }
    alone = (await ask("hi", tools=TOOLS[:1])).usage[0]
    assert sizes == {"all": sizes["all"], "allowed": alone, "both": sizes["all"]}
    assert alone < sizes["all"]


async def functions(ask: Ask) -> None:
    """OpenAI's older names, asked for and answered."""
    for more in ({}, {"function_call": "auto"}, {"function_call": {"name": "get_time"}}):
        answer = await ask("@tool", functions=FUNCTIONS, **more)
        choice = answer.body["choices"][0]
        called = choice["message"]["function_call"]
        assert (called["name"], json.loads(called["arguments"])) == UTC, more
        forced = isinstance(more.get("function_call"), dict)
        assert choice["finish_reason"] in ("function_call", *(["stop"] if forced else []))
        assert "tool_calls" not in choice["message"]
    none = await ask("@tool", functions=FUNCTIONS, function_call="none")
    assert "function_call" not in none.body["choices"][0]["message"]
    past = [
        {"role": "user", "content": "@tool"},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_time", "arguments": '{"tz": "UTC"}'},
        },
        {"role": "function", "name": "get_time", "content": "noon"},
    ]
    told = await ask(messages=past, functions=FUNCTIONS)
    assert told.text == TEXT
    assert told.usage[0] > (await ask(messages=past[:1], functions=FUNCTIONS)).usage[0]


async def parallel(ask: Ask) -> None:
    """At false one call alone, whatever the model goes on to say; at true all of them."""
    call, end = await ask.scripted("<tool_call>", "<|tool|>"), await ask.id_of("<|im_end|>")
    more: Json = {"tools": TOOLS, "logit_bias": {end: -100, str(call): 5}, "max_tokens": 18}
    several = await ask("@tool", parallel_tool_calls=True, **more)
    assert several.calls == [UTC] * 3
    one = await ask("@tool", parallel_tool_calls=False, **more)
    assert one.calls == [UTC]
    legacy = await ask("@tool", functions=FUNCTIONS, **more | {"tools": None})
    called = legacy.body["choices"][0]["message"]["function_call"]
    assert (called["name"], json.loads(called["arguments"])) == UTC


async def scored(ask: Ask) -> None:
    """Tools beside logprobs, also streamed, also with a stop string: no entry is lost."""
    more: Json = {"tools": TOOLS, "logprobs": True, "top_logprobs": 2}
    own = (await ask(logprobs=True, top_logprobs=2)).tokens
    answer = await ask("hi", **more)
    assert answer.text == TEXT
    assert [token for token, _ in answer.tokens] == [token for token, _ in own]
    called = await ask("@tool", **more)
    assert called.calls == [UTC]
    cut = await ask("hi", stop=[" done", "never"], **more)
    assert (cut.text, cut.reason) == (TEXT.removesuffix(" done."), "stop")
    assert [token for token, _ in cut.tokens] == [token for token, _ in own][:-2]
    kept = await ask("hi", stop=" wor", include_stop_str_in_output=True, **more)
    assert [token for token, _ in kept.tokens] == ["Hello", " wor"]
    legacy = await ask("hi", functions=FUNCTIONS, logprobs=True)
    assert legacy.text == TEXT and len(legacy.tokens) == len(own)


async def untold(ask: Ask) -> None:
    """Custom tools are refused, and what `tool_choice` names without being offered."""
    custom = [{"type": "custom", "custom": {"name": "c"}}]
    assert await ask.refusal(tools=custom) == ("tools[0]", "unsupported_parameter")
    for choice in (allowed("auto", "nothing"), {"type": "function", "function": {"name": "no"}}):
        param, code = await ask.refusal(tools=TOOLS, tool_choice=choice)
        assert (param, code) == ("tool_choice", "invalid_value")


TOOL_EFFECTS: Final[tuple[Effect, ...]] = (
    *(tool_choice, offered, functions, parallel, scored, untold),
)
"""What the chat endpoint does with tools, in all builds; /completion has none."""


async def formed_beside_tools(ask: Ask) -> None:
    """A schema holds beside tools; b7376 keeps to it only where no call is allowed."""
    wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}
    assert await _complete(ask, wanted, of_schema, tools=TOOLS)


async def formed_without_call(ask: Ask) -> None:
    """A schema holds beside tools that are not to be called."""
    wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA}}
    assert await _complete(ask, wanted, of_schema, tools=TOOLS, tool_choice="none")
