"""The markups in which models write tool calls, and the calls that a piece of text in one says.

Servers read them for some models and leave them in the text for others: without the right
--tool-call-parser (vLLM, SGLang), with a template that they do not know (llama.cpp), or always.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>           Hermes 2 Pro, Qwen 2.5 and 3,
                                                                       ERNIE 4.5, Granite 4
    <tool_call><function=NAME><parameter=KEY>...</parameter>...        Qwen3-Coder, MiMo, Step 3.5
    <seed:tool_call><function=NAME><parameter=KEY>...                  Seed-OSS
    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>...</arg_value>    GLM 4.5, 4.6 and 4.7
    <longcat_tool_call>, as the one or the other                       LongCat
    <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>       Jamba, Hunyuan, MiniMax-M1
    <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>           Nemotron
    ```json {"name": ..., "arguments": {...}}```, by itself            Qwen2.5-Coder
    <tools>{"name": ..., "arguments": {...}}</tools>, <function>       the same
    <function=NAME>{...}</function>                                    Llama 3.1, Functionary
    [TOOL_CALLS][{"name": ..., "arguments": {...}}]                    Mistral to tokenizer v7
    [TOOL_CALLS]NAME[ARGS]{...}  or  [TOOL_CALLS]NAME{...}             Mistral from v11, Devstral
    <|python_tag|>{"name": ..., "parameters": {...}}                   Llama 3.1 to 3.3
    <|python_tag|>NAME.call(KEY="...")                                 the same, of built-in tools
    {"name": ..., "parameters": {...}}, by itself or in a list         Llama 3.2, xLAM; Mistral's
                                                                       without its special token
    [NAME(KEY="...", ...), ...], by itself                             Llama 3.2 and 4
    <|python_start|>[NAME(...)]<|python_end|>                          Llama 4
    <|tool_call_start|>[NAME(...)]<|tool_call_end|>                    LFM2
    <function_calls>NAME(...), one a line                              Olmo 3
    <|tool_call|>[{"name": ..., "arguments": {...}}]                   Granite 3, Phi-4-mini
    functools[{"name": ..., "arguments": {...}}]                       Phi-4-mini, Firefunction
    <|action_start|><|plugin|>{"name": ..., "parameters": {...}}       InternLM 2 and 3
    <|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]          Command R7B and A
    <|tools_prefix|>[{NAME: {...}}]<|tools_suffix|>                    Apertus
    [unused11][{"name": ..., "arguments": {...}}][unused12]            Pangu
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>...                       DeepSeek V3, R1 and V3.1
    the same in ASCII, within it <steptml:invoke name="NAME">...       Step3
    <｜DSML｜function_calls>, <｜DSML｜tool_calls>, <function_calls>,
    <minimax:tool_call>, <atem:function_calls>, within it              DeepSeek V3.2 and V4,
    <invoke name="NAME"><parameter name="KEY">...                      MiniMax-M2, Muse
    <invoke name="NAME">...</invoke>, by itself                        DeepSeek V4
    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0... Kimi K2
    <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME...       Solar Open
    <|channel|>commentary to=functions.NAME ...<|message|>{...}        gpt-oss
    <|tool_call>call:NAME{KEY:<|"|>...<|"|>}<tool_call|>               Gemma 4
    <start_function_call>call:NAME{KEY:<escape>...<escape>}            FunctionGemma

Not known, since what they write is also plain text: Functionary 3.2 (`>>>NAME`), Gemma 3 (a block
of Python), Granite 20B (`<function_call>`), Python's calls without a list around them.

Sources: the models' chat templates on Hugging Face; vLLM 0.32, vllm/tool_parsers/, its issue #30651
for Devstral's, its issue #32926 and pull request #33083 for Qwen2.5-Coder's (and kronk issue #944);
vellum-assistant pull request #42234 for DeepSeek's lone <invoke>; SGLang 0.5, srt/function_call/;
llama.cpp b11549, common/chat.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

import msgspec
from msgspec import Struct

from wellspoken.adapters.markup import call_tags as tags
from wellspoken.adapters.markup.call_json import (
    ENDS,
    FENCE,
    KEYS,
    TOLD,
    Calls,
    Schemas,
    Unfinished,
    find_value,
    read_fenced,
    read_named_objects,
    read_objects,
    without_end,
    without_fence,
)
from wellspoken.adapters.markup.pythonic import read_pythonic
from wellspoken.adapters.nesting import is_text_too_deep


class Markup(Struct, frozen=True):
    """How a markup begins and ends ("": with the answer), and how the text between is read.

    `read` returns the calls, none where it is not whole, known, or names a tool that is not
    offered; it raises `Unfinished`, or ValueError for what is no call at all. `unclosed`: it may
    lack its closing mark, which JSON may in any. `call_end`: what ends each call in it.
    """

    opening: str
    closing: str
    read: Callable[[str, Schemas], Calls]
    unclosed: bool = False
    call_end: str = ""


def _read_bare(text: str, schemas: Schemas) -> Calls:
    if text.startswith(FENCE):
        return read_fenced(text, schemas)
    if text.lstrip("[ \t\r\n").startswith("{"):
        return read_objects(text, schemas, keys=KEYS)
    return read_pythonic(without_end(text), schemas)


def _read_functools(text: str, schemas: Schemas) -> Calls:
    return read_objects("[" + text, schemas)


def _read_lone_deepseek(text: str, schemas: Schemas) -> Calls:
    return tags.read_deepseek("<｜tool▁call▁begin｜>" + text, schemas)


def _read_lone_kimi(text: str, schemas: Schemas) -> Calls:
    return _read_kimi("<|tool_call_begin|>" + text, schemas)


def _nothing(text: str, schemas: Schemas) -> Calls:
    return []


_read_kimi = tags.read_heads(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?(.+?):\d+\s*<\|tool_call_argument_begin\|>",
    "<|tool_call_end|>",
)
_read_solar = tags.read_heads(
    r"<\|tool_call:begin\|>[^<]*<\|tool_call:name\|>([^<]+)<\|tool_call:args\|>",
    "<|tool_call:end|>",
)
_HEAD = re.compile(  # of a call's JSON: nothing, or Mistral's
    r"[\s;,]*(?:(?:\[TOOL_CALLS\])?\s*[\w.:/-]+(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?\s*)?(?=[{\[])"
)
_PYTHONIC = re.compile(r"\s*\[\s*([^\W\d][\w.-]*)\s*(.?)", re.DOTALL)
_HARMONY = [
    f"{start}<|channel|>{channel} to=functions."
    for start in ("<|start|>assistant", "")
    for channel in ("commentary", "analysis")
]

MARKUPS = (
    Markup("<tool_call>", "</tool_call>", tags.read_tagged),
    Markup("<longcat_tool_call>", "</longcat_tool_call>", tags.read_tagged),
    Markup("<seed:tool_call>", "</seed:tool_call>", tags.read_tags(tags.QWEN)),
    Markup("<tool_calls>", "</tool_calls>", tags.read_several),
    Markup("<TOOLCALL>", "</TOOLCALL>", read_objects),
    Markup("<tools>", "</tools>", partial(read_objects, keys=TOLD)),
    Markup("<function>", "</function>", partial(read_objects, keys=TOLD)),
    Markup("<function=", "</function>", tags.read_function),
    Markup("[TOOL_CALLS]", "", tags.read_mistral),
    Markup("<|python_tag|>", "", tags.read_either),
    Markup("<|python_start|>", "<|python_end|>", tags.read_either),
    Markup("<|tool_call_start|>", "<|tool_call_end|>", tags.read_either),
    Markup("<function_calls>", "</function_calls>", tags.read_function_calls),
    Markup("<|tool_call|>", "", read_objects),
    Markup("functools[", "", _read_functools),
    Markup("<|action_start|><|plugin|>", "<|action_end|>", read_objects),
    Markup("<|START_ACTION|>", "<|END_ACTION|>", read_objects),
    Markup("<|tools_prefix|>", "<|tools_suffix|>", read_named_objects),
    Markup("[unused11]", "[unused12]", read_objects),
    *(
        Markup(begin, end, tags.read_deepseek, unclosed=True, call_end=call_end)
        for begin, end, call_end in (
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"),
            ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_end｜>"),
        )
    ),
    Markup("<｜tool▁call▁begin｜>", "", _read_lone_deepseek, call_end="<｜tool▁call▁end｜>"),
    Markup("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", tags.read_tags(tags.DSML)),
    Markup("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", tags.read_tags(tags.DSML)),
    Markup("<minimax:tool_call>", "</minimax:tool_call>", tags.read_tags(tags.INVOKE)),
    Markup('<invoke name="', "</invoke>", tags.read_invoke),
    Markup("<atem:function_calls>", "</atem:function_calls>", tags.read_tags(tags.ATEM)),
    *(
        Markup(f"<|{section}_begin|>", f"<|{section}_end|>", _read_kimi, True, "<|tool_call_end|>")
        for section in ("tool_calls_section", "tool_call_section")
    ),
    Markup("<|tool_call_begin|>", "", _read_lone_kimi, call_end="<|tool_call_end|>"),
    Markup("<|tool_calls|>", "", _read_solar, call_end="<|tool_call:end|>"),
    *(Markup(opening, "<|call|>", tags.read_harmony, unclosed=True) for opening in _HARMONY),
    Markup("<|start|>assistant to=functions.", "<|call|>", tags.read_harmony, unclosed=True),
    Markup("<|tool_call>call:", "<tool_call|>", tags.read_gemma('<|"|>')),
    Markup("<start_function_call>call:", "<end_function_call>", tags.read_gemma("<escape>")),
)
BARE = Markup("", "", _read_bare)
"""Calls without a mark, as JSON or Python, or in a code fence: only all of an answer are some."""
INVOKES = ('<invoke name="', "<function_calls>", "<minimax:tool_call>")
"""A call that may stand without its wrapper, and these: what is left of one is no call.

