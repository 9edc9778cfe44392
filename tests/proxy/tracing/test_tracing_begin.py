"""When requests are traced, and what is said where they cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.upstream import Upstream
from tests.proxy.conftest import StartProxy
from wellspoken.proxy import tracing
from wellspoken.proxy.config.tables import Traces
from wellspoken.proxy.config.values import ConfigError

ON = Traces(enabled=True)

LACKING = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from wellspoken.proxy import tracing
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
    assert "pip install 'wellspoken[otel]'" in done.stdout
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
