"""What the `input` of a response may hold: its items, each checked where it stands.

The texts are api.openai.com's, and `param` is the place, `input[2].content[0].type`. Keys that are
known to nobody here (`phase`, `annotations`, what an SDK adds) are taken and kept, and no backend
is sent them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import short, type_of

Item = dict[str, Any]
"""One item, decoded."""

ROLES: Final = ("user", "assistant", "system", "developer")
MESSAGE_PARTS: Final = {
    "user": ("input_text", "input_image", "input_file", "input_audio"),
    "assistant": ("output_text", "refusal"),
    "system": ("input_text",),
    "developer": ("input_text",),
}
OUTPUT_PARTS: Final = ("input_text", "input_image", "input_file")
DETAILS: Final = ("low", "high", "auto", "original")
STATUSES: Final = ("in_progress", "completed", "incomplete")
MAX_ID: Final = 64


def check_items(items: Sequence[Any]) -> tuple[str, ...]:
    """Return the ids that item references name; raise `RequestError` 400 for what is malformed."""
    references = []
    for index, item in enumerate(items):
        place = f"input[{index}]"
        if type(item) is not dict:
            raise errors.wrong_type(place, "an object", type_of(item))
        kind = kind_of(item)
        if kind is None:
            raise errors.missing(f"{place}.type", f"It is one of {', '.join(CHECKS)}.")
        if not isinstance(kind, str):
            raise errors.wrong_type(f"{place}.type", "a string", type_of(kind))
        if kind not in CHECKS:
            raise errors.wrong_value(f"{place}.type", kind, tuple(CHECKS))
        if item.get("id") is not None:
            _text(item, "id", place, full=True)
        if item.get("status") is not None:
            _one_of(item, "status", place, STATUSES)
        CHECKS[kind](item, place)
        if kind == "item_reference":
            references.append(item["id"])
    refuse_doubles(items, set())
    return tuple(references)


def refuse_doubles(items: Sequence[Item], seen: set[str]) -> None:
    """Raise `RequestError` 400 for an id that comes again, or is of an item `seen` before.

    Pages of items begin behind an id; and a reference is as large as what it names.
    """
    for item in items:
        id = item.get("id")
        if id in seen:
            raise errors.invalid(
                "input",
                f"Duplicate item found with id {short(id)}. Remove duplicate items from your input "
                "and try again.",
            )
        if id is not None:
            seen.add(id)


def check_lengths(items: Sequence[Item]) -> None:
    """Raise `RequestError` 400 for an id that is longer than OpenAI's are."""
    for index, item in enumerate(items):
        for key in ("id", "call_id"):
            given = item.get(key)
            if isinstance(given, str) and len(given) > MAX_ID:
                raise errors.too_long(f"input[{index}].{key}", "string", MAX_ID, len(given))


def kind_of(item: Item) -> Any:
    """Return an item's type, which messages and references may leave out; None: it has none."""
    kind = item.get("type")
    if kind is not None:
        return kind
    if "role" in item or "content" in item:
        return "message"
    return "item_reference" if "id" in item else None


def _text(item: Item, key: str, place: str, *, full: bool = False) -> str:
    """Return a text that has to be there; `full`: it may not be empty."""
    value = item.get(key)
    if value is None:
        raise errors.missing(f"{place}.{key}", "It is a string.")
    if not isinstance(value, str):
        raise errors.wrong_type(f"{place}.{key}", "a string", type_of(value))
    if full and not value:
        raise errors.empty(f"{place}.{key}", "string")
    return value


def _one_of(item: Item, key: str, place: str, known: Sequence[str]) -> None:
    value = _text(item, key, place)
    if value not in known:
        raise errors.wrong_value(f"{place}.{key}", value, known)


def _message(item: Item, place: str) -> None:
    _one_of(item, "role", place, ROLES)
    content = item.get("content")
    if content is None:
        raise errors.missing(f"{place}.content", "Send a string or an array of content parts.")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        expected = "a string or an array of content parts"
        raise errors.wrong_type(f"{place}.content", expected, type_of(content))
    if not content and item["role"] != "assistant":
        raise errors.empty(f"{place}.content", "array")
    _parts(content, f"{place}.content", MESSAGE_PARTS[item["role"]])


