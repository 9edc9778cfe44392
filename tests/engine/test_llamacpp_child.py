"""The inside of the child process, run in this one."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest

from wellspoken.engine import llamacpp_child
from wellspoken.engine.llamacpp_child import hold_lifeline, parameters, parse, serve, take_stdout


def options(model: Path, context: int = 512, threads: int = 1) -> argparse.Namespace:
    argv = ["--model", str(model), "--alias", "tiny", "--host", "127.0.0.1", "--port", "0"]
    argv += ["--context", str(context), "--threads", str(threads), "--parallel", "1"]
    return parse([*argv, "--gpu-layers", "-1", "--verbosity", "-1"])


def status(read_end: int) -> dict[str, str]:
    with os.fdopen(read_end) as stream:
        said: dict[str, str] = json.loads(stream.readline())
        assert stream.read() == ""  # closed: the parent need not wait for more
    return said


def test_serves_until_the_lifeline_closes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(llamacpp_child, "LIFELINE", read_end)
    said, say = os.pipe()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(serve(say, options(tiny_model))))
    thread.start()
    url = status(said)["ready"]
    with urllib.request.urlopen(url + "/health", timeout=10) as answer:
        assert answer.status == 200
    os.write(write_end, b"anything")
    thread.join(0.2)
    assert thread.is_alive()
    os.close(write_end)
    thread.join(10)
    assert codes == [0]
    os.close(read_end)


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


def test_the_settings_reach_llama_cpp(tiny_model: Path) -> None:
    import xllamacpp

    params = parameters(xllamacpp, options(tiny_model, context=512, threads=3))
    assert params.model.path == str(tiny_model)
    assert (params.n_ctx, params.fit_params, params.cpuparams.n_threads) == (512, False, 3)
    assert (params.cors_origins, params.ui, params.model_alias) == ("", False, {"tiny"})
    params = parameters(xllamacpp, options(tiny_model, context=0, threads=0))
    assert (params.n_ctx, params.fit_params) == (0, True)
    assert params.cpuparams.n_threads == xllamacpp.CommonParams().cpuparams.n_threads


@pytest.mark.skipif(sys.platform != "linux", reason="SIGIO ends a process on Linux only")
def test_the_lifeline_raises_sigio_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(llamacpp_child, "LIFELINE", read_end)
    seen = threading.Event()
    before = signal.signal(signal.SIGIO, lambda number, frame: seen.set())
    try:
        hold_lifeline()
        assert not seen.wait(0.05)
        os.close(write_end)
        assert seen.wait(5)
    finally:
        signal.signal(signal.SIGIO, before)
        os.close(read_end)


def test_a_lifeline_that_is_closed_already_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setattr(llamacpp_child, "LIFELINE", read_end)
    os.close(write_end)
    with pytest.raises(SystemExit) as ended:
        hold_lifeline()
    assert ended.value.code == 0
    os.close(read_end)


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
