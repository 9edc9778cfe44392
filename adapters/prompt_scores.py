"""The logprobs of a prompt's tokens on llama.cpp, which gives none (its issue #27174).

A grammar may name tokens by id (llama.cpp's pull request #17816, 2025-12), so one request makes the
model answer a whole run of the prompt: `root ::= <[15043]> <[3186]>`. The probabilities that
llama.cpp reports are those before the grammar. But where a literal cannot be followed, b7376 ends
and b11549 answers 500: at a token that is a part of a character, that ends a text, or that is
empty. So a run holds only tokens of whole characters that plain text is split into, which control
tokens never are. The others, and all on builds that do not read literals, are told by probes.

A probe is a request for one token after a prefix of the prompt, with the token that follows in the
prompt forced by an overwhelming `logit_bias`. The probabilities are those before the bias too, so
the probe tells the forced token's own logprob and the best `k` there. Runs and probes of a prompt
go out in order: each finds all but one token of its prefix in the slot's cache.

A token that only begins a character has no probabilities in an answer. Then another one is forced,
of whole characters, and it is looked up among the most likely tokens of its place, ever more of
them. Which token is forced does not change what is reported, so any will do; the prefix alone does.

Example. For the tokens [1, 15043, 3186] the run follows [1] by the grammar above, or the probes are
[1] with 15043 forced, and [1, 15043] with 3186 forced: the first token has none, since nothing
comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import DecodeError, Meta, Raw, Struct, json

from wellspoken.adapters.events import Alternative, Entry, Extra
from wellspoken.adapters.exchange import Kind, Notes
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import logprobs
from wellspoken.adapters.repairs.loose_json import parse

TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
PROBE: Final = "/completion"
FORCING: Final = 10_000.0
DEEPER: Final = (0, 256, 8_192, 10_000_000)
"""Alternatives asked for where a probe does not tell its token's logprob, one after the other."""
RUN: Final = 1024
"""Tokens that one request forces at most: at 2 a second, an answer within 10 minutes."""
ROWS: Final = 50_000
"""Entries and alternatives that it answers at most: about 7 MB."""

_encode = json.Encoder().encode


def tokenize_request(prompt: str, *, alone: bool = False, plain: bool = False) -> bytes:
    """Return the body of POST /tokenize that splits a prompt as /completion does.

    `alone`: a text without the tokens that begin or end a prompt. `plain`: nor with any other
    control token, whatever the text spells.
    """
    special = not (alone or plain)
    return _encode(
        {"content": prompt, "add_special": special, "parse_special": not plain, "with_pieces": True}
    )


class _Token(Struct):
    id: int
    piece: str | list[Annotated[int, Meta(ge=0, le=255)]]


class _Tokens(Struct):
    tokens: list[_Token]


class _Detokenized(Struct):
    content: str | None = None
    prompt: str | None = None  # vLLM's name
    text: str | None = None  # SGLang's


def read_tokens(data: bytes) -> list[tuple[int, bytes]]:
    """Return (id, bytes) of each token; raises ValueError for what is no such answer."""
    try:
        tokens = json.decode(data, type=_Tokens).tokens
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("a list of tokens with id and piece") from error
    return [
        (x.id, x.piece.encode() if isinstance(x.piece, str) else bytes(x.piece)) for x in tokens
    ]


def before_text(pieces: list[bytes | None], text: str) -> int:
    """Return how many tokens come before a prompt's text: one that begins it, or none."""
    first = pieces[0] if pieces else None
    if first is None or text.encode().lstrip().startswith(first.lstrip()):
        return 0
    return 1


def read_whole(data: bytes) -> int:
    """Return the id of a token that is whole characters; raises ValueError if there is none."""
    for token, piece in reversed(read_tokens(data)):
        if piece and "\ufffd" not in piece.decode(errors="replace"):
            return token
    raise ValueError("a token of whole characters")


def read_literals(data: bytes) -> frozenset[int]:
    """Return the tokens of a plain split that a grammar may name: those of whole characters.

    None that looks like a control token, whatever type a model's file says it has (`</s>`). Raises
    ValueError for what is no answer of /tokenize.
    """
    return frozenset(
        token
        for token, piece in read_tokens(data)
        if piece[:1] > b"\0"
        and not (piece.startswith(b"<") and piece.endswith(b">"))
        and piece.decode(errors="ignore").encode() == piece
    )


