"""The proxy's own OpenAPI 3.1 document, made of the Structs: what GET /openapi.json serves.

    python -m tests.openapi.document > proxy/endpoints/openapi.json     (or: make openapi)

The answers' schemas are those of answer_schema.py, but objects that extensions may add keys to are
open; the requests' are in requests.py. No part of the product: data in, a dict out.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from typing import Any, Final

import msgspec

from tests.openapi import answer_schema as answers
from tests.openapi import requests as request_schemas
from tests.openapi import response_requests
from tests.openapi import responses as response_paths
from tests.openapi import stored as stored_paths
from tests.openapi.parts import (
    ANYWHERE,
    EVERY,
    FROM_BACKEND,
    OURS,
    WITH_BODY,
    get_operation,
    json_content,
    operation,
    ref,
    response,
)
from tests.openapi.requests import REF, Schema, simple
from tests.openapi.text import EXTENDED, STATUSES, TITLES
from wellspoken.adapters.requests.embeddings import EMBEDDINGS
from wellspoken.adapters.servers.registry import BACKENDS
from wellspoken.proxy.endpoints.overview import Overview
from wellspoken.proxy.http.responses import VERSION
from wellspoken.proxy.relay.headers import WAIT

ALIASES: Final = {
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/completion": "/v1/completions",
    "/embeddings": "/v1/embeddings",
    "/models": "/v1/models",
    "/responses": "/v1/responses",
}
"""Other paths of the same; the second and third read llama.cpp's own names too."""

PASSED: Final = tuple(
    sorted(
        {path for one in BACKENDS.values() for path in one.passes}
        - {*EMBEDDINGS, "/responses", "/v1/responses"}
    )
)
"""Endpoints that pass through byte for byte to the backends that have them, whatever is set."""

_SENT: Final = (
    "Capabilities", "Capability", "EngineState", "Model", "ModelCapabilities", "ModelList",
)  # fmt: skip
"""Answers whose every key is always there."""

_OPEN: Final = (
    "AnswerMessage", "ChatChoice", "ChatCompletion", "ChatCompletionChunk", "ChunkChoice",
    "Completion", "CompletionChunk", "CompletionTokensDetails", "CompletionUsage", "Delta",
    "CreateEmbeddingResponse", "Embedding", "EmbeddingUsage", "PromptTokensDetails", "TextChoice",
    "TextChunkChoice", "StoredChatCompletion", "StoredMessage", *response_paths.OPEN,
)  # fmt: skip
"""Answers that extensions may add keys to."""

_ANSWERS: Final = (
    answers.Capabilities, answers.ChatCompletion, answers.ChatCompletionChunk, answers.Completion,
    answers.CompletionChunk, answers.CreateEmbeddingResponse, answers.ErrorResponse,
    answers.ModelList, Overview, answers.Ready, answers.Unready, *stored_paths.ANSWERS,
    *response_paths.ANSWERS,
)  # fmt: skip


