"""Whatever calls a backend makes, however it cuts and labels them, come out as exactly those."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answers import (
    TWO,
    Json,
    Said,
    body,
    choice,
    chunk,
    completion,
    end,
    message,
    role,
    stream,
)

Calls = list[tuple[str, str]]
"""Names, and arguments as JSON text."""
Cuts = list[list[str]]
"""Each call's arguments in pieces."""

VALUES = st.one_of(
    st.integers(-9, 9), st.text(st.sampled_from('a"\\}{][ é😀'), max_size=4), st.booleans()
)
ARGUMENTS = st.dictionaries(
    st.sampled_from("xyz"), st.one_of(VALUES, st.lists(VALUES, max_size=2)), max_size=2
)


def texts(least: int = 0) -> st.SearchStrategy[str]:
    """Return arguments of at least so many keys as JSON text, spaced either way."""
    found = ARGUMENTS.filter(lambda given: len(given) >= least)
    spaces = st.sampled_from([(",", ":"), (", ", ": ")])
    return st.builds(lambda given, how: json.dumps(given, separators=how), found, spaces)


@st.composite
def cut_calls(draw: st.DrawFn, most: int) -> tuple[Calls, Cuts]:
    """Return up to `most` calls, and pieces of their arguments; some pieces are empty."""
    calls = draw(st.lists(st.tuples(st.sampled_from("fg"), texts()), min_size=1, max_size=most))
    cuts = []
    for _, text in calls:
        ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        bounds = [0, *ends, len(text)]
        cuts.append([text[a:b] for a, b in itertools.pairwise(bounds)])
    return calls, cuts


def piece(arguments: Any, name: str | None = None, id: str | None = None, **more: Any) -> Json:
    """Return an item of a delta's `tool_calls`."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    head = {"id": id, "type": "function"} if id else {}
    return {**head, "function": function, **more}


def fresh() -> Iterator[str]:
    """Return ids, each another."""
    return (f"chatcmpl-tool-{n:08}" for n in range(1000))


Deltas = list[Json]


def as_openai(calls: Calls, cuts: Cuts) -> Deltas:
    """Index, id and name on a head without arguments; pieces with the index."""
    return [
        {"tool_calls": [item]}
        for n, (name, _) in enumerate(calls)
        for item in [
            piece("", name, f"call_{n}", index=n),
            *(piece(part, index=n) for part in cuts[n]),
        ]
    ]


def interleaved(calls: Calls, cuts: Cuts) -> Deltas:
    """All heads first, then the pieces of all in turn."""
    heads = [piece("", name, f"call_{n}", index=n) for n, (name, _) in enumerate(calls)]
    rest = [
        piece(cut[at], index=n)
        for at in range(max(map(len, cuts)))
        for n, cut in enumerate(cuts)
        if at < len(cut)
    ]
    return [{"tool_calls": [item]} for item in [*heads, *rest]]


def id_of_each_piece(calls: Calls, cuts: Cuts) -> Deltas:
    """Name and a new id on each piece, no index, a blank one last: TensorRT-LLM, vLLM to 0.5."""
    ids = fresh()
    return [
        {"tool_calls": [piece(part, name, next(ids))]}
        for (name, _), cut in zip(calls, cuts, strict=True)
        for part in [*cut, ""]
    ]


def id_of_each_piece_at_0(calls: Calls, cuts: Cuts) -> Deltas:
    """The same at index 0: vLLM 0.6 to 0.8 with a named tool."""
    found = id_of_each_piece(calls, cuts)
    return [{"tool_calls": [{**delta["tool_calls"][0], "index": 0}]} for delta in found]


def id_of_each_piece_indexed(calls: Calls, cuts: Cuts) -> Deltas:
    """The index right, a new id on each piece, the name once: vLLM's `required` to 0.8."""
    ids = fresh()
    return [
        {"tool_calls": [piece(part, None if at else name, next(ids), index=n)]}
        for n, (name, _) in enumerate(calls)
        for at, part in enumerate(["", *cuts[n], ""])
    ]


