"""Usage (contract rule 10): one count, at the end, from the best source there is.

Sources in order: the backend; its tokenize endpoint; a configured tokenizer that can count; the
logprob entries seen; an estimate of four bytes a token. The source is kept on the exchange and
counted as a metric. Timings that count (llama.cpp's) are the backend's word too, where it gave no
usage; what they leave open is not filled from a usage, nor the other way round: `sums.hold`.
Counts that leave choices out, as llama.cpp's of a body do, are no count of the answer: the estimate
then goes by what the texts that they are of take.

No I/O happens here. Where the exchange names a tokenize endpoint and a count is missing, the stage
holds the `End` back and tells what is `wanted`; `counted` takes what was found and lets it go.

The reasoning's tokens are told where they are known: by the backend, by the entries that came with
the reasoning alone, or by a count of its text; they are never estimated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct, json, structs

from wellspoken.adapters.events import (
    End,
    Event,
    Finish,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.stages.tiling import EntryCounts
from wellspoken.adapters.sums import (
    choices_of_each,
    counted_choices,
    hold,
    keep_told,
    of_timings,
)
from wellspoken.adapters.tokens.tokenize import NOTHING, Counted, Wanted

BYTES_PER_TOKEN = 4

SOURCES: Final = ("", "backend", "tokenize", "tokenizer", "tokens", "estimate")
"""Where a usage comes from, the best first; one of several counts is as good as its worst."""


class Spoken(Struct, eq=False):
    """What one choice said: its `pieces`, of which the first are `joined` ones.

    `dropped` is how many bytes those took that are no longer among them.
    """

    pieces: list[str] = []
    joined: int = 0
    dropped: int = 0

    def fold(self, *, keeps: bool) -> None:
        """Join the latest pieces; where the text is not kept, drop them."""
        text = "".join(self.pieces[self.joined :])
        if keeps:
            self.pieces[self.joined :] = [text] if text else []
            self.joined = len(self.pieces)
        else:
            self.pieces.clear()  # and not another list: the hot lane holds this one
            self.dropped += len(text.encode())

    def size(self) -> int:
        """Return how many bytes were said."""
        return self.dropped + sum(len(text.encode()) for text in self.pieces)


class UsageStage:
    """The stage; one for an answer.

    `counts`: the tiling stage's. `asked`: the client gets the usage, or the store. `wanted`: what
    the tokenize endpoint has to be asked, and the `End` waits for `counted`.
    """

    def __init__(self, exchange: Exchange, counts: EntryCounts) -> None:
        self.exchange = exchange
        self.asked = exchange.include_usage or exchange.stored or not exchange.stream
        self.notes = exchange.notes
        self.usage: Usage | None = None  # the last told; of all, once the answer has ended
        self.earlier: list[Usage] = []  # which nearly always is the only one
        self.texts: defaultdict[int, Spoken] = defaultdict(Spoken)
        self.reasoning: defaultdict[int, Spoken] = defaultdict(Spoken)
        vocabulary = exchange.tokens.vocabulary
        self.vocabulary = vocabulary if vocabulary is not None and vocabulary.counts else None
        self._seen = 0  # of the first choice's
        self.counts = counts
        self.ends = 0  # choices that a token ended which is in no text
        self.scaled: int | None = None  # what the counts of some choices make of all
        self.end: End | None = None
        self.wanted: Wanted | None = None

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with one `Usage`, just before the `End`."""
        if len(events) == 1:
            event = events[0]
            if type(event) is Text:
                self.texts[event.choice].pieces.append(event.text)
                return events
        out: list[Event] = []
        for event in events:
            if type(event) is Text or type(event) is Refusal:
                self.texts[event.choice].pieces.append(event.text)
            elif type(event) is Reasoning:
                self.reasoning[event.choice].pieces.append(event.text)
            elif type(event) is ToolDelta:
                self.texts[event.choice].pieces.append((event.name or "") + event.arguments)
            elif type(event) is Finish:
                self.ends += event.reason != "length"
            elif type(event) is Usage:
                if self.usage is not None or self.exchange.running_usage:
                    self._tell_again(event, out)
                self.usage = event
                continue
            elif type(event) is End:
                if not self._ending(event):
                    continue
                out.append(self._final(NOTHING))
            out.append(event)
        return out

    def has_moved(self) -> bool:
        """Say whether text of the first choice has come since this was last asked."""
        texts, seen = self.texts[0].pieces, self._seen
        self._seen = len(texts)
        return any(texts[seen:])

    def fold(self) -> None:
        """Keep of the texts what has to be kept until the end: a stream may have none.

        That is all of them where their tokens may have to be counted, by the backend or by a
        vocabulary, since tokens are not the same where a text is cut; with a prompt in front, which
        does not count; and else how long they are.
        """
        exchange = self.exchange
        counts = self.vocabulary is not None or (exchange.tokenize is not None and self.asked)
        keeps = counts or (exchange.echo and not exchange.echoed)
        for spoken in (*self.texts.values(), *self.reasoning.values()):
            spoken.fold(keeps=keeps)
        self._seen = len(self.texts[0].pieces)

    def is_plain(self) -> bool:
        """Say whether text passes, and is only kept in `texts`: it always does."""
        return True

    def _tell_again(self, usage: Usage, out: list[Event]) -> None:
        """Let the counts so far out where the client asked for them, else note the repetition."""
        exchange = self.exchange
        if exchange.running_usage:
            if not (usage.last or usage.timed):
                out.append(structs.replace(usage, running=True))
        elif not (exchange.enforced or usage.timed or (exchange.n > 1 and usage.slot is not None)):
            if not all(each.timed for each in (*self.earlier[:1], self.usage) if each is not None):
                self.notes.add("usage_repeated")
        if self.usage is not None:
            keep_told(self.earlier, self.usage, self.exchange.n)

    def _told(self) -> list[Usage]:
        return self.earlier if self.usage is None else [*self.earlier, self.usage]

    def count_so_far(self) -> None:
        """Set the exchange's usage, of an answer that nobody waits for any more.

        It stays as it is where nothing has come yet, or the answer has ended.
        """
        usage = self._hold(self._told())
        if self.exchange.result.usage is None and (usage or self.texts or self.reasoning):
            usage = self._fill_counts(usage or Usage(None, None), NOTHING)
            self.exchange.result.usage = usage

    def add_counts(self, found: Counted) -> list[Event]:
        """Return the `Usage` and the `End` that waited for these counts."""
        assert self.end is not None
        self.wanted = None
        return [self._final(found), self.end]

    def _ending(self, end: End) -> bool:
        """Say whether the end may go out, or waits for what the backend is to be asked."""
        if self.end is not None:
            return False
        self.end = end
        usage, told = self.usage, None
        if self.earlier or (usage is not None and usage.slot is not None):
            told = self._told()
            usage = self.usage = self._hold(told)
            if self.scaled is not None and self.asked and not (usage and usage.timed):
                self.notes.add("usage_of_one_choice")
        if usage is not None and usage.completion and self.exchange.max_tokens == 0:
            # vLLM 0.32 counts the token that it makes beside an echoed prompt, and leaves it out.
            self.notes.add("usage_without_tokens")
            self.usage = structs.replace(usage, completion=0, raw=None)
        elif usage is not None and self._is_constant(usage):
            self.notes.add("usage_constant")
            self.usage = of_timings(told or [], self.exchange.n, self.exchange.prompts)
            if self.usage is None and 0 in (usage.prompt, usage.completion):
                prompt, completion = usage.prompt or None, usage.completion or None
                self.usage = structs.replace(usage, prompt=prompt, completion=completion, raw=None)
        self.wanted = self._wanting()
        return self.wanted is None

    def _hold(self, told: list[Usage]) -> Usage | None:
        """Return the counts that hold of all that was told; None for what leaves choices out."""
        n, prompts = self.exchange.n, self.exchange.prompts
        usage = hold(told, n, prompts)
        if n == 1 or usage is None or usage.completion is None:
            return usage
        counted = counted_choices(told, n)
        sizes = self._sizes()
        if counted is None or counted.issuperset(sizes):
            return usage
        known, size = sum(sizes.get(choice, 0) for choice in counted), sum(sizes.values())
        self.scaled = -(-usage.completion * size // known) if known else _estimate(size)
        usage = structs.replace(usage, completion=None, raw=None)
        each = choices_of_each(n, prompts)
        if {choice // each for choice in sizes}.difference(choice // each for choice in counted):
            usage.prompt = None
        return usage

    def _sizes(self) -> dict[int, int]:
        """Return the bytes of each choice that said something."""
        sizes: defaultdict[int, int] = defaultdict(int)
        for each in (self.texts, self.reasoning):
            for choice, spoken in each.items():
                if size := spoken.size():
                    sizes[choice] += size
        return sizes

    def _wanting(self) -> Wanted | None:
        """Return what the tokenize endpoint could tell that nobody else has told."""
        exchange, usage = self.exchange, self.usage
        if exchange.tokenize is None or not self.asked:
            return None
        prompt = usage is None or usage.prompt is None
        total = usage is None or usage.completion is None
        reasoning = tuple(self._thoughts())
        if not total and (
            self._tells_reasoning() or self.counts.reasoned or self._count_texts(()) is not None
        ):
            reasoning = ()
        texts = tuple(text for text in self._contents() if text) if total else ()
        if not (prompt or total or reasoning):
            return None
        return Wanted(prompt, total, texts, reasoning)

    def _contents(self) -> list[str]:
        """Return what each choice said besides reasoning, an echoed prompt left out."""
        exchange = self.exchange
        found = []
        for choice, spoken in sorted(self.texts.items()):
            text = "".join(spoken.pieces)
            if exchange.echo and not exchange.echoed:
                text = text.removeprefix(exchange.prompt_of(choice) or "")
            found.append(text)
        return found

    def _thoughts(self) -> list[str]:
        """Return the reasoning of each choice that had any."""
        texts = ("".join(spoken.pieces) for spoken in self.reasoning.values())
        return [text for text in texts if text]

    def _count_texts(self, texts: Iterable[str]) -> int | None:
        """Return how many tokens the texts are; None without a vocabulary that can count."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return None
        return sum(vocabulary.count(text) or 0 for text in texts)

    def _final(self, found: Counted) -> Usage:
        exchange, usage = self.exchange, self.usage
        if usage is None or usage.prompt is None or usage.completion is None:
            if self.asked and (self.scaled is None or (usage and usage.timed)):
                self.notes.add("usage_missing")
            usage = self._fill_counts(usage or Usage(None, None), found)
        else:
            exchange.result.usage_source = "backend"
            if self.asked and usage.timed and not exchange.enforced:
                self.notes.add("usage_from_timings")
            elif not (self.asked or usage.timed or exchange.asks_usage):
                self.notes.add("usage_unasked")
        if self.asked and _is_any(self.reasoning) and not self._tells_reasoning():
            usage = self._with_reasoning(usage, found)
        exchange.result.usage = usage
        return usage

    def _fill_counts(self, given: Usage, found: Counted) -> Usage:
        """Return the usage with the counts that it lacks, each from the best source."""
        usage = structs.replace(given, raw=None)
        sources = [""] if given.prompt is None and given.completion is None else ["backend"]
        if usage.completion is None:
            usage.completion, source = self._completion(found)
            usage.completion_details = Raw()  # they are parts of another count
            sources.append(source)
        if usage.prompt is None:
            usage.prompt, source = found.prompt, "tokenize"
            usage.prompt_details = Raw()
            if usage.prompt is None:
                usage.prompt, source = _estimate(self.exchange.prompt_size), "estimate"
            sources.append(source)
        self.exchange.result.usage_source = max(sources, key=SOURCES.index)
        return usage

    def _completion(self, found: Counted) -> tuple[int, str]:
        """Return how many tokens were made, and who says so."""
        form = self.exchange.tokenize
        thoughts = self._thoughts()
        if form is not None and found.texts is not None:
            if found.reasoning is not None or not thoughts:
                said = found.texts + (found.reasoning or 0)
                return said + (self.ends if form.ends else 0), "tokenize"
        texts = [*thoughts, *self._contents()]
        counted = self._count_texts(texts)
        if counted is not None:
            return counted, "tokenizer"
        if self.counts.entries and not (self.exchange.echo and not self.exchange.echoed):
            return self.counts.entries, "tokens"
        if self.scaled is not None:
            return self.scaled, "estimate"
        dropped = sum(each.dropped for each in (*self.texts.values(), *self.reasoning.values()))
        return _estimate(dropped + sum(len(text.encode()) for text in texts)), "estimate"

    def _tells_reasoning(self) -> bool:
        details = b"" if self.usage is None else bytes(self.usage.completion_details)
        return b'"reasoning_tokens"' in details

    def _with_reasoning(self, usage: Usage, found: Counted) -> Usage:
        """Return the usage with the reasoning's tokens, if they are known."""
        count: int | None = self.counts.reasoned or found.reasoning
        if count is None:
            count = self._count_texts(self._thoughts())
        made = usage.completion or 0
        says = any(self._contents()) or any(spoken.dropped for spoken in self.texts.values())
        if count is None or (count >= made and not self.counts.reasoned and says):
            return usage  # a text that the model wrote in longer tokens leaves none for the rest
        self.notes.add("reasoning_tokens_counted")
        told = bytes(usage.completion_details)
        details: dict[str, Any] = json.decode(told) if told else {}
        details["reasoning_tokens"] = min(count, made)
        return structs.replace(usage, completion_details=Raw(json.encode(details)), raw=None)

    def _is_constant(self, usage: Usage) -> bool:
        """Say whether the counts are the same for every answer, since they cannot be this one's.

        KoboldCpp <= 1.76 always says 100, 100, 200; others 0 where a text was written, or of a
        prompt that the cache had (Ollama before 2024-07, issue #5370). A model writes a byte or
        more for a token, unless it reasoned where nobody sees it.
        """
        if usage.prompt == 0 and self.exchange.prompt_size:
            return True
        if usage.completion == 0:
            return (_is_any(self.texts) or _is_any(self.reasoning)) and not self.exchange.echo
        if (
            (usage.prompt, usage.completion) != (100, 100)
            or self.reasoning
            or self.counts.entries >= 100
        ):
            return False
        details = bytes(usage.prompt_details) or bytes(usage.completion_details)
        if details or "reasoning_content" in self.notes.fields:
            return False
        return sum(self._sizes().values()) < 100


def _is_any(said: Mapping[int, Spoken]) -> bool:
    """Say whether a choice said anything."""
    return any(spoken.dropped or any(spoken.pieces) for spoken in said.values())


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
