"""llama.cpp as a kind of engine: its command run for real, and what its output means."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import write_model
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Facts, Kind
from wellspoken.engine.llamacpp import llamacpp_kind as llamacpp
from wellspoken.engine.llamacpp.llamacpp_kind import LlamaCpp, quote_log
from wellspoken.engine.unix_http import Client

SECONDS = 60.0
SMALL = {"context": 512, "parallel": 1, "threads": 1}


class Run:
    """One run of the command of a kind, without anything around it."""

    def __init__(self, kind: Kind, folder: Path, *prefix: str) -> None:
        socket = folder / "api.sock"
        socket.unlink(missing_ok=True)
        self.command = kind.command(socket, folder, 60.0)
        self.client = Client(socket)
        self.process = subprocess.Popen(
            [*prefix, *self.command.argv],
            env=dict(self.command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.report: dict[str, str] = json.loads(self.process.stdout.readline() or "{}")

    def end(self, number: int = signal.SIGTERM) -> list[str]:
        """End it, or wait for its end (signal 0); return the lines of its stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=SECONDS)
        return errors.decode().splitlines()


@contextlib.contextmanager
def ready(kind: Kind, folder: Path) -> Iterator[Run]:
    run = Run(kind, folder)
    try:
        assert "ready" in run.report, run.end()
        yield run
    finally:
        run.end()
    assert run.process.returncode == -signal.SIGTERM


def small(model: Path, **settings: Any) -> LlamaCpp:
    return LlamaCpp(model, **(SMALL | settings))


PARAMS = """
class CommonParams:
    def __init__(self):
        self.model = self.mmproj = self.cpuparams = type("Part", (), {})()
"""


def refusal(kind: LlamaCpp, folder: Path, *prefix: str) -> EngineError:
    run = Run(kind, folder, *prefix)
    log = run.end(0)  # it ends by itself
    assert "error" in run.report, log
    return kind.explain_report(run.report, log)


async def test_answers_on_its_socket_and_says_what_it_is(tiny_model: Path, short: Path) -> None:
    kind: Kind = LlamaCpp(tiny_model, context=512, parallel=2, threads=1)
    assert (kind.name, kind.title) == ("llamacpp", "llama.cpp")
    assert kind.check() == []
    with ready(kind, short) as run:
        facts = await kind.facts(run.client, run.command.argv, ())
        build = importlib.metadata.version("xllamacpp").rpartition(".")[2]
        # The file's stem: its whole path is nobody's business.
        assert facts.models == (tiny_model.stem,)
        assert facts.version == f"b{build}"
        assert facts.context == 256  # of one slot
        path, body = kind.warm_up(facts)
        # A random token may be a part of a character, for which llama.cpp gives no number.
        same = json.dumps(json.loads(body) | {"temperature": 0}).encode()
        status, answer = await run.client.request(path, SECONDS, same)
        assert status == 200
        [choice] = json.loads(answer)["choices"]
        assert len(choice["logprobs"]["content"]) == 1
        _, metrics = await run.client.request("/metrics", SECONDS)
        assert b"llamacpp:tokens_predicted_total 1" in metrics
        assert kind.progress(metrics) == b""


async def test_the_alias_is_the_name_it_serves(tiny_model: Path, short: Path) -> None:
    kind = small(tiny_model, alias="given -- name")
    with ready(kind, short) as run:
        facts = await kind.facts(run.client, run.command.argv, ())
    assert facts.models == ("given -- name",)
    assert json.loads(kind.warm_up(facts)[1])["model"] == "given -- name"
    assert json.loads(kind.warm_up(Facts())[1])["model"] == "given -- name"


async def test_a_silent_engine_leaves_the_facts_empty(tiny_model: Path, short: Path) -> None:
    found = await small(tiny_model).facts(Client(short / "nobody.sock"), (), ())
    assert (found.models, found.context) == ((), None)


@pytest.mark.parametrize(
    ("build", "wheel", "expected"),
    [
        ("b6789-1a2b3c4d", "2026.10.11549", "b6789"),
        ("b6789", "2026.10.11549", "b6789"),
        ("b0-unknown", "2026.10.11549", "b11549"),
        (None, "2026.10.11549", "b11549"),
        (7, "0.2.1", ""),
        ("b0-unknown", None, ""),
    ],
)
def test_the_version(
    build: object, wheel: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if wheel is None or name != "xllamacpp":
            raise importlib.metadata.PackageNotFoundError(name)
        return wheel

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert llamacpp._version(build) == expected


TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %} TEMPLATED é"


