"""Answers of the completions endpoint, conforming and then spoiled, as `generators.py` does chat's.

`text_cases(deviation, ...)` draws prompts, and for each of them answers: any text, cut into tokens
anywhere. It writes them in OpenAI's form, as a body or a stream, and lets the deviations spoil
that. `Writer` writes the same answers in another dialect altogether (`native_cases`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.adapters.properties.generators import (
    CREATED,
    MODEL,
    Draw,
    Token,
    alternatives,
    cut,
    cut_pieces,
    groups,
    plain_texts,
    sometimes,
    texts,
    values,
)
from tests.conformance import ChoiceFacts, Facts, Row
from tests.corpus import Dialect, Fixture

ID = "cmpl-uqkvlQyYK7bGYrRHQ0eXlWi7"


@dataclass
class Answer:
    """One choice: `lead` are the echoed prompt's tokens, the first of them without a number.

    `text` is all of it, `rows` and `drops` what is true of its logprobs.
    """

    prompt: str
    lead: list[Token]
    tokens: list[Token]
    text: str
    reason: str
    rows: list[Row] = field(default_factory=list)
    drops: dict[str, int] | None = field(default_factory=dict)

    @property
    def all(self) -> list[Token]:
        """Every token of the text."""
        return [*self.lead, *self.tokens]


@dataclass
class TextCase:
    """A completions answer on its way to being spoiled; `parts` is the body, or the chunks."""

    answers: list[Answer]
    prompts: list[str]
    k: int
    streamed: bool
    scored: bool
    echo: bool
    include_usage: bool
    parts: list[dict[str, Any]] = field(default_factory=list)
    usage: tuple[int, int] | None = (11, 7)
    ascii: bool = True
    done: bool = True
    told: bool = True  # the reasons can be known
    dialect: Dialect = "completions"
    chat: bool = False  # the client asked for chat
    whole: Any = None  # a body that is no JSON object of `parts`

    def request(self) -> dict[str, Any]:
        """Return the client's request."""
        if self.chat:
            return self._chat()
        prompts = self.prompts
        found: dict[str, Any] = {
            "model": MODEL,
            "prompt": prompts[0] if len(prompts) == 1 else prompts,
            "max_tokens": 999,
        }
        if len(self.answers) > len(prompts):
            found["n"] = len(self.answers) // len(prompts)
        if self.scored:
            found["logprobs"] = self.k
        return found | self._common() | ({"echo": True} if self.echo else {})

    def _chat(self) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.prompts[0]}]
        found: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 999}
        if len(self.answers) > 1:
            found["n"] = len(self.answers)
        if self.scored:
            found |= {"logprobs": True, "top_logprobs": self.k}
        return found | self._common()

    def _common(self) -> dict[str, Any]:
        found: dict[str, Any] = {"stream": True} if self.streamed else {}
        return found | ({"stream_options": {"include_usage": True}} if self.include_usage else {})

    def facts(self) -> Facts:
        """Return what the backend gave."""
        choices = {
            n: ChoiceFacts(
                rows=tuple(answer.rows) if self.scored else None,
                drops=answer.drops,
                text=answer.text,
            )
            for n, answer in enumerate(self.answers)
        }
        return Facts(choices=choices, usage=self.usage)

    def raw(self) -> bytes:
        """Return the backend's bytes."""
        parts = self.parts if self.whole is None else [self.whole]
        written = [json.dumps(part, ensure_ascii=self.ascii).encode() for part in parts]
        if not self.streamed:
            return written[0]
        written += [b"[DONE]"] if self.done else []
        return b"".join(b"data: " + data + b"\n\n" for data in written)

    def fixture(self) -> Fixture:
        """Return the case in the form of the corpus."""
        kind = "text/event-stream" if self.streamed else "application/json"
        nowhere = Path("none")
        given = (self.request(), 200, kind, self.raw(), "drawn", nowhere, self.dialect)
        return Fixture("drawn", "drawn", *given)

    def choices(self) -> list[dict[str, Any]]:
        """Return every choice of every part."""
        return [choice for part in self.parts for choice in part["choices"]]