def document() -> dict[str, Any]:
    """Return the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wellspoken",
            "version": version("wellspoken"),
            "summary": "OpenAI's contract, spoken exactly, in front of any LLM server.",
            "description": (
                f"The same without /v1: {', '.join(ALIASES)}. "
                "A stream is `data: <JSON>` events and comment lines, and ends with "
                "`data: [DONE]`; one that fails ends with an event that is an ErrorResponse, and "
                "without [DONE]. That of a response has named events, and ends with one that has "
                "all of the response."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": "openai"}, {"name": "passed"}, {"name": "service"}],
        "security": [{}, {"bearer": []}],
        "paths": _paths(),
        "components": {
            "schemas": dict(sorted(_schemas().items())),
            "headers": _headers(),
            "parameters": _parameters(),
            "responses": {name: _error(name) for name in STATUSES},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": (
                        "One of auth.keys, where there are some; passed on where the route has "
                        'auth = "pass".'
                    ),
                }
            },
        },
    }


def _schemas() -> dict[str, Schema]:
    found = msgspec.json.schema_components(_ANSWERS, ref_template=REF)[1]
    schemas = {name: simple(schema) for name, schema in found.items()}
    for name in _SENT:
        schemas[name]["required"] = list(schemas[name]["properties"])
    for name in _OPEN:
        schemas[name]["additionalProperties"] = True
        schemas[name]["description"] += EXTENDED
    response_paths.name_kinds(schemas)
    more = request_schemas.schemas() | response_requests.schemas() | response_paths.schemas()
    return schemas | more | stored_paths.schemas()


def _headers() -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 0}
    words = {"type": "string", "minLength": 1}
    told = {
        "x-request-id": ("The request's id: the client's own if it is sane.", True, words),
        "openai-processing-ms": ("From the request's head to the answer's.", True, whole),
        "openai-version": ("Of OpenAI's API.", True, {"const": VERSION.decode()}),
        "Retry-After": ("When to try again, in seconds or as a date.", False, words),
        "x-should-retry": (
            "false: the same request meets the same error again. The SDKs obey it.",
            False,
            {"enum": ["true", "false"]},
        ),
        "x-wellspoken-repairs": ("What of the backend's answer was repaired.", False, words),
        "x-wellspoken-stripped": ("The request's keys that were taken out.", False, words),
        "x-wellspoken-warning": ("Why the answer was not stored.", False, words),
        "Allow": ("The methods of this path.", True, words),
    }
    return {
        name: {"description": text, "required": required, "schema": schema}
        for name, (text, required, schema) in told.items()
    }


def _parameters() -> dict[str, Any]:
    told: dict[str, tuple[str, Schema]] = {
        "x-request-id": ("An id for this request; one that is not sane is replaced.", {}),
        "x-wellspoken-extensions": (
            "Which keys beyond OpenAI's the answer may hold; the route's setting if absent.",
            {"enum": ["none", "known", "all"]},
        ),
        "x-wellspoken-keep": (
            "Single keys that the answer keeps, at most 32.",
            {"pattern": "^[ ,]*([A-Za-z_][A-Za-z0-9_.-]{0,63}[ ,]*)*$"},
        ),
        "x-wellspoken-explain": ("1: a stream ends with a comment that names the repairs.", {}),
    }
    return {
        name: {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            "schema": {"type": "string", **schema},
        }
        for name, (text, schema) in told.items()
    }


def _error(status: str) -> dict[str, Any]:
    """Return the response of a failure."""
    shape = ref("schemas", "ErrorResponse")
    named = {name: ref("headers", name) for name in (*EVERY, "x-should-retry")}
    if status == "405":
        named["Allow"] = ref("headers", "Allow")
    if status in map(str, WAIT):
        named["Retry-After"] = ref("headers", "Retry-After")
    return {
        "description": STATUSES[status],
        "headers": named,
        "content": {"application/json": {"schema": shape}},
    }


def _event(chunk: str) -> Schema:
    """Return the schema of one event of a stream; OpenAPI 3.2 would call it an itemSchema."""
    chunks = [ref("schemas", chunk), ref("schemas", "ErrorResponse")]
    held = {"contentMediaType": "application/json", "contentSchema": {"anyOf": chunks}}
    return {
        "description": "One event; the last is [DONE], or an ErrorResponse.",
        "type": "object",
        "properties": {
            "event": {"const": "message", "description": "Not written, since it is the default."},
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, held]},
        },
        "required": ["data"],
        "additionalProperties": False,
    }


def _post_operation(
    name: str, summary: str, body: str, answer: dict[str, Any], example: Any
) -> Any:
    """Return an operation that asks a backend and translates its answer."""
    parameters = [ref("parameters", each) for each in _parameters()]
    wanted = {"required": True, "content": json_content(body, example)}
    errors = (*ANYWHERE, *WITH_BODY, *FROM_BACKEND)
    return {
        "post": operation(
            name, "openai", summary, answer, errors, parameters=parameters, requestBody=wanted
        )
    }


def _paths() -> dict[str, Any]:
    said = [{"role": "user", "content": "Say hello."}]
    completed = json_content("ChatCompletion")
    completed["text/event-stream"] = {"schema": _event("ChatCompletionChunk")}
    texts = json_content("Completion")
    texts["text/event-stream"] = {"schema": _event("CompletionChunk")}
    streams = "The answer; with stream: true its chunks, each the data of one event."
    stored = stored_paths.paths()
    return {
        "/v1/chat/completions": stored.pop("/v1/chat/completions")
        | _post_operation(
            "createChatCompletion",
            "Answer a conversation.",
            "ChatRequest",
            response(streams, completed, *OURS),
            {"model": "tiny", "messages": said, "logprobs": True, "top_logprobs": 2},
        ),
        "/v1/completions": _post_operation(
            "createCompletion",
            "Continue a text (OpenAI's older endpoint).",
            "CompletionRequest",
            response(streams, texts, *OURS),
            {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16},
        ),
        "/v1/embeddings": _post_operation(
            "createEmbedding",
            "Embed texts.",
            "EmbeddingRequest",
            response("One vector an input.", json_content("CreateEmbeddingResponse"), *OURS),
            {"model": "tiny", "input": "Once upon a time", "encoding_format": "float"},
        ),
        "/v1/responses": _post_operation(
            "createResponse",
            "Answer a conversation, as OpenAI's Responses API.",
            "ResponseRequest",
            response(streams, response_paths.content(), *OURS),
            {"model": "tiny", "input": "Say hello.", "max_output_tokens": 16, "top_logprobs": 2},
        ),
        **response_paths.paths(),
        **{path: _pass_through(path) for path in PASSED},
        **_read_paths(),
        **stored,
    }


def _pass_through(path: str) -> dict[str, Any]:
    """Return an endpoint whose bytes are the backend's, in both directions."""
    body = {"schema": {"type": "object"}}
    wanted = {"required": True, "content": {"application/json": body}}
    content: dict[str, Any] = {kind: {} for kind in ("application/json", "text/event-stream")}
    name = "pass" + "".join(word.capitalize() for word in re.split("[/_]", path))
    errors = (*ANYWHERE, *WITH_BODY, *FROM_BACKEND)
    answer = response("The backend's own answer.", content)
    made = operation(name, "passed", TITLES[path], answer, errors, requestBody=wanted)
    if path.startswith("/v1/messages"):  # Anthropic's clients read Anthropic's errors
        either = {"schema": {"type": "object"}}
        told = response(
            "A refusal or a failure, in Anthropic's own form.", {"application/json": either}
        )
        made["responses"] |= {"400": told, "404": told, "429": told, "4XX": told, "5XX": told}
    return {"post": made}


