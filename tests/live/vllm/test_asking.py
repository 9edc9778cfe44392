"""What the live tests compare with refuses what is wrong; no server is needed here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import Violation
from tests.live.vllm.asking import Answer, Given, conforms, drops, normal, own_bytes
from tests.live.vllm.completing import agree
from tests.models.tiny_hf import CONTROLS, Tokens

IDS = Tokens().ids
CONTROL = [name.encode() for name in CONTROLS]
EMOJI = [b"\xf0\x9f", b"\x98", b"\x80"]


def given(text: str, *parts: bytes, end: bool = False) -> Given:
    return Given(text=text, ids=[IDS[part] for part in parts] + [2] * end)


def entries(*parts: bytes | None) -> list[dict[str, Any]]:
    """Return entries that own these bytes; one of a control token owns none."""
    found: list[dict[str, Any]] = []
    for part in parts:
        name = part.decode() if part in CONTROL and part is not None else ""
        owned = None if part is None or name else list(part)
        found.append({"token": name, "bytes": owned})
    return found


def test_ids_have_their_true_bytes() -> None:
    assert given("", *EMOJI, end=True).bytes == [*EMOJI, b"</s>"]


def test_own_bytes_refuses_a_neighbours() -> None:
    told = given("a😀b", b"a", *EMOJI, b"b")
    own_bytes(entries(b"a", None, None, "😀".encode(), b"b"), told)
    own_bytes(entries(b"a", *EMOJI, b"b"), told)
    for wrong in (
        entries(b"b", None, None, "😀".encode(), b"a"),
        entries(b"a", "😀".encode(), None, None, b"b"),
        entries(b"a", b"\xf0", b"\x9f\x98", b"\x80", b"b"),
    ):
        with pytest.raises(AssertionError):
            own_bytes(wrong, told)
    ended = given("a", b"a", end=True)
    own_bytes(entries(b"a", b"</s>"), ended)
    with pytest.raises(AssertionError):
        own_bytes(entries(b"</s>", b"b"), ended)


def test_drops_are_what_the_text_lacks() -> None:
    assert drops(given("a😀", b"a", *EMOJI)) == {}
    assert drops(given("a", b"a", end=True)) == {"logprobs_outside_content": 1}
    assert drops(given("ab", b"a", b"b", b"c", b"a")) == {"logprobs_outside_content": 2}
    assert drops(given("a", b"a", EMOJI[0])) is None  # whether a part is in the text is not said
    assert drops(given("assi", b"assistant")) is None


def test_a_difference_between_body_and_stream_is_found() -> None:
    one = [[0, "a", {"tokens": ["a"], "token_logprobs": [-1.0]}, "stop"]]
    agree(one, [[0, "a", {"tokens": ["a"], "token_logprobs": [-1.0]}, "stop"]])
    for other in (
        [[0, "a", {"tokens": ["a"], "token_logprobs": [-2.0]}, "stop"]],
        [[0, "a", {"tokens": ["a"], "token_logprobs": [-1.0]}, "length"]],
        [[0, "b", None, "stop"]],
    ):
        with pytest.raises(AssertionError):
            agree(one, other)


def test_arguments_are_compared_by_what_they_say() -> None:
    def body(arguments: str) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {"model": "tiny", "choices": [choice]}

    spaced, tight, other = (normal(body(a), usage=False) for a in ('{"a": 1}', '{"a":1}', "{}"))
    assert spaced == tight != other


def test_what_does_not_conform_fails_with_the_answer() -> None:
    answer = Answer(200, "application/json", "", b"{}")
    conforms([], answer)
    with pytest.raises(AssertionError, match=r"7\.k x: 2 of 1\n\{\}"):
        conforms([Violation("7.k", "x", "2 of 1")], answer)
