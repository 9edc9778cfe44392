"""The contract of a JSON answer: envelope, choices, messages, usage, errors.

Each rule yields what is wrong, in words for people. The sources are OpenAI's API reference and what
its SDKs and their users' code do with an answer; adapters/README.md lists who breaks which.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from wellspoken.proxy.doctor.model import Context, Heard, Lacks, Wrong, plain, shown

REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
TOP = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"}
)
CHOICE = frozenset({"index", "message", "logprobs", "finish_reason"})
OMITTED = ("tool_calls", "function_call", "annotations", "audio")
MESSAGE = frozenset({"role", "content", "refusal", "reasoning_content", *OMITTED})
DETAILS = {
    "prompt_tokens_details": frozenset(
        {"audio_tokens", "cached_tokens", "cache_write_tokens", "image_tokens", "text_tokens"}
    ),
    "completion_tokens_details": frozenset(
        {
            "accepted_prediction_tokens",
            "audio_tokens",
            "reasoning_tokens",
            "rejected_prediction_tokens",
            "text_tokens",
        }
    ),
}
REFUSALS = frozenset({400, 404, 405, 422, 501})
"""What a server answers to a request that it cannot do."""

_VISIBLE = re.compile(r"[\x21-\x7e]{8,}")
DAY = 86_400


def is_int(value: object) -> bool:
    """Say whether a JSON value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Say whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_text(value: object) -> bool:
    """Say whether a JSON value is a string with something in it."""
    return isinstance(value, str) and bool(value)


def strict_json(data: bytes) -> Any:
    """Return the JSON value in `data`. Raises ValueError, also for NaN and a key that is twice."""
    return json.loads(data.decode(), parse_constant=_no_number, object_pairs_hook=_distinct)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def object_of(data: bytes, what: str = "the answer") -> dict[str, Any]:
    """Return the JSON object in `data`. Raises Wrong."""
    try:
        value = strict_json(data)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{what} is not JSON ({plain(str(error), 80)})") from error
    if not isinstance(value, dict):
        raise Wrong(f"{what} is no JSON object")
    return value


def answered(heard: Heard, *, basic: bool = False) -> Heard:
    """Return an answer with status 200 that is whole. Raises Wrong, and Lacks for a proper refusal.

    `basic`: what is asked for is no extra that a server may lack.
    """
    if heard.failure:
        raise Wrong(heard.failure)
    if heard.status == 200:
        return heard
    told = f"status {heard.status}: {message_of(heard.body)}"
    if basic or heard.status not in REFUSALS:
        raise Wrong(told)
    wrong = list(error_object(heard))
    if wrong:
        raise Wrong(f"{told} ({wrong[0]})")
    raise Lacks(told)


def body_of(heard: Heard, *, basic: bool = False) -> dict[str, Any]:
    """Return the object of an answer with status 200. Raises Wrong and Lacks."""
    return object_of(answered(heard, basic=basic).body)


def message_of(data: bytes) -> str:
    """Return the words of an error, in whatever form, for people."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return plain(re.sub(rb"<[^>]*>", b" ", data).decode("utf-8", "replace")) or "an empty body"
    found = value
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return plain(found) if isinstance(found, str) else shown(found)


def choices_of(answer: Mapping[str, Any], kind: str = "message") -> list[dict[str, Any]]:
    """Return the choices, each an object with an object under `kind` ("": none). Raises Wrong."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise Wrong(f"choices is {shown(choices)}, no list")
    for choice in choices:
        if not isinstance(choice, dict):
            raise Wrong(f"a choice is {shown(choice)}, no object")
        if kind and not isinstance(choice.get(kind), dict):
            raise Wrong(f"{kind} is {shown(choice.get(kind))}, no object")
    return choices


def only_choice(answer: Mapping[str, Any], kind: str = "message") -> dict[str, Any]:
    """Return the first choice. Raises Wrong where there is none."""
    choices = choices_of(answer, kind)
    if not choices:
        raise Wrong("there is no choice")
    return choices[0]


def content_of(choice: Mapping[str, Any]) -> str:
    """Return a choice's text, "" for none. Raises Wrong for what is no text."""
    content = choice["message"].get("content")
    if content is not None and not isinstance(content, str):
        raise Wrong(f"content is {shown(content)}, no text")
    return content or ""


