"""The answer of llama.cpp's POST /completion, or one event of its stream, as one Struct.

The decoder gives it for what is in order: pull request #10783 (2024-12) and later, without
`post_sampling_probs`. `event_of` gives it for the rest, repaired: probabilities, the shape of b4273
and before, values that are none. Keys that are no field here are the dialect's own and left out:
generation_settings, prompt, id_slot, tokens_cached, has_new_line, stopping_word.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from wellspoken.adapters.events import Entry
from wellspoken.adapters.readers.strict import NONE, Count, Index
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.counts import count
from wellspoken.adapters.repairs.envelope import content_text
from wellspoken.adapters.repairs.logprobs import logprobs
from wellspoken.adapters.repairs.loose_json import raw
from wellspoken.adapters.repairs.native import byte_texts
from wellspoken.adapters.repairs.token_ids import is_ids
from wellspoken.adapters.tokens.table import digits

FLAGS = ("stopped_eos", "stopped_word", "stopped_limit")
KEYS = frozenset(
    ("content", "stop", "stop_type", "completion_probabilities", "tokens_predicted", *FLAGS)
)
"""Keys of which one at least makes an object a native answer."""


class Native(Struct, gc=False):
    """A body or one event; `stop`: the choice's last. Counts are None where it does not tell."""

    content: str
    index: Index | None = None
    stop: bool = False
    stop_type: str | None = None
    stopped_eos: bool | None = None
    stopped_word: bool | None = None
    stopped_limit: bool | None = None
    truncated: bool | None = None
    tokens_predicted: Count | None = None
    tokens_evaluated: Count | None = None
    tokens: Raw = NONE
    timings: Raw = NONE
    prompt_progress: Raw = NONE
    completion_probabilities: list[Entry] | None = None
    choices: Raw = NONE
    error: Raw = NONE

    @property
    def pure(self) -> bool:
        """Whether it is a native answer and nothing else."""
        return self.choices is NONE and self.error is NONE


decode = msgspec.json.Decoder(Native).decode


def event_of(payload: dict[str, Any], context: Context) -> Native:
    """Return the body or event that generic JSON tells, its logprobs repaired."""
    text = content_text(payload.get("content"), context)
    tokens, timings, progress = (
        payload.get(name) for name in ("tokens", "timings", "prompt_progress")
    )
    return Native(
        text,
        index=_index(payload.get("index")),
        stop=payload.get("stop") is True,
        stop_type=payload.get("stop_type"),
        stopped_eos=payload.get("stopped_eos"),
        stopped_word=payload.get("stopped_word"),
        stopped_limit=payload.get("stopped_limit"),
        truncated=payload.get("truncated"),
        tokens_predicted=count(payload.get("tokens_predicted")),
        tokens_evaluated=count(payload.get("tokens_evaluated")),
        tokens=raw(tokens) if is_ids(tokens) else NONE,
        timings=NONE if timings is None else raw(timings),
        prompt_progress=NONE if progress is None else raw(progress),
        completion_probabilities=_entries(payload.get("completion_probabilities"), text, context),
    )


def _index(given: Any) -> int | None:
    value = digits(given) if isinstance(given, str) else given
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 20:
        return None
    return value


def _entries(given: Any, text: str, context: Context) -> list[Entry] | None:
    if not given:
        return None if given is None else []
    rows: Any = {"content": given}  # a list is the normal form
    if isinstance(given, dict):
        entries = isinstance(given.get("content"), list | dict)
        rows = given if entries else {"content": [given]}
    found = logprobs(rows, text, context)
    if found is None:
        return None
    byte_texts(found[0], context)
    return found[0]
