"""The contract of logprobs: the entries of a chat answer, and a completion's four arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from wellspoken.adapters.answer_schema import ChoiceLogprobs, TextLogprobs
from wellspoken.proxy.doctor.contract import find_faults
from wellspoken.proxy.doctor.probe import Wrong, quote

_NAMELESS = re.compile(r"|token_id:\d+")
_CONTROL = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_SPELLED = re.compile(r"bytes:(\\x[0-9a-f]{2}|[^\\]|\\)+", re.DOTALL)


def read_entries(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a choice's entries, whatever their values and however many keys. Raises Wrong."""
    logprobs = choice.get("logprobs")
    if logprobs is None:
        raise Wrong("logprobs is null or missing, although they were asked for")
    for fault in find_faults(
        logprobs,
        ChoiceLogprobs,
        "logprobs",
        unjudged=frozenset({"logprob", "bytes"}),
        optional=frozenset({"refusal"}),
        extra=None,
    ):
        keys = f", but the keys {', '.join(sorted(logprobs))}" if "content" not in logprobs else ""
        raise Wrong(fault + keys)
    if logprobs["content"] is None:
        raise Wrong("content is null in logprobs, although they were asked for")
    found: list[dict[str, Any]] = logprobs["content"]
    return found


def check_entries(choice: Mapping[str, Any]) -> Iterator[str]:
    """Check the shape of each entry, its value and its bytes."""
    found = read_entries(choice)
    yield from find_faults(choice["logprobs"], ChoiceLogprobs, "logprobs")
    if any(one["bytes"] == [] for entry in found for one in (entry, *entry["top_logprobs"])):
        yield "the bytes of a token are [], which should be null"


def check_tiling(choice: Mapping[str, Any], text: str) -> Iterator[str]:
    """Check that the entries' bytes, joined, are the text, and that each token is spelled so."""
    joined, unknown = b"", False
    for entry in read_entries(choice):
        token, given = entry["token"], entry["bytes"]
        if given is None:
            if not (_NAMELESS.fullmatch(token) or _CONTROL.fullmatch(token)):
                yield f"the bytes of {quote(token)} are null"
            unknown = unknown or bool(token)
            continue
        try:
            data = bytes(given) if isinstance(given, list) else b""
        except (TypeError, ValueError):
            data = b""
        if not data:
            yield f"the bytes of {quote(token)} are {quote(given)}"
        joined += data
        if data and token not in _spellings(data):
            yield f"the token {quote(token)} has the bytes of {quote(_spelling(data))}"
    got = joined.decode("utf-8", "replace")
    if got != text and not unknown:
        yield f"the bytes of all tokens are {quote(got)}, but the content is {quote(text)}"


def _spelling(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _spellings(data: bytes) -> tuple[str, str]:
    """Return how a token may be spelled; U+FFFD may stand for itself only as bytes."""
    text = _spelling(data)
    return text, text.replace("\ufffd", r"\xef\xbf\xbd")


def check_alternatives(choice: Mapping[str, Any], k: int) -> Iterator[str]:
    """Check the alternatives: how many, in which order, and the sampled token among them."""
    found = read_entries(choice)
    if k and found and not any(entry["top_logprobs"] for entry in found):
        yield f"no entry has an alternative, although {k} were asked for"
    for entry in found:
        top = entry["top_logprobs"]
        values = [other["logprob"] for other in top]
        if len(top) > k:
            yield f"an entry has {len(top)} alternatives, but {k} were asked for"
        numbers = all(isinstance(value, int | float) for value in values)
        if numbers and values != sorted(values, reverse=True):
            yield f"alternatives are not in descending order: {quote(values)}"
        names = [(one["token"], str(one["bytes"]), str(one["logprob"])) for one in top]
        if len(set(names)) < len(names):
            yield f"an alternative is there twice: {quote([name[0] for name in names])}"
        own = [other["logprob"] for other in top if _is_same(other, entry)]
        if own and entry["logprob"] not in own:
            token, value = quote(entry["token"]), quote(entry["logprob"])
            yield f"{token} has the logprob {value}, but {quote(own[0])} among the alternatives"


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    known = one["bytes"] is not None
    return known and (one["token"], one["bytes"]) == (other["token"], other["bytes"])


def check_arrays(choice: Mapping[str, Any], k: int, start: int) -> Iterator[str]:
    """Check a completion's arrays: its text, in tokens, from the character `start` on."""
    rows, text = _read_rows(choice.get("logprobs")), choice.get("text")
    if not isinstance(text, str):
        raise Wrong(f"text is {quote(text)}")
    tokens = [row[0] for row in rows]
    if all(map(_is_text, tokens)) and "".join(tokens) != text:
        yield f"the tokens are {quote(tokens)}, the text is {quote(text)}"
    place: int | None = start  # None behind a part of a character, whose length is not known
    for token, value, top, offset in rows:
        if offset != (offset if place is None else place):
            yield f"text_offset of {quote(token)} is {offset}, not {place}"
        elif _is_text(token) and not text.startswith(token, offset - start):
            yield f"text_offset of {quote(token)} is {offset}, where the text is another"
        place = offset + len(token) if _is_text(token) else None
        if value is None and top is None:
            continue
        if value is None or top is None:
            yield f"the logprob of {quote(token)} is {quote(value)}, its alternatives {quote(top)}"
            continue
        if len(top) > k + 1:
            yield f"{len(top)} alternatives, but {k} and the sampled token were asked for"
        if top and token and top.get(token) != value:
            yield f"top_logprobs lacks the sampled token {quote(token)} with its own logprob"


def _is_text(token: str) -> bool:
    return not (_NAMELESS.fullmatch(token) or _SPELLED.fullmatch(token))


def _read_rows(found: Any) -> list[tuple[str, Any, Any, int]]:
    """Return the arrays row by row. Raises Wrong."""
    if found is None:
        raise Wrong("logprobs is null or missing, although they were asked for")
    faults = list(find_faults(found, TextLogprobs, "logprobs"))
    if faults:
        raise Wrong("; ".join(faults))
    columns = [found[name] for name in TextLogprobs.__struct_fields__]
    if len({len(column) for column in columns}) > 1:
        raise Wrong(f"the arrays have {', '.join(str(len(c)) for c in columns)} places")
    return list(zip(*columns, strict=True))