def extra_keys(found: Mapping[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    """Refuse keys that OpenAI's specification does not have."""
    extra = sorted(found.keys() - known)
    if extra:
        yield f"{where} has keys that are not OpenAI's: {plain(', '.join(extra))}"


def nulls(found: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Iterator[str]:
    """Refuse null, and an empty list of calls, where the key should be left out."""
    for key in keys:
        if key in found and (found[key] is None or (key == "tool_calls" and found[key] == [])):
            yield f"{where} has {key} {shown(found[key])} instead of leaving it out"


def envelope(answer: Mapping[str, Any], kind: str, context: Context) -> Iterator[str]:
    """Check object, model and the optional keys beside them."""
    if answer.get("object") != kind:
        yield f"object is {shown(answer.get('object'))}, not {shown(kind)}"
    if answer.get("model") != context.model:
        yield f"model is {shown(answer.get('model'))}, not the one that was asked for"
    yield from nulls(answer, ("system_fingerprint", "service_tier"), "the answer")
    if "system_fingerprint" in answer and not isinstance(answer["system_fingerprint"], str | None):
        yield f"system_fingerprint is {shown(answer['system_fingerprint'])}, no text"


def identity(answer: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Check the id's form."""
    found = answer.get("id")
    rest = found[len(prefix) :] if isinstance(found, str) and found.startswith(prefix) else ""
    if not _VISIBLE.fullmatch(rest):
        yield f"id is {shown(found)}, not {prefix} and something of one's own"


def created(answer: Mapping[str, Any], context: Context) -> Iterator[str]:
    """Check that the time is one, and now."""
    found = answer.get("created")
    if not isinstance(found, int) or not is_int(found) or abs(found - context.now) > DAY:
        yield f"created is {shown(found)}, not the present time in seconds since 1970"


def reason(choice: Mapping[str, Any], *, called: bool) -> Iterator[str]:
    """Check a finish reason against the enum and against what the choice holds."""
    found = choice.get("finish_reason")
    if "finish_reason" not in choice:
        yield "finish_reason is missing"
    elif not isinstance(found, str) or found not in REASONS:
        yield f"finish_reason is {shown(found)}, none of OpenAI's five"
    elif not called and found in ("tool_calls", "function_call"):
        yield f"finish_reason is {shown(found)}, but nothing was called"


def message(found: Mapping[str, Any]) -> Iterator[str]:
    """Check a body's message."""
    yield from extra_keys(found, MESSAGE, "the message")
    yield from nulls(found, OMITTED, "the message")
    if found.get("role") != "assistant":
        yield f"role is {shown(found.get('role'))}, not assistant"
    refusal = found.get("refusal")
    if "refusal" not in found:
        yield "the message has no refusal, which should be null"
    elif refusal is not None and not is_text(refusal):
        yield f"refusal is {shown(refusal)}"
    content = found.get("content")
    beside = found.get("tool_calls") or found.get("function_call") or refusal
    if content is None and not beside:
        yield "content is null or missing"
    elif content is not None and not isinstance(content, str):
        yield f"content is {shown(content)}, no text"


def usage(found: Any, limit: int | None = None) -> Iterator[str]:
    """Check one usage object; `limit`: the most tokens that the answer may have."""
    if not isinstance(found, dict):
        yield f"usage is {shown(found)}"
        return
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    yield from extra_keys(found, frozenset(counts) | DETAILS.keys(), "usage")
    yield from nulls(found, tuple(DETAILS), "usage")
    numbers = [found.get(key) for key in counts]
    whole = [number for number in numbers if isinstance(number, int) and is_int(number)]
    completion = whole[1] if len(whole) == 3 else 0
    if len(whole) < 3 or whole[0] < 1 or completion < 0 or whole[0] + completion != whole[2]:
        one, other, both = map(shown, numbers)
        yield f"usage does not add up: {one} + {other} = {both}"
    elif limit is not None and completion > limit:
        yield f"usage counts {completion} tokens, but at most {limit} were asked for"
    for key, known in DETAILS.items():
        detail = found.get(key)
        if isinstance(detail, dict):
            yield from extra_keys(detail, known, key)
            if not all(is_int(value) for name, value in detail.items() if name in known):
                yield f"{key} is {shown(detail)}, not numbers"
        elif detail is not None:
            yield f"{key} is {shown(detail)}"


def error_object(heard: Heard) -> Iterator[str]:
    """Check an error's body: OpenAI's envelope with its four keys."""
    if heard.content_type != "application/json":
        yield f"the error's content type is {shown(heard.content_type)}"
    try:
        value = object_of(heard.body, "the error")
    except Wrong as why:
        yield str(why)
        return
    error = value.get("error")
    if value.keys() != {"error"} or not isinstance(error, dict):
        yield f"the error is not in {{'error': {{...}}}}: {shown(value)}"
        return
    if error.keys() != {"message", "type", "param", "code"}:
        yield f"the error has the keys {', '.join(sorted(error))}, not message, type, param, code"
    for key in ("message", "type"):
        if not is_text(error.get(key)):
            yield f"the error's {key} is {shown(error.get(key))}"
    for key in ("param", "code"):
        if not isinstance(error.get(key), str | None):
            yield f"the error's {key} is {shown(error.get(key))}, neither text nor null"
