"""OpenAI's legacy completions: the request, its `Exchange`, and what a backend is sent for it.

Decoded as the chat request is: once into a typed Struct, once into `fields`, the top-level values
as sent, of which every value that no rule changes is forwarded byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from msgspec import Raw, Struct, field, json

from wellspoken.adapters.exchange import Exchange, Extensions
from wellspoken.adapters.requests import completions_bounds
from wellspoken.adapters.requests.chat import (
    ALL_ALTERNATIVES,
    OUR_KEYS,
    Bounds,
    StreamOptions,
    stops_of,
    switches_of,
)
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.servers.backend import Backend, ask_stream, enforce, leave_empty_stops
from wellspoken.adapters.servers.parameters import OURS, refuse, used

if TYPE_CHECKING:
    from wellspoken.adapters.tokens.table import TokenTable

Prompt = str | tuple[int, ...]
"""One prompt: its text, or its token ids."""

DEFAULT_LIMIT: Final = 16
"""OpenAI's `max_tokens` of a request that has none."""

_ID_SIZE: Final = 4  # bytes of text that a token id stands for, about
_NULL: Final = b"null"
_encode = json.Encoder().encode


class CompletionRequest(Struct, kw_only=True):
    """The body of POST /v1/completions: the typed parameters, None where absent or null.

    `prompt` is a string, an array of strings, of token ids, or of arrays of token ids; `prompts`
    gives it typed. `fields` is every top-level key as sent; `native` whether llama.cpp's own names
    are read, and `unlimited` whether one of them took the limit away. The decoder sets these three.
    """

    model: str = ""
    prompt: Any = None
    best_of: int | None = None
    echo: bool | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    oai_compat: bool | None = True  # our own key; False: this answer passes through untouched
    fields: dict[str, Raw] = field(name="wellspoken.fields", default_factory=dict)
    native: bool = field(name="wellspoken.native", default=False)
    unlimited: bool = field(name="wellspoken.unlimited", default=False)

    @property
    def limit(self) -> int | None:
        """The most tokens of a choice, None where there is no limit."""
        if self.max_tokens is None:
            return None if self.unlimited else DEFAULT_LIMIT
        return self.max_tokens if self.max_tokens >= 0 else None


class NativeRequest(CompletionRequest, kw_only=True):
    """The same with llama.cpp's own names, as its clients send them to /completion."""

    n_predict: int | None = None
    n_probs: int | None = None


_OWN: Final = frozenset({"fields", "native", "unlimited"})
COMPLETION_KEYS: Final = frozenset(CompletionRequest.__struct_fields__) - OUR_KEYS - _OWN
"""The top-level keys of OpenAI's request; every other one is a vendor's."""

_CHATS: Final = (
    frozenset(key for key, row in OURS.items() if row.how != "refused") - COMPLETION_KEYS
)
"""Chat's keys that change nothing in an answer; some clients send them here as well."""

NATIVE_KEYS: Final = frozenset(completions_bounds.NATIVE.values())

_decode = json.Decoder(CompletionRequest).decode
_decode_native = json.Decoder(NativeRequest).decode
_EXAMPLE: Final = '{"model": ..., "prompt": ...}'


def decode_completion(
    body: bytes, *, bounds: Bounds = "openai", native_names: bool = False
) -> CompletionRequest:
    """Return the request in `body`; raise `RequestError` 400 for what OpenAI would refuse.

    `bounds="backend"` checks types and what protects a backend (n, best_of, sizes, token ids) and
    leaves it the rest. With `native_names`, where OpenAI's key is absent `n_predict` counts as
    `max_tokens` (negative: no limit) and `n_probs` as `logprobs` (0: none), and a model need not be
    named; with `"oai_compat": false` any form of prompt passes, as llama.cpp's mixed arrays.
    """
    decode: Callable[[bytes], CompletionRequest] = _decode_native if native_names else _decode
    request, fields = parse(body, decode, _EXAMPLE)
    request.fields = fields
    request.native = native_names
    request.unlimited = False
    if request.oai_compat is None:
        request.oai_compat = True
    if isinstance(request, NativeRequest) and request.oai_compat is not False:
        _translate(request)
    completions_bounds.check(request, strict=bounds == "openai")
    return request


def _translate(request: NativeRequest) -> None:
    """Read llama.cpp's names where OpenAI's are absent."""
    if request.max_tokens is None and request.n_predict is not None:
        request.unlimited = request.n_predict < 0
        request.max_tokens = None if request.unlimited else request.n_predict
    if request.logprobs is None and request.n_probs is not None and request.n_probs > 0:
        request.logprobs = request.n_probs


