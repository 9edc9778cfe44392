"""Strict JSON and the framing of a conforming stream."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.model import Report


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def load_object(data: bytes, report: Report, where: str) -> dict[str, Any] | None:
    """Return the JSON object in `data`, None (and a violation) if it is not one.

    Of a key that stands twice, which is one too, the last value counts, as for all clients.
    """
    twice: set[str] = set()

    def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice.update(key for key in found if keys.count(key) > 1)
        return found

    try:
        value = json.loads(data.decode(), parse_constant=_no_constant, object_pairs_hook=read_pairs)
    except ValueError as error:  # both decode errors are
        report.add("json", where, error)
        return None
    if twice:
        report.add("json", where, f"duplicate keys {sorted(twice)}")
    if not isinstance(value, dict):
        report.add("json", where, "not an object")
        return None
    # Only an escape can write one: as UTF-8 it does not decode.
    if b"\\u" in data and "\ud800" <= max(_characters(value), default="") <= "\udfff":
        report.add("json", where, "a lone surrogate is no text")
    return value


def _characters(value: Any) -> set[str]:
    """The surrogates in all texts of `value`; a pair is one character by now."""
    if isinstance(value, str):
        return {c for c in value if "\ud800" <= c <= "\udfff"}
    if isinstance(value, dict):
        return set().union(*(_characters(k) | _characters(v) for k, v in value.items()))
    if isinstance(value, list):
        return set().union(*(_characters(v) for v in value))
    return set()


def frames(data: bytes, report: Report) -> list[bytes]:
    """Return the payloads of a conforming stream's data lines; note what is not conforming.

    Allowed: a data line and a blank line; a comment line, with or without a blank line.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        report.add("11.framing", "stream", "BOM")
    if data and not data.endswith(b"\n"):
        report.add("11.framing", "stream", "no newline at the end")
    if b"\r" in data:
        report.add("11.framing", "stream", "CR")
    payloads: list[bytes] = []
    before = b""
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        where = f"line {number}"
        if not line:
            report.check(before.startswith((b"data: ", b":")), "11.framing", where, "blank line")
        elif line.startswith(b"data: "):
            payloads.append(line[6:])
        elif not line.startswith(b":"):
            report.add("11.framing", where, line[:60])
        if line and before.startswith(b"data: "):
            report.add("11.framing", where, "no blank line after a data line")
        before = line
    if before.startswith(b"data: "):
        report.add("11.framing", "stream", "no blank line at the end")
    return payloads