def head_on_each_piece(calls: Calls, cuts: Cuts) -> Deltas:
    """Id and name on each piece, no index, and once more at the end."""
    return [
        {"tool_calls": [piece(part, name, f"call_{n}")]}
        for n, (name, _) in enumerate(calls)
        for part in [*cuts[n], ""]
    ]


def heads_without_index(calls: Calls, cuts: Cuts) -> Deltas:
    """A head without arguments, then pieces with nothing else."""
    return [
        {"tool_calls": [item]}
        for n, (name, _) in enumerate(calls)
        for item in [piece("", name, f"call_{n}"), *map(piece, cuts[n])]
    ]


def whole_at_0(calls: Calls, cuts: Cuts) -> Deltas:
    """Whole calls that all say index 0, with ids: Ollama 0.5."""
    return [
        {"tool_calls": [piece(text, name, f"call_{n}", index=0)]}
        for n, (name, text) in enumerate(calls)
    ]


def objects_at_0(calls: Calls, cuts: Cuts) -> Deltas:
    """The same with the arguments as objects."""
    return [
        {"tool_calls": [piece(json.loads(text), name, f"call_{n}", index=0)]}
        for n, (name, text) in enumerate(calls)
    ]


def objects_at_once(calls: Calls, cuts: Cuts) -> Deltas:
    """All calls in one delta, without index."""
    items = [piece(json.loads(text), name, f"call_{n}") for n, (name, text) in enumerate(calls)]
    return [{"tool_calls": items}]


def whole_of_one_id(calls: Calls, cuts: Cuts) -> Deltas:
    """Whole calls, each with its index and the same id: TGI 2.x."""
    return [
        {"tool_calls": [piece(text, name, "0", index=n)]} for n, (name, text) in enumerate(calls)
    ]


def told_again_at_the_end(calls: Calls, cuts: Cuts) -> Deltas:
    """A last delta has all calls whole, as a message would."""
    items = [piece(text, name, f"call_{n}", index=n) for n, (name, text) in enumerate(calls)]
    return [*as_openai(calls, cuts), {"tool_calls": items}]


def told_again_without_index(calls: Calls, cuts: Cuts) -> Deltas:
    """The same, without index."""
    items = [piece(text, name, f"call_{n}") for n, (name, text) in enumerate(calls)]
    return [*as_openai(calls, cuts), {"tool_calls": items}]


def in_both_forms(calls: Calls, cuts: Cuts) -> Deltas:
    """`function_call` beside `tool_calls` in each delta: llama-cpp-python with a forced tool."""
    name = calls[0][0]
    return [
        {
            "function_call": {"name": name, "arguments": part},
            "tool_calls": [piece(part, name, f"call__0_{name}_cmpl-1", index=0)],
        }
        for part in cuts[0]
    ]


def in_both_forms_apart(calls: Calls, cuts: Cuts) -> Deltas:
    """The same, each form in deltas of its own; a name at the beginning alone."""
    name = calls[0][0]
    forms = [
        (
            {"function_call": {"arguments": part} | ({} if at else {"name": name})},
            {"tool_calls": [piece(part, None if at else name, None if at else "call_0", index=0)]},
        )
        for at, part in enumerate(cuts[0])
    ]
    return [delta for pair in forms for delta in pair]


def the_older_form_last(calls: Calls, cuts: Cuts) -> Deltas:
    """All of `tool_calls`, then the call as `function_call`."""
    name, text = calls[0]
    return [*as_openai(calls, cuts), {"function_call": {"name": name, "arguments": text}}]


def the_older_form_first(calls: Calls, cuts: Cuts) -> Deltas:
    """The first call as `function_call`, then all of `tool_calls`, without index."""
    name, text = calls[0]
    first = {"function_call": {"name": name, "arguments": text}}
    return [first, *heads_without_index(calls, cuts)]


