"""What a span says of a request, under the names of OpenTelemetry's semantic conventions.

HTTP: v1.44.0, stable. gen_ai: v1.41.0, the last release that has it; nothing of it is stable, so
its names stand here and nowhere else. What the conventions have no name for begins with
`wellspoken.`. Of what a client wrote there are numbers, words of a fixed set, and the names of the
model and of the path, cut: never a message, a stop sequence, a tool or a header.
"""

from __future__ import annotations

import math
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import DecodeError, Struct, json

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.embeddings import EMBEDDINGS
from wellspoken.proxy.metrics.service import OTHER, tokens_of
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.outcome import outcome_of
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.upstream.target import Target

Value = str | bool | int | float | list[str]
Attributes = dict[str, Value]

SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"
LONGEST: Final = 256
"""Characters of a client's own word in a span."""

_METHODS: Final = frozenset("GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH".split())
_TEMPLATES: Final = {
    "model": "/v1/models/{model}",
    "stored_completion": "/v1/chat/completions/{completion_id}",
    "stored_messages": "/v1/chat/completions/{completion_id}/messages",
    "response": "/v1/responses/{response_id}",
    "response_items": "/v1/responses/{response_id}/input_items",
    "response_cancel": "/v1/responses/{response_id}/cancel",
}
_WITHOUT: Final = frozenset({"other", "ui"})  # routes of any path at all
_OPERATIONS: Final = {
    "chat_completions": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "responses": "chat",
    "messages": "chat",
}
_PROVIDERS: Final = {"general": "openai", "llamacpp-native": "llamacpp"}
"""Adapters that are called otherwise in a span; by the others' own names."""

_KINDS: Final = {"prompt": "input", "completion": "output"}
_PARTS: Final = {"cached": "cache_read.input", "reasoning": "reasoning.output"}


class _SentParameters(Struct):
    """What a span tells of a request's body; whatever the client wrote there decodes."""

    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n_predict: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    seed: Any = None
    n: Any = None
    model: Any = None
    response_format: Any = None
    dimensions: Any = None
    encoding_format: Any = None


