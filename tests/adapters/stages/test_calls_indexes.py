"""Contract rule 4: one call that a stream sends at several indexes, by its id."""

from __future__ import annotations

import pytest

from tests.adapters.stages.test_calls_pieces import WHOLE, piece, streamed
from tests.answers import TWO, Json, body, call, choice, chunk, completion, end, message, stream


def at(index: int, arguments: str, name: str = "f", call_id: str = "x") -> Json:
    """Return one piece of a call; what of name and id is "" is left out."""
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    given = {"index": index, "type": "function", "function": function}
    return {**given, "id": call_id} if call_id else given


ONE_CALL = {
    "whole, three times": [at(0, WHOLE), at(1, WHOLE), at(2, WHOLE)],
    "a name, then its arguments": [at(0, ""), at(1, WHOLE, "")],
    "a name twice, then arguments without an id": [at(0, ""), at(1, ""), at(1, WHOLE, "", "")],
    "in pieces": [at(0, WHOLE[:5]), at(1, WHOLE[5:9], ""), at(2, WHOLE[9:], "")],
    "as far as it is known": [at(0, WHOLE[:5]), at(1, WHOLE[:9]), at(2, WHOLE)],
    "an empty object first": [at(0, "{}"), at(1, ""), at(1, WHOLE, "")],
    "an empty object, then the whole": [at(0, "{}"), at(1, WHOLE)],
    "whole again behind its name": [at(0, WHOLE), at(1, ""), at(1, WHOLE, "")],
    "whole again behind its name, no id": [at(0, WHOLE), at(1, ""), at(1, WHOLE, "", "")],
    "whole again in pieces": [at(0, WHOLE), at(1, WHOLE[:5]), at(1, WHOLE[5:], "", "")],
}


@pytest.mark.parametrize("name", ONE_CALL)
def test_one_id_at_several_indexes_is_one_call(name: str) -> None:
    """LocalAI #9722, new-api #6278; the mutant that looks for indexes alone has several."""
    said = streamed(*[[x] for x in ONE_CALL[name]])
    assert said.calls == [("x", "f", WHOLE)]
    assert said.repairs.keys() & {"tool_call_index_changes", "tool_call_repeated"}
    said = streamed(*[[x] for x in ONE_CALL[name]], [at(5, "{}", "g", "y")])
    assert said.calls == [("x", "f", WHOLE), ("y", "g", "{}")]


OTHER_CALLS = {
    "other arguments": [at(0, WHOLE), at(1, '{"b":2}')],
    "other arguments in pieces": [at(0, WHOLE), at(1, '{"b"'), at(1, ":2}", "", "")],
    "other arguments behind a name": [at(0, WHOLE), at(1, ""), at(1, '{"b":2}', "")],
    "another name": [at(0, WHOLE), at(1, '{"b":2}', "g")],
    "another id": [at(0, WHOLE), at(1, WHOLE, call_id="y")],
    "a bare number as the id of both": [at(0, WHOLE, call_id="0"), at(1, WHOLE, call_id="0")],
    "no ids": [at(0, WHOLE, call_id=""), at(1, WHOLE, call_id="")],
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_calls_at_several_indexes_that_are_not_the_same_stay_apart(name: str) -> None:
    """LocalAI to April 2026 gave calls without an id the answer's; none may be lost."""
    said = streamed(*[[x] for x in OTHER_CALLS[name]])
    assert len(said.calls) == len({x[0] for x in said.calls}) == 2
    assert said.calls[0][2] == WHOLE
    assert said.calls[1][2] in (WHOLE, '{"b":2}')
    assert "tool_call_repeated" not in said.repairs


def test_each_call_of_a_bodys_list_is_one_whatever_its_id() -> None:
    """The mutant that takes them for pieces has one."""
    for first in ("{}", "", WHOLE):
        given = [call("f", first, id="x"), call("f", WHOLE, id="x")]
        part = message(None, tool_calls=given)
        said = body(completion(choice(message=part, finish_reason="tool_calls")), TWO)
        assert [x[2] for x in said.calls] == [first or "{}", WHOLE]
        assert not said.repairs.keys() & {"tool_arguments_placeholder", "tool_call_index_changes"}


def test_a_limit_within_what_may_be_a_call_again_leaves_that_as_it_is() -> None:
    parts = [chunk({"tool_calls": [x]}) for x in (at(0, WHOLE), at(1, '{"b"'))]
    said = stream([chunk(message(None)), *parts, end("length")], TWO)
    assert [x[2] for x in said.calls] == [WHOLE, '{"b"']


@pytest.mark.parametrize(
    ("first", "late"), [(WHOLE, "\n"), (WHOLE + WHOLE, " "), ('city="Bern"', ", n=1")]
)
def test_what_comes_of_a_whole_call_behind_the_next_ones_begin_is_left_out(
    first: str, late: str
) -> None:
    """The mutant that lets it pass breaks rule 4.index: a client has closed that call."""
    one, two = at(0, first), at(1, WHOLE[:5], "g", "y")
    said = streamed([one], [two], [piece(late)], [piece(WHOLE[5:], 1)])
    assert [x[1:] for x in said.calls] == [("f", first), ("g", WHOLE)]
    assert said.repairs == {"tool_arguments_trailing": 1}
