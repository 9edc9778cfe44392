"""What travels beside an answer's events: what the request asked for, and what was repaired."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Literal

from wellspoken.adapters.events import Reason, Usage
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.tokenize import Tokenize

Extensions = Literal["none", "known", "all"]
Kind = Literal["chat", "completions"]
"""Which of OpenAI's two shapes the client gets."""


class Notes:
    """The repairs and drops of one answer, by name, with how often each was needed."""

    __slots__ = ("changes", "counts", "fields")

    def __init__(self) -> None:
        self.changes = 0  # grows with every note: whether a span of work noted anything
        self.counts: dict[str, int] = {}
        self.fields: dict[str, int] = {}

    def add(self, name: str, times: int = 1) -> None:
        """Count a named repair."""
        self.changes += 1
        self.counts[name] = self.counts.get(name, 0) + times

    def drop(self, key: str) -> None:
        """Count a key that the backend sent with a value and the client does not get."""
        self.fields[key] = self.fields.get(key, 0) + 1
        self.add("extra_field_dropped")


SWITCHED = {
    "prompt_logprobs": "prompt_logprobs",
    "prompt_token_ids": "return_token_ids",
    "token_ids": "return_token_ids",
    "timings": "timings_per_token",
}
"""Extension key -> the request key that asks for it (contract, "Extensions in answers")."""


class Exchange:
    """What one request asked for, and the injected clock and id source its answer is made with.

    `kind` is the client's endpoint. `n` counts all choices: of a completions request with several
    `prompts` (their texts, None for token ids) each has `n / len(prompts)` of them, in order.
    `echoed`: the backend is not asked for the prompt that `echo` wants; it is put before.
    `enforced`: the backend is not told the stop strings, so the answer is over when every choice
    has met one; each of its chunks carries the token counts so far.
    `parallel_calls`: whether a choice may call more than one tool. `parts`: the kinds of content
    parts that are no text, each with where the first is in the request.
    `tokenize`: where the backend counts tokens, None where it is not to be asked.
    `stored`: the answer is kept, so it has an id of its own, and its usage also if it is a stream.
    `pairs_best`: the backend gives each entry its best alternative's value (Backend). `origin`
    names backend and request in messages. `now`: epoch seconds. `new_id`: a fresh suffix of at
    least 8 url-safe characters, new each call.
    `k` is top_logprobs (0 when only `logprobs` was asked). `tools` are the offered function names.
    `switches` are the names of vendor keys the request carried with a value other than null or
    false. `prompt_size` is the prompt's UTF-8 length, for the last-resort usage estimate.
    """

    __slots__ = (
        "answer_id",
        "echo",
        "echoed",
        "enforced",
        "extensions",
        "forced_tool",
        "functions",
        "include_usage",
        "k",
        "keep",
        "kind",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "new_id",
        "notes",
        "now",
        "origin",
        "pairs_best",
        "parallel_calls",
        "parts",
        "prompt_size",
        "prompts",
        "reasons",
        "service_tier",
        "stops",
        "stored",
        "stream",
        "switches",
        "tokenize",
        "tokens",
        "tools",
        "usage",
        "usage_source",
    )

    def __init__(
        self,
        *,
        model: str,
        now: int,
        new_id: Callable[[], str],
        tokens: TokenTable | None = None,
        stream: bool = False,
        include_usage: bool = False,
        logprobs: bool = False,
        k: int = 0,
        n: int = 1,
        max_tokens: int | None = None,
        tools: tuple[str, ...] = (),
        forced_tool: bool = False,
        functions: bool = False,
        stops: tuple[str, ...] = (),
        service_tier: bool = False,
        extensions: Extensions = "known",
        keep: frozenset[str] = frozenset(),
        switches: frozenset[str] = frozenset(),
        prompt_size: int = 0,
        kind: Kind = "chat",
        echo: bool = False,
        prompts: tuple[str | None, ...] = (),
    ) -> None:
        self.kind: Kind = kind
        self.echo = echo
        self.origin = ""
        self.pairs_best = False
        self.echoed = False
        self.enforced = False
        self.parallel_calls = True
        self.parts: dict[str, str] = {}
        self.tokenize: Tokenize | None = None
        self.prompts = prompts
        self.model = model
        self.now = now
        self.new_id = new_id
        self.tokens = tokens if tokens is not None else TokenTable()
        self.stream = stream
        self.include_usage = include_usage
        self.logprobs = logprobs
        self.k = k
        self.n = n
        self.max_tokens = max_tokens
        self.tools = tools
        self.forced_tool = forced_tool
        self.functions = functions
        self.stops = stops
        self.stored = False
        self.service_tier = service_tier
        self.extensions: Extensions = extensions
        self.keep = keep
        self.switches = switches
        self.prompt_size = prompt_size
        self.notes = Notes()
        self.answer_id = ""  # what was answered, set by the order stage, as the next is
        self.reasons: dict[int, Reason] = {}  # choice -> why it ended
        self.usage: Usage | None = None  # set by the usage stage
        self.usage_source = ""  # one of the usage stage's SOURCES

    @property
    def keeps_stop(self) -> bool:
        """Whether the text is to end with the stop string that ends it (vLLM, SGLang)."""
        return "include_stop_str_in_output" in self.switches

    def prompt_of(self, choice: int) -> str | None:
        """Return the prompt's text that a choice of a completions answer belongs to, if known."""
        prompts = self.prompts
        place = choice * len(prompts) // max(self.n, 1) if len(prompts) > 1 else 0
        return prompts[place] if place < len(prompts) else None

    def part(self, prompt: str | None) -> Exchange:
        """Return the exchange of one choice that is asked for by itself; its notes are these."""
        part = copy(self)
        part.n = 1
        part.reasons = {}
        part.switches = self.switches - {"n_cmpl"}  # it is one choice, whatever that says
        part.prompts = (prompt,)
        part.prompt_size = self.prompt_size // max(len(self.prompts), 1)
        return part

    def apart(self) -> Exchange:
        """Return the same exchange with notes of its own."""
        other = copy(self)
        other.notes = Notes()
        return other

    def keeps(self, key: str) -> bool:
        """Say whether the client gets a key outside the contract."""
        if key in self.keep or self.extensions == "all":
            return True
        if self.extensions == "none":
            return False
        return key == "reasoning_content" or SWITCHED.get(key) in self.switches
