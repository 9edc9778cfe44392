"""Repairs of errors: every shape in which a server says that it failed, as one `Fault`."""

from __future__ import annotations

import re
from typing import Any

from wellspoken.adapters.events import Fault
from wellspoken.adapters.nesting import DEEPEST
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.loose_json import TooDeep, parse
from wellspoken.adapters.repairs.overflow import say_overflow
from wellspoken.adapters.tokens.table import digits

CONTEXT_CODES = frozenset({40303})  # FastChat: CONTEXT_OVERFLOW
_CONTEXT = re.compile(
    r"context (length|size|window)|maximum (context|sequence|model) length|exceed_context|"
    r"exceeds? the (available|maximum|model'?s?) context|max_model_len|max_seq_len|"
    r"too many tokens|prompt (is )?too long|inputs` tokens",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model.{0,200}(does not exist|not found|not exist)", re.IGNORECASE | re.DOTALL
)
_NO_INPUT = re.compile(r"(image|audio|video) input is not supported", re.IGNORECASE)
_NO_LOGITS = re.compile(r"logprobs is not supported for models created with logits_all=False")
_TEXT_ALONE = re.compile(r"\S++ is not a multimodal model")  # vLLM, with the name of the model
_PARTS = {"image": "image_url", "audio": "input_audio", "video": "video_url"}
_TAG = re.compile(r"<(/?+)([a-z]*+)[^<>]*+>?", re.IGNORECASE)  # possessive: linear
_UNSEEN = ("script", "style")
_PLACE = re.compile(r"\.([0-9]+)(?=\.|$)")
_SPACE = re.compile(r"\s+")
LONGEST = 2_000  # characters of a backend's message that are worth a client's time
LONGEST_PAGE = 16_384  # characters of a page that are searched for a message
LONGEST_CODE = 128


def is_error(payload: Any) -> bool:
    """Say whether a JSON answer is an error in any of the shapes seen, not a completion.

    Without choices and usage an `error` that is not null, a `msg`, an `error_code` (FastChat) and a
    `code` of 400 or more are errors too; so is a list of one error (Gemini).
    """
    if isinstance(payload, list):
        return len(payload) == 1 and isinstance(payload[0], dict) and is_error(payload[0])
    if not isinstance(payload, dict):
        return False
    if payload.get("error"):
        return True
    if payload.get("choices"):
        return False
    if _is_failure(payload.get("error_code")):
        return True
    if payload.get("usage"):
        return False
    return (
        payload.get("object") == "error"
        or payload.get("error") is not None
        or any(payload.get(key) for key in _TELLING)
        or bool(payload.get("msg") and _is_failure(payload.get("code")) is not False)
        or (_number(payload.get("code")) or 0) >= 400
    )


_TELLING = ("detail", "message", "errors", "error_type", "error_message")


def _is_failure(code: Any) -> bool | None:
    """Say whether a code tells of an error: None where there is none that can be read."""
    if code is None:
        return None
    return _number(code) not in (0, 200) if _number(code) is not None else bool(code)


def _number(code: Any) -> int | None:
    """Return a code as an int, None where it is none."""
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    return digits(code)


def fault_from(payload: Any, status: int, context: Context) -> Fault:
    """Return the fault that a JSON error payload tells.

    Shapes: OpenAI's own; `error_flat` {object, message, type, code} (vLLM <= 0.10, FuriosaLLM,
    FastChat); `error_string` {"error": "...", "error_type"} (TGI, Ollama); `error_detail` FastAPI's
    detail, a string or a list of {loc, msg}; `error_message_only`. `status` is the HTTP status; an
    error inside a 200 (`error_in_200`) takes its own int code if that is 400-599, else 400 if it
    tells of a context overflow, else 502.
    """
    if isinstance(payload, list) and len(payload) == 1:
        payload = payload[0]
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
    if code is None:
        code = body.get("error_code")
    message = _message(next((body[key] for key in _MESSAGES if body.get(key)), None))
    kind = _message(body.get("type"))[:LONGEST_CODE]
    if _is_overflow(message, code, kind):
        message = say_overflow(message, body, _length_param(context))
    if status < 400:
        context.note("error_in_200")
        own = _number(code if code is not None else body.get("status"))
        overflow = _is_overflow(message, code, kind)
        unsaid = 400 if overflow else _TYPED.get(kind, 502)
        status = own if own is not None and own in _STATUSES else unsaid
    return fault(
        status,
        message or f"The backend answered status {status} without saying why; see its log.",
        _param(body.get("param"), context),
        code,
        kind,
        context,
    )


