"""What travels beside an answer's events: what the request asked for, and what was repaired."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Required, TypedDict

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from wellspoken.adapters.events import Reason, Usage
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.tokenize import Tokenize

_HEX: Final = re.compile(r"[0-9a-f]{8}").fullmatch

Extensions = Literal["none", "known", "all"]
Recovered = Literal["tool_calls", "thinking", "opened_thinking"]
"""What is recovered from an answer's text; `opened_thinking`: the template opened it."""
Kind = Literal["chat", "completions"]
"""Which of OpenAI's two shapes the client gets."""


class Notes(Struct, eq=False):
    """The repairs and drops of one answer, by name, with how often each was needed."""

    changes: int = 0  # grows with every note: whether a span of work noted anything
    counts: dict[str, int] = {}
    fields: dict[str, int] = {}

    def add(self, name: str, times: int = 1) -> None:
        """Count a named repair."""
        self.changes += 1
        self.counts[name] = self.counts.get(name, 0) + times

    def take(self, other: Notes) -> None:
        """Count all that others have counted."""
        self.changes += other.changes
        for name, times in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + times
        for key, times in other.fields.items():
            self.fields[key] = self.fields.get(key, 0) + times

    def drop(self, key: str) -> None:
        """Count a key that the backend sent with a value and the client does not get."""
        self.fields[key] = self.fields.get(key, 0) + 1
        self.add("extra_field_dropped")


SWITCHED = {
    "prompt_logprobs": "prompt_logprobs",
    "prompt_token_ids": "return_token_ids",
    "token_ids": "return_token_ids",
    "timings": "timings_per_token",
    "prompt_progress": "return_progress",
}
"""Extension key -> the request key that asks for it (contract, "Extensions in answers")."""


class AnswerResult(Struct):
    """What was answered, each set by one stage, or where answers are merged to one.

    `id`: the answer's. `reasons`: choice -> why it ended. `usage_source`: one of the usage stage's
    SOURCES.
    """

    id: str = ""
    reasons: dict[int, Reason] = {}
    usage: Usage | None = None
    usage_source: str = ""


class OfferedTool(Struct, frozen=True):
    """What a client calls a tool that the backend is offered as a function of another name or kind.

    `custom`: its input is text, which the function has as its one string, "input".
    """

    name: str
    namespace: str | None = None
    custom: bool = False


class ResponseFacts(Struct, frozen=True, kw_only=True, eq=False):
    """What an answer that leaves as OpenAI's response has to know of the request.

    `suffix`: what its id and those of its items have in common, 8 url-safe characters or more.
    `echo`: the keys of the response that repeat the request, as JSON. `tools`: the function's name
    at the backend -> the client's tool, where that is another. `paths`: where in the request each
    message of the chat request came from ("input[2]", "instructions"; "" for a past turn), and
    `tool_paths` each of its tools.
    `clock`: epoch seconds, for `completed_at`.
    """

    suffix: str
    echo: Mapping[str, Raw]
    clock: Callable[[], int]
    tools: Mapping[str, OfferedTool] = {}
    paths: tuple[str, ...] = ()
    tool_paths: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The response's id."""
        return f"resp_{self.suffix}{0:08x}"

    def item_id(self, prefix: str, place: int, *, given: bool = False) -> str:
        """Return the id of the item at a place of the output or, `given`, of the input.

        `prefix`: msg, rs, fc, ctc, ... Such an id tells the response's (`response_of_item`).
        """
        return f"{prefix}_{self.suffix}{place + 1 + (GIVEN if given else 0):08x}"


GIVEN: Final = 1 << 31
"""Added to the place of an item of the input, in its id."""


def response_of_item(id: str) -> tuple[str, int] | None:
    """Return the id of the response that an item's id belongs to, and its place there.

    The place is that in the output, or with `GIVEN` added that in the input. None: an id that no
    response here has given.
    """
    prefix, _, rest = id.partition("_")
    suffix, number = rest[:-8], rest[-8:]
    if not prefix or not suffix or not _HEX(number) or number == "00000000":
        return None
    return f"resp_{suffix}{0:08x}", int(number, 16) - 1


class Surroundings(TypedDict, total=False):
    """What an `Exchange` has from elsewhere than the client's request."""

    now: Required[int]
    new_id: Required[Callable[[], str]]
    tokens: TokenTable
    extensions: Extensions
    keep: frozenset[str]
    tokenize: Tokenize | None
    pairs_best: bool
    recover: frozenset[Recovered]
    origin: str