def prompts(request: CompletionRequest) -> tuple[Prompt, ...]:
    """Return the prompts, in order; none where the form is one that only llama.cpp reads."""
    given = request.prompt
    if isinstance(given, str):
        return (given,)
    if _are_ids(given):
        return (tuple(given),)
    found: list[Prompt] = []
    for item in given if isinstance(given, list) else ():
        if isinstance(item, str):
            found.append(item)
        elif _are_ids(item):
            found.append(tuple(item))
        else:
            return ()
    return tuple(found)


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and set(map(type, value)) <= {int}


def exchange_for_completion(
    request: CompletionRequest,
    *,
    now: int,
    new_id: Callable[[], str],
    tokens: TokenTable | None = None,
    extensions: Extensions = "known",
    keep: frozenset[str] = frozenset(),
) -> Exchange:
    """Return what the answer's readers, stages and writers have to know of the request."""
    given = prompts(request)
    texts = tuple(prompt if isinstance(prompt, str) else None for prompt in given)
    k = request.logprobs or 0
    return Exchange(
        kind="completions",
        model=request.model,
        now=now,
        new_id=new_id,
        tokens=tokens,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None
        and bool(request.stream_options.include_usage),
        logprobs=request.logprobs is not None,
        k=k if k >= 0 else ALL_ALTERNATIVES,
        n=(request.n or 1) * max(len(given), 1),
        max_tokens=request.limit,
        stops=stops_of(request.stop),
        extensions=extensions,
        keep=keep,
        switches=switches_of(request.fields, COMPLETION_KEYS),
        prompt_size=sum(map(_size, given)),
        echo=bool(request.echo),
        prompts=texts,
    )


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt) if prompt.isascii() else len(prompt.encode())
    return _ID_SIZE * len(prompt)


def prepare_completion(
    backend: Backend,
    request: CompletionRequest,
    *,
    model: str | None,
    prompt: Prompt | None = None,
    n: int | None = None,
    seed: int | None = None,
    enforced: bool = False,
    stream: bool | None = None,
    logprobs: int | None = None,
    without: frozenset[str] = frozenset(),
) -> bytes:
    """Return the JSON for `backend`'s completions endpoint; raise `RequestError` as `prepare` does.

    `model` is the route's name for the model, None to keep the client's. The others override the
    client's value in one of several requests that the proxy makes of this one: `prompt` alone, `n`,
    `seed`, a number of `logprobs` that the client need not have asked for, and keys that go
    `without`. `enforced`: the stop strings are not the backend's affair, and its answer has to be a
    stream; `stream`: whether it is asked for one. With `"oai_compat": false` they have no effect.
    """
    fields = request.fields
    if request.oai_compat is False:
        sent: dict[str, Any] = {k: v for k, v in fields.items() if k not in OUR_KEYS}
    else:
        changed = {"prompt": prompt, "n": n if backend.several else None, "seed": seed}
        changed = {key: value for key, value in changed.items() if value is not None}
        sent = _kept(backend, request, without, changed)
        # One null takes the limit away from llama.cpp, llama-cpp-python and vLLM alike.
        sent.setdefault("max_tokens", request.limit)
        _ask_logprobs(request, sent, logprobs)
        if enforced:
            enforce(backend, sent)
        elif stream is not None:
            ask_stream(sent, backend.completion_table, stream)
    if model is not None:
        sent["model"] = model
    return _encode(sent)


def _kept(
    backend: Backend, request: CompletionRequest, without: frozenset[str], changed: dict[str, Any]
) -> dict[str, Any]:
    """Return what the client sent, with these values `changed`, in the backend's form."""
    table = backend.completion_table
    needed = used(request, table)
    refuse(needed, table, backend.title)
    withheld = OUR_KEYS | _CHATS | without | (NATIVE_KEYS if request.native else frozenset())
    sent: dict[str, Any] = {}
    for key, value in request.fields.items():
        if key not in withheld:
            if key not in COMPLETION_KEYS:
                sent[key] = value
            elif table[key].how == "native" and bytes(value) != _NULL:
                if key in needed or table[key].form is None:  # else it asks for nothing
                    sent[key] = value
    sent.update(changed)
    for name in needed:
        form = table[name].form
        if form is not None:
            form(sent)
    leave_empty_stops(request.stop, sent)
    return sent


def _ask_logprobs(request: CompletionRequest, sent: dict[str, Any], wanted: int | None) -> None:
    """Ask for one alternative where none is wanted: at 0 some servers give no logprobs."""
    count = request.logprobs if wanted is None else wanted
    if count is not None and (wanted is not None or not count or "logprobs" not in sent):
        sent["logprobs"] = count or 1
