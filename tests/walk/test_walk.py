"""The walk is counted in a real proxy, and the same each time."""

from __future__ import annotations

from tests.walk import count
from tests.walk.counted import Counts


def test_the_walk_of_a_streamed_chat() -> None:
    found = count.run()
    walk = found.walk
    assert 10 < walk.files < walk.functions
    assert len(walk.steps) == walk.moves >= walk.files - 1
    assert any(step.endswith("adapters/writers/chat_stream.py") for step in walk.steps)
    assert 0 < found.event.python < found.event.total < found.request.total
    for line in count.text(found).splitlines():
        assert any(character.isdigit() for character in line)


def test_a_move_is_a_call_into_another_file() -> None:
    walk = count.walk_of([("a", "f"), ("a", "g"), ("b", "f"), ("a", "f")])
    assert (walk.files, walk.functions, walk.moves) == (2, 3, 2)
    assert walk.steps == ["a -> b", "b -> a"]


def test_nothing_is_counted_until_it_is_asked_for() -> None:
    counts = Counts()
    counts.profile(test_nothing_is_counted_until_it_is_asked_for.__code__, "c_call", None)  # type: ignore[arg-type]
    assert counts.end() == {"python": 0, "c": 0, "walk": []}
    counts.begin()
    counts.profile(test_nothing_is_counted_until_it_is_asked_for.__code__, "c_call", None)  # type: ignore[arg-type]
    assert counts.end() == {"python": 0, "c": 1, "walk": []}
