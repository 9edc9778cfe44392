"""Calls and thoughts that a server left in the text, where the backend's `recover` names them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    DONE,
    Json,
    ask,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    entry,
    message,
    role,
    say,
)
from tests.conformance import check_body, check_stream
from tests.corpus import checked_request
from tests.fold import fold
from tests.linear import linear
from tests.replay import exchange
from wellspoken.adapters.events import End, Event, Fault, Reasoning, Text, ToolDelta
from wellspoken.adapters.stages.recover import TRIES, RecoverStage
from wellspoken.adapters.translate import StreamTranslator, stages, translate_body

PROPERTIES = {
    "a": {"type": "integer"},
    "s": {"type": "string"},
    "l": {"type": "array", "items": {}},
    "any": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
}
F = {"type": "function", "function": {"name": "f", "parameters": {"properties": PROPERTIES}}}
G = {"type": "function", "function": {"name": "g"}}
ASKED = ask(tools=[F, G])
BOTH = ("tool_calls", "thinking")
SIZES = (1, 2, 3, 5, 8, 13, 1000)

Calls = list[tuple[str, Any]]
Got = tuple[str | None, str | None, Calls, str, dict[str, int]]
"""Content, reasoning, calls, reason, and what was recovered."""


def outcome(answer: Json, counts: dict[str, int]) -> Got:
    choice = answer["choices"][0]
    told = choice["message"]
    found = [x["function"] for x in told.get("tool_calls", ())]
    calls = [(x["name"], json.loads(x["arguments"])) for x in found]
    counted = {name: times for name, times in counts.items() if name.endswith("_recovered")}
    content, thought = told["content"], told.get("reasoning_content")
    return content or None, thought, calls, choice["finish_reason"], counted


def whole(text: str, asked: Json = ASKED, recover: tuple[str, ...] = BOTH, **more: Any) -> Got:
    """Return what a body with this content comes out as, checked against the rules."""
    made = exchange(asked, recover=frozenset(recover))
    given = json.dumps(completion(choice(text, **more))).encode()
    answer = translate_body(made, 200, "application/json", given)
    assert check_body(answer.body, checked_request(asked), None) == []
    return outcome(json.loads(answer.body), made.notes.counts)


def streamed(
    text: str,
    size: int,
    asked: Json = ASKED,
    recover: tuple[str, ...] = BOTH,
    reason: str = "stop",
) -> Got:
    """Return what a stream with this content comes out as, cut into pieces of this size."""
    asked = asked | {"stream": True}
    made = exchange(asked, recover=frozenset(recover))
    translator = StreamTranslator(made)
    pieces = [say(text[at : at + size]) for at in range(0, len(text), size)]
    parts = [*map(data, [role(), *pieces, end(reason)]), DONE]
    out = b"".join([*map(translator.feed, parts), translator.close()])
    assert check_stream(out, checked_request(asked), None) == []
    return outcome(fold(out), made.notes.counts)


def every_way(text: str, asked: Json = ASKED, recover: tuple[str, ...] = BOTH) -> Got:
    """Return what a text comes out as, which is the same for a body and every cut of a stream."""
    found = whole(text, asked, recover)
    assert [streamed(text, size, asked, recover) for size in SIZES] == [found] * len(SIZES)
    return found


ONE: Calls = [("f", {"a": 1})]
TWO: Calls = [("f", {"a": 1}), ("g", {})]
FORMS: dict[str, tuple[str, Calls]] = {
    "hermes": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ONE),
    "hermes, two": (
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>\n{"arguments": {"s": "</tool_call>\\""}, "name": "g"}\n</tool_call>\n',
        [("f", {"a": 1}), ("g", {"s": '</tool_call>"'})],
    ),
    "hermes, not closed": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n', ONE),
    "hermes, arguments as a text": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        ONE,
    ),
    "hermes, no arguments": ('<tool_call>{"name": "g"}</tool_call>', [("g", {})]),
    "qwen3-coder": (
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n1\n2\n"
        "</parameter>\n<parameter=l>\n[1, 2]\n</parameter>\n<parameter=any>\nTrue\n</parameter>\n"
        "</function>\n</tool_call>",
        [("f", {"a": 1, "s": "1\n2", "l": [1, 2], "any": True})],
    ),
    "qwen3-coder, no opening": (
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ONE,
    ),
    "qwen3-coder, unknown and odd": (
        "<tool_call><function=g><parameter=x>1</parameter></function></tool_call>"
        "<tool_call><function=f><parameter=a>one</parameter></function></tool_call>",
        [("g", {"x": "1"}), ("f", {"a": "one"})],
    ),
    "llama 3.1's functions": ('<function=f>{"a": 1}</function>', ONE),
    "glm": (
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"
        "<tool_call>g</tool_call>",
        TWO,
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        TWO,
    ),
    "mistral v11": ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}</s>', TWO),
    "devstral": ('[TOOL_CALLS]f{"a": 1}', ONE),
    "llama 3": (
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
        "<|eom_id|>",
        TWO,
    ),
    "bare": ('\n{"name": "f", "parameters": {"a": 1}}\n', ONE),
    "bare, typed": ('{"type": "function", "name": "f", "parameters": {"a": 1}}', ONE),
    "bare, nested": ('{"function": {"name": "f", "arguments": {"a": 1}}}', ONE),
    "bare, a list": ('[{"name": "f", "arguments": {"a": 1}}]', ONE),
    "deepseek v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "deepseek v3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "deepseek, in ASCII and not closed": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>f<｜tool_sep｜>{"a": 1}<｜tool_call_end｜>',
        ONE,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_call_in_the_text_is_a_call(name: str) -> None:
    text, calls = FORMS[name]
    assert every_way(text) == (
        None,
        None,
        calls,
        "tool_calls",
        {"tool_calls_recovered": len(calls)},
    )


@pytest.mark.parametrize("name", [name for name in FORMS if not name.startswith("bare")])
def test_text_before_a_call_stays(name: str) -> None:
    text, calls = FORMS[name]
    assert every_way(f"Let me < see.\n{text}")[:3] == ("Let me < see.\n", None, calls)


@pytest.mark.parametrize("name", [name for name in FORMS if FORMS[name][0].endswith(">")])
def test_text_after_a_call_stays(name: str) -> None:
    text, calls = FORMS[name]
    closed = text.endswith(("</tool_call>", "</function>", "<｜tool▁calls▁end｜>"))
    found = every_way(f"{text}\n\nSo there.")
    assert found[:3] == (
        ("So there.", None, calls) if closed else (f"{text}\n\nSo there.", None, [])
    )


TEXTS = {
    "a tool that is not offered": '<tool_call>{"name": "h", "arguments": {"a": 1}}</tool_call> x',
    "no JSON": "<tool_call>\nf(1)\n</tool_call>",
    "never closed": 'I write <tool_call>{"name": "f", "arg',
    "arguments that are no object": '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    "one of two is none": '<tool_call>[{"name": "f", "arguments": {}}, 3]</tool_call>',
    "a mark alone": "[TOOL_CALLS] is Mistral's",
    "an object of another kind": '{"name": "Bob", "parameters": {"a": 1}}',
    "an object of another type": '{"type": "object", "name": "f", "parameters": {}}',
    "an object with more to it": '{"name": "f", "parameters": {"a": 1}, "more": 2}',
    "an object without arguments": '{"name": "f"}',
    "an object and text": '{"name": "f", "parameters": {"a": 1}} is what I would call',
    "an object that is cut": '{"name": "f", "parameters": {"a": 1',
    "an object behind text": 'Hm. {"name": "f", "parameters": {"a": 1}}',
    "a list": "[1, 2]",
    "a list behind text": 'Hm. [{"name": "f", "arguments": {"a": 1}}]',
    "more marks than are tried": "<tool_call>x</tool_call>" * TRIES + FORMS["hermes"][0],
    "a closing mark": "</tool_call></think>",
    "a thought in a line": "The <think> tag and its </think>.",
    "a thought that does not end, later": "Hi.\n<think>Hm",
    "a parameter that is not closed": "<function=f><parameter=a>1</function>",
    "text between parameters": "<function=f>x<parameter=a>1</parameter></function>",
    "half a mark": "a <tool_",
    "white space": " \n ",
    "deep": "<tool_call>" + "[" * 5000 + "]" * 5000 + "</tool_call>",
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_markup_stays_as_it_came(name: str) -> None:
    """The mutant that takes a call of any name, or half a one, does not."""
    assert every_way(TEXTS[name]) == (TEXTS[name], None, [], "stop", {})


def test_what_is_not_asked_for_stays() -> None:
    both = f"<think>Hm</think>{FORMS['hermes'][0]}"
    calls: Calls = ONE
    assert every_way(both, recover=("thinking",))[:3] == (FORMS["hermes"][0], "Hm", [])
    assert every_way(both, recover=("tool_calls",))[:3] == ("<think>Hm</think>", None, calls)
    for asked in (ask(), ASKED | {"tool_choice": "none"}):
        assert every_way(FORMS["hermes"][0], asked)[:3] == (FORMS["hermes"][0], None, [])


def test_there_is_no_stage_where_nothing_is_to_recover() -> None:
    """Else every event of every answer would pay for it."""
    kinds = {
        (): ASKED,
        ("tool_calls",): ask(),
        ("tool_calls", "thinking"): {"model": "m", "prompt": "hi"},
    }
    for recover, asked in kinds.items():
        made = stages(exchange(asked, recover=frozenset(recover)))
        assert not any(isinstance(stage, RecoverStage) for stage in made)
    made = stages(exchange(ASKED, recover=frozenset(["tool_calls"])))
    assert isinstance(made[0], RecoverStage)


THOUGHTS: dict[str, tuple[str, str | None, str | None]] = {
    "at first": ("<think>\nHm.\n\nSo.\n</think>\n\nHi", "Hi", "Hm.\n\nSo."),
    "mistral's": ("[THINK]Hm[/THINK]Hi", "Hi", "Hm"),
    "behind white space": ("\n <think>Hm</think> Hi", "Hi", "Hm"),
    "empty": ("<think>\n\n</think>\n\nHi", "Hi", None),
    "cut": ("<think>\nHm. </thin", None, "Hm. </thin"),
    "later, on a line of its own": ("Hi.\n<think>Hm</think>\nHo", "Hi.\nHo", "Hm"),
    "twice": ("<think>Hm</think>Hi<think>", "Hi<think>", "Hm"),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_in_the_text_is_reasoning(name: str) -> None:
    text, content, thought = THOUGHTS[name]
    found = every_way(text)
    assert found == (content, thought, [], "stop", {"thinking_recovered": 1})


def test_a_thought_and_a_call() -> None:
    found = every_way(f"<think>\nHm\n</think>\n\n{FORMS['hermes'][0]}")
    assert found == (
        None,
        "Hm",
        ONE,
        "tool_calls",
        {"thinking_recovered": 1, "tool_calls_recovered": 1},
    )
    assert every_way('<think>Hm</think>\n{"name": "f", "parameters": {"a": 1}}')[2] == ONE


def test_a_thought_that_the_template_opened() -> None:
    """The closing mark comes alone: only `opened_thinking` tells a stream where it began."""
    opened = ("opened_thinking",)
    thought = "Hm.\nSo.\n</think>\n\nHi"
    assert every_way(thought, recover=opened)[:2] == ("Hi", "Hm.\nSo.")
    assert every_way(f"<think>{thought}", recover=opened)[:2] == ("Hi", "Hm.\nSo.")
    assert every_way("Hm, cut", recover=opened)[:2] == (None, "Hm, cut")
    assert every_way(thought)[:2] == (thought, None)


def test_reasoning_that_the_backend_tells_apart_has_no_thought_behind_it() -> None:
    made = exchange(ask(), recover=frozenset(["opened_thinking"]))
    stage = RecoverStage(made)
    events: list[Event] = [Reasoning(0, "Hm"), Text(0, "Hi")]
    assert stage(events) == events


def test_a_thought_is_out_as_it_comes() -> None:
    made = exchange(ASKED | {"stream": True}, recover=frozenset(BOTH))
    translator = StreamTranslator(made)
    translator.feed(data(role()) + data(say("<think>")))
    assert b'{"reasoning_content":"Hm"}' in translator.feed(data(say("Hm ")))


def test_text_goes_out_as_it_came_until_a_mark_may_begin() -> None:
    made = exchange(ASKED | {"stream": True}, recover=frozenset(BOTH))
    translator = StreamTranslator(made)
    translator.feed(data(role()))
    for text in ("Hi", " there <b>", "\n{"):
        assert translator.feed(data(say(text))).endswith(data(say(text)))
    assert b'"content":" a "' in translator.feed(data(say(" a <to")))
    assert b'"content":"<tom> "' in translator.feed(data(say("m> ")))


def test_a_limit_stays_the_reason() -> None:
    text = FORMS["hermes"][0]
    assert streamed(text + " and", 3, reason="length")[2:4] == (ONE, "length")
    assert whole(text + " and", finish_reason="length")[2:4] == (ONE, "length")


def test_real_calls_beside_a_recovered_one() -> None:
    made = exchange(ASKED | {"stream": True}, recover=frozenset(BOTH))
    translator = StreamTranslator(made)
    item = {"index": 0, **call("g", "{}", id="own")}
    parts = [role(), say(FORMS["hermes"][0][:-3]), chunk({"tool_calls": [item]}), end("tool_calls")]
    out = b"".join([*map(translator.feed, map(data, parts)), translator.feed(DONE)])
    assert outcome(fold(out), made.notes.counts)[:3] == (FORMS["hermes"][0][:-3], None, [("g", {})])
    told = message(FORMS["hermes"][0], tool_calls=[call("g", "{}", id="own")])
    body = json.dumps(completion(choice(message=told, finish_reason="stop"))).encode()
    answer = translate_body(
        exchange(ASKED, recover=frozenset(BOTH)), 200, "application/json", body
    ).body
    assert outcome(json.loads(answer), {})[2] == [*ONE, ("g", {})]


def test_each_choice_by_itself() -> None:
    asked = ASKED | {"n": 2}
    made = exchange(asked, recover=frozenset(BOTH))
    given = completion(choice("Hi"), choice(FORMS["hermes"][0], index=1))
    answer = json.loads(
        translate_body(made, 200, "application/json", json.dumps(given).encode()).body
    )
    assert [x["finish_reason"] for x in answer["choices"]] == ["stop", "tool_calls"]


def test_functions_get_a_function_call() -> None:
    asked = ask(functions=[{"name": "f"}])
    made = exchange(asked, recover=frozenset(BOTH))
    given = json.dumps(completion(choice(FORMS["hermes"][0]))).encode()
    answer = json.loads(translate_body(made, 200, "application/json", given).body)["choices"][0]
    assert answer["message"]["function_call"] == {"name": "f", "arguments": '{"a": 1}'}
    assert answer["finish_reason"] == "function_call"


TOKENS = ["<think>", "Hm", "</think>", "\n\n", "Hi", " all", "\n", "<tool_call>", '{"name": "g",']
TOKENS += [' "arguments": {}}', "</tool_call>", "\n", "Bye", "<|im_end|>"]
SHOWN = [*TOKENS[:-1], ""]


@pytest.mark.parametrize("size", [0, 1, 3, 100])
def test_only_the_contents_entries_stay(size: int) -> None:
    """Those of markup and thoughts are outside the content, in a body as in any stream."""
    asked = ASKED | {"logprobs": True, "top_logprobs": 0}
    rows = [entry(token, -0.25 * n) for n, token in enumerate(TOKENS)]
    made = exchange(asked | {"stream": bool(size)}, recover=frozenset(BOTH))
    if size:
        translator = StreamTranslator(made)
        parts = [
            say("".join(SHOWN[at : at + size]), logprobs={"content": rows[at : at + size]})
            for at in range(0, len(TOKENS), size)
        ]
        fed = [*map(data, [role(), *parts, end()]), DONE]
        answer = fold(b"".join([*map(translator.feed, fed), translator.close()]))
    else:
        given = completion(choice("".join(SHOWN), logprobs={"content": rows, "refusal": None}))
        answer = json.loads(
            translate_body(made, 200, "application/json", json.dumps(given).encode()).body
        )
    told = answer["choices"][0]
    assert told["message"]["content"] == "Hi all\nBye"
    kept = [(x["token"], x["logprob"]) for x in told["logprobs"]["content"]]
    assert kept == [(TOKENS[n], -0.25 * n) for n in (4, 5, 6, 12)]
    assert made.notes.counts["logprobs_outside_content"] == len(TOKENS) - 4


def test_what_is_held_goes_out_before_a_failure() -> None:
    stage = RecoverStage(exchange(ASKED, recover=frozenset(BOTH)))
    assert stage([Text(0, "a <tool_call> b")]) == [Text(0, "a ")]
    out = stage([Fault(502, "gone")])
    assert [x.text for x in out if type(x) is Text] == ["<tool_call> b"]


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "piece",
    [
        "<tool_call>",
        "<think>",
        "\n<think>",
        " ",
        "[TOOL_CALLS]",
        "<function=f>",
        "</function>",
        "{",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    def work(count: int) -> list[Event]:
        stage = RecoverStage(exchange(ASKED, recover=frozenset(BOTH)))
        many = [x for _ in range(count) for x in stage([Text(0, piece)])]
        return [*many, *stage([End(True)])]

    out = linear(work, 2_000)
    said = "".join(x.text for x in out if type(x) is Text or type(x) is Reasoning)
    assert said.replace(piece, "").strip("<think>") == ""
    assert not any(type(x) is ToolDelta for x in out)
