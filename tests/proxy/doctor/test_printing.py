"""What `wellspoken doctor` prints: JSON, Markdown, a table on a terminal, and its exit codes."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.doctor.probe import Report, Result, Verdict
from wellspoken.proxy.doctor.probes import PROBES, select_probes
from wellspoken.proxy.doctor.reports.printing import (
    ProbeProgress,
    as_json,
    as_markdown,
    as_table,
    width_of,
)
from wellspoken.proxy.doctor.reports.summary import advise, summarize, write_badge
from wellspoken.proxy.terminal.colour import Colour

GOOD = Verdict("ok", "", 200)
BROKEN = Verdict("broken", "created is 763, not the present time", 200)
LACKING = Verdict("lacks", "status 501: no embeddings", 501)
UNKNOWN = Verdict("unclear", "the plain answer is empty")
COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli", "doctor"]


def report(*pairs: tuple[Verdict, Verdict], **more: Any) -> Report:
    results = [
        Result(probe, backend, proxy, ("created_not_epoch",), 0.25)
        for probe, (backend, proxy) in zip(PROBES, pairs, strict=False)
    ]
    known = {"model": "tiny", "backend": "vLLM 0.3.3", "seconds": 1.5, **more}
    return Report("http://h:1", "1.2", results=tuple(results), **known)


ALL = report((GOOD, GOOD), (BROKEN, GOOD), (BROKEN, BROKEN), (LACKING, LACKING))


@pytest.mark.parametrize(
    ("backend", "proxy", "outcome"),
    [
        (GOOD, GOOD, "pass"),
        (BROKEN, GOOD, "repaired"),
        (LACKING, GOOD, "repaired"),
        (BROKEN, BROKEN, "fails"),
        (GOOD, BROKEN, "fails"),
        (LACKING, BROKEN, "fails"),
        (UNKNOWN, GOOD, "skipped"),
        (BROKEN, LACKING, "skipped"),
        (LACKING, LACKING, "skipped"),
        (UNKNOWN, UNKNOWN, "skipped"),
        (UNKNOWN, BROKEN, "fails"),
    ],
)
def test_an_outcome_follows_from_both_verdicts(
    backend: Verdict, proxy: Verdict, outcome: str
) -> None:
    assert Result(PROBES[0], backend, proxy).outcome == outcome


def test_the_exit_code_says_what_came_of_it() -> None:
    assert report((GOOD, GOOD), (BROKEN, GOOD), (LACKING, LACKING)).code == 0
    assert ALL.code == 1
    assert Report("u", "1", error="It is not there.").code == 2


class Told(msgspec.Struct, forbid_unknown_fields=True):
    state: str
    status: int | None
    said: str | None


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    result: str
    contract: str
    backend: Told
    proxy: Told
    repairs: list[str]
    seconds: float


class Schema(msgspec.Struct, forbid_unknown_fields=True):
    """What scripts may rely on: another key or type needs another number in `schema`."""

    schema: int
    wellspoken: str
    url: str
    error: str | None
    model: str | None
    backend: str | None
    notes: list[str]
    seconds: float
    summary: dict[str, int]
    probes: list[Entry]


def test_the_json_has_its_schema() -> None:
    found = msgspec.json.decode(as_json(ALL), type=Schema)
    assert found.schema == 1
    assert found.summary == {"pass": 1, "repaired": 1, "fails": 1, "skipped": 1}
    assert [one.result for one in found.probes] == ["pass", "repaired", "fails", "skipped"]
    assert found.probes[1].backend == Told("broken", 200, BROKEN.said)
    assert found.probes[1].proxy == Told("ok", 200, None)
    assert found.probes[1].repairs == ["created_not_epoch"]
    failed = msgspec.json.decode(as_json(Report("u", "1", error="Gone.")), type=Schema)
    assert (failed.error, failed.probes, failed.model) == ("Gone.", [], None)


def test_the_markdown_is_one_table_whatever_a_server_writes() -> None:
    hostile = Verdict("broken", "a | b <script>x</script> `c` [d](e)\n| f", 200)
    text = as_markdown(report((hostile, GOOD), (BROKEN, BROKEN), model="m|`x`"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert not re.search(r"(?<!\\)<script|(?<!\\)\[d", text)
    assert "\nOf 2, 0 right, 1 mended, 1 cannot be mended.\n" in text
    assert "Model `m|'x'`. Backend" in text
    assert "the server has to be changed" in text and "`skipped`: " in text
    assert as_markdown(Report("u", "1", error="Gone.")).endswith("\nGone.\n")


def test_the_markdown_of_an_issue_calls_nobody() -> None:
    """Rejects `@tool` in a server's error that tells a stranger, and `#1` that is a link."""
    text = as_markdown(report((Verdict("broken", "use @tool, not #12; a@b.c", 400), GOOD)))
    assert "use @<!-- -->tool, not #<!-- -->12; a@b.c" in text