def in_groups(calls: Calls, cuts: Cuts) -> Deltas:
    """Several pieces to a delta: vLLM with speculative decoding, SGLang's `stream_interval`."""
    return _grouped(as_openai(calls, cuts))


def in_groups_with_a_name_on_each(calls: Calls, cuts: Cuts) -> Deltas:
    """The same of pieces that all have id and name, without index."""
    return _grouped(head_on_each_piece(calls, cuts))


def _grouped(deltas: Deltas, size: int = 3) -> Deltas:
    items = [item for delta in deltas for item in delta["tool_calls"]]
    return [{"tool_calls": items[at : at + size]} for at in range(0, len(items), size)]


def nameless_with_new_ids(calls: Calls, cuts: Cuts) -> Deltas:
    """A name, then pieces with a new id and an empty name each: LM Studio (Hermes Agent #5254)."""
    ids = fresh()
    found = []
    for name, cut in zip([name for name, _ in calls], cuts, strict=True):
        found.append(piece("", name, next(ids), index=0))
        for part in cut:
            item = piece(part, None, next(ids), index=0)
            item["function"]["name"] = ""
            found.append(item)
    return [{"tool_calls": [item]} for item in found]


def with_nulls(calls: Calls, cuts: Cuts) -> Deltas:
    """Every key on every piece, null where it says nothing: SGLang, dashscope."""
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "index": n,
                    "id": None if at else f"call_{n}",
                    "type": "function",
                    "function": {"name": None if at else name, "arguments": part},
                }
            ],
        }
        for n, (name, _) in enumerate(calls)
        for at, part in enumerate([None, *cuts[n], None, ""])
    ]


def whole_without_id_or_index(calls: Calls, cuts: Cuts) -> Deltas:
    """A whole call to each delta, its id empty, no index: Gemini's compatible endpoint, to 2025."""
    return [
        {"tool_calls": [{**piece(text, name), "id": "", "type": "function"}]}
        for name, text in calls
    ]


def whole_at_minus_1(calls: Calls, cuts: Cuts) -> Deltas:
    """Whole calls that say index -1, ids their own: SGLang 0.4's base detector."""
    return [
        {"tool_calls": [piece(text, name, f"call_{n}", index=-1)]}
        for n, (name, text) in enumerate(calls)
    ]


def from_1(calls: Calls, cuts: Cuts) -> Deltas:
    """Indexes that begin at 1, and skip."""
    found = as_openai(calls, cuts)
    return [
        {"tool_calls": [{**item, "index": 2 * item["index"] + 1}]}
        for delta in found
        for item in delta["tool_calls"]
    ]


def head_then_all(calls: Calls, cuts: Cuts) -> Deltas:
    """Name and id, then the same with all arguments: LocalAI."""
    return [
        {"tool_calls": [piece(part, name, f"call_{n}", index=n)]}
        for n, (name, text) in enumerate(calls)
        for part in ("", text)
    ]


def rest_again(calls: Calls, cuts: Cuts) -> Deltas:
    """The last call's arguments once more beside the reason, with no more than an index: vLLM."""
    return [*as_openai(calls, cuts), {"tool_calls": [piece(calls[-1][1], index=len(calls) - 1)]}]


def so_far(calls: Calls, cuts: Cuts) -> Deltas:
    """All so far with each piece that says more, id and name too: Baidu Qianfan."""
    return [
        {"tool_calls": [piece("".join(cut[: at + 1]), name, f"call_{n}", index=n)]}
        for n, ((name, _), cut) in enumerate(zip(calls, cuts, strict=True))
        for at in range(len(cut))
        if cut[at]
    ]


def heads_at_0(calls: Calls, cuts: Cuts) -> Deltas:
    """A head without arguments, then pieces with an empty id, all at index 0: LMDeploy #3412."""
    return [
        {"tool_calls": [item]}
        for n, (name, _) in enumerate(calls)
        for item in [
            piece("", name, f"call_{n}", index=0),
            *(piece(part, index=0) | {"id": "", "type": "function"} for part in cuts[n]),
        ]
    ]


