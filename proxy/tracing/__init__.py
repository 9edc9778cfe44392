"""Spans of requests for an OpenTelemetry collector: switched on here, and only then imported.

With `traces.enabled` each request of a client is a server span, below the span that the client
names in its traceparent, and each request to a backend a client span below that, which the backend
gets as its own parent. Where spans go, how many are kept and what the service is called is for the
OTEL_* variables, as everywhere. No span holds a prompt, an answer, a key or a header.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from wellspoken.proxy.config.tables import Traces
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.relay.call import Hooks

if TYPE_CHECKING:
    from wellspoken.proxy.tracing.spans import RequestTracing

MISSING: Final = (
    "traces.enabled needs OpenTelemetry, which is not installed ({error}). Install it (pip install "
    '"opentelemetry-sdk>=1.45,<2" "opentelemetry-exporter-otlp-proto-http>=1.45,<2"), or set '
    "traces.enabled = false."
)
# What the exporter takes for one; its values may hold blanks, but neither comma nor semicolon.
_HEADER: Final = re.compile(r"[!#$%&'*+.^`|~\w-]+\s*=[ !#-+\--:<-\[\]-~]*", re.ASCII)


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
    if off := _switched_off(environ):
        log.info("%s: no request is traced", off)
        return None
    for wrong in wrong_variables(environ):
        raise ConfigError(wrong)
    try:
        from wellspoken.proxy.tracing import exporter as tracing_export
        from wellspoken.proxy.tracing.spans import RequestTracing
    except ImportError as error:
        raise ConfigError(MISSING.format(error=error)) from error
    try:
        export = tracing_export.Export(log, environ)
    except ValueError as error:  # of a number or a name in one of the exporter's own variables
        raise ConfigError(f"traces: an OTEL_* variable is wrong: {error}") from error
    made = RequestTracing(export.provider, export)
    hooks.tracing = made
    hooks.observers.append(made.end)
    return made


def _switched_off(environ: Mapping[str, str]) -> str:
    """Return the variable that says that nothing is traced, "" if none does."""
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environ.get(name, "").strip().lower() == value:
            return f"{name} is {value}"
    return ""


def wrong_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what is said of each variable that asks for what is not sent, or cannot be read.

    An address and a header are not repeated: they may hold a password or a key.
    """
    if _switched_off(environ):
        return
    yield from _one_of(environ, "OTEL_TRACES_EXPORTER", "otlp", "Spans go out by OTLP alone")
    hint = "Spans go out by HTTP alone, to which collectors listen on port 4318"
    for name, _ in _given(environ, "PROTOCOL"):
        yield from _one_of(environ, name, "http/protobuf", hint)
    for name, given in _given(environ, "ENDPOINT"):
        try:
            parts = urlsplit(given)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            yield f"{name} is no URL of a collector. Write it like http://localhost:4318"
    for name, given in _given(environ, "HEADERS"):
        headers = (each.strip() for each in given.split(","))
        if not all(_HEADER.fullmatch(each) for each in headers if each):  # the library would log it
            yield f"{name} is no list of headers. Write it like name=value,other=value"


def _given(environ: Mapping[str, str], what: str) -> Iterator[tuple[str, str]]:
    """Yield the variable that says this of spans: of two the exporter reads the first."""
    for name in (f"OTEL_EXPORTER_OTLP_TRACES_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
        if environ.get(name):
            yield name, environ[name]
            return


def _one_of(environ: Mapping[str, str], name: str, wanted: str, why: str) -> Iterator[str]:
    given = environ.get(name, "").strip().lower()
    if given not in ("", wanted):
        yield f"{name} is {given[:40]!r}. {why}: set it to {wanted}, or not at all."
