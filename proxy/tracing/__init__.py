"""Spans of requests for an OpenTelemetry collector: switched on here, and only then imported.

With `traces.enabled` each request of a client is a server span, below the span that the client
names in its traceparent, and each request to a backend a client span below that, which the backend
gets as its own parent. Where spans go, how many are kept and what the service is called is for the
OTEL_* variables, as everywhere. No span holds a prompt, an answer, a key or a header.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from wellspoken.proxy.config.tables import Traces
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.relay.call import Hooks

if TYPE_CHECKING:
    from wellspoken.proxy.tracing.spans import RequestTracing

MISSING: Final = (
    "traces.enabled needs OpenTelemetry, which is not installed ({error}). Install it with "
    "pip install 'wellspoken[otel]', or set traces.enabled = false."
)


def begin(
    traces: Traces, hooks: Hooks, environ: Mapping[str, str] = os.environ
) -> RequestTracing | None:
    """Have a service's requests traced from now on; None where that is not wanted.

    It also is not with OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none. Close what is returned
    after the service has stopped. Raises ConfigError without the extra `otel`, and for a variable
    that cannot be followed.
    """
    if not traces.enabled:
        return None
    log = logging.getLogger("wellspoken")
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environ.get(name, "").strip().lower() == value:
            log.info("%s is %s: no request is traced", name, value)
            return None
    _check(environ)
    try:
        from wellspoken.proxy.tracing import exporter as tracing_export
        from wellspoken.proxy.tracing.spans import RequestTracing
    except ImportError as error:
        raise ConfigError(MISSING.format(error=error)) from error
    try:
        export = tracing_export.Export(log, environ)
    except ValueError as error:  # of a number or a name in one of the exporter's own variables
        raise ConfigError(f"traces: an OTEL_EXPORTER_OTLP_* variable is wrong: {error}") from error
    made = RequestTracing(export.provider, export)
    hooks.tracing = made
    hooks.observers.append(made.end)
    return made


def _check(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable that asks for what is not sent, or for no address."""
    _one_of(environ, "OTEL_TRACES_EXPORTER", "otlp", "Spans go out by OTLP alone")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if environ.get(name):
            hint = "Spans go out by HTTP alone, to which collectors listen on port 4318"
            _one_of(environ, name, "http/protobuf", hint)
            break
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        given = environ.get(name)
        if not given:
            continue
        try:
            parts = urlsplit(given)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound:  # not repeated: it may hold a password
            raise ConfigError(
                f"{name} is no URL of a collector. Write it like http://localhost:4318"
            )


def _one_of(environ: Mapping[str, str], name: str, wanted: str, why: str) -> None:
    given = environ.get(name, "").strip().lower()
    if given not in ("", wanted):
        raise ConfigError(f"{name} is {given[:40]!r}. {why}: set it to {wanted}, or not at all.")
