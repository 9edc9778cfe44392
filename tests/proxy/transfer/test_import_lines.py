"""A line of a file as a stored completion: every shape, what it lacks, and what is refused.

The lines are constructed; the answers of the last test are the fixtures'.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests import replay
from tests.answers import CREATED, TOOL, USAGE, ask, call, choice, completion, entries, message
from tests.conformance import check_body
from tests.corpus import Fixture, checked_request, fixtures
from tests.fakes.responses import response
from wellspoken.adapters.answer_schema import ChatCompletion
from wellspoken.adapters.translate import translate_body
from wellspoken.proxy.store.rows import Capture, Row, row_of
from wellspoken.proxy.transfer.export_lines import Format, lines_of
from wellspoken.proxy.transfer.import_lines import RowReader
from wellspoken.proxy.transfer.jsonl import RejectedLine

Json = dict[str, Any]
NOW = 1_800_000_000
USER = {"role": "user", "content": "hi"}
HI = {"role": "assistant", "content": "Hi"}


def read(line: Json | bytes, **how: Any) -> Row:
    """Return the row of a line, whose answer has been checked."""
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    row = RowReader(now=NOW, **how).row(data)
    request = json.loads(row.parameters) | {"messages": json.loads(row.messages)}
    assert not check_body(row.answer, checked_request(request))
    msgspec.json.decode(row.answer, type=ChatCompletion)
    answer = json.loads(row.answer)
    assert (row.id, row.created, row.model) == (answer["id"], answer["created"], answer["model"])
    return row


def exported(row: Row, format: Format) -> list[bytes]:
    return lines_of(row, format, pytest.fail, everything=True)


def test_a_training_example_becomes_a_completion() -> None:
    line = {"messages": [USER, HI | {"weight": 1}], "tools": [TOOL], "parallel_tool_calls": False}
    row = read(line, model="tuned")
    assert json.loads(row.messages) == [USER]
    asked = {"tools": [TOOL], "parallel_tool_calls": False, "model": "tuned"}
    assert json.loads(row.parameters) == asked
    assert (row.model, row.created, row.owner, row.metadata) == ("tuned", NOW, "", {})
    answer = json.loads(row.answer)
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["choices"] == [choice("Hi")]
    assert read(line).model == "unknown"
    assert read(line | {"model": "own"}, model="tuned").model == "own"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"content": None, "tool_calls": [call()]}, "tool_calls"),
        ({"content": None, "function_call": call()["function"]}, "function_call"),
        ({"content": None, "refusal": "No."}, "stop"),
        ({"refusal": "No."}, "stop"),
        ({"content": ""}, "stop"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "stop"),
    ],
)
def test_every_kind_of_answer_is_read(said: Json, reason: str) -> None:
    used: Json = {"tools": [TOOL]} if "tool_calls" in said else {}
    used |= {"functions": [TOOL["function"]]} if "function_call" in said else {}
    row = read({"messages": [USER, {"role": "assistant", **said}], **used})
    found = json.loads(row.answer)["choices"][0]
    content = said.get("content")
    expected = "ab" if isinstance(content, list) else content
    wanted = {"role": "assistant", "content": None, "refusal": None} | said | {"content": expected}
    assert found == choice(message=wanted, finish_reason=reason)


def test_an_eval_becomes_the_completion_it_was() -> None:
    answer = completion(choice("Hi", logprobs=entries("Hi")))
    asked = ask(logprobs=True, temperature=0.5, metadata={"k": "v"}, store=True)
    given = row_of(Capture("", "r", json.dumps(answer).encode(), json.dumps(asked).encode()))
    [line] = exported(given, "evals")
    row = read(line)
    assert json.loads(row.answer) == answer | {"id": row.id}
    assert (row.created, row.model, row.metadata) == (CREATED, "m", {"k": "v"})
    assert json.loads(row.parameters) == {"model": "m", "logprobs": True, "temperature": 0.5}
    assert json.loads(row.messages) == asked["messages"]


def test_each_sample_of_several_choices_is_a_completion() -> None:
    answer = json.dumps(completion(choice("a"), choice("b", index=1))).encode()
    given = row_of(Capture("", "r", answer, json.dumps(ask(n=2)).encode()))
    first, second = (read(line) for line in exported(given, "evals"))
    assert first.id != second.id
    assert json.loads(second.answer)["choices"] == [choice("b")]
    assert json.loads(second.parameters)["n"] == 1


def test_all_choices_of_a_sample_are_kept_where_nothing_says_how_many() -> None:
    sample = {"choices": [choice("a"), choice("b", finish_reason="length", index=1)]}
    row = read({"item": {"input": "hi"}, "sample": sample})
    assert json.loads(row.answer)["choices"] == sample["choices"]
    assert json.loads(row.parameters)["n"] == 2


def test_an_eval_of_another_program_is_read() -> None:
    row = read({"item": {"input": "hi", "label": 1}, "sample": {"output_text": "Hi"}})
    assert json.loads(row.messages) == [USER]
    assert json.loads(row.answer)["choices"] == [choice("Hi")]
    sample = {"output_text": "", "output_tools": [call()], "model": "z", "usage": None}
    row = read({"item": {"input": [USER], "parameters": {"tools": [TOOL]}}, "sample": sample})
    assert row.model == "z"
    found = json.loads(row.answer)["choices"][0]
    assert found["message"] == message(None, tool_calls=[call()])
    cut = {"output_text": "a", "finish_reason": "length"}
    row = read({"item": {"input": "hi"}, "sample": cut})
    assert json.loads(row.answer)["choices"][0]["finish_reason"] == "length"


def test_a_record_of_another_server_becomes_a_conforming_completion() -> None:
    said = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "eos_token"}
    response = {"id": "cmpl-1", "created": CREATED, "model": "v", "choices": [said], "usage": USAGE}
    request = ask(stream=True, store=True, metadata={"k": "v"}, top_k=5)
    row = read({"request": request, "response": response, "id": 7})
    assert json.loads(row.answer) == completion(choice("Hi")) | {"id": row.id}
    assert json.loads(row.parameters) == {"model": "m", "top_k": 5}
    assert row.metadata == {"k": "v"}
    native = {"content": "Hi", "stop": True, "tokens_predicted": 1}
    assert json.loads(read({"request": ask(), "response": native}).answer)["model"] == "m"
    batch = {"status_code": 200, "body": response}
    line = {"custom_id": "a", "request": {"method": "POST", "body": ask()}, "response": batch}
    assert json.loads(read(line).messages) == [USER]


def test_a_full_line_is_the_row_it_was() -> None:
    answer = completion(choice("Hi"), prompt_logprobs=[None], stop_reason=7)  # extensions = "all"
    asked = ask(temperature=0.5, metadata={"a": "b"}, store=True)
    given = row_of(Capture("ab12", "req", json.dumps(answer).encode(), json.dumps(asked).encode()))
    given.metadata = {"a": "changed later"}
    [line] = exported(given, "full")
    reader = RowReader(now=NOW)
    row = reader.row(line)
    assert row == given
    assert exported(row, "full") == [line]
    assert RowReader(now=NOW, owner="cd34").row(line).owner == "cd34"
    # A record with somebody's own ids is not taken for one of ours.
    other = json.loads(line) | {"id": "request-1"}
    assert read(json.dumps(other).encode()).id != given.id


def test_a_number_beyond_every_float_comes_back_as_it_went_out() -> None:
    request = json.dumps(ask()).encode()[:-1] + b',"theirs":[1e400,0.10000000000000000001]}'
    given = row_of(Capture("", "req", json.dumps(completion()).encode(), request))
    [line] = exported(given, "full")
    assert b"1e400,0.10000000000000000001" in line
    assert RowReader(now=NOW).row(line) == given


def test_ids_are_made_of_the_line_and_the_owner() -> None:
    line = json.dumps({"messages": [USER, HI]}).encode()
    reader = RowReader(now=NOW)
    first = reader.row(line).id
    other = reader.row(line.replace(b"Hi", b"Ho")).id
    assert reader.row(line).id == first == RowReader(now=NOW + 9).row(line).id
    assert len({first, other, RowReader(now=NOW, owner="ab12").row(line).id}) == 3
    assert (len(first), first[:9]) == (33, "chatcmpl-")


def test_a_response_is_the_row_it_was() -> None:
    given = response(1, response(0), owner="ab12", metadata={"a": "b"}).make_row()
    given.answer = given.answer.replace(b'"status":', b'"theirs": [1e400, 1e-7], "status":')
    [line] = exported(given, "full")
    assert RowReader(now=NOW).row(line) == given
    assert RowReader(now=NOW, owner="").row(line).owner == response(1).make_row().owner
    for format in ("chat", "evals"):
        left_out: list[str] = []
        assert lines_of(given, format, left_out.append, everything=True) == []
        assert left_out == ["responses"]


FULL = {"id": "chatcmpl-0123456789", "request_id": "r", "request": ask()}
ANSWER = json.loads(response(1).answer)
RESPONSE = {"history": [], "input": [], "response": ANSWER}
BAD: list[tuple[Json | bytes, str]] = [
    (b"{", "the line is no JSON object"),
    (b"[]", "the line is no JSON object"),
    (b'{"messages":[{"role":"user","content":"\xff"}]}', "cannot be read"),
    (b'{"messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "no JSON object"),
    ({}, "not a shape that is known"),
    (completion(), "an answer without its request"),
    ({"messages": []}, "the last message is not the assistant's"),
    ({"messages": [USER]}, "the last message is not the assistant's"),
    ({"messages": "x"}, "cannot be read"),
    ({"messages": [USER, HI], "metadata": {"k": 1}}, "metadata has to be an object"),
    ({"item": {"input": "hi"}}, "without a sample"),
    ({"item": {"q": "hi"}, "sample": {"output_text": "a"}}, "the item has no input"),
    ({"item": {"input": "hi"}, "sample": {}}, "neither choices nor output_text"),
    ({"item": [], "sample": {}}, "the item is no JSON object"),
    ({"request": {"prompt": "hi"}, "response": {"choices": [{"text": "a"}]}}, "has no messages"),
    ({"request": ask(), "response": {"error": {"message": "down"}}}, "no answer but an error"),
    ({"request": ask(), "response": "Hi"}, "the response is no JSON object"),
    (FULL | {"response": completion() | {"choices": "x"}}, "no chat completion"),
    (FULL | {"response": completion() | {"created": 1}}, "no chat completion"),
    (
        FULL | {"id": f"{FULL['id']}\n", "response": completion() | {"id": f"{FULL['id']}\n"}},
        "its id ends with a line",
    ),
    (FULL | {"request": {"messages": "x"}, "response": completion()}, "messages cannot be read"),
    (FULL | {"owner": 1, "response": completion()}, "cannot be read"),
    (FULL | {"owner": "responses:", "response": completion()}, "none that a key stands for"),
    (RESPONSE | {"response": completion()}, "the response is none of the Responses API"),
    (RESPONSE | {"response": ANSWER | {"created_at": 1}}, "the response is none of"),
    (RESPONSE | {"response": ANSWER | {"id": f"{ANSWER['id']}\n"}}, "the response is none of"),
    (RESPONSE | {"response": ANSWER | {"output": "x"}}, "the response is none of"),
    (RESPONSE | {"response": ANSWER | {"metadata": {"a": 1}}}, "cannot be read"),
    (RESPONSE | {"history": "x"}, "the response's history cannot be read"),
    (RESPONSE | {"input": [1]}, "the response's input cannot be read"),
    (RESPONSE | {"owner": "responses:ab"}, "none that a key stands for"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_lines_are_refused_with_a_reason(line: Json | bytes, reason: str) -> None:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(RejectedLine) as caught:
        RowReader(now=NOW).row(data)
    assert reason in str(caught.value)


ANSWERS = [x for x in fixtures() if x.status < 300 and not x.streamed and not x.for_stream]


@pytest.mark.parametrize("fixture", ANSWERS, ids=lambda x: x.name)
def test_every_kind_of_stored_answer_goes_out_and_comes_back(fixture: Fixture) -> None:
    exchange = replay.exchange(fixture.request, tokens=replay.tokens(fixture.vocabulary))
    answer = translate_body(
        exchange, fixture.status, fixture.content_type, fixture.raw, fixture.dialect
    )
    if answer.status >= 300 or "messages" not in fixture.request:
        return
    request = json.dumps(fixture.request).encode()
    given = row_of(Capture("", "r", answer.body, request))
    [line] = exported(given, "full")
    assert exported(RowReader(now=NOW).row(line), "full") == [line]
    for line in exported(given, "evals"):
        row = RowReader(now=NOW).row(line)
        msgspec.json.decode(row.answer, type=ChatCompletion)
        sample = json.loads(line)["sample"]
        assert json.loads(row.answer)["choices"] == [sample["choices"][0] | {"index": 0}]
    left_out: list[str] = []
    for line in lines_of(given, "chat", left_out.append, everything=True):
        [again] = exported(read(line), "chat")
        assert json.loads(again) == json.loads(line)