def _read_paths() -> dict[str, Any]:
    """Return what GET answers."""
    model = {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "The model's name; it may hold slashes.",
        "schema": {"type": "string", "minLength": 1},
    }
    one = get_operation(
        "retrieveModel",
        "openai",
        "Describe one model.",
        response("The model.", json_content("Model")),
        "400", "401", "404", "429", "4XX", *FROM_BACKEND,
    )  # fmt: skip
    one["get"]["parameters"] = [model]
    backends = ("400", "401", *FROM_BACKEND)
    models = response("The models.", json_content("ModelList"))
    able = response("What becomes of each parameter.", json_content("Capabilities"))
    numbers = response("The metrics.", {"text/plain": {"schema": {"type": "string"}}})
    own = response("This document.", {"application/json": {"schema": {"type": "object"}}})
    alive = response("It runs.", json_content("Ready"))
    front = response("What this proxy is.", json_content("Overview"))
    front["content"]["text/html"] = {"schema": {"type": "string"}}
    return {
        "/": get_operation(
            "overview",
            "service",
            "Say what this proxy is: a page in a browser; a backend's own page with ui = true.",
            front,
            "400",
        ),
        "/v1/models": get_operation("listModels", "openai", "List the models.", models, *backends),
        "/v1/models/{model}": one,
        "/v1/capabilities": get_operation(
            "listCapabilities",
            "service",
            "For each model, what is native, emulated and refused.",
            able,
            *backends,
        ),
        "/livez": get_operation("livez", "service", "Say whether the process runs.", alive, "400"),
        "/readyz": _ready_operation("readyz"),
        "/health": _ready_operation("health"),
        "/metrics": get_operation("metrics", "service", "Prometheus' text format.", numbers, "400"),
        "/backend/metrics": _backend_metrics(),
        "/openapi.json": get_operation("openapi", "service", "This document.", own, "400"),
    }


def _backend_metrics() -> dict[str, Any]:
    text = {"schema": {"type": "string"}}
    kinds = ("text/plain", "application/openmetrics-text")
    made: dict[str, Any] = get_operation(
        "backendMetrics",
        "service",
        "A backend's own metrics, unchanged; the engine's, where the proxy runs one.",
        response("What the backend answers to GET /metrics.", dict.fromkeys(kinds, text)),
        "400", "404", "4XX", *FROM_BACKEND,
    )  # fmt: skip
    made["get"]["parameters"] = [
        {
            "name": "backend",
            "in": "query",
            "required": False,
            "description": "Which backend, where there are several and none is the engine.",
            "schema": {"type": "string", "minLength": 1},
        }
    ]
    return made


def _ready_operation(name: str) -> dict[str, Any]:
    yes = response("Requests are answered.", json_content("Ready"))
    no = response("They are not, and why.", json_content("Unready"), "Retry-After")
    made: dict[str, Any] = get_operation(
        name, "service", "Say whether requests would be answered.", yes, "400"
    )
    made["get"]["responses"]["503"] = no
    return made


def encode_document() -> bytes:
    """Return the document as the file has it."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(encode_document())
