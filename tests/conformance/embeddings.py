"""The check of an embeddings answer: its form, and the numbers against those the backend gave."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.conformance.model import Report
from tests.conformance.shape import is_int
from tests.conformance.wire import load_object

TOP = ("object", "data", "model", "usage")
ENTRY = ("object", "index", "embedding")


def check_embeddings(
    data: bytes,
    *,
    model: str,
    encoding: str,
    vectors: Sequence[Sequence[float]],
    tokens: int | None = None,
) -> list[str]:
    """Return what is wrong with an answer; `vectors` are the backend's numbers, in order.

    As floats a number is the backend's own, or the float64 of its float32; as base64 the float32
    nearest to it, little-endian. `tokens`: how many the inputs have, where that is known.
    """
    report: list[str] = []
    parsed = Report()
    body = load_object(data, parsed, "body")
    if body is None:
        return [str(violation) for violation in parsed.found]
    if set(body) != set(TOP):
        report.append(f"body: keys {sorted(body)}")
    if body.get("object") != "list" or body.get("model") != model:
        report.append(f"body: object {body.get('object')!r}, model {body.get('model')!r}")
    _check_usage(body.get("usage"), tokens, report)
    entries = body.get("data")
    if not isinstance(entries, list) or len(entries) != len(vectors):
        report.append(f"data: not {len(vectors)} entries")
        return report
    for place, (entry, vector) in enumerate(zip(entries, vectors, strict=True)):
        _check_entry(entry, place, encoding, vector, report)
    return report


def _check_usage(usage: Any, tokens: int | None, report: list[str]) -> None:
    if not isinstance(usage, dict) or set(usage) != {"prompt_tokens", "total_tokens"}:
        report.append(f"usage: {usage}")
        return
    prompt, total = usage["prompt_tokens"], usage["total_tokens"]
    if not is_int(prompt) or prompt < 1 or prompt != total or tokens not in (None, prompt):
        report.append(f"usage: {usage}")


def _check_entry(
    entry: Any, place: int, encoding: str, vector: Sequence[float], report: list[str]
) -> None:
    where = f"data[{place}]"
    if not isinstance(entry, dict) or set(entry) != set(ENTRY):
        report.append(f"{where}: other keys")
        return
    index = entry["index"]
    if entry["object"] != "embedding" or not is_int(index) or index != place:
        report.append(f"{where}: object {entry['object']!r}, index {index!r}")
    value = entry["embedding"]
    exact = np.asarray(vector, np.float64)
    if encoding == "base64":
        if not isinstance(value, str):
            report.append(f"{where}: no base64")
            return
        found = np.frombuffer(base64.b64decode(value, validate=True), np.dtype("<f4"))
        if found.tobytes() != exact.astype("<f4").tobytes():
            report.append(f"{where}: not the nearest float32")
    elif not isinstance(value, list) or not all(_is_number(number) for number in value):
        report.append(f"{where}: no list of finite numbers")
    elif value != exact.tolist():
        report.append(f"{where}: other numbers")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
