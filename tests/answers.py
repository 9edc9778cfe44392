"""Short conforming answers to spoil in one place, and what the translation makes of them.

Everything that comes back was checked against the emission rules, so a test states only what the
rules leave open: which of several conforming answers is the right one, and what is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance import Violation, check_body, check_error, check_stream
from tests.corpus import checked_request
from tests.fold import chunks_of, fold
from tests.replay import Outcome
from tests.replay import body as translate
from tests.replay import stream as translate_pieces

MODEL = "m"
ID = "chatcmpl-0123456789"
CREATED = 1_741_570_283
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

Json = dict[str, Any]


def ask(**more: Any) -> Json:
    """Return a client's request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}


G = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
TWO = ask(tools=[TOOL, G])
"""A request with two tools, f and g."""


def scored(k: int = 0, **more: Any) -> Json:
    """Return a request for logprobs with k alternatives."""
    return ask(logprobs=True, top_logprobs=k, **more)


def entry(token: str, logprob: float = -0.5, top: Iterable[Any] = (), **more: Any) -> Json:
    """Return one logprob entry; `top` are (token, logprob) pairs."""
    rows = [{"token": t, "bytes": list(t.encode()), "logprob": v} for t, v in top]
    own = {"token": token, "bytes": list(token.encode()), "logprob": logprob}
    return {**own, "top_logprobs": rows, **more}


def entries(*tokens: str) -> Json:
    """Return the logprobs of these tokens, without alternatives."""
    return {"content": [entry(token) for token in tokens], "refusal": None}


def bare(token: str, logprob: float = -0.5, **more: Any) -> Json:
    """Return an entry of a server that does not tell bytes."""
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": [], **more}


def lp(*rows: Json) -> Json:
    """Return the logprobs that these entries are."""
    return {"content": list(rows), "refusal": None}