The first is taken at the beginning of a line alone, and in no code fence, where it is an example.
"""

THOUGHTS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
}
"""How thinking begins and ends.

DeepSeek, Qwen and most; Mistral's Magistral; gpt-oss; Seed-OSS; Kimi-VL; Command A; Gemma 4.
"""
AFTER_CALL = ("</tool_call>", "</function_calls>", "</minimax:tool_call>")
"""What is behind a call whose wrapper was not opened, such as Qwen3-Coder's `<function=...>`."""
AFTER_THOUGHT = (
    "<|start|>assistant<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>commentary<|message|>",
    "<|START_RESPONSE|>",
)
"""What gpt-oss and Command A write between their thinking and their content."""


class Marks(Struct, frozen=True):
    """The marks that are looked for in a text, by their opening; `beginnings` of them."""

    markups: dict[str, Markup]
    pattern: re.Pattern[str]
    beginnings: frozenset[str]
    longest: int

    def begins(self, text: str) -> int:
        """Return the length of the longest end of a text that may begin a mark."""
        for size in range(min(self.longest, len(text)), 0, -1):
            if text[len(text) - size :] in self.beginnings:
                return size
        return 0


def _marks(markups: Collection[Markup]) -> Marks:
    openings = [markup.opening for markup in markups]
    pattern = re.compile("|".join(map(re.escape, openings)) or r"\Z(?!)")
    beginnings = frozenset(x[:size] for x in openings for size in range(1, len(x)))
    longest = max(map(len, beginnings), default=0)
    return Marks({markup.opening: markup for markup in markups}, pattern, beginnings, longest)


