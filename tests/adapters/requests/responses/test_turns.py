"""A conversation's items as messages: turns, calls with their outputs, and what stands where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.responses_asked import CALL, FUNCTION, OUTPUT, SUFFIX, chat, messages, refuse, value

USER = {"role": "user", "content": "Hi"}
CALL_2 = CALL | {"call_id": "call_2", "name": "get_date", "arguments": ""}
OUTPUT_2 = OUTPUT | {"call_id": "call_2", "output": "today"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
URL = {"url": "data:image/png;base64,AA=="}
SHOWN = {"type": "image_url", "image_url": URL | {"detail": "low"}}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "summary": [], "content": [part]} | more


def calling(*calls: dict[str, Any], content: Any = None, **more: Any) -> dict[str, Any]:
    """Return the assistant's message that makes these calls."""
    made = [
        {
            "id": call["call_id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content, **more, "tool_calls": made}


def answer(output: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": output["call_id"], "content": output["output"]}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        # one turn is one message
        (
            [thought("Hm."), assistant("Let me see."), CALL, CALL_2, OUTPUT, OUTPUT_2],
            [
                calling(CALL, CALL_2, content="Let me see.", reasoning_content="Hm."),
                answer(OUTPUT),
                answer(OUTPUT_2),
            ],
        ),
        ([thought("A"), thought("B"), assistant("C")],
         [{"role": "assistant", "content": "C", "reasoning_content": "A\n\nB"}]),
        # two messages stay two, and what follows calls is another turn
        ([assistant("A"), assistant("B")],
         [{"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}]),
        ([assistant("A"), thought("B"), assistant("C")],
         [{"role": "assistant", "content": "A"},
          {"role": "assistant", "content": "C", "reasoning_content": "B"}]),
        ([CALL, assistant("A"), OUTPUT],
         [calling(CALL), answer(OUTPUT), {"role": "assistant", "content": "A"}]),
        ([CALL, thought("B"), CALL_2, OUTPUT, OUTPUT_2],
         [calling(CALL), answer(OUTPUT), calling(CALL_2, reasoning_content="B"),
          answer(OUTPUT_2)]),
        # an output between two calls parts them, and stands behind its own
        ([CALL, OUTPUT, CALL_2, OUTPUT_2],
         [calling(CALL), answer(OUTPUT), calling(CALL_2), answer(OUTPUT_2)]),
        ([OUTPUT_2, OUTPUT, CALL, CALL_2],
         [calling(CALL, CALL_2), answer(OUTPUT), answer(OUTPUT_2)]),
        ([CALL, USER, OUTPUT], [calling(CALL), answer(OUTPUT), USER]),
        # an id that comes again: the first output is the first call's
        ([CALL, OUTPUT, CALL, OUTPUT | {"output": "one"}],
         [calling(CALL), answer(OUTPUT), calling(CALL), answer(OUTPUT | {"output": "one"})]),
        # reasoning of which nothing can be told, or whose answer never came
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, assistant("A")],
         [{"role": "assistant", "content": "A"}]),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]}, USER],
         [{"role": "assistant", "content": "", "reasoning_content": "S"}, USER]),
        # contents
        ([{"role": "user", "content": [{"type": "input_text", "text": "A"}]}],
         [{"role": "user", "content": "A"}]),
        ([{"role": "system", "content": [{"type": "input_text", "text": x} for x in "AB"]}],
         [{"role": "system", "content": [{"type": "text", "text": x} for x in "AB"]}]),
        ([{"role": "user", "content": [IMAGE]}], [{"role": "user", "content": [SHOWN]}]),
        ([{"role": "user", "content": [IMAGE | {"detail": "original"}, IMAGE | {"detail": None}]}],
         [{"role": "user", "content": [
             {"type": "image_url", "image_url": URL | {"detail": "high"}},
             {"type": "image_url", "image_url": URL}]}]),
        ([{"role": "user", "content": [
            {"type": "input_file", "file_data": "data:a/b;base64,AA==", "filename": "a.pdf"},
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]}],
         [{"role": "user", "content": [
             {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:a/b;base64,AA=="}},
             {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]}]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
         [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]),
        ([{"role": "assistant", "content": []}], [{"role": "assistant", "content": ""}]),
        ([{"role": "assistant", "content": []}, CALL, OUTPUT],
         [calling(CALL, content=""), answer(OUTPUT)]),
        # outputs of parts: texts stay, and what is none is shown behind all outputs
        ([CALL, OUTPUT | {"output": [{"type": "input_text", "text": "A"}]}],
         [calling(CALL), answer(OUTPUT | {"output": "A"})]),
        ([CALL, OUTPUT | {"output": [{"type": "input_text", "text": x} for x in "AB"]}],
         [calling(CALL),
          answer(OUTPUT | {"output": [{"type": "text", "text": x} for x in "AB"]})]),
        ([CALL, CALL_2, OUTPUT | {"output": [IMAGE]}, OUTPUT_2],
         [calling(CALL, CALL_2), answer(OUTPUT | {"output": ""}), answer(OUTPUT_2),
          {"role": "user", "content": [SHOWN]}]),
        # tools that backends are offered as functions
        ([CALL | {"namespace": "ns"}, OUTPUT], [calling(CALL | {"name": "ns__get_time"}),
                                                answer(OUTPUT)]),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": 'a "b"\n'},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "d"}],
         [calling({"call_id": "c", "name": "sh", "arguments": '{"input":"a \\"b\\"\\n"}'}),
          {"role": "tool", "tool_call_id": "c", "content": "d"}]),
    ],
)  # fmt: skip
def test_items_are_messages(items: list[Any], expected: list[Any]) -> None:
    assert messages(input=items) == expected
    assert messages(input=[], history=items, previous_response_id="resp_1") == expected


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([CALL, USER], "No tool output found for function call call_1."),
        ([CALL, OUTPUT_2], "No tool output found for function call call_1."),
        ([CALL, CALL, OUTPUT], "No tool output found for function call call_1."),
        ([OUTPUT], "No tool call found for function call output with call_id call_1."),
        ([CALL, OUTPUT, OUTPUT],
         "No tool call found for function call output with call_id call_1."),
        ([{"type": "custom_tool_call", "call_id": "a", "name": "b", "input": ""}],
         "No tool output found for custom tool call a."),
        ([{"type": "custom_tool_call_output", "call_id": "a", "output": ""}],
         "No tool call found for custom tool call output with call_id a."),
    ],
)  # fmt: skip
def test_calls_and_outputs_belong_together(items: list[Any], text: str) -> None:
    error = refuse(input=items)
    assert (error.message, error.param) == (text, "input")
    error = refuse(history=items, input="Hi", previous_response_id="resp_1")
    assert (error.message, error.param) == (text, "input")


