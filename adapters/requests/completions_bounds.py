"""What a completions request may hold: OpenAI's bounds, and the few that protect any backend.

Source: OpenAI's published OpenAPI document (API 2.3.0). `strict` is a route's `bounds = "openai"`;
without it a value passes that only OpenAI itself would refuse.
"""

from __future__ import annotations

from typing import Any, Final

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.chat_bounds import (
    DECIMALS,
    GUARDS,
    INT64,
    MAX_STOPS,
    MAX_STOPS_ANY,
    logit_bias,
    number,
    numbers,
    stop,
)
from wellspoken.adapters.requests.errors import type_of
from wellspoken.adapters.requests.shapes import NATIVE, CompletionRequest, TokenIds

MAX_CHOICES: Final = 128
"""The most choices that one request may make a backend generate, over all its prompts."""

MAX_BEST_OF: Final = 20
MAX_LOGPROBS: Final = 5
MAX_TOKEN_ID: Final = 2**31 - 1  # llama.cpp keeps ids in 32 bits, and a larger one would wrap

_NULL: Final = b"null"
_KINDS: Final[dict[type, str]] = {str: "a string", int: "an integer", list: "an array of integers"}
_FORMS: Final = (
    "Send a string, an array of strings, an array of token ids, or an array of arrays of token ids."
)


def check(request: CompletionRequest, strict: bool) -> None:
    """Raise `RequestError` for the first value out of bounds."""
    if strict and not request.model and not request.native:  # llama.cpp's clients name no model
        raise errors.no_model()
    if request.prompt is None:
        raise errors.missing("prompt", _FORMS)
    if request.native and request.oai_compat is False:
        count = 1  # llama.cpp's own forms of a prompt, for it to read
    else:
        count = _prompt(request.prompt)
    numbers(request, "integer", GUARDS)
    for name in NATIVE:
        number(request, name, "integer", -INT64, INT64 - 1, client_key(request, name))
    number(request, "best_of", "integer", 1, MAX_BEST_OF if strict else MAX_CHOICES)
    _choices(request, count)
    stop(request, MAX_STOPS if strict else MAX_STOPS_ANY)
    if strict:
        _openai(request)


def client_key(request: CompletionRequest, name: str) -> str:
    """Return the key under which the client sent `max_tokens` or `logprobs`."""
    raw = request.fields.get(name)
    return name if raw is not None and bytes(raw) != _NULL else NATIVE[name]


def _openai(request: CompletionRequest) -> None:
    number(request, "max_tokens", "integer", 0, None, client_key(request, "max_tokens"))
    number(request, "logprobs", "integer", 0, MAX_LOGPROBS, client_key(request, "logprobs"))
    numbers(request, "decimal", DECIMALS)
    if request.stream_options is not None and not request.stream:
        raise errors.not_allowed("stream_options", "'stream' is true")
    if request.logit_bias is not None:
        logit_bias(request.logit_bias)


def _choices(request: CompletionRequest, prompts: int) -> None:
    """Check how many choices are generated, of which `n` for each prompt are answered."""
    n = request.n or 1
    best_of = request.best_of
    if best_of is not None and best_of < n:
        raise errors.invalid(
            "best_of",
            f"Invalid 'best_of': it is {best_of}, but 'n' asks for {n} choices of them. Send at "
            "least 'n', or leave it out.",
        )
    if best_of is not None and best_of > n and request.stream:
        raise errors.invalid(
            "best_of",
            f"Invalid 'best_of': the best {n} of {best_of} choices are known only when all have "
            "ended, so they cannot be streamed. Leave out 'best_of' or 'stream'.",
        )
    each = max(n, best_of or 1)
    if prompts * each > MAX_CHOICES:
        name = "n" if each == n else "best_of"
        raise errors.invalid(
            name,
            f"Invalid '{name}': {prompts} prompts with {each} choices each are {prompts * each} "
            f"choices. Ask for at most {MAX_CHOICES} in one request.",
        )


def _prompt(prompt: Any) -> int:
    """Return how many prompts there are; raise `RequestError` for what is none of OpenAI's forms.

    The first element says which form an array has.
    """
    if isinstance(prompt, str | TokenIds):  # whose bounds are these
        return 1
    if not isinstance(prompt, list):
        raise errors.wrong_type("prompt", "a string or an array", type_of(prompt))
    if not prompt:
        raise errors.empty("prompt", "array")
    first = type(prompt[0])
    if first not in _KINDS:
        raise errors.wrong_type("prompt[0]", "a string, an integer or an array", type_of(prompt[0]))
    _alike(prompt, first, "prompt")
    if first is int:
        _token_ids(prompt, "prompt")
        return 1
    if len(prompt) > MAX_CHOICES:  # before a look at each of what may be millions
        raise errors.too_long("prompt", "array", MAX_CHOICES, len(prompt))
    if first is list:
        for index, ids in enumerate(prompt):
            param = f"prompt[{index}]"
            if not ids:
                raise errors.empty(param, "array")
            _alike(ids, int, param)
            _token_ids(ids, param)
    return len(prompt)


def _alike(values: list[Any], wanted: type, param: str) -> None:
    if set(map(type, values)) != {wanted}:
        index, other = next((i, v) for i, v in enumerate(values) if type(v) is not wanted)
        raise errors.wrong_type(f"{param}[{index}]", _KINDS[wanted], type_of(other))


def _token_ids(ids: list[int], param: str) -> None:
    if min(ids) < 0 or max(ids) > MAX_TOKEN_ID:
        index, bad = next((i, v) for i, v in enumerate(ids) if not 0 <= v <= MAX_TOKEN_ID)
        raise errors.out_of_range(f"{param}[{index}]", "integer", str(bad), 0, MAX_TOKEN_ID)
