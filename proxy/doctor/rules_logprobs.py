"""The contract of logprobs: the entries of a chat answer, and a completion's four arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wellspoken.proxy.doctor.model import Wrong, shown
from wellspoken.proxy.doctor.rules import is_number

LOWEST = -9999.0  # what OpenAI says of a token that is too unlikely to tell
ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_ALTERNATIVE = {"token", "logprob", "bytes"}
_ENTRY = {*_ALTERNATIVE, "top_logprobs"}
_NAMELESS = re.compile(r"|token_id:\d+")
_CONTROL = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_SPELLED = re.compile(r"bytes:(\\x[0-9a-f]{2}|[^\\]|\\)+", re.DOTALL)


def entries_of(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a choice's entries, each with the keys of one. Raises Wrong."""
    logprobs = choice.get("logprobs")
    if logprobs is None:
        raise Wrong("logprobs is null or missing, although they were asked for")
    if not isinstance(logprobs, dict):
        raise Wrong(f"logprobs is {shown(logprobs)}, no object")
    found = logprobs.get("content")
    if not isinstance(found, list):
        keys = ", ".join(sorted(logprobs))
        raise Wrong(f"logprobs has no list content, but the keys {keys}")
    for entry in found:
        if not isinstance(entry, dict) or not _ENTRY <= entry.keys():
            raise Wrong(f"an entry of logprobs is {shown(entry)}, without {_missing(entry)}")
        if not isinstance(entry["top_logprobs"], list):
            raise Wrong(f"top_logprobs is {shown(entry['top_logprobs'])}, no list")
        for other in entry["top_logprobs"]:
            if not isinstance(other, dict) or not _ALTERNATIVE <= other.keys():
                raise Wrong(f"an alternative is {shown(other)}")
        for one in (entry, *entry["top_logprobs"]):
            if not isinstance(one["token"], str):
                raise Wrong(f"a token is {shown(one['token'])}, no text")
    return found


def _missing(entry: Any) -> str:
    return ", ".join(sorted(_ENTRY - set(entry))) if isinstance(entry, dict) else "keys"


def entries(choice: Mapping[str, Any]) -> Iterator[str]:
    """Check the shape of each entry, its value and its bytes."""
    found = entries_of(choice)
    if choice["logprobs"].keys() != {"content", "refusal"}:
        keys = ", ".join(sorted(choice["logprobs"]))
        yield f"logprobs has the keys {keys}, not content and refusal"
    for entry in found:
        yield from _keys(entry, _ENTRY)
        yield from _value(entry)
        for other in entry["top_logprobs"]:
            yield from _keys(other, _ALTERNATIVE)
            yield from _value(other)


def _keys(entry: Mapping[str, Any], known: set[str]) -> Iterator[str]:
    extra = sorted(entry.keys() - known)
    if extra:
        yield f"entries of logprobs have keys that are not OpenAI's: {', '.join(extra)}"


def _value(entry: Mapping[str, Any]) -> Iterator[str]:
    value, data = entry["logprob"], entry["bytes"]
    if not is_number(value) or not LOWEST <= value <= 0:
        yield f"a logprob is {shown(value)}"
    if data is not None and not _octets(data):
        yield f"the bytes of {shown(entry['token'])} are {shown(data)}"


def _octets(data: Any) -> bool:
    return (
        isinstance(data, list)
        and bool(data)
        and all(type(one) is int and 0 <= one <= 255 for one in data)
    )


def tiling(choice: Mapping[str, Any], text: str) -> Iterator[str]:
    """Check that the entries' bytes, joined, are the text, and that each token is spelled so."""
    joined, unknown = b"", False
    for entry in entries_of(choice):
        token, data = entry["token"], entry["bytes"]
        if data is None:
            if not (_NAMELESS.fullmatch(token) or _CONTROL.fullmatch(token)):
                yield f"the bytes of {shown(token)} are null"
            unknown = unknown or bool(token)
        elif not _octets(data):
            yield f"the bytes of {shown(token)} are {shown(data)}"
        else:
            joined += bytes(data)
            if token not in _spellings(bytes(data)):
                yield f"the token {shown(token)} has the bytes of {shown(_spelled(bytes(data)))}"
    got = joined.decode("utf-8", "replace")
    if got != text and not unknown:
        yield f"the bytes of all tokens are {shown(got)}, but the content is {shown(text)}"


