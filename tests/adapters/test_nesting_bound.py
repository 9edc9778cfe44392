"""JSON of a backend as deep as it may be, and deeper: the same on each Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import replay
from tests.adapters.embeddings import replay as embed
from tests.adapters.markup.leaks import ASKED, HERMES, whole
from tests.answers import (
    DONE,
    Said,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    role,
    say,
    scored,
    stream,
)
from tests.examples import examples
from tests.fold import fold
from tests.native import exchange, fault, last, piece, sse, texts
from tests.nesting import depth_of, filled, further_down
from wellspoken.adapters.events import Fault
from wellspoken.adapters.nesting import DEEPEST, is_text_too_deep, is_too_deep
from wellspoken.adapters.prompt_scores import read_text, read_tokens
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.forms_narrow import json_arguments
from wellspoken.adapters.servers.known.llamacpp_native import read_template
from wellspoken.adapters.stages.call_arguments import CallArguments
from wellspoken.adapters.tokens.tokenize import read_count, read_prompt
from wellspoken.adapters.translate import StreamTranslator

# What stands in an answer may be as deep as that itself: four levels are around it at most.
DEPTHS = {"as deep as may be": DEEPEST, "deeper": DEEPEST + 4, "far deeper": 20_000}
WORDS = "nests too deeply"


ANSWERS = {
    "a key that nobody knows": completion(choice(), x="@"),
    "a key that is kept raw": completion(choice(stop_reason="@")),
    "a server's own key": completion(choice(), kv_transfer_params="@"),
    "counts": completion(choice(), timings="@"),
    "details of a usage": completion(
        choice(),
        usage={
            "prompt_tokens": 1,
            "completion_tokens": 1,
            "total_tokens": 2,
            "prompt_tokens_details": "@",
        },
    ),
    "content": completion(choice("@")),
    "logprobs": completion(choice(logprobs="@")),
    "entries": completion(choice(logprobs={"content": "@"})),
    "arguments": completion(choice(None, tool_calls="@")),
    "an answer that is none": "@",
    "an error": {"error": "@"},
    "an error's message": {"error": {"message": "@"}},
}
CHUNKS = {
    "a key that nobody knows": chunk({"content": "Hi"}, x="@"),
    "a key that is kept raw": say("Hi", stop_reason="@"),
    "content": say("@"),
    "logprobs": say("Hi", logprobs="@"),
    "arguments": chunk({"tool_calls": "@"}),
    "an error": {"error": "@"},
}


def check(said: Said, depth: int) -> None:
    """Check that an answer is refused for its depth where it is deeper than may be, only there."""
    error = said.error or {}
    assert (WORDS in error.get("message", "")) == (depth > DEEPEST), error


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_body(name: str, depth: int) -> None:
    sent = filled(ANSWERS[name], depth)
    waived = ["7.tiling", "7.entries"]
    said = further_down(lambda: body(sent, scored(), waived=waived))
    check(said, depth)
    assert said.status == 502 or (depth <= DEEPEST and said.status == 200)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("name", CHUNKS)
def test_a_streams_event(name: str, depth: int) -> None:
    sent = filled(CHUNKS[name], depth)
    said = further_down(lambda: stream([role(), sent, end()], ask()))
    check(said, depth)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("marks", [('{"content":', "}"), ('{"text":', "}"), ('[{"a":1},', "]")])
def test_content_in_parts(marks: tuple[str, str], depth: int) -> None:
    sent = filled(completion(choice(["@"])), depth, *marks)
    check(further_down(lambda: body(sent, ask())), depth)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
def test_lone_surrogates_at_the_bottom(depth: int) -> None:
    sent = filled(completion(choice(["@"])), depth).replace(b"1]", rb'"\ud83d"]')
    check(further_down(lambda: body(sent, ask())), depth)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("key", ["timings", "stop_type", "completion_probabilities", "error"])
def test_a_native_answer(key: str, depth: int) -> None:
    sent = filled(last() | {key: "@"}, depth)
    for read in (
        lambda: LlamaCppNative(exchange(keep=frozenset({"timings"}))).body(sent),
        lambda: LlamaCppNative(exchange(keep=frozenset({"timings"}))).feed(
            sse(piece("Hi")) + b"data: " + sent + b"\n\n"
        ),
    ):
        events = further_down(read)
        faults = [x for x in events if type(x) is Fault and WORDS in x.message]
        assert bool(faults) == (depth > DEEPEST)


def test_what_a_native_answer_leaves_out_may_be_as_deep_as_the_parser_bears() -> None:
    sent = filled(last(text="Hi") | {"generation_settings": "@"}, DEEPEST + 1)
    assert texts(LlamaCppNative(exchange()).body(sent)) == "Hi"
    sent = filled(last(text="Hi") | {"generation_settings": "@"}, 100_000)
    assert WORDS in fault(LlamaCppNative(exchange()).body(sent)).message


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize(
    "answer", [{"data": "@"}, {"embeddings": "@"}, "@", {"error": "@"}, {"data": [], "x": "@"}]
)
def test_embeddings(answer: Any, depth: int) -> None:
    asked = {"model": "m", "input": "Hi"}
    assert further_down(lambda: embed(200, asked, filled(answer, depth))).status == 502


@pytest.mark.parametrize("read", [read_tokens, read_text, read_count, read_prompt])
def test_what_else_a_server_is_asked(read: Callable[[bytes], object]) -> None:
    """What the parser itself finds too deep is no answer, as any other nonsense."""
    with pytest.raises(ValueError, match=r"a list of tokens|a text"):
        read(filled({"x": "@"}, 100_000))
    with pytest.raises(RequestError, match="did not answer"):
        read_template(filled({"x": "@"}, 100_000))


# Calls


def call_text(depth: int) -> str:
    """Return a Hermes call whose JSON nests so deep."""
    return filled({"name": "f", "arguments": {"a": 1, "l": "@"}}, depth).decode()


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize(
    "marks",
    [("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", ""), ("```json\n", "\n```"), ("", "")],
)
def test_calls_in_text(marks: tuple[str, str], depth: int) -> None:
    """A text that nests deeper stays content, and holds no call."""
    text = marks[0] + call_text(depth) + marks[1]
    content, _, calls, _, _ = further_down(lambda: whole(text, recover=("tool_calls",)))
    if depth > DEEPEST:
        assert (content, calls) == (text, [])
    else:
        assert (content, [name for name, _ in calls]) == (None, ["f"])


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("text", ["[TOOL_CALLS]f{}f", "[TOOL_CALLS]f[ARGS]"])
def test_the_beginning_of_a_text_that_is_calls(text: str, depth: int) -> None:
    """Nothing closes what it opens, so only its beginning may be calls."""
    text += '{"a":' * depth
    content, _, calls, _, _ = further_down(lambda: whole(text, recover=("tool_calls",)))
    assert (content, calls) == (text, []) or (depth <= DEEPEST and calls), (content, calls)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
def test_arguments_that_are_the_same(depth: int) -> None:
    """What nests deeper is the same only where it is written the same."""
    said = filled({"a": "@"}, depth).decode()
    arguments = CallArguments()
    arguments.add(said)
    assert further_down(lambda: arguments.complete() and arguments.equals(said))
    assert further_down(lambda: arguments.equals(f" {said}")) == (depth <= DEEPEST)


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
def test_calls_in_the_text_and_as_calls(depth: int) -> None:
    """A call that the text says is looked for among the others, however deep those nest."""
    deep = filled({"a": "@"}, depth).decode()
    own = chunk({"tool_calls": [{"index": 0, **call("f", deep, id="c0")}]})
    made = replay.exchange(ASKED | {"stream": True}, recover=frozenset({"tool_calls"}))
    translator = StreamTranslator(made)
    parts = [data(part) for part in (role(), say(HERMES), own, end("tool_calls"))]
    out = further_down(
        lambda: b"".join([*map(translator.feed, [*parts, DONE]), translator.close()])
    )
    calls = fold(out)["choices"][0]["message"]["tool_calls"]
    assert [x["function"]["arguments"] for x in calls] == ['{"a": 1}', deep]


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
def test_arguments_of_past_calls(depth: int) -> None:
    """What nests deeper is sent as a text of it, as what is no JSON is."""
    deep = filled({"a": "@"}, depth).decode()
    function = {"name": "f", "arguments": deep}
    sent = {"messages": [{"role": "assistant", "tool_calls": [{"function": function}]}]}
    further_down(lambda: json_arguments(sent))
    [message] = json.loads(json.dumps(sent, default=lambda raw: json.loads(bytes(raw))))["messages"]
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert arguments == (deep if depth <= DEEPEST else json.dumps(deep))


# The count itself

JSON = st.recursive(
    st.text(alphabet='[]{}"\\a', max_size=8) | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[\\]"), inner, max_size=3),
)


@settings(max_examples=examples(100))
@given(JSON, st.integers(DEEPEST - 8, DEEPEST + 4))
def test_the_count_is_that_of_each_byte(value: Any, levels: int) -> None:
    data = b"[" * levels + json.dumps(value).encode() + b"]" * levels
    assert is_too_deep(data) == (depth_of(data) > DEEPEST)
    assert is_text_too_deep(data.decode()) == is_too_deep(data)


def test_many_brackets_are_not_deep() -> None:
    assert not is_too_deep(json.dumps([[{}]] * 100_000).encode())
    assert not is_too_deep(json.dumps(["[" * 100_000, '\\"[{' * 100_000]).encode())
    assert is_too_deep(b"[" * (DEEPEST + 1)) and not is_too_deep(b"[" * DEEPEST)
    assert not is_text_too_deep("\ud83d" * 2000)
