"""Any good input makes a chat request, and no bad one gets past its 400."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tests.responses_asked import SUFFIX, chat
from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.as_chat import make_chat
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import parse_response

CODEX = Path(__file__).parents[3] / "fixtures" / "responses" / "codex-0.171.0.json"
TEXT = st.text(max_size=4)
FULL = st.text("ab-_", min_size=1, max_size=3)
IN_TEXT = st.builds(lambda text: {"type": "input_text", "text": text}, TEXT)
SHOWN = st.sampled_from([
    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "original"},
    {"type": "input_image", "image_url": "http://a", "detail": None},
    {"type": "input_file", "file_data": "data:a/b;base64,AA==", "filename": "a"},
])  # fmt: skip
AUDIO = st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}})
SPOKEN = st.builds(lambda text: {"type": "output_text", "text": text, "annotations": []}, TEXT) | (
    st.builds(lambda text: {"type": "refusal", "refusal": text}, TEXT)
)
COMMON = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | FULL,
        "status": st.sampled_from([None, "completed", "incomplete"]),
        "phase": st.just("commentary"),
    },
)


def said(role: str, parts: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[Any]:
    contents = TEXT | st.lists(parts, min_size=least, max_size=3)
    kinds = st.sampled_from([{}, {"type": "message"}, {"type": None}])
    return st.builds(
        lambda content, kind, common: [common | kind | {"role": role, "content": content}],
        contents,
        kinds,
        COMMON,
    )


THOUGHTS = st.builds(
    lambda said, thought, common: [
        common
        | {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text} for text in said],
            "content": thought and [{"type": "reasoning_text", "text": text} for text in thought],
        }
    ],
    st.lists(TEXT, max_size=2),
    st.none() | st.lists(TEXT, max_size=2),
    COMMON,
)


@st.composite
def exchanges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return a call and its output, whichever comes first."""
    custom, call_id = draw(st.booleans()), draw(FULL)
    kind, key = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
    call = draw(COMMON) | {"type": kind, "call_id": call_id, "name": draw(FULL), key: draw(TEXT)}
    if draw(st.booleans()):
        call["namespace"] = draw(st.none() | FULL)
    output = draw(TEXT | st.lists(IN_TEXT | SHOWN, max_size=3))
    answer = draw(COMMON) | {"type": f"{kind}_output", "call_id": call_id, "output": output}
    return draw(st.permutations([call, answer]))


GROUPS = (
    said("user", IN_TEXT | SHOWN | AUDIO)
    | said("system", IN_TEXT)
    | said("developer", IN_TEXT)
    | said("assistant", SPOKEN, 0)
    | THOUGHTS
    | exchanges()
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return items of any kind, the parts of some exchanges mixed with others; an id is one's."""
    items = [item for group in draw(st.lists(GROUPS, max_size=6)) for item in group]
    items = draw(st.permutations(items)) if draw(st.booleans()) else items
    named = {item["id"]: place for place, item in enumerate(items) if item.get("id") is not None}
    return [
        item if named.get(item.get("id"), place) == place else item | {"id": None}
        for place, item in enumerate(items)
    ]


@settings(deadline=None)
@given(conversations(), st.integers(0, 20))
def test_well_formed_items_make_a_chat(items: list[dict[str, Any]], at: int) -> None:
    """Chat's own bounds accept it, each call has its output behind it, and no text is lost."""
    made = chat(input=items[at:], history=items[:at], instructions="I", previous_response_id="r")
    found = json.loads(bytes(made.fields["messages"]))
    assert len(found) == len(made.facts.paths)
    waiting: list[str] = []
    for one in found:
        if one["role"] == "tool":
            assert one["tool_call_id"] == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call["id"] for call in one.get("tool_calls", ())]
    assert not waiting
    calls = [item for item in items if item.get("type") in ("function_call", "custom_tool_call")]
    assert sum(len(one.get("tool_calls", ())) for one in found) == len(calls)
    own = json.loads(made.own)
    assert len(own) == len(items[at:])
    again = chat(input=own, history=items[:at], instructions="I", previous_response_id="r")
    assert json.loads(bytes(again.fields["messages"])) == found


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "message", "function_call", "auto", "web_search", "custom"])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "id", "role", "content", "text", "name", "tools"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where each value within another stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in inner:
        found.append((*path, key))
        if isinstance(each, dict | list):
            found += places(each, (*path, key))
    return found


GOOD: list[dict[str, Any]] = [
    json.loads(CODEX.read_text())["body"],
    {
        "model": "tiny",
        "instructions": "A",
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None},
            {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "call_id": "a", "name": "b", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "b"},
            {"type": "custom_tool_call", "call_id": "c", "name": "b", "input": ""},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [
                {"type": "input_file", "file_data": "a"}]},
        ],
        "tools": [
            {"type": "custom", "name": "a", "format": {"type": "text"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "b"}]},
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "custom", "name": "a"}],
        },
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"a": [1]}}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "logit_bias": {"5": 1},
        "stop": ["a"],
        "seed": 1,
        "temperature": 1,
        "stream": True,
        "stream_options": {"include_obfuscation": True},
        "top_k": 3,
    },
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from(GOOD), st.booleans())
def test_a_changed_request_is_refused_by_name_or_taken(
    data: st.DataObject, good: dict[str, Any], strict: bool
) -> None:
    asked = copy.deepcopy(good)
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(asked)))
        inner = asked
        for key in way:
            inner = inner[key]
        if data.draw(st.booleans()):
            inner[last] = data.draw(VALUES)
        elif data.draw(st.booleans()):
            del inner[last]
        else:
            asked[data.draw(st.text(max_size=3))] = data.draw(VALUES)
        if not asked:
            return
    try:
        request = parse_response(json.dumps(asked).encode())
        check_response(request, strict)
        found = {id: Raw(b'{"type":"message","role":"user","content":"a"}') for id in
                 request.references}  # fmt: skip
        made = make_chat(request, [], found, suffix=SUFFIX, clock=int, stored=False)
        chat_bounds.check(made, strict)
    except RequestError as error:
        assert error.status == 400
        assert error.param is not None or not asked.get("model")
    else:
        assert json.loads(made.own) is not None
