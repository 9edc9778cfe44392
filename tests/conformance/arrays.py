"""The logprobs of a completion: four arrays, their tiling, and the backend's numbers in them."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance.logprobs import UNKNOWN, appears, canonical, holds_probabilities, same_number
from tests.conformance.model import ChoiceFacts, Report, Request, Row

KEYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_HEX = re.compile(rb"\\x([0-9a-f]{2})")
_ESCAPE = re.compile(r"\\x[0-9A-Fa-f]{2}")
_PLACEHOLDER = re.compile(r"token_id:\d+")
_CONTROL = re.compile(r"(<.+>|\[.+\])?", re.DOTALL)
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Place:
    """Where a text stands: its first character's offset, None if unknown; whether it opens echo.

    `rule`: under which rule a text that its tokens are not is refused.
    """

    offset: int | None
    opens: bool = True
    rule: str = "L.tiling"


def spelled(data: bytes) -> str:
    """Return how a completion names a token: its text, or `bytes:` and what is no text as hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")
    return text


def data_of(token: str) -> bytes:
    """Return the bytes that a token's name stands for."""
    if token.startswith("bytes:") and _ESCAPE.search(token):
        return _HEX.sub(lambda found: bytes([int(found[1], 16)]), token[6:].encode())
    return token.encode()


def check_arrays(
    logprobs: Any, text: str, place: Place, request: Request, report: Report, at: str
) -> bool:
    """Check a choice's (or a chunk's) arrays against its text; say whether they can be used."""
    if logprobs is None:
        return True
    report.check(request.logprobs, "7.unasked", at, "logprobs although none were asked for")
    if not (isinstance(logprobs, dict) and logprobs.keys() == set(KEYS)):
        report.add("L.shape", at, "keys")
        return False
    arrays = [logprobs[key] for key in KEYS]
    if not all(isinstance(array, list) for array in arrays):
        report.add("L.shape", at, "not lists")
        return False
    sizes = [len(array) for array in arrays]
    if not report.check(len(set(sizes)) == 1, "L.arrays", at, sizes):
        return False
    rows = list(zip(*arrays[:3], strict=True))
    sound = [_row(row, request, report, f"{at}[{i}]") for i, row in enumerate(rows)]
    if not all(sound):
        return False
    _nulls(rows, request.echo and place.opens, report, at)
    _tiling(arrays[0], arrays[3], text, place, request, report, at)
    return True


def _row(row: tuple[Any, ...], request: Request, report: Report, at: str) -> bool:
    """Check one position on its own; say whether it can be used."""
    token, value, top = row
    if not report.check(isinstance(token, str), "L.shape", at, "token is not a string"):
        return False
    _spelling(token, report, at, sampled=True)
    if value is None and top is None:
        return True
    if value is None or not isinstance(top, dict):
        report.add("L.null" if value is None or top is None else "L.shape", at, top)
        return False
    report.check(_is_logprob(value), "L.value", at, value)
    for name, number in top.items():
        report.check(_is_logprob(number), "L.value", at, f"{name!r} {number}")
        _spelling(name, report, at, sampled=False)
    if not all(_is_logprob(v) for v in (value, *top.values())):
        return False
    values = list(top.values())
    report.check(values == sorted(values, reverse=True), "L.descending", at, values)
    most = request.k + (value <= min(values, default=0.0))  # an unlikely one is added to the k
    report.check(len(top) <= most, "L.k", at, f"{len(top)} with the sampled token, k {request.k}")
    if token:  # of a part of a character only the last token's name is known
        own = top.get(token)
        report.check(own == value, "L.own", at, f"{token!r} has {value}, among them {own}")
    return True


