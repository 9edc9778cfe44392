"""An index that counts chunks is one choice's; one that numbers choices never mixes two of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import Json, Said, ask, chunk, counted, end, role, say, stream
from tests.examples import examples

WORDS = ["One", " two", " three", " four"]


def count(words: list[str], first: int, *, opens: bool) -> list[Json]:
    """Return a stream whose index rises with each chunk, the reason on the last one."""
    deltas: list[Json] = [{"content": word} for word in words]
    if opens:
        deltas.insert(0, {"role": "assistant", "content": "", "refusal": None})
    last = first + len(deltas) - 1
    return [
        chunk(delta, "stop" if index == last else None, index=index)
        for index, delta in enumerate(deltas, first)
    ]


def text(said: Said) -> str:
    assert len(said.answer["choices"]) == 1
    found: str = said.message["content"]
    return found


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("done", [False, True])
def test_an_index_that_counts_chunks_is_the_one_choice(first: int, opens: bool, done: bool) -> None:
    for size in range(1, len(WORDS) + 1):
        said = stream(count(WORDS[:size], first, opens=opens), done=done)
        assert said.error is None
        assert text(said) == "".join(WORDS[:size])
        assert said.choice["finish_reason"] == "stop"
        assert said.repairs.get("choice_index_counts", 0) == size + opens - 1


@pytest.mark.parametrize("first", [0, 1])
def test_tokens_may_be_counted_anew_behind_the_role(first: int) -> None:
    """The mutant that counts the role's chunk among them takes two tokens for other choices."""
    for size in range(1, len(WORDS) + 1):
        parts = count(WORDS[:size], first, opens=False)
        said = stream([role(index=first), *parts])
        assert text(said) == "".join(WORDS[:size])
        assert said.repairs.get("choice_index_counts", 0) == size - 1
        said = stream([role(index=first), *parts[:-1], end(index=first + size)])
        assert text(said) == "".join(WORDS[: size - 1])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("more", [{"delta": {}}, {"delta": {"content": "c"}}])
def test_a_failure_does_not_wait_for_a_chunk_behind_it(waits: bool, more: Json) -> None:
    last = chunk({}, "network_error", index=1 + waits)
    last["choices"][0] |= more
    said = stream([role(), say("a"), *[say("b", index=1)] * waits, last])
    assert said.error is not None
    assert text(said) == "a" + "b" * waits + more["delta"].get("content", "")


def test_an_index_that_counts_tokens_may_leave_some_out() -> None:
    said = stream([say("a", index=1), say("b", index=3), end(index=4)])
    assert text(said) == "ab"


def test_more_than_127_tokens_are_counted_too() -> None:
    said = stream([say(str(n % 10), index=n) for n in range(1, 301)] + [end(index=301)])
    assert text(said) == "".join(str(n % 10) for n in range(1, 301))


def test_a_counted_reason_or_usage_may_have_any_index() -> None:
    asked = ask(stream_options={"include_usage": True})
    parts = [say("a", index=1), say("b", index=2), end(index=0), counted()]
    assert text(stream(parts, asked)) == "ab"


def test_where_several_were_asked_for_an_index_is_a_choice() -> None:
    ends = [end(index=n) for n in range(3)]
    said = stream([say("a"), say("b", index=1), say("c", index=2), *ends], ask(n=3))
    assert [x["message"]["content"] for x in said.answer["choices"]] == ["a", "b", "c"]
    assert "choice_index_counts" not in said.repairs


@pytest.mark.parametrize("opens", [False, True])
def test_of_two_choices_the_unasked_one_is_left_out(opens: bool) -> None:
    roles = [role(), role(1)] if opens else []
    said = stream([*roles, say("a"), say("x", index=1), say("b"), end(), end(index=1)])
    assert text(said) == "ab"
    assert said.repairs["choice_unasked"] == 1
    assert "choice_index_counts" not in said.repairs


def test_two_choices_in_one_chunk_are_two() -> None:
    both = say("a")
    both["choices"] += say("x", index=1)["choices"]
    said = stream([both, say("y", index=2), say("b"), end()])
    assert text(said) == "ab"


def test_a_choice_of_one_chunk_is_whole_before_the_next() -> None:
    said = stream([chunk({"content": "a"}, "stop"), chunk({"content": "x"}, "stop", index=1)])
    assert text(said) == "a"


def test_behind_a_role_a_choice_of_one_chunk_is_whole_too() -> None:
    parts = [chunk({"content": text}, "stop", index=n) for n, text in enumerate("ax")]
    assert text(stream([role(), *parts])) == "a"


def test_an_index_that_two_texts_have_is_no_counter() -> None:
    parts = [say("a"), say("b"), say("x", index=1), say("y", index=2), end()]
    assert text(stream(parts)) == "ab"


def test_a_counter_that_goes_back_is_no_answer() -> None:
    said = stream([say("a"), say("x", index=1), say("y", index=2), say("b")])
    assert said.error is not None and said.error["code"] == "upstream_choices"


@settings(max_examples=examples(200), deadline=None, database=None)
@given(
    st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=8),
    st.integers(0, 3),
)
def test_choices_in_any_order_are_never_mixed(turns: list[int], opened: int) -> None:
    """Of real choices, each with several pieces, the client gets one alone, or an error."""
    letters = "abc"
    indexes = [*range(opened), *turns, *(n for n in (0, 1, 2) for _ in range(2))]
    parts = [role(n) for n in range(opened)]
    parts += [say(letters[n], index=n) for n in indexes[opened:]]
    parts += [end(index=n) for n in (0, 1, 2)]
    said = stream(parts)
    if said.error is None:
        assert len(set(text(said))) == 1
    else:
        assert said.error["code"] == "upstream_choices"