def test_each_message_tells_where_it_came_from() -> None:
    made = chat(
        instructions="Be brief.",
        history=[USER, assistant("A")],
        input=[
            thought("B"),
            assistant("C"),
            CALL,
            CALL_2,
            OUTPUT_2 | {"output": [IMAGE]},
            OUTPUT,
            USER,
        ],
    )
    assert [message.role for message in made.messages] == [
        "system", "user", "assistant", "assistant", "tool", "tool", "user", "user"
    ]  # fmt: skip
    assert made.facts.paths == (
        "instructions", "", "", "input[1]", "input[5].output", "input[4].output",
        "input[4].output", "input[6]",
    )  # fmt: skip


def test_a_reference_stands_for_its_item() -> None:
    kept = {"id": "rs_1", "type": "reasoning", "summary": [], "content": thought("A")["content"]}
    made = chat(input=[{"id": "rs_1"}, assistant("B")], found={"rs_1": kept})
    assert value(made, "messages") == [
        {"role": "assistant", "content": "B", "reasoning_content": "A"}
    ]
    assert json.loads(made.own)[0] == kept


def test_nothing_to_say_is_refused() -> None:
    error = refuse(input=[], previous_response_id="resp_1")
    assert (error.param, error.code) == ("input", "empty_array")
    assert len(messages(input=[], instructions="A")) == 1


def test_the_own_items_are_kept_whole() -> None:
    items = [
        USER,
        {"role": "assistant", "content": "A", "phase": "final_answer"},
        {"id": "msg_1", "role": "user", "content": [IMAGE | {"detail": None}], "status": None},
        assistant("B") | {"status": "incomplete"},
        thought("C"),
        CALL,
        OUTPUT | {"output": [{"type": "input_image", "image_url": "a"}]},
    ]
    made = chat(input=items, history=[USER], tools=[FUNCTION])

    def id(prefix: str, place: int) -> dict[str, str]:
        return {"id": made.facts.item_id(prefix, place, given=True)}

    done = {"status": "completed"}
    text = {"type": "output_text", "annotations": []}
    assert json.loads(made.own) == [
        id("msg", 0)
        | {"type": "message", "content": [{"type": "input_text", "text": "Hi"}]}
        | {"role": "user"}
        | done,
        id("msg", 1)
        | {"type": "message", "role": "assistant", "content": [text | {"text": "A"}]}
        | {"phase": "final_answer"}
        | done,
        {"id": "msg_1", "type": "message", "role": "user", "content": [IMAGE | {"detail": "auto"}]}
        | done,
        id("msg", 3)
        | {"type": "message", "role": "assistant", "content": [text | {"text": "B"}]}
        | {"status": "incomplete"},
        id("rs", 4) | thought("C"),
        id("fc", 5) | CALL | done,
        id("fco", 6)
        | OUTPUT
        | {"output": [{"type": "input_image", "image_url": "a", "detail": "auto"}]}
        | done,
    ]
    assert made.facts.item_id("msg", 0, given=True) == f"msg_{SUFFIX}80000001"
    text_alone = json.loads(chat(input="Hi").own)
    assert text_alone[0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert json.loads(chat(input=[], history=[USER], previous_response_id="resp_1").own) == []
