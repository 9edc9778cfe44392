"""The proxy's own OpenAPI 3.1 document, made of the Structs: what GET /openapi.json serves.

    python -m wellspoken.proxy.openapi > proxy/openapi.json     (or: make openapi)

The answers' schemas are those of adapters/answers.py, except that objects which extensions may add
keys to are open; the requests' are in openapi_requests.py. No aiohttp here: data in, a dict out.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from typing import Any, Final

import msgspec

from wellspoken.adapters import answers
from wellspoken.adapters.embeddings import EMBEDDINGS
from wellspoken.adapters.registry import BACKENDS
from wellspoken.proxy import openapi_requests
from wellspoken.proxy.openapi_requests import REF, Schema, simple
from wellspoken.proxy.openapi_text import EXTENDED, STATUSES, TITLES
from wellspoken.proxy.replies import VERSION
from wellspoken.proxy.replying import WAIT

ALIASES: Final = {
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/completion": "/v1/completions",
    "/embeddings": "/v1/embeddings",
    "/models": "/v1/models",
}
"""Other paths of the same; the second and third read llama.cpp's own names too."""

PASSED: Final = tuple(
    sorted({path for one in BACKENDS.values() for path in one.passes} - set(EMBEDDINGS))
)
"""Endpoints that pass through byte for byte to the backends that have them."""

_SENT: Final = ("Capabilities", "Capability", "Model", "ModelCapabilities", "ModelList")
"""Answers whose every key is always there."""

_OPEN: Final = (
    "AnswerMessage", "ChatChoice", "ChatCompletion", "ChatCompletionChunk", "ChunkChoice",
    "Completion", "CompletionChunk", "CompletionTokensDetails", "CompletionUsage", "Delta",
    "CreateEmbeddingResponse", "Embedding", "EmbeddingUsage", "PromptTokensDetails", "TextChoice",
    "TextChunkChoice",
)  # fmt: skip
"""Answers that extensions may add keys to."""

_ANSWERS: Final = (
    answers.Capabilities, answers.ChatCompletion, answers.ChatCompletionChunk, answers.Completion,
    answers.CompletionChunk, answers.CreateEmbeddingResponse, answers.ErrorResponse,
    answers.ModelList, answers.Ready, answers.Unready,
)  # fmt: skip

_EVERY: Final = ("x-request-id", "openai-processing-ms", "openai-version")
_OURS: Final = ("x-wellspoken-repairs", "x-wellspoken-stripped")
_ANYWHERE: Final = ("403", "405", "431", "500", "505", "5XX")
_WITH_BODY: Final = ("400", "401", "404", "408", "413", "415", "429", "4XX")
_FROM_BACKEND: Final = ("501", "502", "503", "504")


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
                "without [DONE]."
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
                    "description": 'Passed on where the route has auth = "pass", else not read.',
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
    return schemas | openapi_requests.schemas()


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
    shape = _ref("schemas", "ErrorResponse")
    named = {name: _ref("headers", name) for name in (*_EVERY, "x-should-retry")}
    if status == "405":
        named["Allow"] = _ref("headers", "Allow")
    if status in map(str, WAIT):
        named["Retry-After"] = _ref("headers", "Retry-After")
    return {
        "description": STATUSES[status],
        "headers": named,
        "content": {"application/json": {"schema": shape}},
    }


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _answer(text: str, content: dict[str, Any], *headers: str) -> dict[str, Any]:
    named = {name: _ref("headers", name) for name in (*_EVERY, *headers)}
    return {"description": text, "headers": named, "content": content}


def _json(name: str, example: Any = None) -> dict[str, Any]:
    made: dict[str, Any] = {"schema": _ref("schemas", name)}
    return {"application/json": made if example is None else {**made, "example": example}}


def _event(chunk: str) -> Schema:
    """Return the schema of one event of a stream; OpenAPI 3.2 would call it an itemSchema."""
    chunks = [_ref("schemas", chunk), _ref("schemas", "ErrorResponse")]
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


def _operation(
    name: str,
    tag: str,
    summary: str,
    answer: dict[str, Any],
    errors: tuple[str, ...],
    **more: Any,
) -> dict[str, Any]:
    responses = {"200": answer} | {code: _ref("responses", code) for code in errors}
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        **more,
        "responses": dict(sorted(responses.items())),
    }


def _posted(name: str, summary: str, body: str, answer: dict[str, Any], example: Any) -> Any:
    """Return an operation that asks a backend and translates its answer."""
    parameters = [_ref("parameters", each) for each in _parameters()]
    wanted = {"required": True, "content": _json(body, example)}
    errors = (*_ANYWHERE, *_WITH_BODY, *_FROM_BACKEND)
    return {
        "post": _operation(
            name, "openai", summary, answer, errors, parameters=parameters, requestBody=wanted
        )
    }


