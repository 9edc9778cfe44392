"""The command `wellspoken convert`: what it reads, writes, says and ends with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import Request, check_body
from tests.proxy.transfer.commands import on_terminal, peak
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.transfer.convert_command import summarize
from wellspoken.proxy.transfer.jsonl import Tally

COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli", "convert"]


def answer(content: str = "Hi", reason: str = "stop") -> bytes:
    """A line with a chat completion; "stop" makes it a conforming one."""
    message = {"role": "assistant", "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    envelope = {"id": "chatcmpl-12345678", "object": "chat.completion", "created": 1_700_000_000}
    return json.dumps({**envelope, "model": "m", "choices": [choice], "usage": usage}).encode()


def run(*arguments: str, given: bytes = b"", **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, timeout=60, **how
    )


Here = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def here(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Here:
    """The command in this process, on a file with what is given as its last argument."""

    def run_here(*arguments: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
        file = tmp_path / "given.jsonl"
        file.write_bytes(given)
        capfdbinary.readouterr()
        try:
            code = main(["convert", *arguments, str(file)])
        except SystemExit as ended:  # argparse's own
            code = int(ended.code or 0)
        out, err = capfdbinary.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run_here


def test_lines_are_converted_in_order(tmp_path: Path) -> None:
    lines = [answer(str(n), "eos_token" if n % 2 else "stop") for n in range(6)]
    file = tmp_path / "old.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\n  \n" + b"\n".join(lines[1:]))
    began = int(time.time())
    for done in (run(str(file)), run("-", given=file.read_bytes()), run(given=file.read_bytes())):
        assert done.returncode == 0, done.stderr
        out = done.stdout.splitlines(keepends=True)
        assert out[::2] == [line + b"\n" for line in lines[::2]]
        assert [check_body(line, Request(model="m")) for line in out] == [[]] * 6
        texts = [json.loads(line)["choices"][0]["message"]["content"] for line in out]
        assert texts == ["0", "1", "2", "3", "4", "5"]
        assert done.stderr.decode() == (
            "wellspoken: 6 lines: 3 converted, 3 unchanged, 0 rejected; "
            "repairs: finish_reason_eos_token 3\n"
        )
    monotonic = answer().replace(b"1700000000", b"77")
    assert json.loads(run(given=monotonic).stdout)["created"] >= began


def test_rejected_lines_are_told_and_the_others_converted(here: Here) -> None:
    done = here(given=b"\n".join([answer(), b"{", b"", b'{"error": {"message": "bad\\nnews"}}']))
    assert (done.returncode, done.stdout) == (1, answer() + b"\n")
    first, second, last = done.stderr.decode().splitlines()
    assert first.startswith("line 2: the line is not JSON")
    assert second == "line 4: no answer but an error (502): bad news"
    assert "1 unchanged, 2 rejected; repairs: none" in last


def test_only_the_first_reasons_are_shown(here: Here) -> None:
    done = here(given=b"[]\n" * 25)
    told = done.stderr.decode().splitlines()
    assert len(told) == 22
    assert told[19].startswith("line 20: ")
    assert told[20] == "and 5 more; --rejects FILE keeps all of them"


def test_rejects_have_a_file(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    bad = b'{"a": "\xff'
    done = here("--rejects", str(file), given=b"\n".join([bad, answer(), *[b"[]"] * 24]))
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert [row["line"] for row in rows] == [1, *range(3, 27)]
    assert (rows[0]["input"], rows[1]["input"]) == ('{"a": "\ufffd', "[]")
    assert "not a JSON object" in rows[1]["reason"]
    assert here("--rejects", str(file), given=answer()).returncode == 0
    assert file.read_bytes() == b""


def test_a_line_above_the_cap_is_rejected_alone(here: Here, tmp_path: Path) -> None:
    file, size = tmp_path / "bad.jsonl", 64 << 10
    fits = answer("x" * (size - len(answer("")) - 4)) + b"    "
    assert len(fits) == size
    above = [fits + b" ", answer("x" * (1 << 20)), fits + b"\r\n" + answer("y" * size)]
    given = b"\n".join([fits, *above, answer("last")])
    done = here("--max-line", "64k", "--rejects", str(file), given=given)
    rows = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert [row["line"] for row in rows] == [2, 3, 5]
    assert all(row["reason"].startswith("longer than 65536 bytes") for row in rows)
    assert all(len(row["input"]) <= 4_096 for row in rows)
    assert done.stdout.splitlines() == [fits.strip(), fits.strip(), answer("last")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--adapter", "vlm"], "Did you mean 'vllm'?"),
        (["--rejects", "/nowhere/x.jsonl"], "cannot write /nowhere/x.jsonl"),
        (["--rejects", "-"], "needs a file of its own"),
        (["--max-line", "0"], "Write it like 64M"),
        (["--max-line", "1T"], "Write it like 64M"),
        (["--to", "text"], "invalid choice: 'text'"),
        (["a"], "unknown: "),
    ],
)
def test_wrong_usage_is_2_and_says_what_to_do(here: Here, arguments: list[str], words: str) -> None:
    done = here(*arguments, given=answer())
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize(
    ("file", "why"), [("/nowhere/x.jsonl", b"No such file"), ("/", b"Is a directory")]
)
def test_what_cannot_be_read_is_2(file: str, why: bytes) -> None:
    done = run(file)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"wellspoken: cannot read %b: %b" % (file.encode(), why))


def test_what_is_read_is_not_overwritten(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "given.jsonl"
    done = here("--rejects", str(file), given=answer())
    assert done.returncode == 2
    assert b"would overwrite" in done.stderr
    assert file.read_bytes() == answer()


def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            COMMAND, input=answer(), stdout=full, stderr=subprocess.PIPE, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"wellspoken: No space left on device; stopped after 1 line: ")


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    """As `| head` does."""
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(answer() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == answer() + b"\n"  # a live pipe: each line at once
    process.stdout.close()
    process.stdin.write(answer() + b"\n")
    process.stdin.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_interrupt_ends_it_cleanly() -> None:
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(answer() + b"\n")
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    said = process.stderr.read().decode()
    assert said.startswith("wellspoken: interrupted after 1 line: 0 converted, 1 unchanged")
    assert "Traceback" not in said
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """60,000 lines, each its own answer, error or blank, cost what a few of them do."""
    file, few = tmp_path / "many.jsonl", tmp_path / "few.jsonl"
    rejects = str(tmp_path / "rejects.jsonl")
    with file.open("wb") as out:
        for n in range(15_000):
            out.write(answer(f"{n} words", "eos") + b"\n[%d]\n{%d\n\n" % (n, n))
    few.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4_000]))
    small, large = (
        peak("convert", str(few), "--rejects", rejects, code=1),
        peak("convert", str(file), "--rejects", rejects, code=1),
    )
    assert len(Path(rejects).read_bytes().splitlines()) == 30_000
    assert large < 100
    assert large - small < 4


def test_a_long_line_costs_a_few_times_its_size(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with file.open("wb") as out:
        for _ in range(3):
            out.write(answer("word " * (1 << 20), "eos") + b"\n")  # 5 MiB each
        out.write(b"[]\n")
    assert peak("convert", str(file), code=1) < 140


def test_progress_is_drawn_on_a_terminal_and_wiped_off(tmp_path: Path) -> None:
    file, count = tmp_path / "old.jsonl", 2_500
    file.write_bytes((answer() + b"\n") * count + b"[]\n")
    began = time.monotonic()
    with (tmp_path / "new.jsonl").open("wb") as out:
        code, seen = on_terminal("convert", str(file), stdin=subprocess.DEVNULL, stdout=out)
    assert code == 1
    took = time.monotonic() - began
    drawn = re.findall(rb"\r\[([#.]{24})\] +(\d+)%  ([\d,]+) lines[^\r]*\x1b\[K", seen)
    assert 1 <= len(drawn) <= took * 10 + 2
    shares = [int(share) for _, share, _ in drawn]
    assert shares == sorted(shares) and shares[-1] <= 100
    left = re.sub(rb"\r\[[^\r]*\x1b\[K", b"", seen)  # without the bars, each wiped before a text
    assert left.count(b"\r\x1b[K") <= len(drawn)
    told = left.replace(b"\r\x1b[K", b"").decode().splitlines()
    assert told == [
        "line 2501: the line is a list, not a JSON object",
        "wellspoken: 2501 lines: 0 converted, 2500 unchanged, 1 rejected; repairs: none",
    ]


def test_progress_counts_lines_where_the_size_is_unknown(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, answer() + b"\n")
    os.close(write)
    code, seen = on_terminal("convert", stdin=read, stdout=subprocess.DEVNULL)
    os.close(read)
    assert code == 0
    assert seen.startswith(b"\r1 lines\x1b[K\r\x1b[Kwellspoken: 1 line: ")


def test_a_terminal_is_not_waited_for() -> None:
    code, seen = on_terminal("convert", stdin=None, stdout=subprocess.DEVNULL)
    assert code == 2
    assert b"wellspoken convert < FILE" in seen


def test_no_progress_where_stderr_is_no_terminal() -> None:
    assert b"\r" not in run(given=answer()).stderr


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["convert", "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.split("\n")
    assert (lines[2], lines[3][:20]) == ("examples:", "  wellspoken convert")


def test_the_summary_orders_repairs_by_count() -> None:
    repairs = Counter({"b": 2, "a": 2, "c": 5})
    tally = Tally(rejected=1, counts=Counter(converted=3), reasons=repairs)
    assert summarize(tally) == (
        "4 lines: 3 converted, 0 unchanged, 1 rejected; repairs: c 5, a 2, b 2"
    )
