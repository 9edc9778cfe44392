"""What vLLMs of each version are sent, by which of them knows a parameter and in which form.

Constructed from vLLM's git history (vllm/entrypoints/openai/protocol.py at the releases named in
adapters/servers/known/vllm.py). KNOWN holds a request's keys of versions that refuse unknown ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from tests.adapters.servers.test_parameters import CHAT_VALUES
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.detection import Observation, Signs, recognise
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.parameters import Support
from wellspoken.adapters.servers.prepare import prepare, prepare_completion
from wellspoken.adapters.servers.registry import BACKENDS
from wellspoken.adapters.servers.versions import for_version

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "strict": True, "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
LAX = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def chat(version: str, **fields: Any) -> dict[str, Any]:
    body = json.encode({"model": "m", "messages": [USER]} | fields)
    request = decode_chat(body)
    sent: dict[str, Any] = json.decode(prepare(for_version(VLLM, version), request, model=None))
    return sent


def completion(version: str, **fields: Any) -> dict[str, Any]:
    request = decode_completion(json.encode({"model": "m", "prompt": "x"} | fields))
    backend = for_version(VLLM, version)
    sent: dict[str, Any] = json.decode(prepare_completion(backend, request, model=None))
    return sent


def param_of(version: str, **fields: Any) -> str:
    """Return the parameter that is refused with a 400 which names both versions."""
    with pytest.raises(RequestError) as error:
        chat(version, **fields)
    assert (error.value.status, error.value.code) == (400, "unsupported_parameter")
    return str(error.value.param)


# The keys of ChatCompletionRequest in 0.4.2, 0.5.5 and 0.6.3, whose pydantic models say
# extra="forbid"; those of sampling and templates that no row of ours sends are left out.
IN_0_4_2 = set(
    "messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens n "
    "presence_penalty response_format seed stop stream temperature top_p user guided_json".split()
)
IN_0_5_5 = IN_0_4_2 | {"stream_options", "tools", "tool_choice", "chat_template_kwargs"}
KNOWN = {"0.4.2": IN_0_4_2, "0.5.5": IN_0_5_5, "0.6.3": IN_0_5_5 | {"parallel_tool_calls"}}


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("name", CHAT_VALUES)
def test_a_version_that_forbids_unknown_keys_is_sent_none(version: str, name: str) -> None:
    fields, _ = CHAT_VALUES[name]
    try:
        sent = chat(version, **{"user": "u", "service_tier": "auto"} | fields)
    except RequestError as error:
        assert (error.status, error.code) == (400, "unsupported_parameter")
        return
    assert sent.keys() <= KNOWN[version]


def test_that_check_would_see_an_unknown_key() -> None:
    assert not chat("0.12.0", tools=[TOOL], parallel_tool_calls=False).keys() <= KNOWN["0.5.5"]


@pytest.mark.parametrize(
    ("version", "tools"), [("0.6.0", [LAX]), ("0.6.4.post1", [LAX]), ("0.6.5", [TOOL])]
)
def test_a_function_is_strict_where_that_is_known(version: str, tools: list[Any]) -> None:
    assert chat(version, tools=[TOOL])["tools"] == tools


def test_tools_before_there_were_parsers() -> None:
    sent = chat("0.5.0", tools=[TOOL], tool_choice=NAMED, parallel_tool_calls=True)
    assert sent["tools"] == [LAX] and sent["tool_choice"] == NAMED
    assert "parallel_tool_calls" not in sent
    assert param_of("0.5.0", tools=[TOOL]) == "tool_choice"
    assert param_of("0.5.5", tools=[TOOL], tool_choice="auto") == "tool_choice"
    allowed = {"mode": "auto", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert param_of("0.5.5", tools=[TOOL], tool_choice=choice) == "tool_choice"
    assert param_of("0.4.3", tools=[TOOL]) == "tools"
    assert param_of("0.8.2", tools=[TOOL], tool_choice="required") == "tool_choice"
    assert chat("0.8.3", tools=[TOOL], tool_choice="required")["tool_choice"] == "required"


def test_no_tools_where_none_was_no_choice() -> None:
    assert "tools" not in chat("0.6.3", tools=[TOOL], tool_choice="none")
    assert chat("0.6.4", tools=[TOOL], tool_choice="none")["tool_choice"] == "none"


def test_one_call_alone_is_asked_where_that_is_heeded() -> None:
    asked = {"tools": [TOOL], "parallel_tool_calls": False}
    assert "parallel_tool_calls" not in chat("0.11.2", **asked)
    assert chat("0.12.0", **asked)["parallel_tool_calls"] is False


def test_a_schema_by_its_older_name() -> None:
    sent = chat("0.5.5", response_format=FORMAT)
    assert sent["guided_json"] == SCHEMA and "response_format" not in sent
    assert chat("0.6.0", response_format=FORMAT)["response_format"] == FORMAT
    assert param_of("0.3.3", response_format=FORMAT) == "response_format"
    bare = {"type": "json_schema", "json_schema": {"name": "a"}}
    assert chat("0.5.5", response_format=bare)["guided_json"] == {"type": "object"}


@pytest.mark.parametrize(
    ("version", "effort", "own", "variables"),
    [
        ("0.6.0", "high", None, {"reasoning_effort": "high"}),
        ("0.10.1", "high", "high", {"reasoning_effort": "high"}),
        ("0.10.1", "minimal", None, {"reasoning_effort": "minimal"}),
        ("0.23.0", "none", None, {"enable_thinking": False}),
        ("0.24.0", "none", "none", None),
        ("", "minimal", "minimal", None),
    ],
)
def test_the_effort(version: str, effort: str, own: str | None, variables: Any) -> None:
    sent = chat(version, reasoning_effort=effort)
    assert (sent.get("reasoning_effort"), sent.get("chat_template_kwargs")) == (own, variables)


def test_the_clients_own_variables_win() -> None:
    own = {"reasoning_effort": "low", "colour": "red"}
    sent = chat("0.11.0", reasoning_effort="high", chat_template_kwargs=own)
    assert sent["chat_template_kwargs"] == own


def test_a_developer_speaks_as_the_system_where_templates_would_drop_it() -> None:
    turn = [{"role": "developer", "content": "brief"}, USER]
    assert chat("0.27.1", messages=turn)["messages"][0] == {"role": "system", "content": "brief"}
    assert chat("0.28.0", messages=turn)["messages"] == turn


def test_usage_is_asked_for_where_it_can_be() -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    assert chat("0.4.3", **asked) == {"model": "m", "messages": [USER], "stream": True}
    assert "stream_options" not in completion("0.4.3", **asked)
    for send in (chat, completion):
        assert send("0.5.0", **asked)["stream_options"] == {"include_usage": True}


def test_what_the_first_versions_lacked() -> None:
    assert param_of("0.3.2", logit_bias={"5": -100}) == "logit_bias"
    assert param_of("0.3.1", seed=1) == "seed"
    assert param_of("0.3.2", logprobs=True) == "logprobs"
    assert chat("0.3.3", logit_bias={"5": 1}, seed=1, logprobs=True).keys() >= {"logit_bias"}
    with pytest.raises(RequestError, match=r"Version 0\.3\.0 brought it, and this server is 0\.2"):
        completion("0.2.7", echo=True)


@pytest.mark.parametrize("version", ["", "0.32.0", "0.33.0+cpu", "b11549", "0.1.dev1+gabc", "x"])
def test_a_version_that_tells_nothing_is_the_newest(version: str) -> None:
    assert for_version(VLLM, version) is VLLM


@pytest.mark.parametrize("name", BACKENDS)
def test_a_version_changes_only_the_rows_that_say_so(name: str) -> None:
    backend = BACKENDS[name]
    older = for_version(backend, "0.0.1")
    tables = [(backend.chat_table, older.chat_table)]
    tables += [(backend.completion_table, older.completion_table)]
    changed = [table[key].since for table, old in tables for key in table if old[key] != table[key]]
    assert all(changed) and bool(changed) == (older is not backend)


def versions(row: Support) -> list[str]:
    return [row.since, *(versions(row.older) if row.older is not None else [])]


@pytest.mark.parametrize("name", BACKENDS)
def test_older_rows_are_older(name: str) -> None:
    """A row that is not older than the one before it could never hold."""
    for table in (BACKENDS[name].chat_table, BACKENDS[name].completion_table):
        for key, row in table.items():
            found = [tuple(map(int, one.split("."))) for one in versions(row) if one]
            assert found == sorted(set(found), reverse=True), key
            assert "" not in versions(row)[:-1], key


def test_detection_takes_the_rows_of_the_version_found() -> None:
    def found(version: str) -> Backend:
        models = json.encode({"data": [{"id": "m", "owned_by": "vllm"}]})
        told = {"/v1/models": models, "/version": json.encode({"version": version})}
        return recognise(Signs({at: Observation(200, body) for at, body in told.items()})).backend

    assert found("0.32.0") is VLLM
    assert found("0.8.2").chat_table["tool_choice.required"].how == "refused"
    assert found("0.8.2").name == "vllm"
