"""Odd but legal requests, and broken ones: nothing is lost on the way, and nothing is a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.sending import USER, chat, refused, text, tool
from tests.examples import examples
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.chat_bounds import INT64, seed_of_choice
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import BACKENDS, GENERAL
from wellspoken.adapters.servers.versions import for_version

Json = dict[str, Any]

CHATS = [one for one in BACKENDS.values() if one.chat is not None and one.chat.dialect == "chat"]
TEXTS = [
    one
    for one in BACKENDS.values()
    if one.completions is not None and one.completions.dialect == "completions"
]
OLD = [for_version(one, "0.0.1") for one in CHATS] + [for_version(BACKENDS["vllm"], "0.5.2")]
START = b'{"model":"m","messages":[{"role":"user","content":"hi"}],'

SCHEMAS = {
    "a number that no float holds": b'{"type":"object","maximum":1e400}',
    "an integer of many digits": b'{"maximum":' + b"9" * 5000 + b"}",
    "spelling and order": b'{"z" : 1.10,"b":1e2,"a":-0.0,"c":"\\u00e9\\/"}',
    "depth": b'{"a":' * 400 + b"1" + b"}" * 400,
}
CHOICES = {
    "auto": b'"auto"',
    "required": b'"required"',
    "named": b'{"type":"function","function":{"name":"f"},"x":1e400}',
    "allowed": b'{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":'
    b'[{"type":"function","function":{"name":"f"}}]},"x":1e400}',
}


def sent(backend: Backend, rest: bytes) -> bytes:
    """Return what is sent for a request that goes on with these bytes; b"" if it is refused."""
    try:
        return prepare(backend, decode_chat(START + rest + b"}"), model=None)
    except RequestError as error:
        assert error.status == 400 and error.param
        return b""


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_a_tools_schema_is_sent_as_it_came(choice: bytes, schema: bytes) -> None:
    tools = b'"tools":[{"type":"function","function":{"name":"f","parameters":' + schema + b"}}]"
    given = {one.name: sent(one, tools + b',"tool_choice":' + choice) for one in CHATS + OLD}
    assert all(schema in data for data in given.values() if data)
    assert given["general"] and given["llamacpp"]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_so_are_those_of_functions_and_formats(schema: bytes) -> None:
    function = b'"functions":[{"name":"f","parameters":' + schema + b'}],"function_call":"auto"'
    form = b'"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
    for rest in (function, form + schema + b"}}"):
        given = [sent(one, rest) for one in CHATS + OLD]
        assert all(schema in data for data in given if data)
        assert len([data for data in given if data]) >= len(CHATS) - 3


def test_tools_that_lack_nothing_are_not_written_anew() -> None:
    function = b'{ "name":"f", "parameters":{"a":1.10}, "description":"x" }'
    tools = b'"tools":[ {"type":"function","function":' + function + b"} ]"
    assert all(tools in data for one in CHATS if (data := sent(one, tools)))


ODD = {
    "no object": b'"reasoning_effort":"low","chat_template_kwargs":5',
    "a text": b'"reasoning_effort":"low","chat_template_kwargs":"x"',
    "a number": b'"reasoning_effort":"low","chat_template_kwargs":{"a":1e400}',
    "options": b'"stream":true,"stream_options":{"include_usage":true,"x":1e400}',
    "a part": b'"messages":[{"role":"user","content":[{"type":"text","text":"x","y":1e400}]}]',
    "a role": b'"messages":[{"role":"developer","content":"x","y":1e400}]',
    "a call": b'"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"c","type":'
    b'"function","function":{"name":"f","arguments":"{}"},"y":1e400}]}]',
    "a format": b'"response_format":{"type":"json_object","x":1e400}',
}


@pytest.mark.parametrize("rest", ODD.values(), ids=ODD)
def test_what_a_form_need_not_read_is_no_crash(rest: bytes) -> None:
    assert any(sent(one, rest) for one in CHATS + OLD)


def test_template_variables_that_are_no_object_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="expected an object") as error:
        chat(BACKENDS["llamacpp"], reasoning_effort="low", chat_template_kwargs=5)
    assert (error.value.param, error.value.code) == ("chat_template_kwargs", "invalid_type")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["f", "function", "auto", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["mode", "tools", "function", "name"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(150), deadline=None, database=None)
@given(st.sampled_from(CHATS), JSON, JSON)
def test_no_form_of_allowed_tools_is_a_crash(backend: Backend, given: Any, custom: Any) -> None:
    tools = [tool("f"), {"type": "custom", "custom": {"name": custom}}]
    choice = {"type": "allowed_tools", "allowed_tools": given}
    try:
        chat(backend, tools=tools, tool_choice=choice)
    except RequestError as error:
        assert error.status == 400 and error.param


@pytest.mark.parametrize("backend", CHATS, ids=lambda one: one.name)
def test_empty_stop_strings_are_never_sent(backend: Backend) -> None:
    """Ollama, SGLang, TGI and others end at once at "", and vLLM answers 400 (0.32)."""
    for stop in ("", [""], ["", ""]):
        assert "stop" not in chat(backend, stop=stop)
    assert chat(backend, stop=["a", "", "b"])["stop"] == ["a", "b"]
    assert chat(backend, stop=["a"])["stop"] == ["a"]


@pytest.mark.parametrize("backend", TEXTS, ids=lambda one: one.name)
def test_nor_are_they_for_completions(backend: Backend) -> None:
    for stop in ("", [""]):
        assert "stop" not in text(backend, stop=stop)
    assert text(backend, stop=["a", ""])["stop"] == ["a"]


@pytest.mark.parametrize("backend", CHATS, ids=lambda one: one.name)
def test_parallel_calls_of_no_tools_ask_for_nothing(backend: Backend) -> None:
    """The Vercel AI SDK and others send it always."""
    fields: tuple[Json, ...] = ({}, {"tools": []})
    for tools in fields:
        assert "parallel_tool_calls" not in chat(backend, parallel_tool_calls=False, **tools)


@pytest.mark.parametrize("backend", [*CHATS, for_version(BACKENDS["sglang"], "0.5.0")])
def test_one_call_is_what_every_server_gives(backend: Backend) -> None:
    """What the server does not do, the calls stage does: see test_calls_parallel.py."""
    chat(backend, parallel_tool_calls=False, tools=[tool("f")])


def test_a_server_that_did_not_would_refuse() -> None:
    table = {**BACKENDS["ollama"].chat_table, "parallel_tool_calls": Support("refused")}
    other = Backend(name="x", title="x", chat_table=table)
    fields = {"parallel_tool_calls": False, "tools": [tool("f")]}
    assert refused(other, chat, **fields) == "parallel_tool_calls"


FORCED = ['"required"', '{"type":"function","function":{"name":"f"}}']


@pytest.mark.parametrize("choice", FORCED)
@pytest.mark.parametrize("backend", CHATS, ids=lambda one: one.name)
def test_a_call_of_tools_that_are_not_there_is_never_dropped(backend: Backend, choice: str) -> None:
    """OpenAI's bounds refuse it; with the backend's it is for the server to say."""
    asked = decode_chat(START + b'"tool_choice":' + choice.encode() + b"}", bounds="backend")
    try:
        given = json.loads(prepare(backend, asked, model=None))
    except RequestError as error:
        assert error.param == "tool_choice"
    else:
        assert given["tool_choice"] == json.loads(choice)


PAST: list[Json] = [
    USER,
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "42"},
]


@pytest.mark.parametrize("more", [{}, {"tools": [tool("f")]}])
@pytest.mark.parametrize("backend", CHATS, ids=lambda one: one.name)
def test_past_function_calls_are_calls_of_tools(backend: Backend, more: Json) -> None:
    """Also where the request offers no functions (any more), which no template shows."""
    messages = chat(backend, messages=PAST, **more)["messages"]
    assert "function_call" not in json.dumps(messages)
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert messages[2]["role"] == "tool" and messages[2]["content"] == "42"


def test_the_seeds_of_choices_differ_and_stay_within_64_bits() -> None:
    for first in (0, 7, -3, INT64 - 1, INT64 - 2, -INT64):
        seeds = [seed_of_choice(first, choice) for choice in range(128)]
        assert seeds[0] == first and len(set(seeds)) == 128
        assert all(-INT64 <= seed < INT64 for seed in seeds)


@pytest.mark.parametrize("name", ["ollama", "lmstudio", "llamacpp"])
def test_a_seed_of_minus_1_is_a_seed(name: str) -> None:
    """Ollama (llama/runner) and llama.cpp take -1 and 2**32 - 1 for none."""
    assert chat(BACKENDS[name], seed=-1)["seed"] not in (-1, 2**32 - 1)
    assert chat(GENERAL, seed=-1)["seed"] == -1


@pytest.mark.parametrize("name", ["tgi", "mlx-lm"])
def test_a_seed_is_not_below_0_where_that_fails(name: str) -> None:
    for send in (chat, text):
        seeds = [send(BACKENDS[name], seed=seed)["seed"] for seed in (-1, -2, -(2**63), 0, 7)]
        assert min(seeds) >= 0 and seeds[3:] == [0, 7] and len(set(seeds[:2])) == 2


def test_a_seed_asks_for_nothing_where_nothing_is_left_to_chance() -> None:
    """lm-evaluation-harness sends seed 1234 and temperature 0 with every request."""
    for send in (chat, text):
        furiosa = BACKENDS["furiosa"]
        assert "seed" not in send(furiosa, seed=1234, temperature=0)
        assert refused(furiosa, send, seed=1234, temperature=0.1) == "seed"
        assert refused(furiosa, send, seed=1234) == "seed"
        assert send(GENERAL, seed=1234, temperature=0)["seed"] == 1234