def test_a_server_that_ends_between_two_questions_is_no_fault_of_the_proxy() -> None:
    gone = Verdict("broken", "status 502: The backend at http://h:1 refused the connection.", 502)
    assert "the server gave the proxy no answer" in advise(report((GOOD, gone), (BROKEN, BROKEN)))
    assert "the proxy is at fault" in advise(report((GOOD, gone), (GOOD, BROKEN)))
    assert "the server has to be changed" in advise(report((BROKEN, gone)))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("colour", [False, True])
def test_a_table_fits_its_width(width: int, colour: bool) -> None:
    long = Verdict("broken", "; ".join(["the message has no refusal, which should be null"] * 4))
    text = as_table(report((long, GOOD), (GOOD, GOOD), (long, long)), width, colour=colour)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= width
    assert (bare != text) == colour
    words = " ".join(bare.split())
    assert "Of 3, 1 right, 1 mended, 1 cannot be mended." in words
    assert bare.count("which should be null") or "should be null" in words


def test_a_table_tells_all_three_sides_of_what_does_not_pass() -> None:
    lines = as_table(ALL, 120).splitlines()
    [at] = [n for n, line in enumerate(lines) if line.startswith("model ")]
    assert lines[at].endswith(f"backend: {BROKEN.said}")
    assert lines[at + 1].strip() == f"OpenAI: {PROBES[1].contract}"
    assert lines[at + 2].strip() == "proxy: conforms"
    assert "Repairs: created_not_epoch." in lines
    assert lines[-4].startswith("What fails does so behind the proxy too")
    assert lines[-3] == "Of 4, 1 right, 1 mended, 1 cannot be mended, 1 cannot be told."
    assert lines[-1] == write_badge(ALL)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(GOOD, GOOD)], ""),
        ([(BROKEN, GOOD)], "The proxy repairs all of it: wellspoken http://h:1"),
        ([(BROKEN, BROKEN)], "the server has to be changed"),
        ([(GOOD, BROKEN)], "the proxy is at fault"),
    ],
)
def test_a_table_ends_with_what_to_do(pairs: list[tuple[Verdict, Verdict]], words: str) -> None:
    lines = as_table(report(*pairs), 100).splitlines()
    assert words in lines[-4]
    assert words or lines[-4] == ""


def test_a_verdict_is_one_line_whose_counts_add_up() -> None:
    """Rejects a verdict that counts what is skipped among what is right, or leaves it out."""
    assert summarize(report((GOOD, GOOD), (BROKEN, GOOD))) == "Of 2, 1 right, 1 mended."
    total, *counts = map(int, re.findall(r"\d+", summarize(ALL)))
    assert total == sum(counts) == 4


def test_a_badge_is_code_spans_that_name_no_address_whatever_a_server_says() -> None:
    """Rejects one with the URL or the model's path, and one whose spans a server can end."""
    private = {"model": "/home/me/m.gguf", "backend": "x` <b>\n`y | z, from its Server header"}
    badge = write_badge(report((GOOD, GOOD), (LACKING, LACKING), **private))
    assert badge == (
        "`wellspoken doctor 1.2` `x' <b> 'y | z` `1/2 right` `0 mended` `1 cannot be told`"
    )


def test_what_openai_says_can_be_read_without_the_line_before() -> None:
    """Rejects "So do its logprobs" and "does the same", which mean nothing after --only."""
    pointing = re.compile(r"^(So|Its|It|They|Their) |\b(the same|such)\b")
    assert [probe.contract for probe in PROBES if pointing.search(probe.contract)] == []
    assert len({probe.contract for probe in PROBES}) == len(PROBES)


def test_a_row_names_the_repairs_of_what_was_repaired_alone() -> None:
    """Rejects "pass ... (created_not_epoch)", and escapes in a name that is read as it stands."""
    rows = {line.split(" | ")[1]: line for line in as_markdown(ALL).splitlines() if " | " in line}
    assert rows["repaired"].endswith("| conforms, by `created_not_epoch` |")
    assert [name for name, row in rows.items() if "created_not_epoch" in row] == ["repaired"]
    marks = as_markdown(report((Verdict("broken", "__a__ b_c *d*", 200), GOOD)))
    assert r"\_\_a\_\_ b_c \*d\*" in marks
    assert "Repairs:" not in as_table(report((GOOD, GOOD)), 100)


def test_a_skipped_probe_says_what_was_asked() -> None:
    """Rejects a line that only says what a server cannot."""
    text = as_table(report((LACKING, LACKING)), 160)
    assert f"cannot: {LACKING.said}" in text and PROBES[0].contract in text


