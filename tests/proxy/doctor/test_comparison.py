"""`wellspoken doctor --compare A B`: servers and saved reports, what differs, exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.doctor.probe import Report, Result, Verdict
from wellspoken.proxy.doctor.probes import PROBES
from wellspoken.proxy.doctor.reports import printing
from wellspoken.proxy.doctor.reports.comparison import Comparison, as_json, as_markdown, as_table
from wellspoken.proxy.doctor.reports.saved import read_report

GOOD = Verdict("ok", "", 200)
BROKEN = Verdict("broken", "created is 763 | not the present time", 200)
UNTOLD = Verdict("unclear", "the answer was not over", 200)
NAMES = [probe.name for probe in PROBES]


def report(*pairs: tuple[Verdict, Verdict], **more: Any) -> Report:
    results = [
        Result(probe, *pair, ("created_not_epoch",))
        for probe, pair in zip(PROBES, pairs, strict=False)
    ]
    known = {"url": "http://h:1", "version": "1.2", "model": "tiny", "backend": "vLLM", **more}
    return Report(results=tuple(results), **known)


ONE = report((GOOD, GOOD), (BROKEN, GOOD), (BROKEN, GOOD))
OTHER = report((GOOD, GOOD), (GOOD, GOOD), (BROKEN, UNTOLD), url="http://h:2")


@pytest.mark.parametrize(
    ("first", "second", "code", "differing"),
    [
        (ONE, ONE, 0, []),
        (ONE, OTHER, 1, NAMES[1:3]),
        (report((BROKEN, BROKEN)), report((BROKEN, BROKEN)), 0, []),
        (ONE, Report("u", "1", error="It is gone."), 2, []),
        (ONE, report(), 2, []),
    ],
)
def test_the_exit_code_says_whether_they_differ(
    first: Report, second: Report, code: int, differing: list[str]
) -> None:
    """Rejects a 1 where both fail alike: of that `doctor URL` tells."""
    found = Comparison(first, second)
    assert (found.code, found.differing) == (code, differing)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_difference_is_marked_and_told_on_a_terminal(width: int) -> None:
    text = as_table(Comparison(ONE, OTHER), width)
    assert max(map(len, text.splitlines())) <= width
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "= " in line}
    assert rows == {
        NAMES[0]: ["pass", "=", "pass"],
        NAMES[1]: ["repaired", "!=", "pass"],
        NAMES[2]: ["repaired", "!=", "skipped"],
    }
    words = " ".join(text.split())
    assert f"OpenAI: {PROBES[1].contract} A: {BROKEN.said} B: conforms" in words
    assert f"B: {BROKEN.said} B through the proxy: not known: {UNTOLD.said}" in words
    assert PROBES[0].contract not in words
    assert text.endswith("\nOf 3, 1 alike, 2 differ.\n")
    coloured = as_table(Comparison(ONE, OTHER), width, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == text.split() and "\x1b" in coloured


def test_the_markdown_is_one_table_with_differences_in_bold() -> None:
    text = as_markdown(Comparison(ONE, OTHER))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}
    assert "**" not in rows[2] and rows[3].endswith("| **pass** |")
    assert f"; through the proxy: not known: {UNTOLD.said} |" in rows[4]
    assert text.endswith("\nOf 3, 1 alike, 2 differ.\n")
    gone = as_markdown(Comparison(ONE, Report("u", "1", error="It is gone.")))
    assert gone.endswith("\nB: It is gone.\n")


def test_the_json_has_both_reports() -> None:
    found = json.loads(as_json(Comparison(ONE, OTHER)))
    assert (found["schema"], found["error"], found["differ"]) == (1, None, NAMES[1:3])
    assert found["a"] == json.loads(printing.as_json(ONE))
    assert found["b"]["url"] == "http://h:2"


def test_what_only_one_side_ran_is_no_difference_but_is_said() -> None:
    """Rejects one that takes the n-th of both for the same probe."""
    later = Report("u", "1", results=OTHER.results[1:])
    found = Comparison(ONE, later)
    assert (found.alone, found.differing) == (NAMES[:1], NAMES[1:3])
    assert f"Run on one side alone: {NAMES[0]}." in as_table(found, 100)


def test_a_saved_report_is_the_report(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    noted = replace(ONE, notes=("It lists no model.",), seconds=1.5, name="gpu/2")
    file.write_bytes(printing.as_json(noted))
    assert printing.as_json(read_report(file, NAMES)) == printing.as_json(noted)
    assert [one.probe.name for one in read_report(file, NAMES[1:]).results] == NAMES[1:3]


def test_a_saved_report_can_move_no_cursor(tmp_path: Path) -> None:
    """Rejects one that trusts a file because this command once wrote such files."""
    file = tmp_path / "a.json"
    evil = "\x1b[2Jx"
    said = Verdict("broken", evil, 200)
    file.write_bytes(printing.as_json(report((said, said), url=evil, model=evil, backend=evil)))
    for form in (as_table(Comparison(read_report(file, NAMES), ONE), 80), as_markdown):
        text = form if isinstance(form, str) else form(Comparison(read_report(file, NAMES), ONE))
        assert "x1b" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "is no report of the doctor"),
        ('{"schema": 1}', "is no report of the doctor"),
        (printing.as_json(ONE).decode().replace('"schema": 1', '"schema": 2'), "has schema 2"),
    ],
)
def test_a_file_that_is_no_report_is_refused_before_a_server_is_asked(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.json"
    if content is not None:
        file.write_text(content)
    assert main(["doctor", "--compare", "ftp://never-asked", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and words in said.err
    assert f"Write it with wellspoken doctor URL --json > {file}" in said.err


def test_a_url_beside_compare_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "x", "--compare", "a", "b"]) == 2
    assert "--compare names both servers. Leave the URL out" in capsys.readouterr().err


def test_real_servers_and_a_file(
    llama_server: str, llama_server_bpe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["--only", "usage,chat-body,json-schema"]
    assert main(["doctor", llama_server, *only, "--json"]) == 0
    file = tmp_path / "before.json"
    file.write_text(capsys.readouterr().out)
    assert main(["doctor", "--compare", str(file), llama_server, *only]) == 0
    assert capsys.readouterr().out.endswith("\nOf 3, 3 alike, 0 differ.\n")
    # The scripted models differ in how long they write where a schema is asked for.
    assert main(["doctor", "--compare", llama_server, llama_server_bpe, *only, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differ"] == ["json-schema"]


def test_a_server_that_is_not_there_is_2(
    llama_server: str, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"127.0.0.1:{unused_tcp_port}"
    assert main(["doctor", "--compare", llama_server, away, "--only", "usage"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("wellspoken: B: ")
