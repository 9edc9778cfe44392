"""The most that one request may ask of a backend, whatever its route's `bounds` and `vendor` say.

A cap is for what one cheap request can do to a server that everybody shares:

- n, best_of: vLLM copies the request so often before it schedules anything (CVE-2026-34756).
- prompt_logprobs: the whole vocabulary at each token of the prompt is gigabytes (vLLM).
- n_probs: a billion ends llama.cpp b7376; the same number may come as `top_logprobs`.
- n_discard: a negative one writes outside llama.cpp's buffer (CVE-2026-21869); one beyond the
  context ends it (ggml-org/llama.cpp pull request #24786).
- repeat_last_n, dry_penalty_last_n, n_prev: llama.cpp reserves 4 to 8 bytes for each; 200 million
  took b11549 and b7376 from 38 MB to 0.8 and 1.6 GB.
- token ids outside the vocabulary: vLLM's engine ends (pull requests #16529 and #44968), llama.cpp
  ignores them, or takes the lower 32 bits for another token.
- keys that carry a program or a host to call, `DANGEROUS` below.

What passes through to other endpoints meets the same caps by name, `refuse_over`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Final, TypeVar

from msgspec import DecodeError, Meta, Raw, Struct, json, structs

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.completions_bounds import MAX_TOKEN_ID
from wellspoken.adapters.requests.errors import RequestError, short, type_of
from wellspoken.adapters.requests.shapes import (
    ALL_ALTERNATIVES,
    OFF,
    ChatRequest,
    CompletionRequest,
    TokenIds,
)

Asked = TypeVar("Asked", bound=ChatRequest | CompletionRequest)

Most = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class Caps(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that one request may ask of a backend; `allow` names `DANGEROUS` keys that pass.

    `max_tokens` is also what a request without a limit is sent; None: no cap. With `n_probs` or
    `prompt_logprobs` of 1048576 or more, negative numbers (the whole vocabulary) pass too.
    """

    n: Most = 128
    best_of: Most = 128
    max_tokens: Most | None = None
    prompt_logprobs: Count = 20
    n_probs: Count = 1000
    n_discard: Count = 256  # below every context in use: llama.cpp's own default is 512 tokens
    repeat_last_n: Count = 65536
    logit_bias: Count = 1024
    allow: tuple[str, ...] = ()


LIMITS: Final = (
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "max_new_tokens",
    "num_predict",
)
"""What servers call the most tokens of an answer; OpenAI's two names first."""

PASSED_LIMITS: Final = (*LIMITS, "max_output_tokens")
"""The same where it passes through: the last is /v1/responses'."""

NESTED: Final = ("sampling_params", "options", "parameters")
"""Where SGLang's /generate, Ollama's /api and TGI's /generate have their parameters."""

ALTERNATIVES: Final = ("n_probs", "top_logprobs", "top_n_tokens")
"""What servers call the number of a generated token's alternatives."""

HISTORY: Final = ("repeat_last_n", "dry_penalty_last_n", "n_prev")
"""llama.cpp's keys that say for how many tokens it remembers something."""

TOKEN_IDS: Final = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
"""vLLM's lists of token ids, which its GPU kernels use as indices."""

DANGEROUS: Final = {
    "chat_template": "it is a program that the server would run",  # CVE-2025-61620 (vLLM)
    "custom_logit_processor": "it is code that the server would run",  # GHSA-q6mw-hr99-rwh6, SGLang
    "logits_processors": "it names code that the server would run",  # vLLM pull request #11150
    "prompt_embeds": "it is an object that the server would unpack",  # CVE-2025-62164 (vLLM)
    "kv_transfer_params": "it names a host that the server would call",  # vLLM pull request #47843
    "ec_transfer_params": "it names a host that the server would call",  # the same
    "bootstrap_host": "it names a host that the server would call",  # SGLang, disaggregation
}
"""Keys that a route takes only where `Caps.allow` names them, and why."""

PROMPTS: Final = ("prompt", "input", "tokens", "input_ids", "token_ids")
"""Keys of other endpoints that may hold token ids."""

