"""What a refused request is told: OpenAI's error object, its codes and the manner of its texts.

The codes (`invalid_type`, `integer_above_max_value`, ...) and the sentences' form are what
api.openai.com answers, so that clients that look at them work here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import json

UNKNOWN: Final = "unknown_parameter"
"""The code of a parameter that OpenAI does not know."""

_encode = json.Encoder().encode


class RequestError(Exception):
    """A request that cannot be done as sent; `status`, `headers` and `body()` are the answer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers if headers is not None else {}

    def body(self) -> bytes:
        """Return the JSON to answer."""
        return error_json(self.message, self.type, self.param, self.code)


def error_json(message: str, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """Return OpenAI's error object as JSON: all four keys, always."""
    error = {"message": message, "type": type, "param": param, "code": code}
    try:
        return _encode({"error": error})
    except UnicodeEncodeError:  # a text with half a surrogate pair, quoted from a backend
        clean = {
            key: value.encode("utf-8", "replace").decode() if value is not None else None
            for key, value in error.items()
        }
        return _encode({"error": clean})


def short(value: str, limit: int = 64) -> str:
    """Return a client's text for quoting in an error: at most `limit` characters."""
    return value if len(value) <= limit else value[:limit] + "..."


def invalid(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    """A value cannot be taken, for a reason that no other function here has words for."""
    return RequestError(message, param=param, code=code)


def unsupported(param: str, message: str) -> RequestError:
    """A backend, or this proxy, does not do what a parameter asks for."""
    return invalid(param, message, "unsupported_parameter")


def unknown(name: str, advice: str) -> RequestError:
    """No parameter has this name; `advice` says what to do."""
    name = short(name)
    return invalid(name, f"Unknown parameter: '{name}'. {advice}", UNKNOWN)


def missing(param: str, need: str = "") -> RequestError:
    """A required parameter is absent; `need` says what it has to be."""
    text = f"Missing required parameter: '{param}'."
    return invalid(param, f"{text} {need}" if need else text, "missing_required_parameter")


def wrong_type(param: str, expected: str, got: str) -> RequestError:
    """A value has another JSON type; `expected` and `got` as in "an integer"."""
    text = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return invalid(param, text, "invalid_type")


def type_of(value: object) -> str:
    """Return the JSON type of a decoded value, with its article."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def wrong_value(param: str, value: str, allowed: Sequence[str]) -> RequestError:
    """A value is none of `allowed`."""
    names = [f"'{name}'" for name in allowed]
    if len(names) > 1:
        names[-1] = f"and {names[-1]}"
    listed = (", " if len(names) > 2 else " ").join(names)
    verb = "values are" if len(names) > 1 else "value is"
    return invalid(param, f"Invalid value: '{short(value)}'. Supported {verb}: {listed}.")


def out_of_range(param: str, kind: str, value: str, low: float, high: float | None) -> RequestError:
    """A number, `kind` integer or decimal, is not within low..high (None: no upper bound)."""
    text = short(value)
    above = high is not None and float(value) > high
    side, sign, bound = ("above max", "<=", high) if above else ("below min", ">=", low)
    return invalid(
        param,
        f"Invalid '{param}': {kind} {side}imum value. "
        f"Expected a value {sign} {bound}, but got {text} instead.",
        f"{kind}_{side.replace(' ', '_')}_value",
    )


def too_long(param: str, what: str, limit: int, length: int) -> RequestError:
    """A string or an array (`what`) has more than `limit` characters or elements."""
    article = "an" if what == "array" else "a"
    return invalid(
        param,
        f"Invalid '{param}': {what} too long. Expected {article} {what} with maximum length "
        f"{limit}, but got {article} {what} with length {length} instead.",
        f"{what}_above_max_length",
    )


def too_many(param: str, limit: int, count: int) -> RequestError:
    """An object has more than `limit` keys."""
    return invalid(
        param,
        f"Invalid '{param}': too many properties. Expected an object with at most {limit} "
        f"properties, but got an object with {count} properties instead.",
        "object_above_max_properties",
    )


def empty(param: str, what: str) -> RequestError:
    """A string or an array (`what`) that needs content has none."""
    article = "an" if what == "array" else "a"
    return invalid(
        param,
        f"Invalid '{param}': empty {what}. Expected {article} {what} with minimum length 1, "
        f"but got an empty {what} instead.",
        f"empty_{what}",
    )


def not_allowed(param: str, need: str) -> RequestError:
    """A parameter that works only together with another one, which `need` names."""
    return invalid(param, f"The '{param}' parameter is only allowed when {need}.")


def no_model() -> RequestError:
    """The error for a request without a model, in OpenAI's words (it has no param and no code)."""
    return RequestError("you must provide a model parameter")
