"""Repairs of errors: every shape in which a server says that it failed, as one `Fault`."""

from __future__ import annotations

import re
from typing import Any

from wellspoken.adapters.events import Fault
from wellspoken.adapters.repairs.context import Context

CONTEXT_CODES = frozenset({40303})  # FastChat: CONTEXT_OVERFLOW
_CONTEXT = re.compile(
    r"context (length|size|window)|maximum (context|sequence|model) length|exceed_context|"
    r"max_model_len|max_seq_len|too many tokens|prompt (is )?too long|inputs` tokens",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model.{0,200}(does not exist|not found|not exist)", re.IGNORECASE | re.DOTALL
)
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_SPACE = re.compile(r"\s+")
LONGEST = 2_000  # characters of a backend's message that are worth a client's time


def is_error(payload: Any) -> bool:
    """Say whether a JSON answer is an error in any of the shapes seen, not a completion."""
    if not isinstance(payload, dict):
        return False
    if payload.get("error"):
        return True
    if payload.get("choices") or payload.get("usage"):
        return False
    return payload.get("object") == "error" or any(
        payload.get(key) for key in ("detail", "message", "errors", "error_type", "error_message")
    )


def fault_from(payload: Any, status: int, context: Context) -> Fault:
    """Return the fault that a JSON error payload tells.

    Shapes: OpenAI's own; `error_flat` {object, message, type, code} (vLLM <= 0.10, FuriosaLLM,
    FastChat); `error_string` {"error": "...", "error_type"} (TGI, Ollama); `error_detail` FastAPI's
    detail, a string or a list of {loc, msg}; `error_message_only`. `status` is the HTTP status; an
    error inside a 200 (`error_in_200`) takes its own int code if that is 400-599, else 502.
    """
    body = payload if isinstance(payload, dict) else {"message": payload}
    error = body.get("error")
    if isinstance(error, dict):
        body = {**body, **error} if "message" not in error else error
    elif error:
        context.note("error_string")
        body = {"message": error, "type": body.get("error_type"), "code": body.get("code")}
    elif body.get("detail"):
        context.note("error_detail")
        body = _detail(body["detail"], body)
    elif body.get("object") == "error":
        context.note("error_flat")
    else:
        context.note("error_message_only")
    code = body.get("code")
    if status < 400:
        context.note("error_in_200")
        status = _status(code if code is not None else body.get("status"))
    message = _message(body.get("message") or body.get("msg") or body.get("error_message"))
    param = body.get("param")
    return fault(
        status,
        message or f"The backend answered status {status} without saying why; see its log.",
        param if isinstance(param, str) and param else None,
        code,
        str(body.get("type") or ""),
        context,
    )


def fault_from_text(text: str, status: int, context: Context) -> Fault:
    """Return the fault that a plain-text or HTML answer tells (`error_text`, `error_html`)."""
    if "<html" in text[:2_000].lower() or text.lstrip()[:1] == "<":
        context.note("error_html")
        text = _TAGS.sub(" ", text)
    else:
        context.note("error_text")
    said = _message(text)
    where = f"status {status}" if status >= 400 else "something that is not a chat completion"
    quote = f": {said}" if said else " and no text"
    return fault(
        status if status >= 400 else 502,
        f"The backend answered {where}{quote}. Check that the backend's URL names an "
        "OpenAI-compatible server and see its log.",
        None,
        None,
        "",
        context,
    )


def fault(
    status: int, message: str, param: str | None, code: Any, kind: str, context: Context
) -> Fault:
    """Return the fault with status, type and code as OpenAI spells them.

    A backend's 401 or 403 is our key's fault, so 502 (`error_backend_key`); a redirect or another
    status that is no error is 502. Context overflow is `context_length_exceeded`.
    """
    if status in (401, 403):
        context.note("error_backend_key")
        message = (
            f"The backend refused the proxy's credentials (status {status}): {message} "
            "Set the backend's key in the proxy's configuration (--upstream-key env:NAME)."
        )
        return Fault(502, message, "server_error", None, "backend_auth_failed")
    if not 400 <= status <= 599:
        status = 502
    return Fault(status, message, _type(status), param, _code(status, message, code, kind, context))


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _code(status: int, message: str, code: Any, kind: str, context: Context) -> str | None:
    if code in CONTEXT_CODES or (status < 500 and _CONTEXT.search(f"{kind} {message}")):
        return "context_length_exceeded"
    if status == 404 and _NO_MODEL.search(message):
        return "model_not_found"
    if isinstance(code, str) and code:
        return None if code.isdigit() and 100 <= int(code) <= 599 else code
    if isinstance(code, int) and not isinstance(code, bool):
        context.note("error_code_int")  # vLLM, llama.cpp: the HTTP status once more
        return None if 100 <= code <= 599 else str(code)
    return None


def _status(code: Any) -> int:
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else 502


def _detail(detail: Any, body: dict[str, Any]) -> dict[str, Any]:
    if isinstance(detail, dict):
        return {"message": detail.get("message") or detail.get("msg") or detail, **detail}
    if not isinstance(detail, list):
        return {"message": detail, "code": body.get("code")}
    said, param = [], None
    for item in detail:
        loc = item.get("loc") if isinstance(item, dict) else None
        place = (
            ".".join(str(step) for step in loc if step != "body") if isinstance(loc, list) else ""
        )
        param = param or place or None
        text = item.get("msg") if isinstance(item, dict) else item
        said.append(f"{place}: {text}" if place else str(text))
    return {"message": "; ".join(said), "param": param}


def _message(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return _SPACE.sub(" ", text).strip()[:LONGEST]


def no_completion(why: str) -> Fault:
    """Return the fault of an answer that is JSON but no chat completion."""
    return Fault(
        502,
        f"The backend's answer is not a chat completion: {why}. Check that its URL names an "
        "OpenAI-compatible server and that the adapter fits it.",
        code="upstream_not_a_completion",
    )
