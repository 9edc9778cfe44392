"""Lines cut from a byte stream, and how many of them a log gets."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.engine import log_relay
from wellspoken.engine.log_relay import LINES_A_SECOND, TAIL_LINES, LineCutter, LogRelay

ENDS = st.sampled_from([b"a", b"\xc3\xa4", b"\r", b"\n", b"\r\n", b"bcd"])


@given(st.lists(st.lists(ENDS).map(b"".join)), st.integers(1, 6))
def test_any_split_gives_the_same_lines_each_within_the_limit(
    chunks: list[bytes], limit: int
) -> None:
    whole = b"".join(chunks)
    # A carriage return at the very end overwrites nothing.
    pieces = re.split(rb"(\r\n|\n|\r)", whole.removesuffix(b"\r"))
    expected = []
    for line, end in zip(pieces[::2], [*pieces[1::2], b""], strict=True):
        text = line[:limit].decode("utf-8", "replace") + " [cut]" * (len(line) > limit)
        expected += [(text, end == b"\r")] * bool(text)
    cutter = LineCutter(limit)
    assert [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.finish() == expected


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_relay, "PERIOD", 0.1)


async def test_each_line_goes_to_all_three() -> None:
    log: list[str] = []
    seen: list[str] = []
    it = LogRelay("kid", log.append, seen.append)
    it.feed(b"one\ntwo\r\nth")
    it.feed(b"ree")
    it.finish()
    assert log == ["kid: one", "kid: two", "kid: three"]
    assert seen == list(it.tail) == ["one", "two", "three"]


async def test_too_many_lines_are_counted_instead(quick: None) -> None:
    log: list[str] = []
    seen: list[str] = []
    it = LogRelay("kid", log.append, seen.append)
    for n in range(LINES_A_SECOND + 50):
        it.feed(b"%d\n" % n)
    assert log == [f"kid: {n}" for n in range(LINES_A_SECOND)]
    await asyncio.sleep(0.3)
    assert log[LINES_A_SECOND:] == ["kid: [50 more lines in a second, left out]"]
    assert len(seen) == LINES_A_SECOND + 50
    assert list(it.tail) == seen[-TAIL_LINES:]
    it.feed(b"later\n")
    it.finish()
    assert log[LINES_A_SECOND + 1 :] == ["kid: later"]


async def test_what_was_left_out_is_said_at_the_end() -> None:
    log: list[str] = []
    it = LogRelay("kid", log.append)
    it.feed(b"x\n" * (LINES_A_SECOND + 7))
    it.finish()
    assert log[LINES_A_SECOND:] == ["kid: [7 more lines in a second, left out]"]


async def test_a_progress_bar_is_seen_whole_and_logged_once_a_second(quick: None) -> None:
    log: list[str] = []
    seen: list[str] = []
    it = LogRelay("kid", log.append, seen.append)
    it.feed(b"".join(b"\r %d%%" % n for n in range(10)))
    await asyncio.sleep(0.3)
    it.feed(b"\r 10%\r 11%\r 100%\ndone\n")
    it.finish()
    assert seen == [f" {n}%" for n in (*range(12), 100)] + ["done"]
    assert log == ["kid:  0%", "kid:  9%", "kid:  100%", "kid: done"]
    assert list(it.tail) == [" 100%", "done"]


async def test_a_log_that_takes_nothing_stops_nothing() -> None:
    def full(line: str) -> None:
        raise OSError(28, "No space left on device")

    seen: list[str] = []
    it = LogRelay("kid", full, seen.append)
    it.feed(b"one\ntwo\n")
    it.finish()
    assert seen == ["one", "two"]