def _spelled(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _spellings(data: bytes) -> tuple[str, str]:
    """Return how a token may be spelled; U+FFFD may stand for itself only as bytes."""
    text = _spelled(data)
    return text, text.replace("\ufffd", r"\xef\xbf\xbd")


def alternatives(choice: Mapping[str, Any], k: int) -> Iterator[str]:
    """Check the alternatives: how many, in which order, and the sampled token among them."""
    found = entries_of(choice)
    if k and found and not any(entry["top_logprobs"] for entry in found):
        yield f"no entry has an alternative, although {k} were asked for"
    for entry in found:
        top = entry["top_logprobs"]
        values = [other["logprob"] for other in top]
        if len(top) > k:
            yield f"an entry has {len(top)} alternatives, but {k} were asked for"
        if all(is_number(value) for value in values) and values != sorted(values, reverse=True):
            yield f"alternatives are not in descending order: {shown(values)}"
        names = [(one["token"], str(one["bytes"]), str(one["logprob"])) for one in top]
        if len(set(names)) < len(names):
            yield f"an alternative is there twice: {shown([name[0] for name in names])}"
        own = [other["logprob"] for other in top if _same(other, entry)]
        if own and entry["logprob"] not in own:
            token, value = shown(entry["token"]), shown(entry["logprob"])
            yield f"{token} has the logprob {value}, but {shown(own[0])} among the alternatives"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    known = one["bytes"] is not None
    return known and (one["token"], one["bytes"]) == (other["token"], other["bytes"])


def arrays(choice: Mapping[str, Any], k: int, start: int) -> Iterator[str]:
    """Check a completion's arrays: its text, in tokens, from the character `start` on."""
    rows = _rows(choice.get("logprobs"))
    text = choice.get("text")
    if not isinstance(text, str):
        raise Wrong(f"text is {shown(text)}")
    if all(_is_text(row[0]) for row in rows) and "".join(row[0] for row in rows) != text:
        yield f"the tokens are {shown([row[0] for row in rows])}, the text is {shown(text)}"
    place: int | None = start  # None behind a part of a character, whose length is not known
    for token, value, top, offset in rows:
        if not isinstance(offset, int) or offset != (offset if place is None else place):
            yield f"text_offset of {shown(token)} is {shown(offset)}, not {place}"
        elif _is_text(token) and not text.startswith(token, offset - start):
            yield f"text_offset of {shown(token)} is {offset}, where the text is another"
        plain = _is_text(token) and isinstance(offset, int)
        place = offset + len(token) if plain else None
        if value is None and top is None:
            continue
        if not is_number(value) or not LOWEST <= value <= 0 or not isinstance(top, dict):
            yield f"the logprob of {shown(token)} is {shown(value)}, its alternatives {shown(top)}"
            continue
        if len(top) > k + 1:
            yield f"{len(top)} alternatives, but {k} and the sampled token were asked for"
        if top and token and top.get(token) != value:
            yield f"top_logprobs lacks the sampled token {shown(token)} with its own logprob"


def _is_text(token: str) -> bool:
    return not (_NAMELESS.fullmatch(token) or _SPELLED.fullmatch(token))


def _rows(found: Any) -> list[tuple[str, Any, Any, Any]]:
    """Return the arrays row by row. Raises Wrong."""
    if found is None:
        raise Wrong("logprobs is null or missing, although they were asked for")
    if not isinstance(found, dict) or found.keys() != set(ARRAYS):
        keys = ", ".join(sorted(found)) if isinstance(found, dict) else shown(found)
        raise Wrong(f"logprobs has {keys}, not {', '.join(ARRAYS)}")
    columns: Sequence[Any] = [found[key] for key in ARRAYS]
    if not all(isinstance(column, list) for column in columns):
        raise Wrong("an array of logprobs is no list")
    if len({len(column) for column in columns}) > 1:
        raise Wrong(f"the arrays have {', '.join(str(len(c)) for c in columns)} places")
    if not all(isinstance(token, str) for token in columns[0]):
        raise Wrong(f"tokens are {shown(columns[0])}, no texts")
    return list(zip(*columns, strict=True))
