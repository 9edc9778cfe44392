"""The published document: fresh, complete, served, and with the bounds that are enforced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.upstream import Upstream
from tests.openapi.document import ALIASES, PASSED, document, encode_document
from tests.openapi.requests import OWN
from tests.openapi.response_requests import refused
from tests.openapi.text import FIELDS, OF_RESPONSES, RESPONSE_FIELDS, STATUSES, TITLES
from tests.proxy.conftest import StartProxy
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.embeddings import EMBEDDINGS, EmbeddingRequest, decode_embeddings
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import (
    MOVED,
    REFUSED,
    ResponseRequest,
    parse_response,
)
from wellspoken.adapters.requests.shapes import ChatRequest, CompletionRequest
from wellspoken.proxy.endpoints import stored
from wellspoken.proxy.endpoints.responses import stored_responses
from wellspoken.proxy.routes import ROUTES

FILE = Path(__file__).parents[3] / "proxy" / "endpoints" / "openapi.json"
DOCUMENT = json.loads(FILE.read_bytes())
SCHEMAS = DOCUMENT["components"]["schemas"]
ONE = "/v1/chat/completions/{completion_id}"
RESPONSE = "/v1/responses/{response_id}"
STORED = (
    ONE,
    f"{ONE}/messages",
    RESPONSE,
    f"{RESPONSE}/input_items",
    f"{RESPONSE}/cancel",
    "/v1/responses/compact",
)


def decode_response(body: bytes) -> None:
    """Check a request for a response as the endpoint does."""
    check_response(parse_response(body), strict=True)


REQUESTS: dict[str, tuple[type[msgspec.Struct], Callable[[bytes], Any], dict[str, Any]]] = {
    "ChatRequest": (
        ChatRequest,
        decode_chat,
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "logprobs": True},
    ),
    "CompletionRequest": (CompletionRequest, decode_completion, {"model": "m", "prompt": "x"}),
    "EmbeddingRequest": (EmbeddingRequest, decode_embeddings, {"model": "m", "input": "x"}),
    "ResponseRequest": (
        ResponseRequest,
        decode_response,
        {"model": "m", "input": "x", "previous_response_id": "resp_12345678"},
    ),
}


def test_the_document_is_fresh() -> None:
    assert FILE.read_bytes() == encode_document(), (
        "proxy/endpoints/openapi.json is stale: make openapi"
    )


async def test_the_document_is_served(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.get(proxy.url("/openapi.json")) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read() == FILE.read_bytes()
    assert upstream.requests == []


def test_every_route_is_described_and_nothing_else() -> None:
    there = (set(ROUTES) - set(ALIASES)) | set(STORED) | {"/"}
    described = set(DOCUMENT["paths"]) - {"/v1/models/{model}"} - set(PASSED) - set(EMBEDDINGS)
    assert described == there
    for path in (*ROUTES, *STORED):
        below = (*stored.routes(path), *stored_responses.routes(path))
        methods = {route.method for route in (*below, *filter(None, [ROUTES.get(path)]))}
        named = {method.upper() for method in DOCUMENT["paths"][ALIASES.get(path, path)]}
        assert named == methods
    assert set(PASSED) == set(TITLES)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_parameter_is_described(name: str) -> None:
    fields = set(REQUESTS[name][0].__struct_fields__) - OWN
    texts, others = FIELDS, set[str]()
    if name == "ResponseRequest":
        texts, others = RESPONSE_FIELDS, {*MOVED, *REFUSED}
    properties = SCHEMAS[name]["properties"]
    assert properties.keys() == fields | others
    assert all(properties[field]["description"] == texts[field] for field in fields - others)


@pytest.mark.parametrize("name", refused())
def test_what_a_response_refuses_is_described_so(name: str) -> None:
    schema = SCHEMAS["ResponseRequest"]["properties"][name]
    assert schema["type"] == "null" and schema["description"].startswith("A 400 unless null")
    plain = {"model": "m", "input": "x"}
    decode_response(json.dumps({**plain, name: None}).encode())
    with pytest.raises(RequestError) as error:
        decode_response(json.dumps({**plain, name: 1}).encode())
    assert error.value.param == name


def test_no_description_is_left_over() -> None:
    fields = {field for kind, _, _ in REQUESTS.values() for field in kind.__struct_fields__}
    assert FIELDS.keys() | OF_RESPONSES.keys() == fields - OWN
    assert all(RESPONSE_FIELDS[name] != FIELDS.get(name) for name in OF_RESPONSES)
    assert OF_RESPONSES.keys() <= set(ResponseRequest.__struct_fields__)


def bounds() -> Iterator[tuple[str, str, Any, Any]]:
    """Return request, field, a value on each bound and one beyond it."""
    for name in REQUESTS:
        for field, schema in SCHEMAS[name]["properties"].items():
            number, beyond = schema.get("type"), {"minimum": -1, "maximum": 1}
            for side, step in beyond.items():
                if side in schema:
                    assert set(number) <= {"integer", "number", "null"}
                    yield name, field, schema[side], schema[side] + step
            if schema.get("maxLength"):
                most = schema["maxLength"]
                yield name, field, "x" * most, "x" * (most + 1)
    stops = {"type": "array", "items": {"type": "string"}, "maxItems": 4}
    for name in ("ChatRequest", "CompletionRequest", "ResponseRequest"):
        assert stops in SCHEMAS[name]["properties"]["stop"]["anyOf"]
        yield name, "stop", ["x"] * 4, ["x"] * 5
        bias = SCHEMAS[name]["properties"]["logit_bias"]["additionalProperties"]
        assert (bias["minimum"], bias["maximum"]) == (-100, 100)
        yield name, "logit_bias", {"1": 100}, {"1": 101}
        yield name, "logit_bias", {"1": -100}, {"1": -101}
    for name in ("ChatRequest", "ResponseRequest"):
        pairs = SCHEMAS[name]["properties"]["metadata"]["maxProperties"]
        yield (
            name,
            "metadata",
            dict.fromkeys(map(str, range(pairs)), ""),
            dict.fromkeys(map(str, range(pairs + 1)), ""),
        )


@pytest.mark.parametrize(("name", "field", "within", "beyond"), list(bounds()))
def test_a_bound_of_the_document_is_the_one_that_is_enforced(
    name: str, field: str, within: Any, beyond: Any
) -> None:
    _, decode, plain = REQUESTS[name]
    more = {"best_of": 20} if field == "n" and name == "CompletionRequest" and within < 2 else {}
    if within is None or field == "best_of":
        more = {}
    decode(json.dumps({**plain, **more, field: within}).encode())
    with pytest.raises(RequestError) as refused:
        decode(json.dumps({**plain, field: beyond}).encode())
    assert (refused.value.param or "").partition(".")[0] == field


@pytest.mark.parametrize("name", REQUESTS)
def test_required_means_required_and_null_means_absent(name: str) -> None:
    _, decode, plain = REQUESTS[name]
    for field, schema in SCHEMAS[name]["properties"].items():
        body = {**plain, field: None}
        if field in SCHEMAS[name]["required"]:
            for less in (body, {key: plain[key] for key in plain if key != field}):
                with pytest.raises(RequestError):
                    decode(json.dumps(less).encode())
        else:
            decode(json.dumps(body).encode())
            allowed = schema.get("type", []), schema.get("enum", []), schema.get("anyOf", [])
            assert "null" in allowed[0] or None in allowed[1] or {"type": "null"} in allowed[2]


def test_the_examples_are_accepted() -> None:
    found = 0
    for item in DOCUMENT["paths"].values():
        media = item.get("post", {}).get("requestBody", {}).get("content", {})
        for content in media.values():
            if "example" in content:
                name = content["schema"]["$ref"].rpartition("/")[2]
                REQUESTS[name][1](json.dumps(content["example"]).encode())
                found += 1
    assert found == len(REQUESTS)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    components = {
        f"#/components/{kind}/{name}"
        for kind, found in DOCUMENT["components"].items()
        for name in found
        if kind != "securitySchemes"
    }
    assert set(references(DOCUMENT)) == components


def test_every_answer_names_the_headers_and_every_error_the_envelope() -> None:
    responses = DOCUMENT["components"]["responses"]
    assert responses.keys() == STATUSES.keys()
    for status, response in responses.items():
        content = response["content"]["application/json"]["schema"]["$ref"]
        assert content == "#/components/schemas/ErrorResponse"
        assert ("Retry-After" in response["headers"]) == (status in ("429", "503"))
    for item in DOCUMENT["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                named = responses.get(response.get("$ref", "").rpartition("/")[2], response)
                assert {"x-request-id", "openai-processing-ms", "openai-version"} <= set(
                    named["headers"]
                )


def test_a_change_of_a_struct_makes_the_file_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    from wellspoken.adapters.requests import chat_bounds

    monkeypatch.setattr(chat_bounds, "MAX_STOPS", 5)
    assert encode_document() != FILE.read_bytes()
    assert document()["openapi"] == "3.1.0"


CALLS: list[tuple[Any, str | None]] = [
    ([{" ": None}], "messages[0].tool_calls[0].id"),
    ([{"id": "a", "type": "function", "function": {"name": "f"}}],
     "messages[0].tool_calls[0].function.arguments"),
    ([{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}], None),
    ([], None),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "param"), CALLS)
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_calls_are_checked_beside_plain_text_too(role: str, calls: Any, param: str | None) -> None:
    """schemathesis found them passed on to llama.cpp, which answers 500."""
    message = {"role": role, "content": "x", "tool_calls": calls}
    body = json.dumps({"model": "m", "messages": [message]}).encode()
    if param is None:
        decode_chat(body)
        return
    with pytest.raises(RequestError) as refused:
        decode_chat(body)
    assert (refused.value.status, refused.value.param) == (400, param)


async def test_a_custom_call_of_the_past_needs_what_a_custom_tool_needs(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """schemathesis found it too: "Unsupported tool call type", a 500 of llama.cpp's."""
    call = {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
    messages = [{"role": "assistant", "content": "x", "tool_calls": [call]}]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    error = await proxy.error(400, messages=messages)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages[0].tool_calls[0]")
    assert upstream.requests == []
