"""Calls and thoughts that a server left in the text, where the backend's `recover` names them."""

from __future__ import annotations

import json

import pytest

from tests.adapters.markup.leaks import (
    ASKED,
    BOTH,
    HERMES,
    ONE,
    Calls,
    every_way,
    outcome,
    streamed,
    whole,
)
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
from tests.conformance import check_stream
from tests.corpus import checked_request
from tests.fold import fold
from tests.linear import linear
from tests.replay import exchange
from wellspoken.adapters.events import End, Event, Fault, Reasoning, Text, ToolDelta
from wellspoken.adapters.markup.scanner import TRIES
from wellspoken.adapters.pipeline import stages
from wellspoken.adapters.stages.recover import RecoverStage
from wellspoken.adapters.translate import StreamTranslator, translate_body

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
    "more marks than are tried": "<tool_call>x</tool_call>" * TRIES + HERMES,
    "a closing mark": "</tool_call></think>",
    "a thought in a line": "The <think> tag and its </think>.",
    "a thought that does not end, later": "Hi.\n<think>Hm",
    "a parameter that is not closed": "<function=f><parameter=a>1</function>",
    "text between parameters": "<function=f>x<parameter=a>1</parameter></function>",
    "half a mark": "a <tool_",
    "white space": " \n ",
    "white space and the end of a turn": "\n\n<|im_end|>\n",
    "a markup of several tools, one of which is not offered": "[f(a=1), h()]",
    "a list of words": "[f, g]",
    "a call behind text": "Hm: [f(a=1)]",
    "a call and text": "[f(a=1)] is what I would call",
    "a call of a tool that is not offered": "[h(a=1)]",
    "a call with what is no literal": "[f(a=g())]",
    "a call without keywords": "[f(1)]",
    "a call that is cut": '[f(s="a',
    "tags that are cut": '<minimax:tool_call><invoke name="f"></invoke>',
    "quoted and not offered": 'Write <|tools_prefix|>[{"h": {}}]<|tools_suffix|> for that.',
    "gpt-oss's, of no tool": "<|channel|>commentary to=functions.h<|message|>{}<|call|>",
    "gpt-oss's final mark alone": "<|start|>assistant<|channel|>final<|message|>Hi",
    "a fence and text": '```json\n{"name": "f", "arguments": {"a": 1}}\n``` is what I would call',
    "a fence behind text": 'Hm.\n```json\n{"name": "f", "arguments": {"a": 1}}\n```',
    "a fence that is not closed": '```json\n{"name": "f", "arguments": {"a": 1}}\n``',
    "a fence that a limit ends": '```json\n{"name": "f", "arguments": {"a": 1}}\n',
    "a fence with more in it": '```json\n{"name": "f", "arguments": {}}\n// that is it\n```',
    "a fence of another language": '```xml\n{"name": "f", "arguments": {"a": 1}}\n```',
    "a fence of Python": "```python\n[f(a=1)]\n```",
    "a fence of a tool that is not offered": '```json\n{"name": "h", "arguments": {"a": 1}}\n```',
    "a fence of an object with more to it": '```\n{"name": "f", "arguments": {}, "x": 1}\n```',
    "a fence of a tool's own object": (
        '```json\n{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'
        "\n```"
    ),
    "a fence without JSON": "```\nf(1)\n```",
    "a fence that is cut": '```json\n{"name": "f", "arguments": {"s": "a',
    "a line of ticks": "````\n{}\n````",
    "the tools themselves": (
        '<tools>{"type": "function", "function": {"name": "f", "parameters": {}}}</tools>'
    ),
    "an invoke within a line": 'Write <invoke name="f"></invoke> for that.',
    "an invoke in a fence": 'Like this:\n```xml\n<invoke name="f"></invoke>\n```\nSo.',
    "an invoke that is cut": '<invoke name="f"><parameter name="a">1</parameter></invo',
    "an invoke in a parameter that is not closed": (
        '<invoke name="f"><parameter name="s">\n<invoke name="g"></invoke></invoke>'
    ),
    "an invoke of a tool that is not offered": '<invoke name="h"></invoke>',
    "a wrapper with a tool that is not offered": (
        '<function_calls>\n<invoke name="f"></invoke>\n<invoke name="h"></invoke>\n'
        "</function_calls>"
    ),
    "deep": "<tool_call>" + "[" * 5000 + "]" * 5000 + "</tool_call>",
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_markup_stays_as_it_came(name: str) -> None:
    """The mutant that takes a call of any name, or half a one, does not."""
    assert every_way(TEXTS[name]) == (TEXTS[name], None, [], "stop", {})


