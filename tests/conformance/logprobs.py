"""Rule 7: entries, tiling, and whether the backend's numbers are all still there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tests.conformance.model import ChoiceFacts, Report, Request, Row

UNKNOWN = -9999.0
LOGPROBS_KEYS = {"content", "refusal"}
IDS = "return_tokens_as_token_ids"
_PLACEHOLDER = re.compile(r"token_id:\d+")
_CONTROL = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_REPLACEMENT = "\ufffd"
_REPLACEMENT_BYTES = _REPLACEMENT.encode()


def check_logprobs(
    logprobs: Any, content: str, refusal: str | None, request: Request, report: Report, at: str
) -> None:
    """Check a choice's (or a chunk's) logprobs against the text they belong to."""
    if logprobs is None:
        return
    if not request.logprobs:
        report.add("7.unasked", at, "logprobs although none were asked for")
    if not (isinstance(logprobs, dict) and logprobs.keys() == LOGPROBS_KEYS):
        report.add("7.shape", at, "keys")
        return
    if logprobs["content"] is None and logprobs["refusal"] is None:
        report.add("7.shape", at, "content null")
    for key, text in (("content", content), ("refusal", refusal or "")):
        entries = logprobs[key]
        if entries is None:
            continue
        if not report.check(isinstance(entries, list), "7.shape", at, f"{key} is not a list"):
            continue
        where = f"{at}.{key}"
        sound = [_entry(e, request, report, f"{where}[{i}]") for i, e in enumerate(entries)]
        if all(sound):
            for before, entry in zip([None, *entries], entries, strict=False):
                _own_value(before, entry, report, where)
            _tiling(entries, text, report, where)


def _entry(entry: Any, request: Request, report: Report, at: str) -> bool:
    """Check one entry on its own; say whether its token and bytes can be used."""
    keys = {"token", "logprob", "bytes", "top_logprobs"}
    if not (isinstance(entry, dict) and entry.keys() == keys):
        report.add("7.shape", at, "keys of the entry")
        return False
    sound = _token(entry, request, report, at, sampled=True)
    top = entry["top_logprobs"]
    if not report.check(isinstance(top, list), "7.shape", at, "top_logprobs is not a list"):
        return False
    for i, alternative in enumerate(top):
        where = f"{at}.top_logprobs[{i}]"
        if not (isinstance(alternative, dict) and alternative.keys() == keys - {"top_logprobs"}):
            report.add("7.shape", where, "keys of the alternative")
            return False
        if not _token(alternative, request, report, where, sampled=False):
            return False
    report.check(len(top) <= request.k, "7.k", at, f"{len(top)} of {request.k}")
    values = [a["logprob"] for a in top]
    report.check(values == sorted(values, reverse=True), "7.descending", at, values)
    _distinct(top, report, at)
    return sound


def _distinct(top: list[dict[str, Any]], report: Report, at: str) -> None:
    """Refuse one alternative twice; two that print alike differ in bytes or in value."""
    seen = [
        (a["token"], str(a["bytes"]), a["logprob"])
        for a in top
        if a["bytes"] is not None and a["logprob"] != UNKNOWN
    ]
    report.check(len(set(seen)) == len(seen), "7.distinct", at, seen)


def _own_value(
    before: dict[str, Any] | None, entry: dict[str, Any], report: Report, at: str
) -> None:
    """The sampled token's value is not that of the best alternative, which is another token.

    Another value than its own text's is no fault: several tokens may print alike. An entry that
    owns a character which earlier ones are part of says nothing of its own token.
    """
    if entry["bytes"] is None or (before is not None and before["bytes"] is None):
        return
    same = (entry["token"], entry["bytes"])
    top = entry["top_logprobs"]
    own = [a["logprob"] for a in top if (a["token"], a["bytes"]) == same]
    if own and entry["logprob"] == top[0]["logprob"]:
        report.check(entry["logprob"] in own, "7.own", at, f"{entry['logprob']}, not {own}")


def _token(
    item: dict[str, Any], request: Request, report: Report, at: str, *, sampled: bool
) -> bool:
    """Check token, logprob and bytes of an entry or an alternative.

    A client that asked for tokens as ids gets `token_id:N` beside the bytes, where they are known.
    """
    value = item["logprob"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = number and math.isfinite(value) and UNKNOWN <= value <= 0
    report.check(fine, "7.value", at, value)
    token, data = item["token"], item["bytes"]
    if not report.check(isinstance(token, str), "7.shape", at, "token is not a string"):
        return False
    if data is None:
        nameless = token == "" or bool(_PLACEHOLDER.fullmatch(token))
        # an alternative's real bytes may be unknowable, and a control token may have none
        hidden = bool(_CONTROL.fullmatch(token)) or (not sampled and _REPLACEMENT in token)
        report.check(nameless or hidden, "7.null", at, repr(token))
        return number
    octets = isinstance(data, list) and all(type(b) is int and 0 <= b <= 255 for b in data)
    if not report.check(octets and bool(data), "7.bytes", at, data):
        return False
    raw = bytes(data)
    # U+FFFD in the content itself is somebody's too, and may not be spelled as such
    spellings = (_spelling(raw), _spelling(raw).replace(_REPLACEMENT, "\\xef\\xbf\\xbd"))
    named = bool(_PLACEHOLDER.fullmatch(token)) and IDS in request.switches
    report.check(named or token in spellings, "7.spelling", at, f"{token!r} for {raw!r}")
    if not sampled and _REPLACEMENT in token and _REPLACEMENT_BYTES in raw:
        report.add("7.replacement", at, repr(token))
    return number


def _spelling(raw: bytes) -> str:
    """Spell bytes as a token: text where they are text, else lower-case hex escapes."""
    spelled = []
    while raw:
        try:
            spelled.append(raw.decode())
            break
        except UnicodeDecodeError as error:
            spelled.append(raw[: error.start].decode())
            spelled += [f"\\x{b:02x}" for b in raw[error.start : error.end]]
            raw = raw[error.end :]
    return "".join(spelled)


def _tiling(entries: list[dict[str, Any]], text: str, report: Report, at: str) -> None:
    """Check that the entries' bytes are the text."""
    for i, entry in enumerate(entries):
        if entry["bytes"] and _REPLACEMENT in entry["token"] and _REPLACEMENT not in text:
            report.add("7.replacement", f"{at}[{i}]", repr(entry["token"]))
    unknown = any(_PLACEHOLDER.fullmatch(e["token"]) and e["bytes"] is None for e in entries)
    if unknown:
        parts = [None if e["bytes"] is None else bytes(e["bytes"]) for e in entries]
        report.check(appears(parts, text), "7.tiling", at, f"known parts not in {text!r}")
        return
    joined = b"".join(bytes(e["bytes"] or ()) for e in entries).decode("utf-8", "replace")
    report.check(joined == text, "7.tiling", at, f"{joined!r}, not {text!r}")


