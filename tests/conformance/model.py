"""What the checker knows: the rules by id, what was asked, what the backend gave, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RULES: dict[str, str] = {
    "json": "strict JSON in UTF-8: no NaN, no duplicate keys, one object",
    "keys": "no key outside the contract, unless the extensions allow it",
    "types": "a value has its documented type",
    "1.enum": "finish_reason is stop, length, tool_calls, content_filter or function_call",
    "1.present": "finish_reason is a key of every choice",
    "1.early": "no finish_reason comes before an error event",
    "1.once": "finish_reason comes exactly once per choice, and nothing of the choice after it",
    "1.empty_delta": "finish_reason comes on an otherwise empty delta",
    "1.calls": "the reason agrees with the answer: tool_calls if it called, never without a call",
    "3.first": "the role comes in a choice's first delta, in its exact form",
    "3.repeat": "the role comes once",
    "3.null": "the role's content is null exactly when the choice opens with a call",
    "4.index": "a tool call's index ascends from 0, without gaps",
    "4.open": "a call's id, type and name come once, together",
    "4.arguments": "arguments is a string",
    "4.id": "call ids are not empty and differ",
    "5.index": "every choice has its index",
    "5.order": "choices first appear in the order 0, 1, 2, ...",
    "5.count": "there are as many choices as were asked for",
    "6.id": "the id is chatcmpl- (cmpl- of a completion) and at least 8 characters, of the backend",
    "6.created": "created is epoch seconds",
    "6.model": "model is what the client asked for",
    "6.object": "object is chat.completion, chat.completion.chunk or text_completion",
    "6.constant": "id, created, model and fingerprint stay the same over a stream",
    "7.present": "logprobs is a key of every choice",
    "7.unasked": "logprobs is null unless asked for",
    "7.shape": 'logprobs is {"content": [...], "refusal": null}, an entry has its four keys',
    "7.value": "a logprob is a finite number from -9999.0 to 0",
    "7.bytes": "bytes is a list of byte values, or null where nothing is known",
    "7.null": 'bytes is null only for "", token_id:N or a control token',
    "7.spelling": "a token is its bytes' text, parts of characters in lower-case hex escapes",
    "7.replacement": "no U+FFFD with 239, 191, 189",
    "7.k": "at most k alternatives",
    "7.descending": "alternatives descend",
    "7.distinct": "alternatives are distinct",
    "7.own": "the sampled token's logprob is its own",
    "7.tiling": "the joined bytes, decoded with replacement, are the content",
    "7.chunk": "each chunk holds the entries of its own text",
    "7.missing": "logprobs were asked and given, and are not there",
    "7.count": "one entry per backend token, less named drops",
    "7.numbers": "every number survives, in its place",
    "7.offered": "alternatives = min(k, offered)",
    "8.refusal": "refusal is a key of every message, null or text",
    "8.content": "content is null only beside a call or a refusal",
    "8.text": "the content is the backend's",
    "9.null": "an optional key is omitted, never null or empty",
    "10.present": "a body has usage",
    "10.sum": "usage counts are whole numbers, total = prompt + completion",
    "10.unasked": "a stream has no usage unless asked",
    "10.null": "usage is null on every chunk but the last",
    "10.last": "the last chunk has the usage, and no choices",
    "10.numbers": "usage is the backend's",
    "11.framing": "only data lines, comment lines and blank lines, LF, no BOM",
    "11.done": "one [DONE], at the end",
    "12.shape": 'an error is {"error": {"message", "type", "param", "code"}}',
    "12.status": "an error's status is 400..599",
    "12.context": "a context overflow has code context_length_exceeded",
    "12.done": "no [DONE] and nothing else after an error event",
    "stop": "the content holds none of the request's stop strings",
    "L.reason": "a completion's finish_reason is stop, length or content_filter",
    "L.alone": "a completion's finish_reason comes on a chunk without text and logprobs",
    "L.shape": "logprobs are tokens, token_logprobs, top_logprobs and text_offset, and no more",
    "L.arrays": "the four arrays are of the same length",
    "L.value": "a token's logprob is a finite number from -9999.0 to 0",
    "L.null": "null values and null alternatives come together, only where an echoed text begins",
    "L.k": "at most k alternatives and the sampled token",
    "L.descending": "a dict of alternatives descends",
    "L.own": "the sampled token is among the alternatives, with its own value",
    "L.offset": "text_offset counts the whole characters before a token, from the prompt's start",
    "L.spelling": "parts of characters are bytes:\\xNN in lower-case hex, no text is; no U+FFFD",
    "L.tiling": "the joined tokens are the text",
    "L.chunk": "each chunk holds the entries of its own text",
    "L.missing": "arrays were asked and given, and are not there",
    "L.count": "one entry per backend token, less named drops",
    "L.numbers": "every number survives, in its place and under its name",
    "L.offered": "alternatives = min(k, offered), less those that print alike",
    "L.echo": "an echoed text begins with the prompt",
}
"""Every rule: the contract's number, a name, what must hold."""


