"""Every markup that is known, as the models write it: what becomes of it, body and stream."""

from __future__ import annotations

import itertools

import pytest

from tests.adapters.markup.leaks import HERMES, ONE, TWO, Calls, every_way, whole
from wellspoken.adapters.markup.call_json import ENDS
from wellspoken.adapters.markup.markups import AFTER_CALL, MARKS, MARKUPS, Markup

FORMS: dict[str, tuple[str, Calls]] = {
    "hermes": (HERMES, ONE),
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
    "hermes, null": ('<tool_call>{"name": "g", "arguments": null}</tool_call>', [("g", {})]),
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
    "bare, fenced": ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', ONE),
    "bare, fenced in one line": ('```{"name": "f", "arguments": {"a": 1}}```<|im_end|>', ONE),
    "bare, fenced, a list": (
        '\n```json\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]\n```\n',
        TWO,
    ),
    "bare, fenced, one after the other": (
        '```json\n{"name": "f", "arguments": {"s": "```\\n"}}\n```\n\n'
        '```json\n{"type": "function", "function": {"name": "g", "arguments": "{}"}}\n```',
        [("f", {"s": "```\n"}), ("g", {})],
    ),
    "qwen2.5-coder": ('<tools>\n{"name": "f", "arguments": {"a": 1}}\n</tools>', ONE),
    "qwen2.5-coder, a list": (
        '<tools>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</tools>',
        TWO,
    ),
    "qwen2.5-coder, function": (
        '<function>\n{"name": "f", "arguments": {"a": 1}}\n</function>',
        ONE,
    ),
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
    "deepseek, a call without the list's mark": (
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
        ONE,
    ),
    "granite 4 and others, a list": (
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>',
        TWO,
    ),
    "seed-oss": (
        "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n"
        "</seed:tool_call><seed:tool_call><function=g></function></seed:tool_call>",
        TWO,
    ),
    "longcat": ('<longcat_tool_call>\n{"name": "g"}\n</longcat_tool_call>', [("g", {})]),
    "jamba, hunyuan": (
        '<tool_calls>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_calls>',
        TWO,
    ),
    "minimax-m1": (
        '<tool_calls>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g"}\n</tool_calls>',
        TWO,
    ),
    "several hermes' in one": (
        '<tool_calls><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
        "<tool_call>g</tool_call></tool_calls>",
        TWO,
    ),
    "nemotron": ('<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>', ONE),
    "bare, pythonic": (
        '[f(a=1, s="<tool_call>"), g()]',
        [("f", {"a": 1, "s": "<tool_call>"}), ("g", {})],
    ),
    "bare, pythonic with an end": ("\n[ f(a = 1,) ]<|eot_id|>", ONE),
    "llama 4": ("<|python_start|>[f(a=1), g()]<|python_end|>", TWO),
    "llama 3's own tools": ("<|python_tag|>f.call(a=1)<|eom_id|>", ONE),
    "llama 3, pythonic": ("<|python_tag|>[f(a=1)]", ONE),
    "lfm2": ("<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>", TWO),
    "lfm2, json": (
        '<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>',
        ONE,
    ),
    "olmo 3": ("<function_calls>\nf(a=1)\ng()\n</function_calls>", TWO),
    "granite 3": ('<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', TWO),
    "phi-4-mini": ('<|tool_call|>[{"name": "g", "arguments": {}}]<|/tool_call|>', [("g", {})]),
    "phi-4-mini, functools": ('functools[{"name": "f", "arguments": {"a": 1}}]', ONE),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": 1}}<|action_end|>',
        ONE,
    ),
    "command a": (
        '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}},\n'
        '{"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
        TWO,
    ),
    "apertus": ('<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>', TWO),
    "pangu": ('[unused11][{"name": "f", "arguments": {"a": 1}}][unused12]', ONE),
    "step3": (
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="f">\n<steptml:parameter name="a">1</steptml:parameter>\n'
        '<steptml:parameter name="s">x < 1</steptml:parameter>\n</steptml:invoke>'
        "<｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="g"></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
        [("f", {"a": 1, "s": "x < 1"}), ("g", {})],
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="x" string="false">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"s": "1", "x": [1]})],
    ),
    "deepseek v3.2, json": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">\n{"a": 1}\n</｜DSML｜invoke>'
        "</｜DSML｜function_calls>",
        ONE,
    ),
    "deepseek v4": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a">1'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
        ONE,
    ),
    "invokes without a prefix": (
        '<function_calls>\n<invoke name="f"><parameter name="a">1</parameter></invoke>\n'
        '<invoke name="g"></invoke>\n</function_calls>',
        TWO,
    ),
    "an invoke without its wrapper": (
        '<invoke name="f">\n<parameter name="s">a\n<b></invoke></parameter>\n</invoke>\n'
        '<invoke name="g"></invoke>',
        [("f", {"s": "a\n<b></invoke>"}), ("g", {})],
    ),
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        TWO,
    ),
    "muse": (
        '<atem:function_calls><atem:invoke name="f"><atem:parameter name="a">1</atem:parameter>'
        "</atem:invoke></atem:function_calls>",
        ONE,
    ),
    "kimi k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|>\n<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        TWO,
    ),
    "kimi k2, not closed": (
        "<|tool_calls_section_begin|> <|tool_call_begin|> functions.f:0 "
        '<|tool_call_argument_begin|> {"a": 1} <|tool_call_end|>',
        ONE,
    ),
    "solar": (
        "<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>f<|tool_call:args|>"
        '{"a": 1}<|tool_call:end|>',
        ONE,
    ),
    "gpt-oss": (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        ONE,
    ),
    "gpt-oss, behind a message": (
        '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>',
        ONE,
    ),
    "gpt-oss, in the wrong channel": (
        '<|channel|>analysis to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        ONE,
    ),
    "kimi k2, a section of one": (
        "<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_call_section_end|>',
        ONE,
    ),
    "kimi k2, no section": (
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
        "<|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        TWO,
    ),
    "gpt-oss, its end a stop token": (
        '<|start|>assistant<|channel|>analysis to=functions.f json<|message|>{"a": 1}',
        ONE,
    ),
    "gpt-oss, the recipient first": (
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
        '{"a": 1}<|call|>',
        ONE,
    ),
    "gemma 4": (
        '<|tool_call>call:f{a:1,s:<|"|>a: "b"<|"|>,l:[1,{x:true}]}<tool_call|>'
        "<|tool_call>call:g{}<tool_call|>",
        [("f", {"a": 1, "s": 'a: "b"', "l": [1, {"x": True}]}), ("g", {})],
    ),
    "functiongemma": (
        "<start_function_call>call:f{s:<escape>{x}<escape>}<end_function_call>",
        [("f", {"s": "{x}"})],
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
    known = [x for x in MARKUPS if text.startswith(x.opening)]
    ends = [x.call_end or x.closing for x in known] + [x.closing for x in known]
    closed = text.endswith((*ends, "</tool_call>")) and name != "llama 3's own tools"
    found = every_way(f"{text}\n\nSo there.")
    assert found[:3] == (
        ("So there.", None, calls) if closed else (f"{text}\n\nSo there.", None, [])
    )


BEHIND = ["So there.", '{"b": 2} is more.', "say {", "[1]", "[TOOL_CALLS] is a mark.", "h{}"]
OPEN = ['[TOOL_CALLS]f[ARGS]{"a": 1}', '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
        'functools[{"name": "f", "arguments": {"a": 1}}]',
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}']  # fmt: skip


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("text", OPEN)
def test_text_after_a_call_of_a_markup_without_an_end_stays(text: str, behind: str) -> None:
    """The mutant that asks for nothing behind it leaves the call in the text."""
    assert every_way(f"{text}\n{behind}")[:3] == (behind, None, ONE)


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_turn_goes_with_what_was_found_before_it(end: str) -> None:
    """A server that keeps special tokens; the mutant that takes them for content leaks them."""
    assert every_way(f"{HERMES}{end}")[:3] == (None, None, ONE)
    assert every_way(f"{HERMES}\n{end}\nHi {end} there{end}\n")[:3] == (
        f"Hi {end} there",
        None,
        ONE,
    )
    assert every_way(f"<think>Hm</think>Hi{end}")[:3] == ("Hi", "Hm", [])
    assert every_way(f"Hi{end}")[:3] == (f"Hi{end}", None, [])


@pytest.mark.parametrize("end", AFTER_CALL)
def test_what_closes_a_wrapper_that_was_not_opened_is_no_content(end: str) -> None:
    call = '<invoke name="f"><parameter name="a">1</parameter></invoke>'
    assert every_way(f"{call}\n{end}\nHi {end}")[:3] == (f"Hi {end}", None, ONE)


@pytest.mark.parametrize("markup", MARKUPS, ids=lambda markup: markup.opening)
def test_each_has_a_form_here(markup: Markup) -> None:
    assert any(text.startswith(markup.opening) for text, _ in FORMS.values())


def test_no_mark_begins_another() -> None:
    """Else the shorter one would hide the longer one."""
    marks = sorted(MARKS[True, True].markups)
    assert not [(a, b) for a, b in itertools.pairwise(marks) if b.startswith(a)]


@pytest.mark.parametrize("name", FORMS)
def test_of_a_call_that_is_cut_nothing_is_lost(name: str) -> None:
    """No part of it is a call, unless all that is missing is its closing mark or less."""
    text, calls = FORMS[name]
    for size in range(1, len(text)):
        content, thought, found, _, _ = whole(text[:size])
        assert thought is None
        if found:
            assert found == calls[: len(found)]
        else:
            assert content == text[:size]