def _got(name: str, tag: str, summary: str, answer: dict[str, Any], *errors: str) -> Any:
    return {"get": _operation(name, tag, summary, answer, (*_ANYWHERE, *errors))}


def _paths() -> dict[str, Any]:
    said = [{"role": "user", "content": "Say hello."}]
    completed = _json("ChatCompletion")
    completed["text/event-stream"] = {"schema": _event("ChatCompletionChunk")}
    texts = _json("Completion")
    texts["text/event-stream"] = {"schema": _event("CompletionChunk")}
    streams = "The answer; with stream: true its chunks, each the data of one event."
    return {
        "/v1/chat/completions": _posted(
            "createChatCompletion",
            "Answer a conversation.",
            "ChatRequest",
            _answer(streams, completed, *_OURS),
            {"model": "tiny", "messages": said, "logprobs": True, "top_logprobs": 2},
        ),
        "/v1/completions": _posted(
            "createCompletion",
            "Continue a text (OpenAI's older endpoint).",
            "CompletionRequest",
            _answer(streams, texts, *_OURS),
            {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 16},
        ),
        "/v1/embeddings": _posted(
            "createEmbedding",
            "Embed texts.",
            "EmbeddingRequest",
            _answer("One vector an input.", _json("CreateEmbeddingResponse"), *_OURS),
            {"model": "tiny", "input": "Once upon a time", "encoding_format": "float"},
        ),
        **{path: _passing(path) for path in PASSED},
        **_readings(),
    }


def _passing(path: str) -> dict[str, Any]:
    """Return an endpoint whose bytes are the backend's, in both directions."""
    body = {"schema": {"type": "object"}}
    wanted = {"required": True, "content": {"application/json": body}}
    content: dict[str, Any] = {kind: {} for kind in ("application/json", "text/event-stream")}
    name = "pass" + "".join(word.capitalize() for word in re.split("[/_]", path))
    errors = (*_ANYWHERE, *_WITH_BODY, *_FROM_BACKEND)
    answer = _answer("The backend's own answer.", content)
    made = _operation(name, "passed", TITLES[path], answer, errors, requestBody=wanted)
    if path.startswith("/v1/messages"):  # Anthropic's clients read Anthropic's errors
        either = {"schema": {"type": "object"}}
        told = _answer(
            "A refusal or a failure, in Anthropic's own form.", {"application/json": either}
        )
        made["responses"] |= {"400": told, "404": told, "429": told, "4XX": told, "5XX": told}
    return {"post": made}


def _readings() -> dict[str, Any]:
    """Return what GET answers."""
    model = {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "The model's name; it may hold slashes.",
        "schema": {"type": "string", "minLength": 1},
    }
    one = _got(
        "retrieveModel",
        "openai",
        "Describe one model.",
        _answer("The model.", _json("Model")),
        "400", "404", "429", "4XX", *_FROM_BACKEND,
    )  # fmt: skip
    one["get"]["parameters"] = [model]
    backends = ("400", *_FROM_BACKEND)
    models = _answer("The models.", _json("ModelList"))
    able = _answer("What becomes of each parameter.", _json("Capabilities"))
    numbers = _answer("The metrics.", {"text/plain": {"schema": {"type": "string"}}})
    own = _answer("This document.", {"application/json": {"schema": {"type": "object"}}})
    alive = _answer("It runs.", _json("Ready"))
    return {
        "/v1/models": _got("listModels", "openai", "List the models.", models, *backends),
        "/v1/models/{model}": one,
        "/v1/capabilities": _got(
            "listCapabilities",
            "service",
            "For each model, what is native, emulated and refused.",
            able,
            *backends,
        ),
        "/livez": _got("livez", "service", "Say whether the process runs.", alive, "400"),
        "/readyz": _ready("readyz"),
        "/health": _ready("health"),
        "/metrics": _got("metrics", "service", "Prometheus' text format.", numbers, "400"),
        "/openapi.json": _got("openapi", "service", "This document.", own, "400"),
    }


def _ready(name: str) -> dict[str, Any]:
    yes = _answer("Requests are answered.", _json("Ready"))
    no = _answer("They are not, and why.", _json("Unready"), "Retry-After")
    made: dict[str, Any] = _got(
        name, "service", "Say whether requests would be answered.", yes, "400"
    )
    made["get"]["responses"]["503"] = no
    return made


def written() -> bytes:
    """Return the document as the file has it."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1) + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(written())