@dataclass(frozen=True)
class Violation:
    """One broken rule, where, and how."""

    rule: str
    where: str
    detail: str


class Report:
    """Collects violations of the rules of one table."""

    def __init__(self, rules: Mapping[str, str] = RULES) -> None:
        self.rules = rules
        self.found: list[Violation] = []

    def add(self, rule: str, where: str, detail: object = "") -> None:
        """Note a violation of a rule that is in the table."""
        if rule not in self.rules:
            raise KeyError(f"no rule {rule!r}: add it to the table")
        self.found.append(Violation(rule, where, str(detail)[:200]))

    def check(self, holds: bool, rule: str, where: str, detail: object = "") -> bool:
        """Note a violation unless `holds`, which is returned."""
        if not holds:
            self.add(rule, where, detail)
        return holds


@dataclass(frozen=True)
class Request:
    """What the client asked for, as far as the answer's form depends on it.

    `switches`: vendor keys the request carried. `keep`: keys kept by name. `model` None: any.
    Of a completions request `n` counts all choices and `k` is its `logprobs`; `prompts` are the
    texts, None for token ids.
    """

    model: str | None = None
    logprobs: bool = False
    k: int = 0
    include_usage: bool = False
    n: int = 1
    tools: tuple[str, ...] = ()
    forced_tool: bool = False
    stops: tuple[str, ...] = ()
    service_tier: bool = False
    extensions: Literal["none", "known", "all"] = "known"
    keep: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    echo: bool = False
    prompts: tuple[str | None, ...] = ()

    def prompt_of(self, choice: int) -> str | None:
        """Return the text of the prompt that a choice continues, None if it is not known."""
        place = choice * len(self.prompts) // max(self.n, 1)
        return self.prompts[place] if 0 <= place < len(self.prompts) else None


@dataclass(frozen=True)
class Row:
    """One token as the backend gave it: its own number (None: not told) and the alternatives'.

    A number is as it was on the wire; None, NaN and -inf stand for unknown. `inferred`: the backend
    did not say which token was sampled, so any of the alternatives' numbers is its own. `names`
    tells the alternatives apart: a token's bytes where the backend told them, else its text.
    """

    logprob: float | None
    alternatives: tuple[float | None, ...] = ()
    inferred: bool = False
    names: tuple[bytes | str, ...] = ()


@dataclass(frozen=True)
class ChoiceFacts:
    """What the backend gave for one choice; None where it is not known.

    `drops`: rows that may be missing, by the reason's name; None where only their place is checked
    (a contiguous run must remain).
    """

    rows: tuple[Row, ...] | None = None
    drops: Mapping[str, int] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Facts:
    """What the backend gave. `usage` is (prompt, completion); `id` as it was on the wire."""

    choices: Mapping[int, ChoiceFacts] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    id: str | None = None