def appears(parts: Sequence[bytes | None], text: str) -> bool:
    """Say whether the runs of known bytes (None: not known) appear in the text in their order."""
    runs, place = [b""], 0
    for part in parts:
        if part is None:
            runs.append(b"")
        else:
            runs[-1] += part
    for run in runs:
        known = run.decode("utf-8", "replace").strip(_REPLACEMENT)
        place = text.find(known, place)
        if place < 0:
            return False
        place += len(known)
    return True


# --- against what the backend gave -----------------------------------------------------------


def check_facts(
    entries: list[dict[str, Any]] | None,
    facts: ChoiceFacts,
    k: int,
    report: Report,
    at: str,
    *,
    empty: bool,
) -> None:
    """Check one choice's entries against the backend's rows: count, numbers, alternatives.

    `empty`: the choice has no content, so that which of them belong to it is not known, but that
    they were given is.
    """
    rows = facts.rows
    if rows is None:
        report.check(not entries, "7.count", at, "entries that were not given")
        return
    dropped = None if facts.drops is None or empty else sum(facts.drops.values())
    if entries is None:
        lost = empty or (bool(rows) and (dropped is None or dropped < len(rows)))
        report.check(not lost, "7.missing", at, f"{len(rows)} rows were given")
        return
    most = len(rows) if dropped is None else len(rows) - dropped
    if not report.check(
        len(entries) == most if dropped is not None else len(entries) <= most,
        "7.count", at, f"{len(entries)} entries for {len(rows)} rows, {dropped} dropped",
    ):  # fmt: skip
        return
    linear = holds_probabilities(rows)
    spare = len(rows) - len(entries)
    wrong = [_mismatches(entries, rows[s : s + len(entries)], k, linear) for s in range(spare + 1)]
    best = min(wrong, key=len)
    for rule, place, detail in best:
        report.add(rule, f"{at}[{place}]", detail)


def holds_probabilities(rows: Sequence[Row]) -> bool:
    """Say whether an answer's values are probabilities: any above 0.001 (contract rule 7)."""
    values = [v for row in rows for v in (row.logprob, *row.alternatives) if v is not None]
    return any(v > 0.001 for v in values if math.isfinite(v))


def canonical(value: float | None, linear: bool) -> float:
    """Return what rule 7 makes of a backend's number."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if linear:
        return max(math.log(value), UNKNOWN) if value > 0 else UNKNOWN
    return max(min(value, 0.0), UNKNOWN)


def same_number(got: object, want: float) -> bool:
    """Say whether a value of the answer is the backend's number."""
    if isinstance(got, bool) or not isinstance(got, int | float):
        return False
    return math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)


def _mismatches(
    entries: list[dict[str, Any]], rows: Sequence[Row], k: int, linear: bool
) -> list[tuple[str, int, str]]:
    wrong: list[tuple[str, int, str]] = []
    for i, (entry, row) in enumerate(zip(entries, rows, strict=True)):
        offered = sorted((canonical(v, linear) for v in row.alternatives), reverse=True)
        own = offered if row.inferred else [canonical(row.logprob, linear)]
        if not any(same_number(entry.get("logprob"), value) for value in own):
            wrong.append(("7.numbers", i, f"{entry.get('logprob')}, not {own[:3]}"))
        top = entry.get("top_logprobs")
        got = [a.get("logprob") for a in top] if isinstance(top, list) else []
        if len(got) != min(k, len(offered)):
            wrong.append(("7.offered", i, f"{len(got)} of {len(offered)}, k {k}"))
        elif not all(same_number(g, w) for g, w in zip(got, offered, strict=False)):
            wrong.append(("7.numbers", i, f"alternatives {got}, not {offered[: len(got)]}"))
    return wrong