def _length_param(context: Context) -> str:
    """Return what of the client's request is too long, whatever the backend's endpoint is."""
    return "prompt" if context.exchange.kind == "completions" else "messages"


def _param(given: Any, context: Context) -> str | None:
    """Return a parameter's name; vLLM 0.32 names it as pydantic does (`error_param_path`).

    What is no JSON at all has a place there and no parameter: `body.9`.
    """
    if not isinstance(given, str) or not given:
        return None
    if not given.startswith("body."):
        return given
    context.note("error_param_path")
    path = given.removeprefix("body.")
    return None if path.isdecimal() else _PLACE.sub(r"[\1]", path)


_MESSAGES = ("message", "msg", "error_message", "text")
"""Where an error says what it is; `text` is FastChat's."""
_STATUSES = range(400, 600)
_TYPED = {"invalid_request_error": 400, "rate_limit_error": 429}
"""OpenAI's types of an error whose status nothing else tells."""


def fault_from_text(text: str, status: int, context: Context) -> Fault:
    """Return the fault that a plain-text or HTML answer tells (`error_text`, `error_html`)."""
    if "<html" in text[:2_000].lower() or text.lstrip()[:1] == "<":
        context.note("error_html")
        text = _strip_tags(text[:LONGEST_PAGE])
    else:
        context.note("error_text")
    said = _message(text)
    if status < 400 and _is_overflow(said, None, ""):
        status = 400
    where = f"status {status}" if status >= 300 else "something that is not a chat completion"
    quote = f": {said}" if said else " and no text"
    return fault(
        status if status >= 400 else 502,
        f"The backend answered {where}{quote.rstrip('.')}. {_advice(status)}",
        None,
        None,
        "",
        context,
    )


def payload_of(data: bytes, status: int, context: Context) -> Any:
    """Return the JSON of an answer, or the `Fault` that it is: none at all, or an error's."""
    try:
        payload = parse(data)
    except TooDeep:
        if status < 400:
            return nests_too_deeply(context)
        return fault_from_text(data.decode("utf-8", "replace"), status, context)
    except ValueError:
        return fault_from_text(data.decode("utf-8", "replace"), status, context)
    return fault_from(payload, status, context) if is_error(payload) else payload


def fault_from_event(data: bytes, context: Context) -> Fault:
    """Return the fault that a stream's event of an error tells, JSON or not."""
    try:
        payload = parse(data)
    except ValueError:
        payload = data.decode("utf-8", "replace")
    return fault_from(payload, 200, context)


def _advice(status: int) -> str:
    if status in (429, 503, 504):
        return "It is busy or not ready: try again later."
    if 300 <= status < 400:
        return (
            "A redirect is not followed: set the backend's URL to where it points, which often is "
            "https for http, or the address behind a login page."
        )
    return "Check that the backend's URL names an OpenAI-compatible server and see its log."


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
            f"The backend refused the credentials (status {status}): {message.rstrip('.')}. "
            "Set the backend's key in the proxy's configuration (--upstream-key env:NAME)."
        )
        return Fault(502, message, "server_error", None, "backend_auth_failed")
    if found := _NO_INPUT.match(message):
        return _no_input(_PARTS[found[1].lower()], message, context)
    if context.exchange.parts and _TEXT_ALONE.match(message):
        return _no_input(next(iter(context.exchange.parts)), message, context)
    if _NO_LOGITS.match(message):
        return _no_logprobs(message, context)
    if not 400 <= status <= 599:
        status = 502
    said = _code(status, message, code, kind, context)
    if said == "context_length_exceeded":
        param = param or _length_param(context)
    return Fault(status, message, _type(status), param, said)


