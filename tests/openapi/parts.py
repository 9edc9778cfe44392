"""The pieces that the operations of proxy/endpoints/openapi.json are made of."""

from __future__ import annotations

from typing import Any, Final

EVERY: Final = ("x-request-id", "openai-processing-ms", "openai-version")
OURS: Final = ("x-wellspoken-repairs", "x-wellspoken-stripped", "x-wellspoken-warning")
ANYWHERE: Final = ("403", "405", "431", "500", "505", "5XX")
WITH_BODY: Final = ("400", "401", "404", "408", "413", "415", "429", "4XX")
FROM_BACKEND: Final = ("501", "502", "503", "504")


def ref(kind: str, name: str) -> dict[str, str]:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def response(text: str, content: dict[str, Any], *headers: str) -> dict[str, Any]:
    """Return a response with the headers that every answer has, and these."""
    named = {name: ref("headers", name) for name in (*EVERY, *headers)}
    return {"description": text, "headers": named, "content": content}


def json_content(name: str, example: Any = None) -> dict[str, Any]:
    """Return a content that is JSON of this schema."""
    made: dict[str, Any] = {"schema": ref("schemas", name)}
    return {"application/json": made if example is None else {**made, "example": example}}


def operation(
    name: str,
    tag: str,
    summary: str,
    answer: dict[str, Any],
    errors: tuple[str, ...],
    **more: Any,
) -> dict[str, Any]:
    """Return an operation: what it answers, and the failures that it may meet."""
    responses = {"200": answer} | {code: ref("responses", code) for code in errors}
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        **more,
        "responses": dict(sorted(responses.items())),
    }


def get_operation(name: str, tag: str, summary: str, answer: dict[str, Any], *errors: str) -> Any:
    """Return the operations of a path that answers GET."""
    return {"get": operation(name, tag, summary, answer, (*ANYWHERE, *errors))}
