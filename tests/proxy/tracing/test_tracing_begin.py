"""When requests are traced, and what is said where they cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream
from tests.proxy.conftest import StartProxy
from wellspoken.proxy import tracing
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config.tables import Traces
from wellspoken.proxy.config.values import ConfigError

ON = Traces(enabled=True)

LACKING = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from wellspoken.proxy import tracing
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.lifecycle import run
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.config import load

async def main():
    given = {"backend": [{"url": "http://127.0.0.1:1"}], "traces": {"enabled": True}}
    config = load(None, given, {})
    service = build(config)
    try:
        tracing.begin(config.traces, service.hooks)
    except tracing.ConfigError as error:
        print(error)
    assert service.hooks.tracing is None and len(service.hooks.observers) == 1

asyncio.run(main())
"""


def test_without_the_extra_it_says_what_to_install() -> None:
    argv = [sys.executable, "-c", LACKING]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'pip install "opentelemetry-sdk>=1.45,<2"' in done.stdout
    assert "traces.enabled = false" in done.stdout


async def test_it_is_off_unless_it_is_wanted(upstream: Upstream, start_proxy: StartProxy) -> None:
    service = (await start_proxy(upstream)).service
    before = list(service.hooks.observers)
    assert tracing.begin(Traces(), service.hooks, {}) is None
    for name, value in (("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")):
        assert tracing.begin(ON, service.hooks, {name: value}) is None
    assert service.hooks.tracing is None and service.hooks.observers == before


WRONG = [
    ("OTEL_TRACES_EXPORTER", "zipkin", "OTLP"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318"),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "http://localhost:4318"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@:4318", "http://localhost:4318"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[secret", "http://localhost:4318"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://secret:port", "http://localhost:4318"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "a=b, Authorization secret", "name=value"),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", 'key="secret"', "name=value"),
]


@pytest.mark.parametrize(("name", "value", "hint"), WRONG)
async def test_a_variable_that_cannot_be_followed_is_refused(
    upstream: Upstream, start_proxy: StartProxy, name: str, value: str, hint: str
) -> None:
    service = (await start_proxy(upstream)).service
    with pytest.raises(ConfigError) as caught:
        tracing.begin(ON, service.hooks, {name: value})
    assert name in str(caught.value) and hint in str(caught.value)
    assert "secret" not in str(caught.value)
    assert service.hooks.tracing is None


def test_check_finds_every_such_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[traces]\nenabled = true\n[[backend]]\nurl = 'http://x'\n")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret")
    assert main(["check", str(file)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{file}:2:11: error: OTEL_EXPORTER_OTLP_ENDPOINT is no URL")
    assert second.startswith(f"{file}:2:11: error: OTEL_EXPORTER_OTLP_HEADERS is no list")
    assert "secret" not in second and last == f"{file}: 2 errors."
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert main(["check", str(file)]) == 0


@pytest.mark.parametrize("headers", ["a=b", "Authorization=Basic%20eA==, x-scope = my org,", "a="])
def test_headers_as_the_exporter_takes_them(headers: str) -> None:
    assert not list(tracing.wrong_variables({"OTEL_EXPORTER_OTLP_HEADERS": headers}))
