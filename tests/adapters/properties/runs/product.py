"""The translation of an answer's bytes, for a client that wants a body and one that streams."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass, field
from typing import Any

from tests import replay
from tests.adapters.properties.runs.model import Case
from tests.adapters.properties.runs.wire import write
from tests.conformance import (
    check_body,
    check_completion_body,
    check_completion_stream,
    check_stream,
)
from tests.conformance.model import Request, Violation
from tests.corpus import checked_request
from tests.fold import fold, fold_completion
from wellspoken.adapters.events import Fault
from wellspoken.adapters.translate import StreamTranslator, translate_body

CHUNK_RULES = ("7.chunk", "L.chunk", "L.offset")
"""What no one can hold whose backend sends the entries behind their text (form late)."""


@dataclass
class Output:
    """What came out: both clients' bodies, and what the checker finds wrong with either.

    `answer` is what a client of the backend's own kind gets, `other` what one of the other does.
    `failed` is why nothing came out.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    wrong: list[Violation] = field(default_factory=list)
    failed: str = ""
    repairs: dict[str, int] = field(default_factory=dict)


def translate(case: Case) -> Output:
    """Translate the case's bytes both ways."""
    out, raw = Output(), write(case)
    try:
        (_stream if case.streamed else _body)(case, raw, out)
    except Exception:
        out.failed = traceback.format_exc()
    return out


def _asked(case: Case, *, streamed: bool) -> tuple[dict[str, Any], Request]:
    request = case.request(streamed=streamed)
    return request, checked_request(request)


def _body(case: Case, raw: bytes, out: Output) -> None:
    request, asked = _asked(case, streamed=False)
    exchange = replay.exchange(request)
    answer = translate_body(exchange, 200, "application/json", raw, case.shape)
    out.repairs = exchange.notes.counts
    if answer.status != 200:
        out.failed = answer.body.decode()
        return
    out.answer = _checked_body(case, answer.body, asked, out)
    request, asked = _asked(case, streamed=True)
    got = replay.body_as_stream(replay.exchange(request), "application/json", raw, case.shape)
    if isinstance(got, Fault):
        out.failed = got.message
        return
    out.other = _checked_stream(case, got, asked, out)


def _stream(case: Case, raw: bytes, out: Output) -> None:
    request, asked = _asked(case, streamed=True)
    exchange = replay.exchange(request)
    translator = StreamTranslator(exchange, case.shape)
    pieces = replay.at_random(raw, case.seed) if "bytes-split" in case.loose else [raw]
    got = b"".join([*[translator.feed(piece) for piece in pieces], translator.close()])
    out.repairs = exchange.notes.counts
    if translator.fault is not None:
        out.failed = translator.fault.message
        return
    out.answer = _checked_stream(case, got, asked, out)
    request, asked = _asked(case, streamed=False)
    folder = StreamTranslator(replay.exchange(request), case.shape, fold=True)
    folder.feed(raw)
    folder.close()
    answer = folder.answer()
    if answer.status != 200:
        out.failed = answer.body.decode()
        return
    out.other = _checked_body(case, answer.body, asked, out)


def _checked_body(case: Case, data: bytes, asked: Request, out: Output) -> dict[str, Any]:
    check = check_body if case.shape == "chat" else check_completion_body
    out.wrong += check(data, asked)
    found: dict[str, Any] = json.loads(data)
    return found


def _checked_stream(case: Case, data: bytes, asked: Request, out: Output) -> dict[str, Any]:
    check = check_stream if case.shape == "chat" else check_completion_stream
    late = CHUNK_RULES if case.form == "late" else ()
    found = check(data, asked)
    out.wrong += [v for v in found if v.rule not in late]
    return fold(data) if case.shape == "chat" else fold_completion(data)