def _parts(parts: list[Any], place: str, known: Sequence[str]) -> None:
    for index, part in enumerate(parts):
        at = f"{place}[{index}]"
        if type(part) is not dict:
            raise errors.wrong_type(at, "an object", type_of(part))
        if part.get("type") is None:
            raise errors.missing(f"{at}.type", f"It is one of {', '.join(known)}.")
        _one_of(part, "type", at, known)
        _PARTS[part["type"]](part, at)


def _text_part(part: Item, place: str) -> None:
    _text(part, "text", place)


def _refusal(part: Item, place: str) -> None:
    _text(part, "refusal", place)


def _image(part: Item, place: str) -> None:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise _no_files(
            f"{place}.file_id", "'image_url': its URL, or the image itself as a data URL"
        )
    _text(part, "image_url", place, full=True)
    if part.get("detail") is not None:
        _one_of(part, "detail", place, DETAILS)


def _file(part: Item, place: str) -> None:
    if part.get("file_data") is None:
        for key in ("file_id", "file_url"):
            if part.get(key) is not None:
                raise _no_files(f"{place}.{key}", "'file_data' and 'filename'")
    _text(part, "file_data", place, full=True)
    if part.get("filename") is not None:
        _text(part, "filename", place)


def _no_files(param: str, instead: str) -> errors.RequestError:
    return errors.unsupported(
        param,
        f"The '{param}' parameter is not supported: this proxy keeps and fetches no files. Send "
        f"{instead}.",
    )


def _audio(part: Item, place: str) -> None:
    given = part.get("input_audio")
    if given is None:
        raise errors.missing(f"{place}.input_audio", "It is an object with data and format.")
    if not isinstance(given, dict):
        raise errors.wrong_type(f"{place}.input_audio", "an object", type_of(given))
    for key in ("data", "format"):
        _text(given, key, f"{place}.input_audio")


def _call(item: Item, place: str) -> None:
    _text(item, "call_id", place, full=True)
    _text(item, "name", place, full=True)
    _text(item, "arguments" if item["type"] == "function_call" else "input", place)
    if item.get("namespace") is not None:
        _text(item, "namespace", place, full=True)


def _output(item: Item, place: str) -> None:
    _text(item, "call_id", place, full=True)
    output = item.get("output")
    if output is None:
        raise errors.missing(f"{place}.output", "Send a string or an array of content parts.")
    if isinstance(output, list):
        _parts(output, f"{place}.output", OUTPUT_PARTS)
    elif not isinstance(output, str):
        expected = "a string or an array of content parts"
        raise errors.wrong_type(f"{place}.output", expected, type_of(output))


def _reasoning(item: Item, place: str) -> None:
    for key, kind, needed in (
        ("summary", "summary_text", True),
        ("content", "reasoning_text", False),
    ):
        given = item.get(key)
        if given is None and needed:
            raise errors.missing(f"{place}.{key}", "It is an array, which may be empty.")
        if given is not None and not isinstance(given, list):
            raise errors.wrong_type(f"{place}.{key}", "an array of objects", type_of(given))
        _parts(given or [], f"{place}.{key}", (kind,))
    if item.get("encrypted_content") is not None:
        _text(item, "encrypted_content", place)


def _reference(item: Item, place: str) -> None:
    _text(item, "id", place, full=True)


CHECKS: Final[dict[str, Callable[[Item, str], None]]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    "item_reference": _reference,
}
"""The type of an item -> what checks it."""

_PARTS: Final[dict[str, Callable[[Item, str], None]]] = {
    "input_text": _text_part,
    "input_image": _image,
    "input_file": _file,
    "input_audio": _audio,
    "output_text": _text_part,
    "refusal": _refusal,
    "summary_text": _text_part,
    "reasoning_text": _text_part,
}
