"""The check of the completions endpoint's answers: a body, and a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance.arrays import KEYS, Place, check_array_facts, check_arrays
from tests.conformance.model import Facts, Report, Request, Violation
from tests.conformance.shape import (
    Chunk,
    Stream,
    check_chunks,
    check_envelope,
    check_keys,
    check_usage,
    is_int,
)
from tests.conformance.wire import load_object

KIND = "text_completion"
TOP = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint"})
CHOICE = frozenset({"index", "text", "logprobs", "finish_reason"})
REASONS = frozenset({"stop", "length", "content_filter"})
CONSTANT = ("id", "created", "model", "system_fingerprint")
CHUNK = Chunk(KIND, TOP, CONSTANT)


@dataclass
class Choice:
    """What has come of one choice. `arrays` None: no logprobs; `sound`: they can be used."""

    text: str = ""
    ended: bool = False
    arrays: dict[str, list[Any]] | None = None
    sound: bool = True

    def add(self, logprobs: Any) -> None:
        """Add a piece's arrays."""
        if logprobs is not None and self.sound:
            self.arrays = self.arrays or {key: [] for key in KEYS}
            for key in KEYS:
                self.arrays[key] += logprobs[key]

    def opens(self) -> bool:
        """Say whether all tokens that came are some without a logprob."""
        return self.arrays is None or set(self.arrays["token_logprobs"]) <= {None}


@dataclass
class State(Stream):
    """What has come of one stream, its choices with it."""

    choices: dict[int, Choice] = field(default_factory=dict)


def check_completion_body(
    data: bytes, request: Request, facts: Facts | None = None
) -> list[Violation]:
    """Check a text_completion body against every rule that a body can break."""
    report = Report()
    body = load_object(data, report, "body")
    if body is None:
        return report.found
    check_keys(body, TOP, request, report, "answer")
    check_envelope(body, KIND, request, facts, report)
    if report.check(body.get("usage") is not None, "10.present", "answer", "no usage"):
        check_usage(body["usage"], request, facts, report, "usage")
    choices: Any = body.get("choices")
    if not report.check(isinstance(choices, list), "types", "answer", "choices"):
        return report.found
    report.check(len(choices) == request.n, "5.count", "answer", f"{len(choices)}, {request.n}")
    for place, choice in enumerate(choices):
        at = f"choices[{place}]"
        if not report.check(isinstance(choice, dict), "types", at, "not an object"):
            continue
        index = choice.get("index")
        report.check(is_int(index), "5.index", at, index)
        report.check(not is_int(index) or index == place, "5.order", at, index)
        if not _form(choice, request, report, at):
            continue
        if "finish_reason" in choice:
            _reason(choice["finish_reason"], report, at)
        whole = Choice(choice["text"])
        arrays, where = choice.get("logprobs"), f"{at}.logprobs"
        start = Place(_start(request, place))
        whole.sound = check_arrays(arrays, whole.text, start, request, report, where)
        whole.add(arrays)
        _whole(whole, place, request, facts, report, at)
    return report.found


def check_completion_stream(
    data: bytes, request: Request, facts: Facts | None = None
) -> list[Violation]:
    """Check a whole stream; it ends in [DONE], or in an error event without it."""
    report = Report()
    state = State(request, facts, report)
    if check_chunks(data, CHUNK, state, lambda choice, at: _choice(choice, at, state)):
        _end(state)
    return report.found


def _form(choice: dict[str, Any], request: Request, report: Report, at: str) -> bool:
    """Check a choice's keys and its text; say whether it has a text."""
    check_keys(choice, CHOICE, request, report, at)
    report.check("logprobs" in choice, "7.present", at, "logprobs")
    report.check("finish_reason" in choice, "1.present", at, "finish_reason")
    return report.check(isinstance(choice.get("text"), str), "types", at, choice.get("text"))


def _reason(reason: Any, report: Report, at: str) -> None:
    """Check one finish reason against the enum."""
    report.check(isinstance(reason, str) and reason in REASONS, "L.reason", at, reason)


def _start(request: Request, index: int) -> int | None:
    """Return the offset of a choice's first character, None where that is not known."""
    if request.echo:
        return 0
    prompt = request.prompt_of(index)
    return None if prompt is None else len(prompt)


def _whole(
    choice: Choice, index: int, request: Request, facts: Facts | None, report: Report, at: str
) -> None:
    """Check what a whole choice means: echo, stop strings, and what the backend gave."""
    own = choice.text
    prompt = request.prompt_of(index)
    if request.echo and prompt is not None:
        report.check(own.startswith(prompt), "L.echo", at, f"{own[: len(prompt)]!r}")
        own = own.removeprefix(prompt)
    for stop in request.stops:
        report.check(stop not in own, "stop", at, repr(stop))
    known = None if facts is None else facts.choices.get(index)
    if known is None:
        return
    if known.text is not None:
        report.check(choice.text == known.text, "8.text", at, f"{choice.text!r}, {known.text!r}")
    if request.logprobs and choice.sound:
        where = f"{at}.logprobs"
        check_array_facts(choice.arrays, known, request.k, report, where, empty=not choice.text)


def _choice(choice: dict[str, Any], event: str, state: State) -> None:
    """Check one choice of one chunk."""
    report, request = state.report, state.request
    index: Any = choice.get("index")
    if not report.check(is_int(index), "5.index", event, index):
        state.broken = True
        return
    at = f"{event} choice {index}"
    if index not in state.choices:
        report.check(index == len(state.choices), "5.order", at, index)
    seen = state.choices.setdefault(index, Choice())
    report.check(not seen.ended, "1.once", at, "after the choice's end")
    if not _form(choice, request, report, at):
        state.broken = True
        return
    text, arrays = choice["text"], choice.get("logprobs")
    reason = choice.get("finish_reason")
    if reason is not None:
        _reason(reason, report, at)
        report.check(text == "" and arrays is None, "L.alone", at, text)
        seen.ended = True
    start = _start(request, index)
    offset = None if start is None else start + len(seen.text)
    place = Place(offset, seen.opens(), "L.chunk")
    sound = check_arrays(arrays, text, place, request, report, f"{at}.logprobs")
    seen.sound = seen.sound and sound
    seen.text += text
    seen.add(arrays)


def _end(state: State) -> None:
    """Check what only the whole stream shows."""
    report, request = state.report, state.request
    report.check(len(state.choices) == request.n, "5.count", "stream", len(state.choices))
    for index, seen in state.choices.items():
        at = f"choice {index}"
        report.check(seen.ended, "1.once", at, "no finish_reason")
        if not state.broken:
            _whole(seen, index, request, state.facts, report, at)
            if seen.arrays is not None and seen.sound:
                offsets = seen.arrays["text_offset"]
                report.check(offsets == sorted(offsets), "L.offset", at, offsets)