def spelled(data: bytes) -> str:
    """Return a token's name in the arrays."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + data.decode("utf-8", "backslashreplace")


Name = Callable[[bytes], str]


def arrays(
    answer: Answer, start: int, stop: int, own: list[str], name: Name, base: int | None = None
) -> dict[str, Any]:
    """Return the arrays of an answer's tokens `start` to `stop`, which are named `own`.

    `name` names the alternatives; `base` is where the text begins, the prompt's length if None.
    """
    tokens = answer.all
    if base is None:
        base = 0 if answer.lead else len(answer.prompt)
    found: dict[str, Any] = {"tokens": own[start:stop], "token_logprobs": [], "top_logprobs": []}
    offsets = []
    for place in range(start, stop):
        before = b"".join(token.data for token in tokens[:place])
        offsets.append(base + len(before.decode("utf-8", "ignore")))
        scored = place > 0 or not answer.lead
        found["token_logprobs"].append(tokens[place].logprob if scored else None)
        top = top_of(tokens[place], own[place], name) if scored else None
        found["top_logprobs"].append(top)
    return found | {"text_offset": offsets}


def top_of(token: Token, own: str, name: Name) -> dict[str, float]:
    """Return the best alternatives and the sampled token by name, in descending order."""
    found = {own: token.logprob}
    for data, value in token.top:
        if data != token.data and name(data) != own:  # its name would hide the sampled token
            found.setdefault(name(data), value)
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def rows_of(logprobs: dict[str, Any]) -> list[Row]:
    """Return the numbers of whole arrays."""
    pairs = zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [Row(value, tuple((top or {}).values())) for value, top in pairs]


def respell(case: TextCase, own: Callable[[Answer], list[str]], name: Name) -> None:
    """Write every choice's arrays anew with other names."""
    names = [own(answer) for answer in case.answers]
    at = [0] * len(case.answers)
    for choice in case.choices():
        if not choice.get("logprobs"):
            continue
        n = choice["index"]
        size = len(choice["logprobs"]["tokens"])
        choice["logprobs"] = arrays(case.answers[n], at[n], at[n] + size, names[n], name)
        at[n] += size
    for answer, own_names in zip(case.answers, names, strict=True):
        answer.rows = rows_of(arrays(answer, 0, len(answer.all), own_names, name))


# --- conforming answers ----------------------------------------------------------------------


