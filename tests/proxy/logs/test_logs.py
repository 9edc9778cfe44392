"""The log's set-up and its two formats: what a line is, and what can never be in one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pty
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.linear import linear
from tests.proxy.logs.logging_here import Written, logging_to, shown
from tests.waiting import SECONDS
from wellspoken.proxy import logs
from wellspoken.proxy.config.secrets import HIDDEN, redact
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
from wellspoken.proxy.logs.lines import (
    JsonFormat,
    Request,
    TextLines,
    escape,
    traceback_of,
    word,
)

LOG = logging.getLogger("wellspoken")
DEEP = logging.getLogger("wellspoken.proxy.store")
ODD = "a\nb\r\x1b[31m\x7f\x9b\u2028\u202e\udc80é\ufeff\x00"


def test_a_message_is_one_object(written: Written) -> None:
    LOG.info("backend %s: %s", "tiny", "found")
    LOG.warning("careful", extra={"fields": {"backend": "tiny", "count": 3}})
    DEEP.debug("beneath")
    logging.getLogger("aiohttp").warning("not ours")
    found = written.lines()
    assert [list(line)[:3] for line in found] == [["time", "level", "message"]] * 4
    assert [line["level"] for line in found] == ["info", "warning", "debug", "warning"]
    assert found[0]["message"] == "backend tiny: found"
    assert found[1]["backend"] == "tiny" and found[1]["count"] == 3
    assert found[3]["logger"] == "aiohttp" and "logger" not in found[2]
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_a_level_leaves_what_is_below_it_out(level: str, wanted: int, tmp_path: Path) -> None:
    with logging_to(tmp_path / "log", level=level) as made:
        for say in (LOG.debug, LOG.info, LOG.warning, LOG.error):
            say("said")
        others = logging.getLogger("asyncio")
        others.debug("what others say to themselves may quote anything")
        others.info("so it is never there")
        assert len(made.lines()) == wanted


def test_logging_is_as_before_when_the_log_is_closed(tmp_path: Path) -> None:
    root, hooks = logging.getLogger(), (threading.excepthook, sys.unraisablehook)
    before = (root.level, list(root.handlers), LOG.level)
    with logging_to(tmp_path / "log", level="debug"):
        assert (root.level, list(root.handlers), LOG.level) != before
        assert threading.excepthook is not hooks[0]
    assert (root.level, list(root.handlers), LOG.level) == before
    assert (threading.excepthook, sys.unraisablehook) == hooks
    LOG.error("nobody hears this")
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    ("settings", "terminal", "json_wanted"),
    [("auto", True, False), ("auto", False, True), ("text", False, False), ("json", True, True)],
)
def test_text_on_a_terminal_json_elsewhere(
    settings: Any,
    terminal: bool,
    json_wanted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = pty.openpty()
    target = theirs if terminal else os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    with open(target, "w", encoding="utf-8") as file:
        log = logs.set_up(Log(format=settings), EngineProgress(file))
        LOG.info("one\ntwo %s", ODD)
        LOG.warning("three")
        log.line("vllm: four")
        log.close()
    if not terminal:
        os.close(theirs)
    data = shown(ours) if terminal else (tmp_path / "log").read_bytes()
    os.close(ours)
    lines = data.decode().replace("\r\n", "\n").splitlines()
    assert b"\x1b" not in data
    if json_wanted:
        assert [json.loads(line)["message"] for line in lines] == [
            f"one\ntwo {ODD}".replace("\udc80", "\\udc80"),
            "three",
            "vllm: four",
        ]
        return
    time = r"\d\d:\d\d:\d\d" if terminal else r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} one", lines[0])
    assert lines[1].startswith("  two a") and lines[2].startswith("  b\\u000d\\u001b[31m")
    assert re.fullmatch(rf"{time} warning: three", lines[3])
    assert lines[4:] == ["vllm: four"]
    assert all(line.isprintable() for line in lines)


def test_what_is_odd_is_escaped_and_nothing_else() -> None:
    assert escape(ODD) == (
        "a\\u000ab\\u000d\\u001b[31m\\u007f\\u009b\\u2028\\u202e\\udc80é\\ufeff\\u0000"
    )
    assert escape("Zoë 模型 🤖\u00a0x") == "Zoë 模型 🤖\u00a0x"
    assert [word(text) for text in ("gpt-4o:x/y", "a b", 'a"b\\', "", "é", "a=1,b")] == [
        "gpt-4o:x/y",
        '"a b"',
        '"a\\"b\\\\"',
        '""',
        "é",
        '"a=1,b"',
    ]


def test_json_keeps_every_text(written: Written) -> None:
    LOG.info("%s", ODD, extra={"fields": {"odd": ODD, "deep": {"x": ODD}, "thing": object}})
    (line,) = written.lines()
    text = written.text()
    assert text.count("\n") == 1 and text[:-1].isprintable()
    kept = ODD.replace("\udc80", "\\udc80")
    assert (line["message"], line["odd"], line["deep"]) == (kept, kept, {"x": kept})
    assert line["thing"] == repr(object)


def request(**more: Any) -> Request:
    plain: dict[str, Any] = {
        "time": "09:00:00",
        "level": "info",
        "event": "request",
        "id": "req_1",
        "method": "POST",
        "route": "chat_completions",
        "status": 200,
        "outcome": "ok",
        "stream": False,
        "duration": 0.0123,
    }
    return Request(**{**plain, **more})


def test_a_request_as_text() -> None:
    lines = TextLines()
    assert lines.request(request()) == b"09:00:00 200 POST chat_completions, 12.3 ms, req_1\n"
    whole = request(
        stream=True, duration=12.345, ttft=0.08, overhead=0.00031, model="tiny", backend="b",
        prompt_tokens=12, completion_tokens=80, repairs={"x_y": 2, "z": 1},
    )  # fmt: skip
    assert lines.request(whole).decode() == (
        "09:00:00 200 POST chat_completions tiny on b, stream, 12.35 s, first token 80 ms, "
        "overhead 0.31 ms, 12+80 tokens, repairs x_y z, req_1\n"
    )
    failed = request(status=404, outcome="refused", error="unknown_url", route="other", path="/é x")
    assert lines.request(failed).decode() == (
        '09:00:00 404 refused unknown_url POST "/é x", 12.3 ms, req_1\n'
    )


def test_a_request_as_json_has_no_more_than_is_known() -> None:
    line = JsonFormat().request(request())
    assert json.loads(line) == {
        "time": "09:00:00",
        "level": "info",
        "event": "request",
        "id": "req_1",
        "method": "POST",
        "route": "chat_completions",
        "status": 200,
        "outcome": "ok",
        "stream": False,
        "duration": 0.0123,
    }


SECRETS = [
    "Bearer abcd1234",
    "authorization: bearer abcd1234",
    "sk-proj-abcd1234efgh",
    "hf_abcd1234efgh",
    "gsk_abcd1234efgh",
    "AKIAabcd1234efgh99",
    "postgresql://user:abcd1234@host/db",
    "https://u:abcd1234@host:80/v1",
    '{"api_key": "abcd1234", "x": 1}',
    '{"OPENAI_API_KEY": "abcd1234',
    '{\\"password\\": \\"abcd1234\\"}',
    '"x-api-key":"abcd1234"',
    '{"client_secret": "abcd1234"}',
]
HARMLESS = [
    "the backend refused the key; bearer of bad news",
    "disk-full and task_finished",
    "http://localhost:8080/v1 (llama.cpp b7376)",
    'an "api" key is needed',
    "max_tokens: 12, token: 5",
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret_is_hidden(text: str, written: Written) -> None:
    LOG.error("it said %s", text)
    (line,) = written.lines()
    assert HIDDEN in line["message"]
    assert "abcd1234" not in written.text()


def test_what_is_no_secret_stays() -> None:
    assert [redact(text) for text in HARMLESS[1:]] == HARMLESS[1:]


@pytest.mark.parametrize(
    "piece", ["a:", "bearer ", '"password":"', "sk-", "://a:", "x-api-", "-api_key", "\\"]
)
def test_hiding_takes_time_for_each_character_alone(piece: str) -> None:
    count = 40_000
    for first in ("", "://", '"'):
        linear(lambda times: redact(first + piece * (times // len(piece))), count)  # noqa: B023


def failing(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_exception_keeps_what_it_may_quote_to_itself() -> None:
    try:
        try:
            dict[str, str]()["canary of a prompt"]
        except KeyError as first:
            raise ValueError("canary") from first
    except ValueError as error:
        text = traceback_of(error, whole=False)
        assert "canary" not in text.replace('dict[str, str]()["canary of a prompt"]', "").replace(
            'ValueError("canary")', ""
        )
        assert "ValueError (its message" in text and "caused by KeyError" in text
        assert text.count("in test_an_exception_keeps") == 2
        assert "ValueError: canary" in traceback_of(error, whole=True)
    told = traceback_of(failing(OSError(28, "No space left on device")), whole=False)
    assert told.startswith("OSError: [Errno 28] No space left on device\n")
    assert "sk-canary" not in traceback_of(failing(TypeError("sk-canary-123456")), whole=False)


def test_groups_loops_and_depth_come_to_an_end() -> None:
    group = failing(ExceptionGroup("many", [ValueError(str(n)) for n in range(100)]))
    assert traceback_of(group, whole=True).count("in it ValueError: ") == 7
    one, two = ValueError("1"), ValueError("2")
    one.__cause__, two.__cause__ = two, one
    assert traceback_of(one, whole=True) == "ValueError: 1\ncaused by ValueError: 2"

    def deep() -> None:
        deep()

    try:
        deep()
    except RecursionError as error:
        assert len(traceback_of(error, whole=False).splitlines()) < 30

    class Odd(TypeError):
        def __str__(self) -> str:
            raise ValueError("no")

    assert "cannot be had: ValueError" in traceback_of(Odd(), whole=False)


def test_a_message_that_cannot_be_made_is_told_without_what_it_quotes(written: Written) -> None:
    # pytest's own handler would raise what such a record does.
    record = LOG.makeRecord("wellspoken", 20, __file__, 7, "%d requests", ("canary",), None)
    written.log.handler.handle(record)
    LOG.info("fine")
    broken, fine = written.lines()
    assert broken["level"] == "error" and "test_logs.py" in broken["message"]
    assert "canary" not in written.text()
    assert fine["message"] == "fine"


@pytest.mark.complains
async def test_what_asyncio_says_of_a_lost_task_quotes_nothing(written: Written) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(None)
    error = failing(ValueError("".join(("can", "ary"))))
    loop.call_exception_handler({"message": "never retrieved", "exception": error, "x": "canary"})
    (line,) = written.lines()
    assert line["message"] == "never retrieved" and line["logger"] == "asyncio"
    assert "canary" not in written.text()


def test_many_threads_may_log(written: Written) -> None:
    def say(number: int) -> None:
        for n in range(200):
            LOG.info("%d %d", number, n)

    threads = [threading.Thread(target=say, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [line["message"].split() for line in written.lines()]
    for number in range(8):
        assert [n for who, n in seen if who == str(number)] == [str(n) for n in range(200)]


def test_an_engines_lines_are_in_the_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        progress = EngineProgress(file)
        log = logs.set_up(Log(), progress)
        progress.line('vllm: \x1b[32mINFO\x1b[0m {"a": 1}')
        log.close()
        progress.line("vllm: ends")  # the log is no more: as it is
    first, second = (tmp_path / "log").read_text().splitlines()
    told = json.loads(first)
    assert (told["event"], told["message"]) == ("engine", 'vllm: INFO {"a": 1}')
    assert second == "vllm: ends"


def test_a_log_on_nothing_at_all() -> None:
    """As `run` has it for a process that was started without a stderr."""
    with open(os.devnull, "w") as file:
        log = logs.set_up(Log(), EngineProgress(file))
        LOG.info("to nobody")
        log.close()
    closed = io.StringIO()
    progress = EngineProgress(closed)
    closed.close()
    log = logs.set_up(Log(), progress)
    LOG.info("to nobody")
    assert log.flush(SECONDS)
    log.close()
