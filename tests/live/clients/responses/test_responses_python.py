"""openai-python gets of /v1/responses what it gets of OpenAI's, in front of a real llama.cpp."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from tests.live.clients.responses.conftest import connect
from tests.live.clients.responses.fronts import MODEL, OTHER_KEY, Fronts
from tests.live.responding import (
    LOGPROBS,
    Json,
    chat_rows,
    check_events,
    check_same_numbers,
    comparable,
    response_rows,
    spoken,
)
from tests.models.tiny import TEXT

HELLO = "Say hello."
TIME: Any = {
    "type": "function",
    "name": "get_time",
    "parameters": {
        "type": "object",
        "properties": {"tz": {"type": "string"}},
        "required": ["tz"],
        "additionalProperties": False,
    },
    "strict": True,
}
WEATHER: Any = [{**TIME, "name": "get_weather"}]
TOOL_TURN = "@tool"
GREEDY: Json = {"model": MODEL, "temperature": 0}


class City(BaseModel):
    """What the model is to say of a city."""

    city: Literal["Paris", "London"]
    people: int


def asked(said: Any = HELLO, **more: Any) -> Any:
    return {**GREEDY, "input": said, **more}


def test_a_body(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(**asked(instructions="Be brief.", metadata={"a": "b"}))
    assert response.output_text == TEXT
    assert response.id.startswith("resp_") and response.status == "completed"
    assert response.model == MODEL and response.instructions == "Be brief."
    assert response.metadata == {"a": "b"} and response.error is None
    [message] = response.output
    assert message.type == "message" and message.id.startswith("msg_")
    assert response.usage is not None and response.usage.output_tokens == 10
    assert response.usage.total_tokens == response.usage.input_tokens + 10


def test_a_stream_says_what_a_body_says(sdk: openai.OpenAI) -> None:
    wanted = asked(include=LOGPROBS, top_logprobs=2)
    events: list[Any] = list(sdk.responses.create(**wanted, stream=True))
    check_events(events)
    assert spoken(events, "output_text") == TEXT
    numbers = [
        entry.logprob
        for event in events
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    body = sdk.responses.create(**wanted)
    assert numbers == [number for _, number, _, _ in response_rows(body)]
    assert comparable(events[-1].response) == comparable(body)


def test_the_streams_helper(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**asked()) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()
    check_events(events)
    assert final.output_text == TEXT


def test_logprobs_are_the_chats(sdk: openai.OpenAI, direct: openai.OpenAI) -> None:
    response = sdk.responses.create(**asked(include=LOGPROBS, top_logprobs=3))
    chat = direct.chat.completions.create(
        **GREEDY, messages=[{"role": "user", "content": HELLO}], logprobs=True, top_logprobs=3
    )
    # The last is the token that ends the answer, which is no text.
    check_same_numbers(response_rows(response), chat_rows(chat)[:-1])


@pytest.mark.parametrize("streamed", [False, True])
def test_parse(sdk: openai.OpenAI, streamed: bool) -> None:
    wanted = asked("Which city?", text_format=City)
    if streamed:
        with sdk.responses.stream(**wanted) as stream:
            parsed = stream.get_final_response().output_parsed
    else:
        parsed = sdk.responses.parse(**wanted).output_parsed
    assert parsed == City(city="Paris", people=2)


def test_json_mode(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(
        **asked("Which city?", text={"format": {"type": "json_object"}})
    )
    assert json.loads(response.output_text) == {"city": "Paris", "people": 2}


def test_tools_in_a_loop(sdk: openai.OpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": TOOL_TURN}]
    for _ in range(2):
        response = sdk.responses.create(**asked(said, tools=[TIME]))
        said += response.output
        said += [answer(item) for item in response.output if item.type == "function_call"]
    assert response.output_text == TEXT
    kinds = [item["type"] if isinstance(item, dict) else item.type for item in said[1:]]
    assert kinds == ["function_call", "function_call_output", "message"]


def answer(call: ResponseFunctionToolCall) -> Json:
    """Return the item that a program gives back for a call of get_time."""
    assert (call.name, json.loads(call.arguments)) == ("get_time", {"tz": "UTC"})
    return {"type": "function_call_output", "call_id": call.call_id, "output": "12:00 UTC"}


def test_tools_by_the_previous_response(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(**asked(TOOL_TURN, tools=[TIME]))
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall) and call.id and call.id.startswith("fc_")
    outputs = [answer(call)]
    second = sdk.responses.create(**asked(outputs, tools=[TIME], previous_response_id=first.id))
    assert second.output_text == TEXT and second.previous_response_id == first.id


def test_a_calls_stream(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**asked(TOOL_TURN, tools=[TIME])) as stream:
        events: list[Any] = list(stream)
    check_events(events)
    assert json.loads(spoken(events, "function_call_arguments")) == {"tz": "UTC"}
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments) == {"tz": "UTC"}


def test_a_tool_that_must_be_called(sdk: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "name": "get_time"}
    for wanted in (choice, "required"):
        response = sdk.responses.create(
            **asked(TOOL_TURN, tools=[TIME], tool_choice=wanted, parallel_tool_calls=False)
        )
        assert [item.type for item in response.output] == ["function_call"]


def test_three_turns_are_one_conversation(sdk: openai.OpenAI, direct: openai.OpenAI) -> None:
    previous, messages = None, []
    for number in range(3):
        text = f"Say hello {number}."
        response = sdk.responses.create(**asked(text, previous_response_id=previous))
        previous = response.id
        messages.append({"role": "user", "content": text})
        chat = direct.chat.completions.create(**GREEDY, messages=messages)  # type: ignore[arg-type]
        assert response.usage is not None and chat.usage is not None
        assert response.usage.input_tokens == chat.usage.prompt_tokens
        assert response.output_text == chat.choices[0].message.content == TEXT
        messages.append({"role": "assistant", "content": TEXT})


def test_a_kept_response(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(**asked(include=LOGPROBS, top_logprobs=1))
    assert sdk.responses.retrieve(made.id, include=LOGPROBS) == made
    events: list[Any] = list(sdk.responses.retrieve(made.id, stream=True))
    check_events(events)
    assert spoken(events, "output_text") == TEXT
    after = list(sdk.responses.retrieve(made.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in after] == [e.sequence_number for e in events[4:]]
    items = list(sdk.responses.input_items.list(made.id))
    assert [item.type for item in items] == ["message"]
    assert items[0].model_dump()["content"][0]["text"] == HELLO
    sdk.responses.delete(made.id)
    for gone in (sdk.responses.retrieve, sdk.responses.delete):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        sdk.responses.create(**asked(previous_response_id=made.id))


def test_pages_of_input_items(sdk: openai.OpenAI) -> None:
    texts = [f"part {number}" for number in range(5)]
    items = [{"role": "user", "content": text} for text in texts]
    made = sdk.responses.create(**asked(items))
    for order, expected in (("asc", texts), ("desc", texts[::-1])):
        listed = sdk.responses.input_items.list(made.id, order=order, limit=2)  # type: ignore[arg-type]
        assert [one.model_dump()["content"][0]["text"] for one in listed] == expected


def test_what_is_not_stored_is_not_found(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(**asked(store=False))
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_each_key_sees_its_own(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(**asked())
    with connect(str(sdk.base_url).removesuffix("/v1/"), OTHER_KEY) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            other.responses.create(**asked(previous_response_id=made.id))


def test_reasoning(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(**asked("@think"))
    thought, message = response.output
    assert thought.type == "reasoning" and thought.summary == [] and thought.content
    assert "".join(part.text for part in thought.content).strip() == "Hmm, let me see."
    assert message.type == "message" and response.output_text == "Yes indeed"
    events: list[Any] = list(sdk.responses.create(**asked("@think"), stream=True))
    check_events(events)
    assert spoken(events, "reasoning_text").strip() == "Hmm, let me see."
    assert spoken(events, "output_text") == "Yes indeed"
    given: Any = [{"role": "user", "content": "@think"}, *response.output]
    again = sdk.responses.create(**asked([*given, {"role": "user", "content": HELLO}]))
    assert again.output_text == TEXT


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_cut_at_its_limit(sdk: openai.OpenAI, streamed: bool) -> None:
    wanted = asked("@loop", max_output_tokens=40)
    if streamed:
        events: list[Any] = list(sdk.responses.create(**wanted, stream=True))
        check_events(events, "response.incomplete")
        response = events[-1].response
    else:
        response = sdk.responses.create(**wanted)
    assert response.status == "incomplete" and response.output_text.startswith("la di da la")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 40


BAD: dict[str, tuple[Json, type[openai.APIStatusError], str | None]] = {
    "a part of no type": (
        {"input": [{"role": "user", "content": [{"type": "input_txt", "text": "x"}]}]},
        openai.BadRequestError,
        "input[0].content[0]",
    ),
    "a tool of the server's": (
        {"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]},
        openai.BadRequestError,
        "tools",
    ),
    "background": ({"background": True}, openai.BadRequestError, "background"),
    "no such response": (
        {"previous_response_id": "resp_0"},
        openai.BadRequestError,
        "previous_response_id",
    ),
    "too hot": ({"temperature": 3}, openai.BadRequestError, "temperature"),
    "an output without its call": (
        {"input": [{"type": "function_call_output", "call_id": "call_x", "output": "y"}]},
        openai.BadRequestError,
        "input",
    ),
    "no such model": ({"model": "other"}, openai.NotFoundError, "model"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_openais(sdk: openai.OpenAI, name: str) -> None:
    more, kind, param = BAD[name]
    with pytest.raises(kind) as caught:
        sdk.responses.create(**{**asked(), **more})
    assert caught.value.param is not None and caught.value.param.startswith(param or "")


def test_a_key_that_is_none(fronts: Fronts) -> None:
    with connect(fronts.storing, "wrong") as other, pytest.raises(openai.AuthenticationError):
        other.responses.create(**asked())


def test_an_old_servers_logprobs(sdk: openai.OpenAI) -> None:
    """A vLLM 0.3.3, which has no /v1/responses and the older endpoint's logprobs."""
    response = sdk.responses.create(
        model="vllm/0.3.3-legacy-stop", input=HELLO, include=LOGPROBS, top_logprobs=2
    )
    numbers = [number for _, number, _, _ in response_rows(response)]
    assert (response.output_text, numbers) == (" Hello world\n", [-0.1, -4.0, -0.2])


def test_streams_of_servers_without_responses(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(
        model="tgi/2.4.1-stream-tool-calls-object",
        input=HELLO,
        tools=WEATHER,
    ) as stream:
        [call] = stream.get_final_response().output
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Rome"}


def test_an_aborted_stream_is_a_failure(sdk: openai.OpenAI) -> None:
    kinds = []
    with pytest.raises(openai.APIError, match="aborted"):
        for event in sdk.responses.create(model="vllm/0.32-stream-abort", input=HELLO, stream=True):
            kinds.append(event.type)
    assert "response.output_text.delta" in kinds and "response.completed" not in kinds