class Screen(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colours_and_progress_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Colour.of(Screen()).on and not Colour.of(io.StringIO()).on
    monkeypatch.setenv("COLUMNS", "61")
    assert (width_of(Screen()), width_of(io.StringIO())) == (61, 100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Colour.of(Screen()).on
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Colour.of(Screen()).on
    for terminal, file in (("xterm", Screen()), ("dumb", Screen()), ("xterm", io.StringIO())):
        monkeypatch.setenv("TERM", terminal)
        progress = ProbeProgress(file)
        progress.draw(4, 46, "usage")
        progress.clear()
        drawn = file.isatty() and terminal == "xterm"
        assert file.getvalue() == ("\r\x1b[2K5/46 usage\r\x1b[2K" if drawn else "")


@pytest.mark.parametrize(
    ("only", "skip", "count"),
    [
        ([], [], len(PROBES)),
        (["usage"], [], 1),
        (["usage", "created"], ["usage"], 1),
        (["stream*"], ["stream-n"], 8),
        ([], ["stream*"], len(PROBES) - 9),
    ],
)
def test_probes_are_chosen_by_name(only: list[str], skip: list[str], count: int) -> None:
    assert len(select_probes(only, skip)) == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no URL"),
        (["x", "--only", "usag"], "Did you mean usage?"),
        (["x", "--only", "zzz*"], "--list names them"),
        (["x", "--skip", "usage,created", "--only", "usage"], "no probe is left"),
        (["ftp://x"], "no http(s) URL"),
        (["http://u:pw@x"], "holds credentials"),
        (["x", "--key", "sk-123456"], "write env:NAME"),
        (["x", "--adapter", "vlm"], "Did you mean 'vllm'?"),
        (["x", "--tokenizer", "/nowhere/tokenizer.json"], "/nowhere/tokenizer.json"),
    ],
)
def test_wrong_usage_is_2_and_says_what_to_do(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("wellspoken: ") and words in said.err
    assert "sk-123456" not in said.err and "backend[0]" not in said.err


@pytest.mark.parametrize("time", ["0", "-1", "x", "nan", "inf", "1e9"])
def test_a_timeout_is_a_time(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "x", f"--timeout={time}"])
    assert ended.value.code == 2
    assert (
        "is no length of time of up to an hour. Write it like 30 or 2m." in capsys.readouterr().err
    )


def test_the_list_names_each_probe_and_what_openai_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [probe.name for probe in PROBES]
    assert all(line.endswith(".") for line in lines)


def test_json_and_markdown_on_stdout(llama_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", llama_server, "--only", "usage,chat-body"]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    found = msgspec.json.decode(said.out, type=Schema)
    assert [one.result for one in found.probes] == ["repaired", "pass"]
    assert said.err == ""
    assert main([*arguments, "--markdown"]) == 0
    assert "| chat-body | repaired |" in capsys.readouterr().out
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


def test_a_server_that_is_not_there_is_2_in_every_form(
    capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    url = f"127.0.0.1:{unused_tcp_port}"
    assert main(["doctor", url, "--json"]) == 2
    error: str = json.loads(capsys.readouterr().out)["error"]
    assert "refused the connection" in error
    assert main(["doctor", url, "--markdown"]) == 2
    assert "refused the connection" in capsys.readouterr().out
    assert main(["doctor", url]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"wellspoken: {error}\n"


def on_a_terminal(arguments: list[str], width: int, **more: str) -> tuple[int, str]:
    """Run the command on a terminal of `width` columns; return its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm", **more},
    )
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 65_536):
            said += data
    except OSError:  # Linux's way to say that the other side is closed
        pass
    os.close(ours)
    return process.wait(120), said.decode()


def test_a_real_terminal(llama_server: str) -> None:
    arguments = [llama_server, "--only", "usage,created,stop-logprobs"]
    code, said = on_a_terminal(arguments, 72)
    assert code == 0
    assert "1/3 created" in said and "3/3 stop-logprobs" in said
    assert "\x1b[36mrepaired" in said
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", said.rpartition("\r\x1b[2K")[2])
    assert max(map(len, shown.splitlines())) <= 72
    assert "usage" in shown and "3/3" not in shown
    code, plain = on_a_terminal(arguments, 72, NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*m", plain)


def test_a_reader_that_leaves_and_an_interrupt(
    llama_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*COMMAND, llama_server, "--only", "usage"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wellspoken.proxy.doctor.diagnose.diagnose", interrupted)
    assert main(["doctor", llama_server]) == 130


def test_the_help_has_examples_that_parse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    examples = re.findall(r"^  wellspoken doctor (.+)$", said, re.MULTILINE)
    assert len(examples) == 8
    seen: list[Callable[..., Any]] = []
    monkeypatch.setattr("wellspoken.proxy.cli.doctor._run", lambda options: seen.append(options))
    for example in examples:
        words = example.partition(" > ")[0].replace("'", "").split()
        main(["doctor", *words])
    assert len(seen) == 7  # --list requests nothing


def test_the_package_is_small_files() -> None:
    folder = Path(__file__).parents[3] / "proxy" / "doctor"
    assert all(len(file.read_text().splitlines()) <= 400 for file in folder.glob("*.py"))