def run_at(ids: list[int], place: int, literals: frozenset[int], k: int) -> list[int]:
    """Return the tokens from `place` on that one request may force, none where that saves none."""
    most = place + max(min(RUN, ROWS // (k + 1)), 2)
    end = place
    while end < min(len(ids), most) and ids[end] in literals:
        end += 1
    return ids[place:end] if end - place > 1 else []


def force_request(prefix: list[int], run: list[int], k: int) -> bytes:
    """Return the body of POST /completion that answers `run` after `prefix`, with the best `k`."""
    return _encode(
        {
            "prompt": prefix,
            "n_predict": len(run),
            "n_probs": max(k, 1),
            "temperature": 0,
            "cache_prompt": True,
            "stream": False,
            "grammar": "root ::= " + " ".join(f"<[{token}]>" for token in run),
        }
    )


def read_forced(data: bytes, run: list[int], context: Context) -> tuple[list[Entry], bool]:
    """Return the entries of `run`, from its beginning on, and whether the answer is nothing else.

    It may be shorter (`--n-predict`, the context's end). Without the whole context behind it
    (`truncated`), or with no alternatives (a draft's token), a number is none that can be told.
    Raises ValueError for what is no answer of /completion.
    """
    answer = _completion(data)
    if answer.get("truncated"):
        return [], True
    found = logprobs(answer.get("completion_probabilities"), "", context)
    given = found[0] if found is not None else []
    entries: list[Entry] = []
    for entry, token in zip(given, run, strict=False):
        if entry.id != token or not entry.top_logprobs:
            break
        entries.append(entry)
    return entries, bool(entries) and len(entries) == len(given)


def detokenize_request(ids: list[int], model: str = "") -> bytes:
    """Return the body of POST /detokenize; vLLM wants the `model`."""
    return _encode({"model": model, "tokens": ids} if model else {"tokens": ids})


def read_text(data: bytes) -> str:
    """Return the text of a /detokenize answer; raises ValueError for what is none."""
    try:
        found = json.decode(data, type=_Detokenized)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("a text as content") from error
    text = next((x for x in (found.prompt, found.content, found.text) if x is not None), None)
    if text is None:
        raise ValueError("a text as content")
    return text


def prompt_text_unknown(notes: Notes) -> None:
    """Count a prompt of ids whose text nobody tells: its offsets count from the answer's start."""
    notes.add("prompt_text_unknown")


def probe(prefix: list[int], forced: int, k: int) -> bytes:
    """Return the body of POST /completion that tells the best `k` tokens after `prefix`.

    `forced` is the token that it answers, with its own logprob.
    """
    return _encode(
        {
            "prompt": prefix,
            "n_predict": 1,
            "n_probs": max(k, 1),
            "temperature": 0,
            "cache_prompt": True,
            "stream": False,
            "logit_bias": [[forced, FORCING]],
        }
    )


def read_probe(data: bytes, token: int, context: Context) -> Entry | None:
    """Return the entry of `token`, None if the answer does not tell it.

    Raises ValueError for what is no answer of /completion.
    """
    found = logprobs(_completion(data).get("completion_probabilities"), "", context)
    if found is None or not found[0]:
        return None
    entry = found[0][0]
    if entry.id == token:
        return entry
    for row in entry.top_logprobs:
        if row.id == token:
            return Entry(row.token, row.logprob, row.bytes, entry.top_logprobs, token)
    return None


def _completion(data: bytes) -> dict[str, Any]:
    try:
        answer = parse(data)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "content" not in answer:
        raise ValueError("an object with content and completion_probabilities")
    return answer


def prompt_logprobs_computed(notes: Notes) -> None:
    """Count that a prompt's logprobs are computed here."""
    notes.add("prompt_logprobs_computed")


def prompt_token_ids_missing(notes: Notes) -> None:
    """Count a prompt whose ids are asked for, and that holds more than text, or is not told."""
    notes.add("prompt_token_ids_missing")


def as_ids(kind: Kind, ids: Sequence[int]) -> Extra:
    """Return a prompt's ids where vLLM has them: on a chat's answer, on a completion's choice."""
    value = Raw(_encode(ids))
    if kind == "chat":
        return Extra("answer", None, "prompt_token_ids", value)
    return Extra("choice", 0, "prompt_token_ids", value)


def prompt_logprobs(
    entries: list[Entry | None], ids: list[int], pieces: list[bytes | None], k: int
) -> Raw:
    """Return vLLM's `prompt_logprobs` {token id: {logprob, rank, decoded_token}}, the first null.

    Each holds the token itself, then the best `k`. A token below them has no `rank`: it is not
    known. Source: vLLM 0.32, `prompt_logprobs` of its OpenAI-compatible server.
    """
    rows: list[Any] = []
    for entry, token, piece in zip(entries, ids, pieces, strict=True):
        if entry is None:
            rows.append(None)
            continue
        ranked = {row.id: rank for rank, row in enumerate(entry.top_logprobs, 1)}
        told = {str(token): _row(entry, ranked.get(token))}
        if piece is not None:  # llama.cpp's answers do not spell control tokens
            told[str(token)]["decoded_token"] = piece.decode(errors="replace")
        for row in entry.top_logprobs[:k]:
            told.setdefault(str(row.id), _row(row, ranked[row.id]))
        rows.append(told)
    return Raw(_encode(rows))


def _row(row: Entry | Alternative, rank: int | None) -> dict[str, Any]:
    return {"logprob": row.logprob, "rank": rank, "decoded_token": row.token}


def as_extra(where: str, rows: Raw) -> Extra:
    """Return the answer's or choice's key that holds them."""
    if where == "choice":
        return Extra("choice", 0, "prompt_logprobs", rows)
    return Extra("answer", None, "prompt_logprobs", rows)