@pytest.mark.parametrize("form", ["file", "text"])
async def test_the_chat_template_is_the_given_one(
    form: str, tiny_model: Path, short: Path, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    kind = small(tiny_model, chat_template=str(file) if form == "file" else TEMPLATE)
    assert kind.check() == []
    with ready(kind, short) as run:
        props = await run.client.json("/props", SECONDS)
        asked = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
        _, answer = await run.client.request("/apply-template", SECONDS, asked)
    assert props["chat_template"] == TEMPLATE
    assert "TEMPLATED é" in json.loads(answer)["prompt"]


async def test_the_template_is_found_from_where_it_was_named(
    tiny_model: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jinja").write_text(TEMPLATE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    argv = small(Path("tiny.gguf"), chat_template="own.jinja").command(short, short, 1).argv
    assert f"--chat-template-file={tmp_path / 'own.jinja'}" in argv
    assert f"--model={tmp_path / 'tiny.gguf'}" in argv
    monkeypatch.setenv("HOME", str(tmp_path))
    argv = small(Path("~/a.gguf"), mmproj=Path("~/b.gguf")).command(short, short, 1).argv
    assert {f"--model={tmp_path / 'a.gguf'}", f"--mmproj={tmp_path / 'b.gguf'}"} < set(argv)


def test_the_environment_is_a_clean_one(
    tiny_model: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLSPOKEN_DATABASE_URL", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MINE_A", "1")
    kind = small(tiny_model, inherit=("MINE_*",), environment={"OWN": "2"})
    environment = kind.command(short / "api.sock", short, 1).environment
    assert "secret" not in environment.values()
    assert (environment["MINE_A"], environment["OWN"]) == ("1", "2")


def test_path_and_home_are_enough(
    tiny_model: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(os.environ) - {"PATH", "HOME"}:
        monkeypatch.delenv(name)
    kind = small(tiny_model)
    assert set(kind.command(short, short, 1).environment) == {"PATH", "HOME"}
    with ready(kind, short) as run:
        assert run.report["ready"].startswith("unix://")


def test_the_working_directory_is_not_imported_from(
    tiny_model: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('a stranger')")
    monkeypatch.chdir(tmp_path)
    with ready(small(tiny_model), short) as run:
        assert "error" not in run.report


def cut(model: Path, folder: Path, size: int) -> Path:
    file = folder / "cut.gguf"
    file.write_bytes(model.read_bytes()[:size])
    return file


@pytest.mark.parametrize(("size", "expected"), [(300_000, "incomplete"), (4, "read header")])
def test_a_truncated_model_gives_llama_cpps_own_reason(
    size: int, expected: str, tiny_model: Path, short: Path
) -> None:
    kind = small(cut(tiny_model, short, size))
    assert kind.check() == []  # it takes a reader of the whole header to tell
    error = refusal(kind, short)
    assert error.lasting
    assert "could not load" in str(error) and "cut.gguf" in str(error)
    assert expected in str(error) and "whole GGUF model" in str(error)


def test_a_template_that_is_none_is_named(tiny_model: Path, short: Path) -> None:
    error = refusal(small(tiny_model, chat_template="{{ 1 }"), short)
    assert error.lasting
    assert "Expected }}" in str(error) and "Check the chat template" in str(error)


def test_a_projector_that_is_none_is_named(tiny_model: Path, short: Path) -> None:
    kind = small(tiny_model, mmproj=tiny_model)
    assert kind.check() == []
    error = refusal(kind, short)
    assert error.lasting
    assert "CLIP" in str(error) and "the mmproj file is a whole one" in str(error)


def test_too_little_memory_may_pass(tiny_model: Path, short: Path) -> None:
    # 512 bytes a token: 4 GB, in an address space of 2.
    prefix = ("sh", "-c", 'ulimit -v 2000000 && exec "$@"', "sh")
    error = refusal(small(tiny_model, context=8_000_000), short, *prefix)
    assert not error.lasting
    assert "too little memory" in str(error) and "smaller context" in str(error)


@pytest.mark.parametrize("raised", ["MemoryError()", "RuntimeError('std::bad_alloc')"])
def test_what_an_exception_says_of_memory_may_pass(
    raised: str, tiny_model: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = f"class Server:\n    def __init__(self, params): raise {raised}"
    (tmp_path / "xllamacpp.py").write_text(PARAMS + server)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = refusal(small(tiny_model), short)
    assert "too little memory" in str(error) and not error.lasting


def test_a_socket_that_cannot_be_made_may_pass(tiny_model: Path, short: Path) -> None:
    (short / "api.sock").mkdir()
    kind = small(tiny_model)
    command = kind.command(short / "api.sock", short, 1)
    done = subprocess.run(command.argv, env=dict(command.environment), capture_output=True)
    error = kind.explain_report(json.loads(done.stdout), done.stderr.decode().splitlines())
    assert not error.lasting and "Its socket could not be made" in str(error)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "raise ModuleNotFoundError('no xllamacpp', name='xllamacpp')",
            'pip install "xllamacpp>=2026.10"',
        ),
        ("raise ImportError('libgomp.so.1: cannot open')", "libgomp.so.1: cannot open."),
        ("raise ImportError('libgomp.so.1')", "apt-get install libgomp1"),
        ("class CommonParams: __slots__ = ()", "pip install --upgrade"),
        (PARAMS + "class Server:\n    def __init__(self, params): raise ValueError('odd')", "odd."),
    ],
)
def test_what_the_child_lacks_is_said_with_its_remedy(
    code: str,
    expected: str,
    tiny_model: Path,
    short: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "xllamacpp.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = refusal(small(tiny_model), short)
    assert expected in str(error) and error.lasting


@pytest.mark.parametrize(
    ("code", "tail", "lasting", "expected"),
    [
        (-signal.SIGKILL, (), False, "was ended by SIGKILL while it loaded m.gguf. Most often"),
        (-signal.SIGKILL, (), False, "smaller model or context"),
        (-signal.SIGABRT, ("0.1 E ggml: out of memory",), False, "smaller model or context"),
        (-signal.SIGILL, (), True, "lacks an instruction"),
        (3, ("one", "two", "three", "four"), False, "It said: two | three | four."),
        (3, (), False, "llama.cpp ended with exit code 3 while it loaded m.gguf."),
    ],
)
def test_an_end_during_the_start(
    code: int, tail: tuple[str, ...], lasting: bool, expected: str
) -> None:
    error = LlamaCpp(Path("m.gguf")).explain_end(code, tail)
    assert expected in str(error) and error.lasting is lasting


def test_the_first_errors_are_told() -> None:
    log = ["loading the model", "0.1 W careful", *(f"0.{n} E fault {n}" for n in (1, 1, 2, 3, 4))]
    assert quote_log(log) == "It said: fault 1 | fault 2 | fault 3."
    assert quote_log(log[:2]) == "It said: 0.1 W careful."
    assert quote_log(log[:1]) == quote_log(()) == ""


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (1, ["loading llama.cpp", "loading the model"]),
        (
            4,
            [
                "loading llama.cpp",
                "loading the model",
                "loading weights",
                "allocating the context",
                "warming up",
                "preparing the chat template",
            ],
        ),
    ],
)
def test_its_log_tells_the_phases_of_a_start(
    verbosity: int, expected: list[str], tiny_model: Path, short: Path
) -> None:
    kind = small(tiny_model, verbosity=verbosity)
    run = Run(kind, short)
    phases = [phase for line in run.end() if (phase := kind.phase(line)) is not None]
    assert list(dict.fromkeys(phases)) == expected


def test_a_start_with_a_fitted_context_says_so(tiny_model: Path, short: Path) -> None:
    kind = small(tiny_model, context=0, verbosity=4)
    log = Run(kind, short).end()
    assert "fitting the model into memory" in map(kind.phase, log), shlex.join(log)


def checked(kind: LlamaCpp) -> str:
    with pytest.raises(EngineError) as caught:
        kind.check()
    assert caught.value.lasting
    return str(caught.value)


def test_a_missing_wheel_is_named(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'pip install "xllamacpp>=2026.10"' in checked(small(tiny_model))


def test_the_files_are_checked_before_the_start(tiny_model: Path, tmp_path: Path) -> None:
    none = tmp_path / "none.gguf"
    assert f"no model file {none}" in checked(small(none))
    assert f"no mmproj file {none}" in checked(small(tiny_model, mmproj=none))
    assert "no chat template file x.jinja" in checked(small(tiny_model, chat_template="x.jinja"))


def test_the_projector_counts_for_the_memory(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def check_memory(size: int, gpu_layers: int) -> list[str]:
        asked.append((size, gpu_layers))
        return ["close"]

    monkeypatch.setattr(llamacpp, "check_memory", check_memory)
    assert small(tiny_model, mmproj=tiny_model, gpu_layers=5).check() == ["close"]
    assert asked == [(2 * tiny_model.stat().st_size, 5)]


def test_a_split_model_loads(short: Path) -> None:
    model = write_model(short / "m-00001-of-00001.gguf", "spm")
    kind = small(model)
    assert kind.check() == []
    with ready(kind, short) as run:
        assert "error" not in run.report


def test_reports_of_other_shapes_are_not_fatal() -> None:
    report: Mapping[str, str] = {"error": "novel"}
    assert "pip install --upgrade" in str(LlamaCpp(Path("m.gguf")).explain_report(report, ()))


def test_a_home_that_nobody_has_is_a_missing_file() -> None:
    """Path.expanduser raises RuntimeError for it, which nobody expects of a setting."""
    kind = LlamaCpp(Path("~no-such-user/m.gguf"), mmproj=Path("~no-such-user/p.gguf"))
    with pytest.raises(EngineError, match=r"there is no model file ~no-such-user/m\.gguf"):
        kind.check()