def _is_logprob(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and UNKNOWN <= value <= 0


def _spelling(token: str, report: Report, at: str, *, sampled: bool) -> None:
    """Refuse a name that its bytes do not have; an alternative's bytes may be unknowable."""
    if sampled and _REPLACEMENT in token:
        report.add("L.spelling", at, repr(token))
    if not (token.startswith("bytes:") and _ESCAPE.search(token)):
        return
    raw = data_of(token)
    literal = "bytes:" + raw.decode("utf-8", "backslashreplace")
    # U+FFFD in the text itself may not be spelled as such either
    replaced = literal.replace(_REPLACEMENT, "\\xef\\xbf\\xbd")
    fine = token == spelled(raw) or (_REPLACEMENT in literal and token == replaced)
    report.check(fine, "L.spelling", at, repr(token))


def _nulls(rows: Sequence[tuple[Any, ...]], allowed: bool, report: Report, at: str) -> None:
    """Refuse values that are null, but for those an echoed text begins with."""
    for i, (_, value, _) in enumerate(rows):
        allowed = allowed and value is None
        report.check(value is not None or allowed, "L.null", f"{at}[{i}]", "null")


def _tiling(
    tokens: list[str],
    offsets: list[Any],
    text: str,
    place: Place,
    request: Request,
    report: Report,
    at: str,
) -> None:
    """Check that the tokens are the text, and that the offsets say where each begins."""
    if not all(type(offset) is int for offset in offsets):
        report.add("L.offset", at, offsets)
        return
    report.check(offsets == sorted(offsets), "L.offset", at, offsets)
    if any(_PLACEHOLDER.fullmatch(token) for token in tokens):
        known = [None if _PLACEHOLDER.fullmatch(t) else data_of(t) for t in tokens]
        report.check(appears(known, text), place.rule, at, f"known parts not in {text!r}")
        return
    parts = [data_of(token) for token in tokens]
    joined = _joined(parts)
    if joined != text and request.echo and tokens:
        outside = _outside(tokens, parts, text, place)
        parts = [b"" if i in outside else part for i, part in enumerate(parts)]
        joined = _joined(parts)
    if not report.check(joined == text, place.rule, at, f"{joined!r}, not {text!r}"):
        return
    if not offsets:
        return
    start = offsets[0] if place.offset is None else place.offset
    for i, (offset, fit) in enumerate(zip(offsets, _before(parts, text), strict=True)):
        report.check(offset - start in fit, "L.offset", f"{at}[{i}]", f"{offset}, {start} + {fit}")


def _joined(parts: Sequence[bytes]) -> str:
    return b"".join(parts).decode("utf-8", "replace")


def _outside(tokens: list[str], parts: list[bytes], text: str, place: Place) -> set[int]:
    """Return the tokens that begin and end an echoed text without being part of it."""
    last = len(tokens) - 1
    first = [set(), {0}] if place.opens and _CONTROL.fullmatch(tokens[0]) else [set()]
    end = [set(), {last}] if _CONTROL.fullmatch(tokens[last]) else [set()]
    for one in first:
        for other in end:
            if _joined([p for i, p in enumerate(parts) if i not in one | other]) == text:
                return one | other
    return set()


def _before(parts: Sequence[bytes], text: str) -> list[set[int]]:
    """Return how many characters may be said to stand before each token.

    Those that are whole; after a broken character of the text it may count, too.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found, whole, data = [], 0, b""
    for part in parts:
        fit = {whole}
        if text[whole : whole + 1] == _REPLACEMENT:
            fit.add(len(data.decode("utf-8", "replace")))
        found.append(fit)
        data += part
        whole += len(decoder.decode(part))
    return found


# --- against what the backend gave -----------------------------------------------------------


def check_array_facts(
    logprobs: Any, facts: ChoiceFacts, k: int, report: Report, at: str, *, empty: bool
) -> None:
    """Check one choice's sound arrays against the backend's rows; `empty`: it has no text."""
    rows = facts.rows
    if rows is None:
        return
    dropped = None if facts.drops is None or empty else sum(facts.drops.values())
    if logprobs is None:
        lost = empty or (bool(rows) and (dropped is None or dropped < len(rows)))
        report.check(not lost, "L.missing", at, f"{len(rows)} rows were given")
        return
    size = len(logprobs["tokens"])
    fits = size <= len(rows) if dropped is None else size == len(rows) - dropped
    detail = f"{size} entries for {len(rows)} rows, {dropped} dropped"
    if not report.check(fits, "L.count", at, detail):
        return
    linear = holds_probabilities(rows)
    spare = len(rows) - size
    got = list(zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))
    wrong = [_mismatches(got, rows[s : s + size], k, linear) for s in range(spare + 1)]
    for rule, place, text in min(wrong, key=len):
        report.add(rule, f"{at}[{place}]", text)


def _mismatches(
    got: Sequence[tuple[float | None, dict[str, float] | None]],
    rows: Sequence[Row],
    k: int,
    linear: bool,
) -> list[tuple[str, int, str]]:
    wrong: list[tuple[str, int, str]] = []
    for i, ((value, top), row) in enumerate(zip(got, rows, strict=True)):
        if value is None or top is None:
            if row.logprob is not None:
                wrong.append(("L.numbers", i, f"null, not {row.logprob}"))
            continue
        offered = [canonical(v, linear) for v in row.alternatives]
        own = offered if row.inferred else [canonical(row.logprob, linear)]
        if not any(same_number(value, want) for want in own):
            wrong.append(("L.numbers", i, f"{value}, not {own[:3]}"))
        wrong += [(rule, i, detail) for rule, detail in _of_top(top, value, row, offered, k)]
    return wrong


def _of_top(
    top: dict[str, float], value: float, row: Row, offered: list[float], k: int
) -> list[tuple[str, str]]:
    """Compare one dict with the alternatives that the backend offered."""
    wrong = []
    names = row.names or tuple(str(n) for n in range(len(offered)))
    best = sorted(zip(offered, names, strict=True), key=lambda pair: -pair[0])
    # which of equal ones is left out is anybody's choice
    floor = best[k - 1][0] if 0 < k < len(best) else -math.inf
    wanted = {name: number for number, name in reversed(best[:k])}
    if not len(wanted) <= len(top) <= len(wanted) + 1:
        wrong.append(("L.offered", f"{len(top)} of {len(offered)}, k {k}"))
    for name, number in top.items():
        if not any(same_number(number, want) for want in (value, *wanted.values())):
            wrong.append(("L.numbers", f"{name!r} {number}, not of {best[:k]}"))
    for known, number in wanted.items():
        # the sampled token may have been clipped, or given a whole character's bytes
        named = isinstance(known, bytes) and number > floor and not same_number(value, number)
        if named and not same_number(top.get(spelled(bytes(known))), number):  # type: ignore[arg-type]
            wrong.append(("L.numbers", f"{known!r} is not there with {number}"))
    return wrong
