"""Arithmetic of token counts: of several objects, choices and answers, the counts of one answer.

A prompt with several choices counts once, as OpenAI counts it. What details say of a count stays
with that count: no `cached_tokens` stands beside a prompt that another source counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Raw, json, structs

from wellspoken.adapters.events import UNNUMBERED, Usage


def hold(told: Sequence[Usage], n: int, prompts: Sequence[object]) -> Usage | None:
    """Return the counts that hold of all that an answer told, in order; None if it told nothing.

    A usage holds; timings do where there is none, or where they alone tell both counts. `n`: how
    many choices the answer has, of these `prompts`.
    """
    if not told:
        return None
    last = told[-1]
    if last.prompt and last.completion and not last.timed:
        if last.slot is None or n == 1:
            return last  # as nearly always
    usage = _gather((each for each in told if not each.timed), n, prompts)
    if usage is None or not is_full(usage):
        timings = of_timings(told, n, prompts)
        if usage is None or (timings is not None and is_full(timings)):
            return timings
    return usage


def of_timings(told: Sequence[Usage], n: int, prompts: Sequence[object]) -> Usage | None:
    """Return the counts by timings alone, None if there are none."""
    return _gather((each for each in told if each.timed), n, prompts)


def counted_choices(told: Iterable[Usage], n: int) -> set[int] | None:
    """Return the choices whose counts alone were told; None where the whole answer's were."""
    whole, choices = _split(told, n)
    return None if whole is not None else set(choices)


def _gather(told: Iterable[Usage], n: int, prompts: Sequence[object]) -> Usage | None:
    """Return the last counts, those of single choices added up."""
    whole, choices = _split(told, n)
    return whole or of_choices(choices, choices_of_each(n, prompts))


def choices_of_each(n: int, prompts: Sequence[object]) -> int:
    """Return how many choices each prompt has."""
    return max(n // max(len(prompts), 1), 1)


def _split(told: Iterable[Usage], n: int) -> tuple[Usage | None, dict[int, Usage]]:
    """Return the whole answer's last counts, and those of single choices."""
    whole: Usage | None = None
    choices: dict[int, Usage] = {}
    for usage in told:
        if usage.slot is None or n == 1:
            whole = usage if whole is None else later(whole, usage)
        else:
            slot = len(choices) if usage.slot == UNNUMBERED else usage.slot
            known = choices.get(slot)
            choices[slot] = usage if known is None else later(known, usage)
    return whole, choices


def keep_told(told: list[Usage], usage: Usage, n: int) -> None:
    """Add a usage to those that an answer told before: of the same choices, the later one alone.

    A stream may tell its counts with each chunk.
    """

    def is_alike(other: Usage) -> bool:
        alike = n == 1 or other.slot == usage.slot != UNNUMBERED
        return alike and other.timed == usage.timed

    for place, known in enumerate(told):
        if is_alike(known):
            told[place] = later(known, usage)
            return
    told.append(usage)


def is_full(usage: Usage) -> bool:
    """Say whether both counts are told."""
    return usage.prompt is not None and usage.completion is not None


def later(old: Usage, new: Usage) -> Usage:
    """Return the later of two counts, but what it does not tell from the earlier one.

    A zero behind a count tells nothing either: of Anthropic's two events, of which the first counts
    the prompt and the last the completion, some converters make a usage each.
    """
    if not new.prompt and not new.completion:
        return old
    prompt, completion = not new.prompt and old.prompt, not new.completion and old.completion
    if is_full(new) and not prompt and not completion:
        return new
    found = structs.replace(new, raw=None)
    if found.prompt is None or prompt:
        found.prompt, found.prompt_details = old.prompt, old.prompt_details
    if found.completion is None or completion:
        found.completion, found.completion_details = old.completion, old.completion_details
    return found


def of_choices(counts: Mapping[int, Usage], each: int) -> Usage | None:
    """Return the counts of single choices together, None if none is told.

    `counts` by choice, of which each prompt has `each`; the most that one says of a prompt holds.
    """
    prompts: dict[int, Usage] = {}
    completions: list[Usage] = []
    for choice, usage in counts.items():
        if usage.prompt is not None:
            known = prompts.setdefault(choice // each, usage)
            if usage.prompt > (known.prompt or 0):
                prompts[choice // each] = usage
        if usage.completion is not None:
            completions.append(usage)
    if not prompts and not completions:
        return None
    total = Usage(0 if prompts else None, 0 if completions else None)
    total.timed = any(usage.timed for usage in counts.values())
    for usage in prompts.values():
        total.prompt = (total.prompt or 0) + (usage.prompt or 0)
        total.prompt_details = _sum(total.prompt_details, usage.prompt_details)
    for usage in completions:
        add_usage(total, usage, prompt=False)
    return total


def add_usage(usage: Usage, other: Usage, *, prompt: bool) -> None:
    """Add another answer's counts to a usage; its prompt's only with `prompt`."""
    usage.completion = (usage.completion or 0) + (other.completion or 0)
    usage.completion_details = _sum(usage.completion_details, other.completion_details)
    if prompt:
        usage.prompt = (usage.prompt or 0) + (other.prompt or 0)
        usage.prompt_details = _sum(usage.prompt_details, other.prompt_details)


def _sum(one: Raw, other: Raw) -> Raw:
    """Return two details objects as one, each count the sum; one that is in one alone stays."""
    if not bytes(one) or not bytes(other):
        return other if bytes(other) else one
    total: defaultdict[str, int] = defaultdict(int)
    for details in (one, other):
        for key, count in json.decode(details, type=dict[str, int]).items():
            total[key] += count
    return Raw(json.encode(dict(total)))