_sent_of = json.Decoder(_SentParameters).decode
_INTEGERS: Final = (
    ("max_tokens", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("max_completion_tokens", "max_tokens"),
    ("seed", "seed"),
)
_NUMBERS: Final = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
_OUTPUTS: Final = {"text": "text", "json_object": "json", "json_schema": "json"}
_ENCODINGS: Final = frozenset({"float", "base64"})
_INT64: Final = range(-(2**63), 2**63)  # what OTLP can hold


def route_of(call: Call) -> str | None:
    """Return the path's template, None where any path is answered alike."""
    if call.routing.route in _WITHOUT:
        return None
    return _TEMPLATES.get(call.routing.route, call.path)


def server(call: Call) -> tuple[str, Attributes]:
    """Return the name and the first attributes of a client's request."""
    given, route = call.request.method, route_of(call)
    method = given if given in _METHODS else "_OTHER"
    name = method if method in _METHODS else "HTTP"
    attributes: Attributes = {
        "http.request.method": method,
        "url.path": call.path[:LONGEST],
        "url.scheme": "http",
        "network.protocol.version": f"{call.request.version[0]}.{call.request.version[1]}",
        "wellspoken.request.id": call.id,
    }
    if route is not None:
        attributes["http.route"] = route
        name = f"{name} {route}"
    return name, attributes


def of_end(call: Call, code: int) -> Attributes:
    """Return what the end tells of a client's request; 499 is no status, nobody was sent it."""
    attributes: Attributes = {"wellspoken.outcome": outcome_of(call, code)}
    if code != 499:
        attributes["http.response.status_code"] = code
    if call.routing.backend:
        attributes["wellspoken.backend"] = call.routing.backend
    if call.routing.client is not None:
        attributes["wellspoken.client"] = call.routing.client.name
    if call.timing.waited:
        attributes["wellspoken.waited"] = call.timing.waited
    if call.timing.first:
        attributes["wellspoken.time_to_first_token"] = call.timing.first - call.began
    if call.results.exchange is not None and call.results.exchange.notes.counts:
        attributes["wellspoken.repairs"] = list(call.results.exchange.notes.counts)
    return attributes


def errors_of(call: Call, code: int) -> tuple[str, str]:
    """Return why a client's request failed, and why the one to a backend that answered it did.

    "" for what did not fail; what is the client's own fault or wish is no error of the whole.
    """
    outcome = outcome_of(call, code)
    kind, _, why = outcome.partition(":")
    if kind == "error_in_stream":
        return why or kind, why or kind
    if kind == "upstream_error":
        return (why if why != "answer" else str(code)), why
    return str(code) if code >= 500 else kind if kind == "proxy_error" else "", ""


def operation(call: Call, target: Target, path: str) -> str:
    """Return the operation that a request to a backend is; "" where no model is to write.

    Beside the answer itself a request may need helping ones: counts, templates, tokens.
    """
    backend = target.backend
    endpoints = (backend.chat, backend.completions)
    own = (call.path, backend.native, *(x.path for x in endpoints if x is not None))
    return _OPERATIONS.get(call.routing.route, "") if path in own or path in EMBEDDINGS else ""


def client(
    call: Call, target: Target, url: str, ask: BackendRequest, resent: bool = False
) -> tuple[str, Attributes]:
    """Return the name and the first attributes of a request to a backend at `url`."""
    attributes: Attributes = {"http.request.method": "POST", "wellspoken.backend": target.name}
    attributes |= address(url)
    if resent:
        attributes["http.request.resend_count"] = 1
    kind = operation(call, target, ask.path)
    if not kind:
        attributes["url.template"] = ask.path
        return f"POST {ask.path}", attributes
    name = target.backend.name
    attributes["gen_ai.operation.name"] = kind
    attributes["gen_ai.provider.name"] = _PROVIDERS.get(name, name)
    model = target.model_for(call.routing.model) or call.routing.model
    if model:
        attributes["gen_ai.request.model"] = model[:LONGEST]
    # A name that is not configured is the client's word, and may be another each time.
    return kind if call.routing.label == OTHER else f"{kind} {call.routing.label}", attributes


def address(url: str) -> Attributes:
    """Return where a backend is; of a unix socket its path."""
    if url.startswith("unix:"):
        return {"server.address": url.removeprefix("unix:")}
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def parameters(ask: BackendRequest) -> Attributes:
    """Return what a request asks of a model; what is no number of its kind is left out."""
    attributes: Attributes = {}
    if ask.stream:
        attributes["gen_ai.request.stream"] = True
    try:
        sent = _sent_of(ask.body())
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return attributes
    for key, name in _INTEGERS:
        value = getattr(sent, key)
        if _is_integer(value):
            attributes[f"gen_ai.request.{name}"] = value
    for name in _NUMBERS:
        value = getattr(sent, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            attributes[f"gen_ai.request.{name}"] = float(value)
    if _is_integer(sent.n) and sent.n != 1:
        attributes["gen_ai.request.choice.count"] = sent.n
    if _is_integer(sent.dimensions):
        attributes["gen_ai.embeddings.dimension.count"] = sent.dimensions
    if isinstance(sent.encoding_format, str) and sent.encoding_format in _ENCODINGS:
        attributes["gen_ai.request.encoding_formats"] = [sent.encoding_format]
    if isinstance(sent.response_format, dict):
        kind = sent.response_format.get("type")
        if isinstance(kind, str) and kind in _OUTPUTS:
            attributes["gen_ai.output.type"] = _OUTPUTS[kind]
    return attributes


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def of_answer(exchange: Exchange | None) -> Attributes:
    """Return what an answer said: its id, its reasons and its counts, as the client got them."""
    attributes: Attributes = {}
    if exchange is None:
        return attributes
    id = exchange.response.id if exchange.response is not None else exchange.result.id
    if id:
        attributes["gen_ai.response.id"] = id[:LONGEST]
    if exchange.result.reasons:
        reasons: list[str] = [reason for _, reason in sorted(exchange.result.reasons.items())]
        attributes["gen_ai.response.finish_reasons"] = reasons
    for kind, count in tokens_of(exchange.result.usage):
        name = _KINDS.get(kind) or _PARTS[kind]
        attributes[f"gen_ai.usage.{name}_tokens"] = count
    if exchange.result.usage_source:
        attributes["wellspoken.usage.source"] = exchange.result.usage_source
    return attributes