TEMPLATE_KEYS: Final = ("chat_template", "tokenize")
"""Keys of `chat_template_kwargs` that are the renderer's own (CVE-2025-62426, vLLM < 0.11.1)."""

_ARRAY: Final = re.compile(rb'\[\s*[^{"\s]')
_ID: Final = re.compile(r"\s*[+-]?\d+(_\d+)*\s*")
_DIGITS: Final = 20  # more of them are no 64 bits either way, and Python reads no 4301
_INT32: Final = 2**31 - 1  # llama.cpp takes the lower 32 bits of a greater limit
_NUMBERS: Final[dict[str, tuple[str, int | None]]] = {
    "n": ("n", 1),
    "n_cmpl": ("n", 1),
    "best_of": ("best_of", 1),
    **{name: ("max_tokens", None) for name in PASSED_LIMITS},  # a negative one: no limit
    "n_discard": ("n_discard", 0),
    **{name: ("repeat_last_n", -1) for name in HISTORY},  # -1: the size of the context
}
_COUNTS: Final = {"prompt_logprobs": "prompt_logprobs"} | dict.fromkeys(ALTERNATIVES, "n_probs")
CAPPED: Final = frozenset(
    (*_NUMBERS, *_COUNTS, *DANGEROUS, *TOKEN_IDS, *PROMPTS, *NESTED, "logit_bias")
)
"""Every key that a cap looks at."""

_GOT: Final = {
    ord('"'): "a string",
    ord("["): "an array",
    ord("{"): "an object",
    ord("t"): "a boolean",
    ord("f"): "a boolean",
}


def apply_caps(request: Asked, caps: Caps, vocabulary: int | None = None) -> Asked:
    """Return the request with the limit that it lacks; raise `RequestError` 400 for what is capped.

    `vocabulary` is how many token ids the model has, None where nobody told. The request itself is
    never changed.
    """
    fields = request.fields
    _check_named(fields, caps, vocabulary)
    if isinstance(request, CompletionRequest):
        _alternatives(fields, "logprobs", caps.n_probs)
        _prompts(request.prompt, vocabulary)
    if request.logit_bias:
        _bias(request.logit_bias, caps.logit_bias, vocabulary)
    return request if caps.max_tokens is None else _limit(request, caps.max_tokens)


def _check_named(fields: Mapping[str, Raw], caps: Caps, vocabulary: int | None) -> None:
    """Check the values that are capped by their key alone."""
    for name in fields:
        if name in _NUMBERS:
            cap, low = _NUMBERS[name]
            _number(fields, name, low, getattr(caps, cap) or (_INT32 if low is None else 0))
        elif name in _COUNTS:
            _alternatives(fields, name, getattr(caps, _COUNTS[name]))
        elif name in DANGEROUS or name == "chat_template_kwargs":
            _dangerous(fields, name, caps.allow)
        elif name in TOKEN_IDS:
            _inside(_list_ids(fields[name], name), name, vocabulary)


def refuse_over(fields: Mapping[str, Raw], caps: Caps, vocabulary: int | None = None) -> None:
    """Raise `RequestError` 400 for what is capped in a request that passes through.

    `fields` are its top-level values; those of `NESTED` objects count as well. Where there is a cap
    on max_tokens, a negative limit, which means none, is over it.
    """
    for part in (fields, *inner_objects(fields)):
        _check_named(part, caps, vocabulary)
        for name in PASSED_LIMITS if caps.max_tokens is not None else ():
            _number(part, name, 0, caps.max_tokens or 0)
        bias = _decode(part.get("logit_bias"), dict[str, Raw] | list[Any])
        if isinstance(bias, dict | list):
            _bias(bias, caps.logit_bias, vocabulary)
        for name in PROMPTS:
            if _may_hold_ids(part.get(name)):
                _prompts(_decode(part[name]), vocabulary, name)


