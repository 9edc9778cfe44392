"""Spans of requests for an OpenTelemetry collector: switched on here, and only then imported.

With `traces.enabled` each request of a client is a server span, below the span that the client
names in its traceparent, and each request to a backend a client span below that, which the backend
gets as its own parent. Where spans go, how many are kept and what the service is called is for the
OTEL_* variables, as everywhere. No span holds a prompt, an answer, a key or a header.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from wellspoken.proxy.config.values import ConfigError

if TYPE_CHECKING:
    from wellspoken.proxy.config import Traces
    from wellspoken.proxy.server import Service
    from wellspoken.proxy.tracing.spans import Tracing
    from wellspoken.proxy.upstream.failures import UpstreamError

MISSING: Final = (
    "traces.enabled needs OpenTelemetry, which is not installed ({error}). Install it with "
    "pip install 'wellspoken[otel]', or set traces.enabled = false."
)


class Watch(Protocol):
    """Who is told how a backend's answer comes in; see `Answer.watched`."""

    def begun(self) -> None:
        """Note that the first piece of the body was read."""

    def over(self) -> None:
        """Note that the last byte has come or the connection was closed; more than once maybe."""

    def failed(self, error: UpstreamError) -> None:
        """Note that the answer broke off."""


def begin(
    traces: Traces, service: Service, environ: Mapping[str, str] = os.environ
) -> Tracing | None:
    """Have a service's requests traced from now on; None where that is not wanted.

    It also is not with OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none. Close what is returned
    after the service has stopped. Raises ConfigError without the extra `otel`, and for a variable
    that cannot be followed.
    """
    if not traces.enabled:
        return None
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environ.get(name, "").strip().lower() == value:
            service.log.info("%s is %s: no request is traced", name, value)
            return None
    _check(environ)
    try:
        from wellspoken.proxy.tracing import export as tracing_export
        from wellspoken.proxy.tracing.spans import Tracing
    except ImportError as error:
        raise ConfigError(MISSING.format(error=error)) from error
    try:
        export = tracing_export.Export(service.log, environ)
    except ValueError as error:  # of a number or a name in one of the exporter's own variables
        raise ConfigError(f"traces: an OTEL_EXPORTER_OTLP_* variable is wrong: {error}") from error
    made = Tracing(export.provider, export)
    service.tracing = made
    service.observers.append(made.over)
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