def _no_input(part: str, message: str, context: Context) -> Fault:
    """Return the fault of a content part that the model cannot read (`error_content_part`).

    llama.cpp answers 500 for it, whatever the build (b4240 to b11549), as if it could be tried
    again, vLLM 400 without the part; whether a model reads images is known only to the server that
    has loaded it.
    """
    context.note("error_content_part")
    return Fault(
        400,
        f"Content of type '{part}' is not supported by this model. Leave it out, or ask for a "
        f"model that takes it. The backend said: {message}",
        "invalid_request_error",
        context.exchange.parts.get(part, "messages"),
        "unsupported_parameter",
    )


def _no_logprobs(message: str, context: Context) -> Fault:
    """Return the fault of logprobs that a server was not started for (`error_no_logits`).

    llama-cpp-python (0.2.58 to 0.3.36, llama.py) answers 500, as if it could be tried again.
    """
    context.note("error_no_logits")
    return Fault(
        400,
        "The 'logprobs' parameter is not supported by this server as it was started. Start it with "
        f"--logits_all true, or leave the parameter out. The backend said: {message}",
        "invalid_request_error",
        "logprobs",
        "unsupported_parameter",
        retry=False,
    )


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _code(status: int, message: str, code: Any, kind: str, context: Context) -> str | None:
    number = _number(code)
    if number in CONTEXT_CODES or (status < 500 and _is_overflow(message, code, kind)):
        return "context_length_exceeded"
    if status == 404 and _NO_MODEL.search(message):
        return "model_not_found"
    if isinstance(code, str) and code:
        return None if number in _ANY_STATUS else code[:LONGEST_CODE]
    if number is not None:
        context.note("error_code_int")  # vLLM, llama.cpp: the HTTP status once more
        return None if number in _ANY_STATUS else str(number)[:LONGEST_CODE]
    return None


_ANY_STATUS = range(100, 600)


def _is_overflow(message: str, code: Any, kind: str) -> bool:
    """Say whether the prompt was too long for the model."""
    return _number(code) in CONTEXT_CODES or bool(_CONTEXT.search(f"{kind} {message}"))


def _strip_tags(page: str) -> str:
    """Return what a page shows: its text without tags, scripts and styles."""
    out, hidden, place = [], "", 0
    for tag in _TAG.finditer(page):
        if not hidden:
            out.append(page[place : tag.start()])
        place, name = tag.end(), tag[2].lower()
        if hidden:
            hidden = "" if tag[1] and name == hidden else hidden
        elif name in _UNSEEN and not tag[1]:
            hidden = name
    if not hidden:
        out.append(page[place:])
    return " ".join(out)


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
    return _SPACE.sub(" ", text[: 8 * LONGEST]).strip()[:LONGEST]


def nests_too_deeply(context: Context) -> Fault:
    """Return the fault of an answer that is JSON of more levels than are read."""
    return no_completion("its JSON nests too deeply", f"{DEEPEST} levels at most", context)


def no_completion(why: str, expected: str, context: Context) -> Fault:
    """Return the fault of an answer that is JSON but no completion.

    `why` names the field, `expected` says what it should have been.
    """
    kind = "completion" if context.text else "chat completion"
    origin = context.exchange.origin
    return Fault(
        502,
        f"The backend's answer{f' ({origin})' if origin else ''} is not a {kind}: {why}; expected "
        f"{expected}. Check that its URL names an OpenAI-compatible server and that the adapter "
        "fits it.",
        code="upstream_not_a_completion",
    )
