"""The inside of the child process, run in this one, and its end by a signal in a real one."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from wellspoken.engine.llamacpp import llamacpp_child
from wellspoken.engine.llamacpp.llamacpp_child import parameters, parse, serve, take_stdout
from wellspoken.engine.unix_http import Client


def arguments(model: Path, socket: Path, *more: str, context: int = 512) -> list[str]:
    argv = [f"--model={model}", "--alias=tiny", f"--socket={socket}", f"--context={context}"]
    return [*argv, "--threads=1", "--parallel=1", "--gpu-layers=-1", "--verbosity=-1", *more]


def options(model: Path, *more: str, context: int = 512) -> argparse.Namespace:
    return parse(arguments(model, model.with_suffix(".sock"), *more, context=context))


def status(read_end: int) -> dict[str, str]:
    with os.fdopen(read_end) as stream:
        said: dict[str, str] = json.loads(stream.readline())
        assert stream.read() == ""  # closed: the parent need not wait for more
    return said


async def test_serves_on_its_socket(
    tiny_model: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(llamacpp_child, "serve_until_killed", ended.wait)
    said, say = os.pipe()
    codes: list[int] = []
    asked = parse(arguments(tiny_model, short / "api.sock"))
    thread = threading.Thread(target=lambda: codes.append(serve(say, asked)))
    thread.start()
    try:
        assert status(said) == {"ready": f"unix://{short / 'api.sock'}"}
        client = Client(short / "api.sock")
        assert await client.json("/health", 60) == {"status": "ok"}
        # Routes that a host needs: the facts, and the metrics for operators.
        code, metrics = await client.request("/metrics", 60)
        assert code == 200 and b"llamacpp:tokens_predicted_total 0" in metrics
    finally:
        ended.set()
        thread.join(120)
    assert codes == [0]


def test_a_model_that_does_not_load_is_said(tmp_path: Path) -> None:
    said, say = os.pipe()
    assert serve(say, options(tmp_path / "none.gguf")) == 1
    assert status(said)["error"] == "load"


def test_a_missing_wheel_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    said, say = os.pipe()
    assert serve(say, options(tiny_model)) == 1
    assert status(said)["error"] == "missing"


def test_a_wheel_that_does_not_load_is_said(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open')")
    said, say = os.pipe()
    assert serve(say, options(tiny_model)) == 1
    assert status(said) == {"error": "library", "detail": "libgomp.so.1: cannot open"}


def test_an_unknown_setting_is_said_as_a_version(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ModuleType("xllamacpp")
    old.CommonParams = type("CommonParams", (), {"__slots__": ()})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xllamacpp", old)
    said, say = os.pipe()
    assert serve(say, options(tiny_model)) == 1
    assert status(said)["error"] == "version"


def test_a_template_that_cannot_be_read_is_said(tiny_model: Path, tmp_path: Path) -> None:
    said, say = os.pipe()
    gone = tmp_path / "gone.jinja"
    assert serve(say, options(tiny_model, f"--chat-template-file={gone}")) == 1
    found = status(said)
    assert found["error"] == "template" and "gone.jinja" in found["detail"]


def test_it_says_what_it_does_next(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said, say = os.pipe()
    serve(say, options(tiny_model.with_name("none.gguf")))
    os.close(said)
    assert capfd.readouterr().err.splitlines()[:2] == ["importing llama.cpp", "loading the model"]


def test_the_settings_reach_llama_cpp(tiny_model: Path, tmp_path: Path) -> None:
    import xllamacpp

    params = parameters(xllamacpp, options(tiny_model, "--threads=3", "--gpu-layers=7"))
    assert params.model.path == str(tiny_model)
    assert params.hostnames == [str(tiny_model.with_suffix(".sock"))]
    assert (params.n_ctx, params.fit_params, params.cpuparams.n_threads) == (512, False, 3)
    assert (params.n_gpu_layers, params.n_parallel) == (7, 1)
    assert (params.cors_origins, params.ui, params.model_alias) == ("", False, {"tiny"})
    assert params.endpoint_metrics and params.use_jinja
    assert (params.chat_template, params.mmproj.path) == ("", "")
    params = parameters(xllamacpp, options(tiny_model, "--threads=0", context=0))
    assert (params.n_ctx, params.fit_params) == (0, True)
    assert params.cpuparams.n_threads == xllamacpp.CommonParams().cpuparams.n_threads


def test_the_template_and_the_projector_reach_llama_cpp(tiny_model: Path, tmp_path: Path) -> None:
    import xllamacpp

    more = ["--chat-template={{ 'é' }}", "--mmproj=/eyes.gguf"]
    params = parameters(xllamacpp, options(tiny_model, *more))
    assert (params.chat_template, params.mmproj.path) == ("{{ 'é' }}", "/eyes.gguf")
    file = tmp_path / "own.jinja"
    file.write_text("{% if 1 %}ü{% endif %}", encoding="utf-8")
    params = parameters(xllamacpp, options(tiny_model, f"--chat-template-file={file}"))
    assert params.chat_template == "{% if 1 %}ü{% endif %}"


def test_what_is_printed_does_not_reach_the_status_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    kept = os.dup(1)
    private = take_stdout()
    try:
        os.write(1, b"printed\n")
        os.write(private, b"status\n")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(private)
    assert capfd.readouterr() == ("status\n", "printed\n")


# Signals blocked or ignored by a parent are so in its children, over exec too.
HOSTILE = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("moment", ["serving", "loading"])
@pytest.mark.parametrize("parent", ["plain", "hostile"])
def test_sigterm_ends_it_at_any_moment(
    parent: str, moment: str, tiny_model: Path, short: Path
) -> None:
    model = tiny_model
    if moment == "loading":
        model = short / "never.gguf"
        os.mkfifo(model)  # opening it blocks, with the GIL held, until somebody writes
    argv = ["-P", "-m", llamacpp_child.__name__, *arguments(model, short / "api.sock")]
    argv = [sys.executable, *(["-c", HOSTILE] if parent == "hostile" else []), *argv]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            if moment == "serving":
                assert b"ready" in child.stdout.readline()
            else:
                while child.stderr.readline() != b"loading the model\n":
                    assert child.poll() is None
            child.terminate()
            assert child.wait(120) == -signal.SIGTERM
        finally:
            child.kill()