def passes_tokens(fields: Mapping[str, Raw]) -> bool:
    """Say whether a request that passes through may hold token ids."""
    return any(
        "logit_bias" in part
        or any(name in part for name in TOKEN_IDS)
        or any(_may_hold_ids(part.get(name)) for name in PROMPTS)
        for part in (fields, *inner_objects(fields))
    )


def inner_objects(fields: Mapping[str, Raw]) -> list[Mapping[str, Raw]]:
    """Return the objects of `NESTED` that a request's top-level values have."""
    found: list[Mapping[str, Raw]] = []
    for name in NESTED:
        if name in fields:
            try:
                given = json.decode(fields[name], type=dict[str, Raw] | list[dict[str, Raw]])
            except (DecodeError, RecursionError):
                continue
            found += given if isinstance(given, list) else [given]
    return found


def _may_hold_ids(value: Raw | None) -> bool:
    """Say whether a value is an array that begins with neither a text nor an object.

    llama.cpp's mixed arrays may, and it looks at their ids itself.
    """
    return value is not None and _ARRAY.match(value) is not None


def _decode(value: Raw | None, kind: Any = Any) -> Any:
    try:
        return None if value is None else json.decode(value, type=kind)
    except (DecodeError, RecursionError):
        return None


def names_tokens(request: ChatRequest | CompletionRequest) -> bool:
    """Say whether a request holds token ids, so that the vocabulary's size matters."""
    if request.logit_bias or not request.fields.keys().isdisjoint(TOKEN_IDS):
        return True
    prompt = request.prompt if isinstance(request, CompletionRequest) else None
    if type(prompt) is TokenIds:
        return True
    return isinstance(prompt, list) and any(type(item) in (int, list) for item in prompt)


def _dangerous(fields: Mapping[str, Raw], name: str, allow: tuple[str, ...]) -> None:
    if name in DANGEROUS:
        if name not in allow and bytes(fields[name]) not in OFF:
            raise _not_here(name, DANGEROUS[name])
    elif "chat_template" not in allow:
        for key in TEMPLATE_KEYS:
            if key in (_decode(fields[name], dict[str, Raw]) or ()):
                raise _not_here(f"{name}.{key}", "it changes how templates are run")


def _not_here(param: str, why: str) -> RequestError:
    return errors.unsupported(
        param,
        f"The '{param}' parameter is not allowed here: {why}. Leave it out, or let whoever runs "
        "this proxy name it in caps.allow.",
    )