_ENDING = [Markup(mark, "", _nothing) for mark in ENDS]
_CALLS = [*MARKUPS, *(Markup(mark, "", _nothing) for mark in AFTER_CALL), *_ENDING]
_THINKING = [Markup(mark, end, _nothing) for mark, end in THOUGHTS.items()]
_THINKING += [*(Markup(mark, "", _nothing) for mark in AFTER_THOUGHT), *_ENDING]
MARKS = {
    (calls, thinking): _marks([*(_CALLS if calls else ()), *(_THINKING if thinking else ())])
    for calls in (False, True)
    for thinking in (False, True)
}
"""What is looked for: whether calls, whether thoughts."""
CLOSINGS = {mark: _marks([Markup(mark, "", _nothing)]) for mark in THOUGHTS.values()}
"""What is looked for in a thought."""


def read_calls(markup: Markup, text: str, schemas: Schemas) -> Calls:
    """Return the calls that a markup's text says; none if it is not one. Raises `Unfinished`."""
    inner = text.removeprefix(markup.opening)
    closed = inner.endswith(markup.closing)
    inner = inner.removesuffix(markup.closing)
    if is_text_too_deep(inner):
        return []
    if not (closed or markup.unclosed or inner.lstrip().startswith(("{", "["))):
        return []
    try:
        return markup.read(inner, schemas)
    except (ValueError, SyntaxError, msgspec.DecodeError):
        return []


def read_beginning(markup: Markup, text: str, schemas: Schemas) -> tuple[Calls, int]:
    """Return the calls with which a text of a markup without an end begins, and their end.

    What is behind them is content, such as Mistral's that goes on after its calls.
    """
    calls: Calls = []
    mark = markup.opening.removesuffix("[")
    end = len(mark)
    if markup.call_end:
        end = text.rfind(markup.call_end) + len(markup.call_end)
        return read_calls(markup, text[:end], schemas), end
    if is_text_too_deep(text):
        return calls, end
    while not markup.closing and (head := _HEAD.match(text, end)):
        try:
            at = find_value(text, head.end())
        except (ValueError, Unfinished):
            break
        found = read_calls(markup, mark + text[end:at].lstrip("; ,\t\r\n"), schemas)
        if not found:
            break
        calls += found
        end = at
    return calls, end


def may_be_bare(text: str, names: Collection[str]) -> bool | None:
    """Say whether a text may go on to be calls without a mark; None: too little of it came.

    It begins with the name of an offered tool, or with a key that nothing else begins with.
    """
    if text.startswith("`"):
        if f"{FENCE}json".startswith(text):
            return None
        text = without_fence(text)
    elif (call := _PYTHONIC.match(text)) is not None:
        if not call[2]:
            return None if any(x.startswith(call[1]) for x in names) else False
        return call[1] in names and call[2] == "("
    rest = text.lstrip(" \t\r\n[")
    for key in ("{", '"'):
        if not rest.startswith(key):
            return None if not rest else False
        rest = rest[1:].lstrip()
    key, quote, rest = rest.partition('"')
    known = ("name", "arguments", "parameters", "type", "function")
    if not quote:
        return None if any(x.startswith(key) for x in known) else False
    if key not in ("name", "type"):
        return key in known
    rest = rest.lstrip()
    for mark in (":", '"'):
        if not rest.startswith(mark):
            return None if not rest else False
        rest = rest[1:].lstrip()
    value, quote, _ = rest.partition('"')
    wanted = names if key == "name" else ("function",)
    if quote:
        return value in wanted
    return None if any(x.startswith(value) for x in wanted) else False
