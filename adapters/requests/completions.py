"""OpenAI's legacy completions request: decoded as chat's is, and the `Exchange` of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeGuard, Unpack

from msgspec import DecodeError, Raw, json

from wellspoken.adapters.exchange import Exchange, Surroundings
from wellspoken.adapters.requests import completions_bounds
from wellspoken.adapters.requests.chat import runs_usage, stops_of, switches_of
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.requests.shapes import (
    ALL_ALTERNATIVES,
    COMPLETION_KEYS,
    Bounds,
    CompletionRequest,
    NativeRequest,
    Prompt,
    TokenIds,
    Variable,
)

_LONG: Final = 65_536  # characters of a prompt: kept only where the answer needs them
_ID_SIZE: Final = 4  # bytes of text that a token id stands for, about

_decode = json.Decoder(CompletionRequest).decode
_decode_native = json.Decoder(NativeRequest).decode
_decode_ids = json.Decoder(list[int]).decode
_PIECE: Final = 131_072  # bytes of JSON that one call decodes: about two milliseconds
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
    request = parse_completion(body, native_names=native_names)
    completions_bounds.check(request, strict=bounds == "openai")
    return request


def parse_completion(body: bytes, *, native_names: bool = False) -> CompletionRequest:
    """Return the request in `body`, its types checked, not its values; raise `RequestError` 400."""
    decode: Callable[[bytes], CompletionRequest] = _decode_native if native_names else _decode
    # A long prompt is read in pieces: one call for all holds the interpreter for long.
    long = len(body) > _PIECE
    request, fields = parse(body, decode, _EXAMPLE, "prompt" if long else "")
    request.fields = fields
    if long:
        request.prompt = _read_prompt(fields.get("prompt", b"null"))
    request.native = native_names
    request.unlimited = False
    if request.oai_compat is None:
        request.oai_compat = True
    if isinstance(request, NativeRequest) and request.oai_compat is not False:
        _translate(request)
    return request


def _read_prompt(raw: Raw | bytes) -> Any:
    """Return a long prompt, where it is one list of token ids as `TokenIds`."""
    view = memoryview(raw)
    if bytes(view[:1]) != b"[":
        return json.decode(raw)
    data, ids, at = bytes(view), TokenIds("i"), 1
    try:
        while at < len(data) - 1:
            end = data.rfind(b",", at, at + _PIECE) if at + _PIECE < len(data) else len(data) - 1
            ids.add(_decode_ids(b"[%b]" % data[at:end]))
            at = end + 1
    except (DecodeError, ValueError, OverflowError):  # it holds something else
        return json.decode(raw)
    return ids


def find_variable(request: CompletionRequest) -> Variable | None:
    """Return the prompt, where it is one text."""
    prompt = request.prompt
    if not isinstance(prompt, str) or not prompt:
        return None
    facts = {"prompts": (prompt,), "prompt_size": _size(prompt)}
    return Variable("prompt", json.encode(prompt), "", facts)


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
    if type(given) is TokenIds:
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


def exchange_for_completion(request: CompletionRequest, **given: Unpack[Surroundings]) -> Exchange:
    """Return what the answer's readers, stages and writers have to know of the request."""
    asked = prompts(request)
    reads = bool(request.echo) or request.logprobs is not None
    texts = tuple(
        text if isinstance(text, str) and (reads or len(text) < _LONG) else None for text in asked
    )
    k = request.logprobs or 0
    return Exchange(
        kind="completions",
        model=request.model,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None
        and bool(request.stream_options.include_usage),
        running_usage=request.stream_options is not None
        and runs_usage(request.stream_options, given.get("extensions", "known")),
        logprobs=request.logprobs is not None,
        k=k if k >= 0 else ALL_ALTERNATIVES,
        n=(request.n or 1) * max(len(asked), 1),
        max_tokens=request.limit,
        stops=stops_of(request.stop),
        switches=switches_of(request.fields, COMPLETION_KEYS),
        prompt_size=sum(map(_size, asked)),
        echo=bool(request.echo),
        prompts=texts,
        **given,
    )


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt) if prompt.isascii() else len(prompt.encode())
    return _ID_SIZE * len(prompt)