def part(choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a body or a chunk."""
    head = {"id": ID, "object": "text_completion", "created": CREATED, "model": MODEL}
    return {**head, "choices": choices, **more}


def piece(index: int, text: str, logprobs: Any, reason: str | None = None) -> dict[str, Any]:
    """Return one choice of a chunk."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def usage_of(case: TextCase) -> dict[str, int]:
    """Return the usage object."""
    prompt, completion = case.usage or (0, 0)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return counts | {"total_tokens": prompt + completion}


def pieces_of(draw: Draw, case: TextCase, index: int) -> list[dict[str, Any]]:
    """Return the chunks of one choice, the last one with its reason alone."""
    answer = case.answers[index]
    names = [spelled(token.data) for token in answer.all]
    found, at = [], 0
    for group in groups(draw, answer.all):
        text = b"".join(token.data for token in group).decode()
        lp = arrays(answer, at, at + len(group), names, spelled) if case.scored else None
        found.append(piece(index, text, lp))
        at += len(group)
    return [*found, piece(index, "", None, answer.reason)]


def write(draw: Draw, case: TextCase) -> None:
    """Write the answers as they should be: OpenAI's body, or its stream, the choices mixed."""
    for answer in case.answers:
        names = [spelled(token.data) for token in answer.all]
        answer.rows = rows_of(arrays(answer, 0, len(answer.all), names, spelled))
    if not case.streamed:
        found = []
        for n, answer in enumerate(case.answers):
            names = [spelled(token.data) for token in answer.all]
            lp = arrays(answer, 0, len(names), names, spelled) if case.scored else None
            found.append(piece(n, answer.text, lp, answer.reason))
        case.parts = [part(found, usage=usage_of(case))]
        return
    waiting = [pieces_of(draw, case, n) for n in range(len(case.answers))]
    order = [queue.pop(0) for queue in waiting]
    while any(waiting):
        queue = draw(st.sampled_from([queue for queue in waiting if queue]))
        order.append(queue.pop(0))
    empty = {"usage": None} if case.include_usage else {}
    case.parts = [part([one], **empty) for one in order]
    if case.include_usage:
        case.parts.append(part([], usage=usage_of(case)))


@dataclass(frozen=True)
class TextDeviation:
    """A class of deviations, and which answers it needs (`generators.Deviation` has the rest)."""

    spoil: Callable[[Draw, TextCase], None]
    scored: bool | None = None
    streamed: bool | None = None
    echo: bool | None = None
    single: bool = False  # one choice
    pieces: bool = False  # tokens are whole characters or single bytes
    plain: bool = False  # texts without what the shape itself cannot carry
    low: float | None = None  # logprobs not below this


def _tokens(draw: Draw, text: str, k: int, low: float | None, pieces: bool) -> list[Token]:
    own = values if low is None else st.floats(low, -0.01)
    found = []
    for data in (cut_pieces if pieces else cut)(draw, text.encode()):
        value = draw(own)
        top = alternatives(draw, data, value, k)
        if top and data not in dict(top):  # else it would be one of the best
            if low is None:
                value = min(value, top[-1][1] - 0.01)
            else:
                top = ()
        found.append(Token(data, value, top))
    return found


@st.composite
def text_cases(draw: Draw, *deviations: TextDeviation) -> TextCase:
    """Draw answers and spoil them with the deviations, in their order."""
    case: TextCase = draw(unwritten(*deviations))
    write(draw, case)
    for deviation in deviations:
        deviation.spoil(draw, case)
    return case


@st.composite
def unwritten(draw: Draw, *deviations: TextDeviation) -> TextCase:
    """Draw answers that no dialect was written in yet."""

    def wanted(name: str) -> bool:
        need = [getattr(d, name) for d in deviations if getattr(d, name) is not None]
        return need[0] if need else sometimes(draw)

    scored, streamed, echo = wanted("scored"), wanted("streamed"), wanted("echo")
    plain, pieces = any(d.plain for d in deviations), any(d.pieces for d in deviations)
    low = next((d.low for d in deviations if d.low is not None), None)
    single = any(d.single for d in deviations)
    prompts = draw(st.lists(plain_texts, min_size=1, max_size=1 if single else 2))
    n = 1 if single else draw(st.integers(1, 2))
    k = draw(st.integers(0, 4))
    answers = []
    for prompt in prompts:
        lead = _tokens(draw, prompt, k, low, pieces) if echo else []
        for _ in range(n):
            # A text that spells an escape, or begins as its prompt, is test_reported.py's.
            text = draw(plain_texts if plain else texts).replace("x", "y") or "x"
            text = f"Z{text}" if echo else text
            tokens = _tokens(draw, text, k, low, pieces)
            reason = draw(st.sampled_from(["stop", "length", "content_filter"]))
            answers.append(Answer(prompt, lead, tokens, prompt * echo + text, reason))
    include_usage = streamed and sometimes(draw)
    return TextCase(
        answers=answers,
        prompts=prompts,
        k=k,
        streamed=streamed,
        scored=scored,
        echo=echo,
        include_usage=include_usage,
        usage=(11, 7) if include_usage or not streamed else None,
        ascii=sometimes(draw),
    )