class Exchange(Struct, frozen=True, kw_only=True, eq=False):
    """The facts that one answer is made by, none of which changes; beside them what comes of it.

    Of the request: `kind` is the client's endpoint. `n` counts all choices: of a completions
    request with several `prompts` (their texts, None for token ids) each has `n / len(prompts)` of
    them, in order. `k` is top_logprobs (0 when only `logprobs` was asked). `tools` are the offered
    function names; `schemas` their parameters' JSON schemas, where calls of them are to be found in
    the text. `parallel_calls`: whether a choice may call more than one tool. `parts`: the
    kinds of content parts that are no text, each with where the first is in the request.
    `switches` are the names of vendor keys the request carried with a value other than null or
    false. `prompt_size` is the prompt's UTF-8 length, for the last-resort usage estimate.

    Of how it is asked for: `echoed`: the backend is not asked for the prompt that `echo` wants; it
    is put before. `enforced`: the backend is not told the stop strings, so the answer is over when
    every choice has met one; each of its chunks carries the token counts so far. `stored`: the
    answer is kept, so it has an id of its own, and its usage also if it is a stream.
    `running_usage`: each chunk tells the counts so far, and the client gets them. `asks_usage`: the
    proxy asks the stream for its usage, which the client does not get.

    Of the surroundings: `now`: epoch seconds. `new_id`: a fresh suffix of at least 8 url-safe
    characters, new each call. `tokenize`: where the backend counts tokens, None where it is not to
    be asked. `pairs_best`: the backend gives each entry its best alternative's value (Backend).
    `recover`: what the backend leaves in the text (stage recover).
    `origin` names backend and request in messages.

    `response`: what is answered as a chat is to leave as OpenAI's response (POST /v1/responses).
    """

    model: str
    now: int
    new_id: Callable[[], str]
    kind: Kind = "chat"
    tokens: TokenTable = field(default_factory=TokenTable)
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    k: int = 0
    n: int = 1
    max_tokens: int | None = None
    tools: tuple[str, ...] = ()
    schemas: Mapping[str, Mapping[str, Raw]] = {}
    forced_tool: bool = False
    functions: bool = False
    parallel_calls: bool = True
    parts: dict[str, str] = {}
    stops: tuple[str, ...] = ()
    service_tier: bool = False
    extensions: Extensions = "known"
    keep: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    prompt_size: int = 0
    prompts: tuple[str | None, ...] = ()
    echo: bool = False
    echoed: bool = False
    enforced: bool = False
    stored: bool = False
    running_usage: bool = False
    asks_usage: bool = False
    tokenize: Tokenize | None = None
    pairs_best: bool = False
    recover: frozenset[Recovered] = frozenset()
    origin: str = ""
    response: ResponseFacts | None = None
    notes: Notes = field(default_factory=Notes)
    result: AnswerResult = field(default_factory=AnswerResult)

    @property
    def keeps_stop(self) -> bool:
        """Whether the text is to end with the stop string that ends it (vLLM, SGLang)."""
        return "include_stop_str_in_output" in self.switches

    @property
    def tells_ids(self) -> bool:
        """Whether the client asked for token ids, and gets them."""
        return "return_token_ids" in self.switches and self.keeps("token_ids")

    def prompt_of(self, choice: int) -> str | None:
        """Return the prompt's text that a choice of a completions answer belongs to, if known."""
        prompts = self.prompts
        place = choice * len(prompts) // max(self.n, 1) if len(prompts) > 1 else 0
        return prompts[place] if place < len(prompts) else None

    def part(self, prompt: str | None, **facts: Any) -> Exchange:
        """Return the exchange of one choice that is asked for by itself; its notes are these.

        `facts` are those that are other for it.
        """
        return replace(
            self,
            n=1,
            running_usage=False,  # it would tell one choice's counts for the answer's
            switches=self.switches - {"n_cmpl"},  # it is one choice, whatever that says
            prompts=(prompt,),
            prompt_size=self.prompt_size // max(len(self.prompts), 1),
            result=AnswerResult(),
            **facts,
        )

    def apart(self) -> Exchange:
        """Return the same exchange with notes of its own."""
        return replace(self, notes=Notes())

    def keeps(self, key: str) -> bool:
        """Say whether the client gets a key outside the contract."""
        if key in self.keep or self.extensions == "all":
            return True
        if key == "reasoning_content" and self.response is not None:
            return True  # which there is an item of OpenAI's
        if self.extensions == "none":
            return False
        return key == "reasoning_content" or SWITCHED.get(key) in self.switches