def test_a_mark_of_thinking_alone_is_counted() -> None:
    """The mutant that counts thoughts with text alone lets a body pass as it is, a stream not."""
    assert every_way("<think>\n") == (None, None, [], "stop", {"thinking_recovered": 1})


def test_what_is_not_asked_for_stays() -> None:
    both = f"<think>Hm</think>{HERMES}"
    calls: Calls = ONE
    assert every_way(both, recover=("thinking",))[:3] == (HERMES, "Hm", [])
    assert every_way(both, recover=("tool_calls",))[:3] == ("<think>Hm</think>", None, calls)
    for asked in (ask(), ASKED | {"tool_choice": "none"}):
        assert every_way(HERMES, asked)[:3] == (HERMES, None, [])


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
    "gpt-oss's": (
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "Hi",
        "Hm",
    ),
    "twice": ("<think>Hm</think>Hi<think>", "Hi<think>", "Hm"),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_in_the_text_is_reasoning(name: str) -> None:
    text, content, thought = THOUGHTS[name]
    found = every_way(text)
    assert found == (content, thought, [], "stop", {"thinking_recovered": 1})


def test_a_fence_that_comes_in_two_pieces_is_one() -> None:
    """The mutant that looks at the second alone finds a call in an example."""
    stage = RecoverStage(exchange(ASKED, recover=frozenset(BOTH)))
    pieces = ["So:\n``", '`\n<invoke name="f"></invoke>\n```']
    said = [x for piece in pieces for x in stage([Text(0, piece)])]
    assert "".join(x.text for x in said if type(x) is Text) == "".join(pieces)


@pytest.mark.parametrize("fences", ["", "```\nx\n```\n", "````\nx\n````\n", "`a` ``b``\n"])
def test_an_invoke_behind_text_and_closed_fences_is_a_call(fences: str) -> None:
    text = f"Let me see.\n{fences}"
    assert every_way(f'{text}<invoke name="f"></invoke>')[:3] == (text, None, [("f", {})])


def test_a_thought_and_a_call() -> None:
    found = every_way(f"<think>\nHm\n</think>\n\n{HERMES}")
    assert found == (
        None,
        "Hm",
        ONE,
        "tool_calls",
        {"thinking_recovered": 1, "tool_calls_recovered": 1},
    )
    assert every_way('<think>Hm</think>\n{"name": "f", "parameters": {"a": 1}}')[2] == ONE
    assert every_way("<think>Hm</think>\n[f(a=1)]")[2] == ONE
    fenced = '```json\n{"name": "f", "arguments": {"a": 1}}\n```'
    assert every_way(f"<think>Hm</think>\n{fenced}")[:3] == (None, "Hm", ONE)
    harmony = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary"
    assert every_way(harmony + ' to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>') == (
        None,
        "Hm",
        ONE,
        "tool_calls",
        {"thinking_recovered": 1, "tool_calls_recovered": 1},
    )


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
    text = HERMES
    assert streamed(text + " and", 3, reason="length")[2:4] == (ONE, "length")
    assert whole(text + " and", finish_reason="length")[2:4] == (ONE, "length")


def test_real_calls_beside_a_recovered_one() -> None:
    made = exchange(ASKED | {"stream": True}, recover=frozenset(BOTH))
    translator = StreamTranslator(made)
    item = {"index": 0, **call("g", "{}", id="own")}
    parts = [role(), say(HERMES[:-3]), chunk({"tool_calls": [item]}), end("tool_calls")]
    out = b"".join([*map(translator.feed, map(data, parts)), translator.feed(DONE)])
    assert outcome(fold(out), made.notes.counts)[:3] == (HERMES[:-3], None, [("g", {})])
    told = message(HERMES, tool_calls=[call("g", "{}", id="own")])
    body = json.dumps(completion(choice(message=told, finish_reason="stop"))).encode()
    answer = translate_body(
        exchange(ASKED, recover=frozenset(BOTH)), 200, "application/json", body
    ).body
    assert outcome(json.loads(answer), {})[2] == [*ONE, ("g", {})]