def id_on_each_at_0(calls: Calls, cuts: Cuts) -> Deltas:
    """The same with each call's own id on its pieces."""
    return [
        {"tool_calls": [piece(part, None if at else name, str(n), index=0)]}
        for n, (name, _) in enumerate(calls)
        for at, part in enumerate(["", *cuts[n]])
    ]


def with_a_brace_too_many(calls: Calls, cuts: Cuts) -> Deltas:
    """One more brace behind the arguments: Qwen (langchain-qwq issue #30)."""
    return as_openai(calls, [[*cut[:-1], cut[-1] + "}"] for cut in cuts])


Dialect = Callable[[Calls, Cuts], Deltas]
PARALLEL: list[Dialect] = [
    as_openai,
    interleaved,
    id_of_each_piece,
    id_of_each_piece_at_0,
    id_of_each_piece_indexed,
    head_on_each_piece,
    heads_without_index,
    whole_at_0,
    objects_at_0,
    objects_at_once,
    whole_of_one_id,
    told_again_at_the_end,
    told_again_without_index,
    the_older_form_first,
    in_groups,
    in_groups_with_a_name_on_each,
    nameless_with_new_ids,
    with_nulls,
    whole_without_id_or_index,
    whole_at_minus_1,
    from_1,
    head_then_all,
    rest_again,
    so_far,
    heads_at_0,
    id_on_each_at_0,
    with_a_brace_too_many,
]
SINGLE: list[Dialect] = [in_both_forms, in_both_forms_apart, the_older_form_last]


def calls_of(said: Said) -> list[tuple[str, Any]]:
    """Return the calls that the client got, the arguments read."""
    assert len({own for own, _, _ in said.calls}) == len(said.calls)
    return [(name, json.loads(arguments)) for _, name, arguments in said.calls]


def check_stream(calls: Calls, deltas: Deltas, waived: tuple[str, ...] = ()) -> None:
    """Check that these deltas come out as these calls."""
    parts = [role(), *map(chunk, deltas), end("tool_calls")]
    said = stream(parts, TWO, waived=waived)
    assert calls_of(said) == [(name, json.loads(text)) for name, text in calls]
    assert said.choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("dialect", PARALLEL, ids=lambda dialect: dialect.__name__)
@given(made=cut_calls(3))
def test_parallel_calls_stay_what_they_are(dialect: Dialect, made: tuple[Calls, Cuts]) -> None:
    calls, cuts = made
    in_turn = ("4.index",) if dialect is interleaved else ()  # which passes as it comes
    check_stream(calls, dialect(calls, cuts), in_turn)


@pytest.mark.parametrize("dialect", SINGLE, ids=lambda dialect: dialect.__name__)
@given(made=cut_calls(1))
def test_a_call_in_both_forms_is_one(dialect: Dialect, made: tuple[Calls, Cuts]) -> None:
    calls, cuts = made
    check_stream(calls, dialect(calls, cuts))


@given(made=cut_calls(3), older=st.sampled_from(["", "f", "g", "<|im_end|>", None]))
def test_a_body_has_each_call_once(made: tuple[Calls, Cuts], older: str | None) -> None:
    calls, _ = made
    items = [piece(text, name, f"call_{n}") for n, (name, text) in enumerate(calls)]
    called = {name for name, _ in calls}
    beside = {"name": older, "arguments": calls[0][1]}
    told = message(None, tool_calls=items, function_call=beside)
    said = body(completion(choice(message=told, finish_reason="tool_calls")), TWO)
    more = [(older, json.loads(calls[0][1]))] if older in {"f", "g"} - called else []
    assert calls_of(said) == [*((name, json.loads(text)) for name, text in calls), *more]