def call(name: str = "f", arguments: Any = "{}", **more: Any) -> Json:
    """Return a tool call of a body."""
    function = {"name": name, "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function, **more}


def message(content: Any = "Hi", **more: Any) -> Json:
    """Return a message."""
    return {"role": "assistant", "content": content, "refusal": None, **more}


CALLED = message(None, tool_calls=[call()])
"""A message that calls f."""
CALL_DELTA = {"tool_calls": [{"index": 0, **call()}]}
"""A delta that does."""
WITH_TOOL = ask(tools=[TOOL])
"""A request with one tool, f."""


def choice(content: Any = "Hi", **more: Any) -> Json:
    """Return a body's choice."""
    base = {"index": 0, "message": message(content), "logprobs": None, "finish_reason": "stop"}
    return {**base, **more}


def completion(*choices: Json, **more: Any) -> Json:
    """Return a body; of one choice where none is given."""
    head = {"id": ID, "object": "chat.completion", "created": CREATED, "model": MODEL}
    return {**head, "choices": list(choices) or [choice()], "usage": USAGE, **more}


def chunk(delta: Json, finish_reason: Any = None, *, index: int = 0, **more: Any) -> Json:
    """Return a chunk of one choice; `logprobs` goes into the choice."""
    part = {"index": index, "delta": delta, "logprobs": more.pop("logprobs", None)}
    head = {"id": ID, "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
    return {**head, "choices": [{**part, "finish_reason": finish_reason}], **more}


def role(index: int = 0, **more: Any) -> Json:
    """Return the chunk that opens a choice."""
    return chunk(message(""), index=index, **more)


def say(text: str, *, index: int = 0, **more: Any) -> Json:
    """Return a chunk of content."""
    return chunk({"content": text}, index=index, **more)


def end(reason: Any = "stop", *, index: int = 0, **more: Any) -> Json:
    """Return the chunk that ends a choice."""
    return chunk({}, reason, index=index, **more)


def counted(**usage: Any) -> Json:
    """Return the chunk of a stream's usage."""
    return {**chunk({}), "choices": [], "usage": {**USAGE, **usage}}


DONE = b"data: [DONE]\n\n"


def data(part: Any) -> bytes:
    """Return one event of a stream."""
    return b"data: " + (part if isinstance(part, bytes) else json.dumps(part).encode()) + b"\n\n"


@dataclass(frozen=True)
class Said:
    """What the client got: the body, or the fold of the stream; `error` where it failed."""

    answer: Json
    raw: bytes
    status: int
    repairs: dict[str, int]
    error: Json | None
    retry: bool | None

    @property
    def chunks(self) -> list[Json]:
        """A stream's chunks."""
        return chunks_of(self.raw)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """The first choice's calls: id, name and arguments."""
        found = self.message.get("tool_calls", [])
        return [(x["id"], x["function"]["name"], x["function"]["arguments"]) for x in found]

    @property
    def choice(self) -> Json:
        """The first choice."""
        found: Json = self.answer["choices"][0]
        return found

    @property
    def message(self) -> Json:
        """The first choice's message."""
        found: Json = self.choice["message"]
        return found

    @property
    def entries(self) -> list[Json]:
        """The first choice's logprob entries."""
        found: list[Json] = self.choice["logprobs"]["content"]
        return found

    @property
    def rows(self) -> list[tuple[str, float, list[int] | None]]:
        """The entries as (token, logprob, bytes)."""
        return [(row["token"], row["logprob"], row["bytes"]) for row in self.entries]

    @property
    def joined(self) -> bytes:
        """The entries' bytes, joined."""
        return b"".join(bytes(row["bytes"] or ()) for row in self.entries)

    @property
    def tops(self) -> list[list[tuple[str, float]]]:
        """The entries' alternatives as (token, logprob)."""
        return [[(x["token"], x["logprob"]) for x in row["top_logprobs"]] for row in self.entries]


def body(
    given: Json | bytes,
    request: Json | None = None,
    *,
    status: int = 200,
    waived: Sequence[str] = (),
) -> Said:
    """Translate a whole answer and check it, but for the rules in `waived`."""
    asked = request or ask()
    sent = given if isinstance(given, bytes) else json.dumps(given).encode()
    outcome = translate(asked, status, "application/json", sent)
    if outcome.status >= 400:
        _conforms(check_error(outcome.body, outcome.status), waived, outcome)
        error = json.loads(outcome.body)["error"]
        return Said({}, outcome.body, outcome.status, outcome.repairs, error, outcome.retry)
    _conforms(check_body(outcome.body, checked_request(asked), None), waived, outcome)
    answer = json.loads(outcome.body)
    return Said(answer, outcome.body, outcome.status, outcome.repairs, None, outcome.retry)


def stream(
    parts: Iterable[Any],
    request: Json | None = None,
    *,
    done: bool = True,
    waived: Sequence[str] = (),
) -> Said:
    """Translate a stream of these chunks (or of raw events' data) and check it."""
    asked = {**(request or ask()), "stream": True}
    pieces = [*map(data, parts), *([DONE] if done else [])]
    outcome = translate_pieces(asked, pieces)
    if outcome.body:
        _conforms(check_stream(outcome.body, checked_request(asked), None), waived, outcome)
    answer = fold(outcome.body)
    return Said(
        answer, outcome.body, outcome.status, outcome.repairs, outcome.fault, _retry(outcome)
    )


def _retry(outcome: Outcome) -> bool | None:
    return outcome.fault["retry"] if outcome.fault else None


def _conforms(found: list[Violation], waived: Sequence[str], outcome: Outcome) -> None:
    kept = [violation for violation in found if violation.rule not in waived]
    assert kept == [], (kept, outcome.body.decode())


H, I = [72], [105]  # noqa: E741
Rows = list[tuple[str, float, list[int] | None]]
Tops = list[list[tuple[str, float]]]
HI: Rows = [("H", -1.0, H), ("i", -2.0, I)]
NO_TOPS: Tops = [[], []]


def both(logprobs: Any, content: str = "Hi", request: Json | None = None) -> list[Said]:
    """Return what comes of the logprobs in a body and in a stream's one chunk."""
    asked = request or scored(2)
    whole = completion(choice(content, logprobs=logprobs))
    parts = [role(), say(content, logprobs=logprobs), end()]
    return [body(whole, asked), stream(parts, asked)]


def body_of(given: Json, request: Json | None = None, **more: Any) -> Said:
    """Translate a whole answer of this one choice."""
    return body(completion(given), request, **more)


def stream_of(*parts: Json, asked: Json | None = None, reason: Any = "stop", **more: Any) -> Said:
    """Translate a stream of these parts between a choice's first and its last."""
    return stream([role(), *parts, end(reason)], asked, **more)