def test_each_choice_by_itself() -> None:
    asked = ASKED | {"n": 2}
    made = exchange(asked, recover=frozenset(BOTH))
    given = completion(choice("Hi"), choice(HERMES, index=1))
    answer = json.loads(
        translate_body(made, 200, "application/json", json.dumps(given).encode()).body
    )
    assert [x["finish_reason"] for x in answer["choices"]] == ["stop", "tool_calls"]


def test_functions_get_a_function_call() -> None:
    asked = ask(functions=[{"name": "f"}])
    made = exchange(asked, recover=frozenset(BOTH))
    given = json.dumps(completion(choice(HERMES))).encode()
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
        "[f(",
        "[ ",
        "<|channel|>",
        "<tool_calls><tool_call>",
        "<|tool_call_start|>['",
        "`",
        "```json\n",
        '```{"name": "f',
        '\n<invoke name="',
        '\n<invoke name="f"><parameter name="s"></invoke>',
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


@pytest.mark.parametrize("pieces", [['{"a": 1}'], ["", '{"a"', ": 1}"], ['{"a"', ":1}"]])
@pytest.mark.parametrize("first", [True, False])
def test_a_call_in_the_text_and_as_a_call_is_one(pieces: list[str], first: bool) -> None:
    """The mutant that does not compare them has two."""
    head, *rest = pieces
    own = [chunk({"tool_calls": [{"index": 0, **call("f", head, id="own")}]})]
    own += [chunk({"tool_calls": [{"index": 0, "function": {"arguments": x}}]}) for x in rest]
    parts = [*own, say(HERMES)] if first else [say(HERMES), *own]
    said, notes = both_ways([role(), *parts, end("tool_calls")])
    assert [x["function"]["name"] for x in said["tool_calls"]] == ["f"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert notes["tool_call_repeated"] == 1


def test_calls_beside_those_in_the_text_stay() -> None:
    """Of one call in the text one is the same; the mutant that drops all alike loses the second."""
    own = [{"index": n, **call("f", x, id=f"c{n}")} for n, x in enumerate(['{"a":1}', '{"a":1}'])]
    own.append({"index": 2, **call("f", '{"a":2}', id="c2")})
    said, _ = both_ways([role(), say(HERMES), chunk({"tool_calls": own}), end("tool_calls")])
    found = [json.loads(x["function"]["arguments"]) for x in said["tool_calls"]]
    assert found == [{"a": 1}, {"a": 1}, {"a": 2}]
    cut = [{"index": 0, **call("f", '{"a":', id="c0")}]
    said, _ = both_ways([role(), say(HERMES), chunk({"tool_calls": cut}), end("length")])
    assert [x["function"]["arguments"] for x in said["tool_calls"]] == ['{"a": 1}', '{"a":']


def test_thinking_that_came_as_reasoning_too_is_told_once() -> None:
    """MiniMax-M3 (Oh My Pi PR #2434); the mutant that does not compare them says it twice."""
    texts = ["<think>\nHm", ", so", "\n</think>\nHi"]
    told = zip(texts, ["Hm", ", so"], strict=False)
    mirrored = [chunk({"content": text, "reasoning_content": x}) for text, x in told]
    said, notes = both_ways([role(), *mirrored, say(texts[2]), end()])
    assert (said["reasoning_content"], said["content"]) == ("Hm, so", "Hi")
    assert notes["thinking_repeated"] == 2
    said, notes = both_ways([role(), chunk({"reasoning_content": "A"}), *map(say, texts), end()])
    assert said["reasoning_content"] == "AHm, so"
    assert "thinking_repeated" not in notes


def both_ways(parts: list[Json]) -> tuple[Json, dict[str, int]]:
    """Return the message that a stream's chunks come out as, as one read and byte by byte."""
    given = b"".join([*map(data, parts), DONE])
    found = []
    for pieces in ([given], [bytes([x]) for x in given]):
        made = exchange(ASKED | {"stream": True}, recover=frozenset(BOTH))
        translator = StreamTranslator(made)
        out = b"".join([*map(translator.feed, pieces), translator.close()])
        assert check_stream(out, checked_request(ASKED | {"stream": True}), None) == []
        found.append((fold(out)["choices"][0]["message"], made.notes.counts))
    assert found[0] == found[1]
    return found[0]