def _integer(fields: Mapping[str, Raw], name: str) -> int | None:
    """Return an integer, None where it is absent or null; raise `RequestError` for another type."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return json.decode(raw, type=int | None)
    except DecodeError:
        whole = bytes(raw).lstrip(b"-").isdigit()
        number = "an integer of too many digits" if whole else "a decimal number"
        got = _GOT.get(bytes(raw)[0], number)
        raise errors.wrong_type(name, "an integer", got) from None


def _number(fields: Mapping[str, Raw], name: str, low: int | None, high: int) -> None:
    value = _integer(fields, name)
    if value is not None and (value > high or (low is not None and value < low)):
        raise errors.out_of_range(name, "integer", bytes(fields[name]).decode(), low or 0, high)


def _alternatives(fields: Mapping[str, Raw], name: str, most: int) -> None:
    """Check a number of alternatives, of which a negative one means the whole vocabulary."""
    value = _integer(fields, name)
    if value is None or 0 <= value <= most or most >= ALL_ALTERNATIVES:
        return
    if value < 0:
        raise RequestError(
            f"Invalid '{name}': integer below minimum value. A negative one asks for the whole "
            f"vocabulary, and this backend gives {most} at most. Expected a value from 0 to "
            f"{most}, but got {value} instead.",
            param=name,
            code="integer_below_min_value",
        )
    raise errors.out_of_range(name, "integer", bytes(fields[name]).decode(), 0, most)


def _bias(bias: dict[str, Any] | list[Any], most: int, vocabulary: int | None) -> None:
    """Check the size and the token ids of a `logit_bias`."""
    if len(bias) > most and isinstance(bias, list):
        raise errors.too_long("logit_bias", "array", most, len(bias))
    if len(bias) > most:
        raise errors.too_many("logit_bias", most, len(bias))
    _inside(_bias_ids(bias), "logit_bias", vocabulary)


def _bias_ids(bias: dict[str, Any] | list[Any]) -> list[int]:
    """Return the token ids of a `logit_bias`; other keys are texts, which llama.cpp tokenizes.

    llama.cpp's array holds pairs, [15043, -100], whose first may be a text as well. A key is read
    as its strtol does, and as Python's int (vLLM), which takes "5 ", "1_000" and any script's
    digits.
    """
    if isinstance(bias, list):
        firsts = [pair[0] for pair in bias if isinstance(pair, list) and pair]
        return [first for first in firsts if type(first) is int]
    given = (key.strip().replace("_", "") for key in bias if _ID.fullmatch(key))
    return [int(key[:_DIGITS]) for key in given]


def _list_ids(value: Raw, name: str) -> list[int]:
    """Return the integers of an array; what is none is the backend's to refuse.

    Raises `RequestError` for other elements, since vLLM reads 5.0, "5" and true as integers too.
    """
    ids = _decode(value)
    if not isinstance(ids, list):
        return []
    if set(map(type, ids)) - {int}:
        at, other = next((at, x) for at, x in enumerate(ids) if type(x) is not int)
        raise errors.wrong_type(f"{name}[{at}]", "an integer", type_of(other))
    return ids


def _integers(items: list[Any]) -> list[int]:
    """Return the integers of an array, also those written 5.0."""
    kinds = set(map(type, items))
    if kinds == {int}:  # as a rule; a prompt may have 100,000
        return items
    return [int(x) for x in items if type(x) in (int, float)] if kinds & {int, float} else []


def _prompts(prompt: Any, vocabulary: int | None, name: str = "prompt") -> None:
    """Check the token ids of a prompt, or of several, also in llama.cpp's mixed arrays."""
    if type(prompt) is TokenIds:
        _inside([prompt.most], name, vocabulary)
    if not isinstance(prompt, list):
        return
    _inside(_integers(prompt), name, vocabulary)
    if list in set(map(type, prompt)):
        inner = chain.from_iterable(x for x in prompt if isinstance(x, list))
        _inside(_integers(list(inner)), name, vocabulary)


def _inside(ids: list[int], param: str, vocabulary: int | None) -> None:
    """Raise `RequestError` for the first token id that no token of the model has."""
    most = MAX_TOKEN_ID if vocabulary is None else vocabulary - 1
    if ids and (min(ids) < 0 or max(ids) > most):
        bad = next(token for token in ids if not 0 <= token <= most)
        raise errors.invalid(
            param,
            f"Invalid '{param}': {short(str(bad))} is not a token id of this model. Send ids from "
            f"0 to {most}.",
        )


def _limit(request: Asked, most: int) -> Asked:
    """Return the request with a limit, `most` where the client gave none.

    It is said as max_tokens, which all servers know. Names that the client gave null or a negative
    number go, since llama.cpp reads `n_predict` before `max_tokens`.
    """
    fields = request.fields
    given = {}
    for name in LIMITS:
        value = _integer(fields, name)
        if value is not None and value >= 0:
            given[name] = value
    kept = {name: value for name, value in fields.items() if name not in LIMITS or name in given}
    texts = isinstance(request, CompletionRequest)
    own = LIMITS[:1] if texts else LIMITS[:2]
    changed: dict[str, Any] = {name: None for name in own if name not in given}
    if len(changed) == len(own):
        limit = min(given.values(), default=most)
        if isinstance(request, CompletionRequest) and request.oai_compat is not False:
            limit = most if request.limit is None else request.limit  # OpenAI's default is 16
        changed["max_tokens"] = min(limit, most)
        kept["max_tokens"] = Raw(b"%d" % changed["max_tokens"])
    elif len(kept) == len(fields):
        return request
    if texts:
        changed["unlimited"] = False
    return structs.replace(request, **changed, fields=kept)
