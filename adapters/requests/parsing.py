"""A request's body as JSON: typed, and every top-level value as it was sent.

What cannot be read is refused in OpenAI's words. Types are checked here, values by the bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec import DecodeError, Raw, ValidationError, json

from wellspoken.adapters.nesting import DEEPEST, is_too_deep
from wellspoken.adapters.requests.errors import RequestError, invalid, wrong_type

Decoded = TypeVar("Decoded")

MOST_KEYS: Final = 1000
"""Top-level keys of one request; a million would keep everybody waiting for seconds."""

_decode_fields = json.Decoder(dict[str, Raw]).decode

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FAILURE = re.compile(
    r"Expected `(?P<expected>[^`]+)`, got `(?P<got>\w+)`(?: - at `\$(?P<at>.*)`)?"
)
_TYPES: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_ELEMENTS: Final = {
    "stop": "an array of strings",
    "modalities": "an array of strings",
    "include": "an array of strings",
    "content": "an array of content parts",
    "input": "an array of items",
}


def parse(
    body: bytes, decode: Callable[[bytes], Decoded], example: str, apart: str = ""
) -> tuple[Decoded, dict[str, Raw]]:
    """Return what `decode` makes of `body`, and its top-level values as sent.

    A `model` of null is none, and left out; so is the value of the key `apart` for `decode`.
    Raises `RequestError` 400 in OpenAI's words; `example` is a body for who sends no object.
    """
    fields: dict[str, Raw] = {}
    try:
        if not body.isascii():
            body.decode()  # the skipping of unread values does not look at their encoding
        fields = _decode_fields(body)
        if len(body) > DEEPEST and is_too_deep(body, fields):
            raise RecursionError
        if len(fields) > MOST_KEYS:
            raise RequestError(
                f"The request's body has {len(fields)} keys. Send {MOST_KEYS} at most.",
                code="object_above_max_properties",
            )
        if apart in fields:
            rest = {key: value for key, value in fields.items() if key != apart}
            return decode(json.encode(rest)), fields
        return decode(body), fields
    except ValidationError as error:
        if bytes(fields.get("model", b"")) == b"null":
            named = {key: value for key, value in fields.items() if key != "model"}
            return parse(json.encode(named), decode, example, apart)
        raise _explain(str(error), example) from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(body, error) from None


def _not_json(body: bytes, error: Exception) -> RequestError:
    """Say why the body is not JSON."""
    if not body.strip():
        why = "it is empty"
    elif isinstance(error, RecursionError):
        why = f"it is nested too deeply, and {DEEPEST} levels are the most"
    elif isinstance(error, UnicodeDecodeError):
        why = f"byte {error.start} is not UTF-8"
    else:
        why = str(error).removeprefix("JSON is malformed: ").lower()
        if _SURROGATE.search(body):  # msgspec says it in several ways, "truncated" among them
            why += ", perhaps since a \\ud800-\\udfff escape lacks its other half"
    return RequestError(
        f"The body of the request could not be parsed as JSON: {why}. "
        "Send one JSON object, encoded as UTF-8.",
        code="invalid_json",
    )


def _explain(text: str, example: str) -> RequestError:
    """Turn msgspec's description of a wrong type into OpenAI's."""
    found = _FAILURE.fullmatch(text)
    if found is None:  # "Number out of range - at `$.temperature`"
        what, _, at = text.partition(" - at `$.")
        param = at.rstrip("`").replace("[...]", "") or None
        return invalid(
            param, f"Invalid value for '{param}': {what.lower()}. Send a number of ordinary size."
        )
    param = (found["at"] or "").lstrip(".").replace("[...]", "")
    got = "a decimal number" if found["got"] == "float" else _TYPES[found["got"]]
    if not param:
        return RequestError(
            f"The body of the request has to be a JSON object, but it is {got}. Send {example}.",
            code="invalid_type",
        )
    return wrong_type(param, _spell_types(param, found["expected"]), got)


def _spell_types(param: str, union: str) -> str:
    """Spell msgspec's `str | array | null`; null is not named, since absent is the same."""
    if param == "logit_bias":  # an array is a form that only llama.cpp knows
        return "an object of token ids and numbers"
    names = []
    for name in union.split(" | "):
        if name == "array":
            last = param.rpartition(".")[2]
            names.append(_ELEMENTS.get(last, "an array of objects"))
        elif name != "null":
            names.append(_TYPES[name])
    return " or ".join(names)
