"""Vendors' parameters: what a route does with keys that are not OpenAI's, and the caps on all keys.

Only top-level keys are a vendor's here, and one of `stream_options`; what messages, tools and the
like hold is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import structs

from wellspoken.adapters.requests.caps import CAPPED, Asked, Caps, apply_caps
from wellspoken.adapters.requests.errors import RequestError, unknown
from wellspoken.adapters.requests.shapes import (
    COMPLETION_KEYS,
    NATIVE_KEYS,
    OPENAI_KEYS,
    OUR_KEYS,
    ChatRequest,
    CompletionRequest,
)

Policy = Literal["pass", "strip", "reject"]

_CHAT: Final = OPENAI_KEYS | OUR_KEYS
_COMPLETIONS: Final = COMPLETION_KEYS | OUR_KEYS
_NATIVE: Final = _COMPLETIONS | NATIVE_KEYS
_SPELLED: Final = OPENAI_KEYS | COMPLETION_KEYS | CAPPED

EXTRA_BODY: Final = "extra_body"
"""An argument of OpenAI's Python client, which puts the keys in it at the top level."""


def vendor_keys(request: ChatRequest | CompletionRequest) -> tuple[str, ...]:
    """Return the top-level keys that are not OpenAI's, in the client's order.

    `n_predict` and `n_probs` count as OpenAI's where they are read as such, on /completion.
    """
    known = _CHAT
    if isinstance(request, CompletionRequest):
        known = _NATIVE if request.native else _COMPLETIONS
    if request.fields.keys() <= known:  # the usual request
        return ()
    return tuple(key for key in request.fields if key not in known)


def apply_policy(
    request: Asked, *, policy: Policy, caps: Caps, vocabulary: int | None = None
) -> Asked:
    """Return the request as its route lets it through; raise `RequestError` 400 for what it cannot.

    `pass` changes no key, `strip` takes vendors' keys out, `reject` refuses the first of them as
    OpenAI does. `vocabulary`: how many token ids the model has, None where unknown. The request
    given is never changed.
    """
    vendors = vendor_keys(request)
    if vendors and policy == "reject":
        raise not_openai(vendors[0])
    if vendors and policy == "strip":
        gone = frozenset(vendors)
        kept = {key: value for key, value in request.fields.items() if key not in gone}
        request = structs.replace(request, fields=kept)
    elif vendors:
        refuse_variants(vendors)
        if EXTRA_BODY in vendors:
            raise not_openai(EXTRA_BODY)
    options = request.stream_options
    if policy != "pass" and options is not None and options.continuous_usage_stats:
        if policy == "reject":
            raise not_openai("stream_options.continuous_usage_stats")
        options = structs.replace(options, continuous_usage_stats=None)
        request = structs.replace(request, stream_options=options)
    return apply_caps(request, caps, vocabulary)


def refuse_variants(keys: Iterable[str]) -> None:
    """Raise `RequestError` 400 for a key that is a known one but for the case of its letters.

    Servers in Go (Ollama, LocalAI) read "MODEL" as "model", the later of the two, past the route's
    name for it and past every cap; at others it would ask for nothing.
    """
    for key in keys:
        known = key.casefold()
        if known != key and known in _SPELLED:
            raise unknown(key, f"Write it as '{known}'.")


def not_openai(key: str) -> RequestError:
    """Return the error for a vendor's key where the route rejects them, for `EXTRA_BODY` always.

    No server would look at the keys in that, or one past every cap.
    """
    if key != EXTRA_BODY:
        return unknown(key, "Leave it out: this model takes OpenAI's parameters only.")
    return unknown(
        key,
        "It is an argument of OpenAI's Python client, not a part of the request. Send the keys in "
        "it at the top level.",
    )
