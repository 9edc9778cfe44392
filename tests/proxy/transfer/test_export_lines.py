"""Stored completions as lines: what OpenAI's fine-tuning and evals take, and what loses nothing.

Rows are constructed. The shapes to check with are FineTuneChatRequestInput of OpenAI's published
OpenAPI document (API 2.3.0), closed, since its validator refuses extra keys, and openai-python's
type of an eval's row.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, Meta, Struct, UnsetType
from openai.types.evals.create_eval_jsonl_run_data_source import SourceFileContentContent

from tests.answers import CREATED, TOOL, USAGE, ask, call, choice, completion, message, scored
from wellspoken.proxy.store.rows import Capture, Row, row_of
from wellspoken.proxy.transfer.export_lines import Format, lines_of

Json = dict[str, Any]
ID = "chatcmpl-0123456789abcdef01234567"


class Closed(Struct, kw_only=True, forbid_unknown_fields=True):
    """What has these keys alone."""


class TextPart(Closed, kw_only=True, tag_field="type", tag="text"):
    text: str


class ImagePart(Closed, kw_only=True, tag_field="type", tag="image_url"):
    image_url: Json


class RefusalPart(Closed, kw_only=True, tag_field="type", tag="refusal"):
    refusal: str


class Function(Closed, kw_only=True):
    name: str
    arguments: str


class Call(Closed, kw_only=True):
    id: str
    type: Literal["function"]
    function: Function


class System(Closed, kw_only=True, tag_field="role", tag="system"):
    content: str | Annotated[list[TextPart], Meta(min_length=1)]
    name: str | UnsetType = UNSET


class User(Closed, kw_only=True, tag_field="role", tag="user"):
    content: str | Annotated[list[TextPart | ImagePart], Meta(min_length=1)]
    name: str | UnsetType = UNSET


class Assistant(Closed, kw_only=True, tag_field="role", tag="assistant"):
    content: str | list[TextPart | RefusalPart] | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET
    function_call: Function | UnsetType = UNSET
    weight: Literal[0, 1] | UnsetType = UNSET


class ToolSaid(Closed, kw_only=True, tag_field="role", tag="tool"):
    content: str
    tool_call_id: str


class FunctionSaid(Closed, kw_only=True, tag_field="role", tag="function"):
    content: str
    name: str


class Tool(Closed, kw_only=True):
    type: Literal["function"]
    function: Json


class Example(Closed, kw_only=True):
    messages: Annotated[
        list[System | User | Assistant | ToolSaid | FunctionSaid], Meta(min_length=1)
    ]
    tools: list[Tool] | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    functions: list[Json] | UnsetType = UNSET


def check_example(line: bytes) -> None:
    """Raise ValidationError or AssertionError for a line that fine-tuning would refuse."""
    example = msgspec.json.decode(line, type=Example)
    last = example.messages[-1]
    assert isinstance(last, Assistant)
    for said in example.messages:
        if isinstance(said, Assistant):
            parts = (said.content, said.refusal, said.tool_calls, said.function_call)
            assert any(part is not UNSET for part in parts)
    assert example.parallel_tool_calls is UNSET or example.tools is not UNSET


def stored(*choices: Json, **request: Any) -> Row:
    """Return the row of an answer with these choices; `request` are keys of the request."""
    answer, asked = completion(*choices, id=ID), ask(store=True, **request)
    return row_of(Capture("", "req-1", json.dumps(answer).encode(), json.dumps(asked).encode()))


def written(row: Row, format: Format, **how: bool) -> tuple[list[Json], Counter[str]]:
    """Return the lines of a row, decoded and checked, and what was left out."""
    left_out: Counter[str] = Counter()
    lines = lines_of(row, format, lambda reason: left_out.update([reason]), **how)
    for line in lines:
        assert b"\n" not in line and b"\r" not in line
        if format == "chat":
            check_example(line)
        if format == "evals":
            SourceFileContentContent.model_validate_json(line, strict=True)
    return [json.loads(line) for line in lines], left_out


HISTORY: list[Json] = [
    {"role": "developer", "content": "Be short.", "name": "d"},
    {"role": "user", "content": [{"type": "text", "text": "Q"}], "name": "u"},
    {"role": "assistant", "content": None, "tool_calls": [call()], "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "7"}]},
    {"role": "assistant", "content": "So?", "refusal": None, "audio": None},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]},
]


def test_a_training_example_is_what_the_validator_takes() -> None:
    answer = choice("It is 7.", message=message("It is 7.", reasoning_content="hm"))
    row = stored(answer, messages=HISTORY, tools=[TOOL], parallel_tool_calls=False, temperature=0.5)
    [example], left_out = written(row, "chat")
    assert not left_out
    assert example == {
        "messages": [
            {"role": "system", "content": "Be short.", "name": "d"},
            HISTORY[1],
            {"role": "assistant", "tool_calls": [call()]},
            {"role": "tool", "content": "7", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "So?"},
            HISTORY[5],
            {"role": "assistant", "content": "It is 7."},
        ],
        "tools": [TOOL],
        "parallel_tool_calls": False,
    }


SPOILT = [
    {"messages": HISTORY[1:2]},
    {"messages": [HISTORY[0], {"role": "assistant", "content": "A"}]},
    {"messages": [{"role": "assistant", "content": "A", "reasoning_content": "hm"}]},
    {"messages": [{"role": "assistant", "content": None}]},
    {"messages": [{"role": "assistant"}]},
    {"messages": [HISTORY[3], {"role": "assistant", "content": "A"}]},
    {"messages": [{"role": "assistant", "content": "A"}], "temperature": 0},
    {"messages": [{"role": "assistant", "content": "A"}], "parallel_tool_calls": True},
]


@pytest.mark.parametrize("spoilt", SPOILT)
def test_the_check_of_examples_refuses(spoilt: Json) -> None:
    check_example(
        b'{"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]}'
    )
    with pytest.raises((msgspec.ValidationError, AssertionError)):
        check_example(json.dumps(spoilt).encode())


def test_each_choice_is_an_example() -> None:
    row = stored(choice("a"), choice("b", index=1), n=2)
    examples, _ = written(row, "chat")
    assert [example["messages"][-1]["content"] for example in examples] == ["a", "b"]


def test_calls_are_an_answer() -> None:
    said = message(None, tool_calls=[call()])
    [example], _ = written(
        stored(choice(message=said, finish_reason="tool_calls"), tools=[TOOL]), "chat"
    )
    assert example["messages"][-1] == {"role": "assistant", "tool_calls": [call()]}
    old = message(None, function_call=call()["function"])
    row = stored(
        choice(message=old, finish_reason="function_call"), functions=[TOOL["function"]], tools=None
    )
    [example], _ = written(row, "chat")
    assert example["messages"][-1] == {"role": "assistant", "function_call": call()["function"]}
    assert example["functions"] == [TOOL["function"]]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_cut_answers_are_left_out_unless_all_are_wanted(reason: str) -> None:
    row = stored(choice("a", finish_reason=reason), choice("b", index=1))
    examples, left_out = written(row, "chat")
    assert [example["messages"][-1]["content"] for example in examples] == ["b"]
    assert left_out == {reason: 1}
    assert len(written(row, "chat", everything=True)[0]) == 2


def test_empty_answers_are_left_out_unless_all_are_wanted() -> None:
    row = stored(choice(message=message("", reasoning_content="a long thought")))
    assert written(row, "chat") == ([], {"empty": 1})
    [example], left_out = written(row, "chat", everything=True)
    assert example["messages"][-1] == {"role": "assistant", "content": ""}
    assert not left_out


def test_a_refusal_is_an_answer() -> None:
    [example], _ = written(stored(choice(message=message(None, refusal="No."))), "chat")
    assert example["messages"][-1] == {"role": "assistant", "refusal": "No."}


UNFIT: list[tuple[Json, str]] = [
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "audio, files or a misplaced image",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
        "audio, files or a misplaced image",
    ),
    (
        {"messages": [{"role": "assistant", "content": HISTORY[5]["content"]}]},
        "audio, files or a misplaced image",
    ),
    ({"messages": [{"role": "critic", "content": "x"}]}, "a role of no training example"),
    ({"messages": [{"role": "assistant", "content": None}]}, "an empty message"),
    ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "custom tools"),
    ({"messages": [{"content": "x"}]}, "unreadable"),
]


@pytest.mark.parametrize(("request_", "reason"), UNFIT)
def test_what_fine_tuning_has_no_place_for_is_left_out(request_: Json, reason: str) -> None:
    row = stored(**request_)
    assert written(row, "chat", everything=True) == ([], {reason: 1})
    assert len(written(row, "evals")[0]) == len(written(row, "full")[0]) == 1


def test_an_eval_has_what_graders_ask_for() -> None:
    answer = choice('{"a":\n 1.50}', message=message('{"a":\n 1.50}', tool_calls=[call()]))
    row = stored(
        answer, messages=HISTORY, metadata={"k": "v"}, response_format={"type": "json_object"}
    )
    [line], _ = written(row, "evals")
    assert line["item"] == {
        "input": HISTORY,
        "id": ID,
        "created": CREATED,
        "metadata": {"k": "v"},
        "parameters": {"model": "m", "response_format": {"type": "json_object"}},
    }
    assert line["sample"] == {
        "model": "m",
        "choices": [answer],
        "output_text": '{"a":\n 1.50}',
        "output_tools": [call()],
        "finish_reason": "stop",
        "output_json": {"a": 1.5},
        "usage": USAGE,
    }


def test_evals_have_a_sample_a_choice_and_keep_cut_ones() -> None:
    row = stored(choice("a", finish_reason="length"), choice(None, index=1), n=2)
    lines, left_out = written(row, "evals")
    assert [line["sample"]["output_text"] for line in lines] == ["a", ""]
    assert [len(line["sample"]["choices"]) for line in lines] == [1, 1]
    assert not any("usage" in line["sample"] for line in lines)  # it is both samples' together
    assert not left_out
    plain = stored(choice("no JSON"), response_format={"type": "json_object"})
    assert "output_json" not in written(plain, "evals")[0][0]["sample"]


def test_the_full_format_keeps_everything_as_it_was_written() -> None:
    request = (
        b'{"model": "m", "messages": [\r\n {"role": "user",\n "content": "a\\nb"}],\n '
        b'"temperature": 0.50, "big": 123456789012345678901, "store": true, "metadata": {"k": "v"}}'
    )
    answer = msgspec.json.encode(completion(prompt_logprobs=[None]))
    [line] = lines_of(row_of(Capture("ab12", "req-1", answer, request)), "full", print)
    assert line == (
        b'{"id":"chatcmpl-0123456789","created":1741570283,"request_id":"req-1","owner":"ab12",'
        b'"metadata":{"k":"v"},"request":{"model":"m","temperature":0.50,'
        b'"big":123456789012345678901,"messages":[{"role":"user","content":"a\\nb"}]},'
        b'"response":' + answer + b"}"
    )


@pytest.mark.parametrize("format", ["chat", "evals", "full"])
def test_a_row_that_cannot_be_read_is_left_out(format: Format) -> None:
    row = stored(**scored())
    row.parameters = b"{"
    left_out: list[str] = []
    assert lines_of(row, format, left_out.append) == []
    assert left_out == ["unreadable"]
