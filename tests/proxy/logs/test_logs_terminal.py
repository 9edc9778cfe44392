"""Requests on a terminal: one line that fits the window, colours where they are welcome."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.proxy.logs.logging_here import shown
from tests.proxy.logs.test_logs import request
from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
from wellspoken.proxy.logs.lines import Request
from wellspoken.proxy.logs.terminal_lines import TerminalLines
from wellspoken.proxy.terminal.colour import Colour
from wellspoken.proxy.terminal.width import columns_of, count_columns, cut_to

ID = "req_5b0e7c1d2f3a4b5c6d7e8f9012345678"
WHOLE: dict[str, Any] = {
    "stream": True, "duration": 12.345, "ttft": 0.08, "overhead": 0.00031, "model": "tiny",
    "backend": "b", "prompt_tokens": 12, "completion_tokens": 80, "repairs": {"x_y": 2, "z": 1},
    "id": ID,
}  # fmt: skip
_COLOURS = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")


@contextmanager
def window(columns: int) -> Iterator[tuple[TextIO, int]]:
    """Give a terminal of so many columns, and the descriptor at which what it shows is read."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        with open(theirs, "w", encoding="utf-8") as file:
            yield file, ours
    finally:
        os.close(ours)


def line(columns: int, said: Request, *, verbose: bool = False, colour: bool = False) -> str:
    """Return the line of a request in a window of so many columns."""
    with window(columns) as (file, _):
        lines = TerminalLines(file, Colour(colour), verbose=verbose)
        shown = lines.request(said).decode()
    assert shown.endswith("\n") and "\n" not in shown[:-1]
    return shown[:-1]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (
            200,
            "09:00:00 200 POST chat_completions tiny on b, stream, 12.35 s, first token 80 ms, "
            f"overhead 0.31 ms, 12+80 tokens, 2 repairs, {ID}",
        ),
        (
            140,
            "09:00:00 200 chat_completions tiny, stream, 12.35 s, first token 80 ms, 12+80 tokens, "
            f"2 repairs, {ID}",
        ),
        (
            100,
            "09:00:00 200 chat_completions tiny, 12.35 s, first token 80 ms, 12+80 tokens, "
            "2 repairs",
        ),
        (80, "09:00:00 200 chat_completions tiny, 12.35 s, 12+80 tokens, 2 repairs"),
        (60, "09:00:00 200 chat_completions tiny, 12.35 s, 2 repairs"),
        (48, "09:00:00 200 chat_completions tiny, 12.35 s"),
        (10, "09:00:00 200 chat_complet… tiny, 12.35 s"),
    ],
)
def test_the_least_important_is_left_out(columns: int, shown: str) -> None:
    assert line(columns, request(**WHOLE)) == shown


def test_a_failure_keeps_its_id_as_long_as_it_can() -> None:
    more = {"status": 502, "outcome": "upstream_error:refused", "level": "warning"}
    said = request(**{**WHOLE, **more}, error="backend_unavailable")
    begin = "09:00:00 502 upstream_error:refused backend_unavailable chat_completions tiny, 12.35 s"
    assert line(140, said) == f"{begin}, 2 repairs, {ID}"
    assert line(130, said) == f"{begin}, {ID}"
    assert line(100, said) == begin
    assert line(80, said) == begin.replace(
        "upstream_error:refused backend_unavailable", "upstream_error:refused backend_una…"
    )


def test_all_there_is_where_it_is_wanted() -> None:
    shown = line(40, request(**WHOLE), verbose=True)
    assert shown == (
        "09:00:00 200 POST chat_completions tiny on b, stream, 12.35 s, first token 80 ms, "
        f"overhead 0.31 ms, 12+80 tokens, repairs x_y z, {ID}"
    )


@given(
    columns=some.integers(1, 250),
    model=some.text(some.characters(categories=("L", "N", "P", "Mn")), max_size=200),
    more=some.fixed_dictionaries(
        {
            "method": some.sampled_from(["POST", "GET", "OPTIONS"]),
            "outcome": some.sampled_from(["ok", "refused", "upstream_error:first_byte_timeout"]),
            "error": some.sampled_from(["", "model_not_found"]),
            "path": some.sampled_from(["", "/" + "x" * 199]),
            "repairs": some.sampled_from([{}, {"one": 1}, dict.fromkeys("abcdefgh", 1)]),
            "ttft": some.none() | some.floats(0, 1e6),
            "stream": some.booleans(),
        }
    ),
)
def test_no_line_is_wider_than_the_window(columns: int, model: str, more: dict[str, Any]) -> None:
    shown = line(columns, request(**{**WHOLE, **more, "model": model}))
    assert count_columns(shown) <= max(columns - 1, 40)
    assert shown.startswith("09:00:00 200 ")


@pytest.mark.parametrize(
    ("status", "level", "colour"),
    [(200, "info", "32"), (200, "warning", "31"), (404, "info", "33"), (502, "warning", "31")],
)
def test_time_and_status_have_colours(status: int, level: str, colour: str) -> None:
    shown = line(200, request(status=status, level=level), colour=True)
    assert _COLOURS.findall(shown) == [("2", "09:00:00"), (colour, str(status))]
    assert _COLOURS.sub(r"\2", shown) == line(200, request(status=status, level=level))


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_colours_where_they_are_welcome(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with window(80) as (file, ours):
        log = logs.set_up(Log(), EngineProgress(file))
        log.put(log.lines.request(request(**WHOLE)))
        log.put(log.lines.message("warning", "careful", {}))
        log.close()
        file.close()
        data = shown(ours).decode().replace("\r\n", "\n")
    assert ("\x1b[32m200\x1b[0m" in data) is coloured
    assert ("\x1b[33mwarning:\x1b[0m careful" in data) is coloured
    plain = _COLOURS.sub(r"\2", data)
    first, second = plain.splitlines()
    assert first == "09:00:00 200 chat_completions tiny, 12.35 s, 12+80 tokens, 2 repairs"
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: careful", second)


def test_a_window_that_is_resized_is_used_as_it_is() -> None:
    with window(60) as (file, _):
        lines = TerminalLines(file, Colour(False), verbose=False)
        narrow = lines.request(request(**WHOLE))
        fcntl.ioctl(file.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        assert len(lines.request(request(**WHOLE))) > len(narrow)


def test_how_wide_a_window_and_a_text_are() -> None:
    with window(97) as (file, _):
        assert columns_of(file) == 97
    with window(0) as (file, _):  # of a terminal that nobody has told
        assert columns_of(file) == 80
    with open(os.devnull, "w") as file:
        assert columns_of(file) == 80
    for text, columns in {"": 0, "abc": 3, "模型": 4, "e\u0301": 1, "é": 1, "🤖": 2}.items():
        assert count_columns(text) == columns
    assert [cut_to(text, 3) for text in ("abc", "abcd", "模型", "模", "e\u0301abc")] == [
        "abc",
        "ab…",
        "模…",
        "模",
        "e\u0301a…",
    ]
