"""Echo: a text that was to begin with its prompt does so, or the answer says that it cannot.

Servers that do not know `echo` ignore it (llama.cpp's issue #27174): the text alone comes. Where no
logprobs were asked for, the prompt is put before it, and where they tell the prompt's tokens too;
else nobody knows those of the prompt, and a client that adds them up would take the answer's for
them, so that answer fails. Some put the prompt before it, but have logprobs of the answer alone
(TensorRT-LLM): that fails, too.

    state     text so far begins the prompt   it is the prompt and more   it differs, or the end
    held      hold                            -> seen, release            -> put before, or fault

Where logprobs were asked for, the prompt is held until the first of them came.
"""

from __future__ import annotations

from msgspec import json

from wellspoken.adapters.events import UNKNOWN, End, Entry, Event, Fault, Finish, Text
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import NULL, token_id


class _Held:
    """What came of one choice: `at` characters of its `prompt`, and whether it is another text."""

    __slots__ = ("at", "events", "other", "prompt", "scored")

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt.lstrip()
        self.events: list[Text] = []
        self.at = 0
        self.other = False
        self.scored = False

    def add(self, event: Text) -> None:
        self.events.append(event)
        self.scored = self.scored or (event.lp is not None and bool(event.lp.entries))
        text = event.text if self.at else event.text.lstrip()
        part = text[: len(self.prompt) - self.at]
        self.other = self.other or not self.prompt.startswith(part, self.at)
        self.at += len(part)


class EchoStage:
    """The stage; one for an answer whose backend was asked to echo."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.held: dict[int, _Held] = {}
        self.seen: set[int] = set()
        self.failed = False

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with each choice's text held until it is known to begin rightly."""
        out: list[Event] = []
        for event in events:
            if self.failed:
                break
            if type(event) is Text and event.choice not in self.seen:
                self._of(event.choice).add(event)
                self._look(event.choice, False, out)
                continue
            if type(event) is Finish and event.choice not in self.seen:
                self._look(event.choice, True, out)
            elif type(event) is End:
                for choice in list(self.held):
                    if not self.failed:
                        self._look(choice, True, out)
            if not self.failed:
                out.append(event)
        return out

    def _of(self, choice: int) -> _Held:
        held = self.held.get(choice)
        if held is None:
            held = self.held[choice] = _Held(self.exchange.prompt_of(choice) or "")
        return held

    def _look(self, choice: int, last: bool, out: list[Event]) -> None:
        held = self._of(choice)
        whole = held.at == len(held.prompt) and not held.other
        scored = held.scored and self.exchange.logprobs
        unscored = not self.exchange.logprobs or not held.prompt  # there is none to wait for
        if not last and not held.other and not (whole and (scored or unscored)):
            return
        if not whole:
            self.notes.add("echo_missing")
            if scored and not _begin(held):
                self._fail("its answer does not begin with the prompt", out)
                return
            out.append(Text(choice, self.exchange.prompt_of(choice) or ""))
        elif scored and _answer_alone(held):
            self.notes.add("echo_unscored")
            self._fail("its logprobs are those of the answer alone", out)
            return
        self.seen.add(choice)
        del self.held[choice]
        out += held.events

    def _fail(self, why: str, out: list[Event]) -> None:
        self.failed = True
        out.append(
            Fault(
                502,
                f"The backend ignored 'echo': {why}, so the prompt's logprobs are not known. Leave "
                "'echo' out; for llama.cpp use the adapter llamacpp, which computes them.",
                code="echo_ignored",
                retry=False,
            )
        )


def _answer_alone(held: _Held) -> bool:
    """Say whether the tokens that came are those of the answer, and not those of all the text."""
    entries = _entries(held)
    tokens = "" if _name_ids(entries) else _spell(entries)
    text = "".join(event.text for event in held.events)
    answer = text.lstrip()[len(held.prompt) :]
    return _agree(tokens, _squeeze(answer)) and not _agree(tokens, _squeeze(text))


def _begin(held: _Held) -> bool:
    """Say whether the tokens begin with the prompt that the text lacks.

    So vLLM answers `return_token_ids` (0.11 to 0.32), and with `return_tokens_as_token_ids` beside
    it no token has a text. Nothing comes before a prompt's first token, so that one alone has no
    number; it may be a begin of text, which the prompt does not spell.
    """
    entries, prompt = _entries(held), _squeeze(held.prompt)
    unscored = bool(entries) and entries[0].logprob == UNKNOWN
    if _name_ids(entries):
        return unscored
    begins = [entries, entries[1:]] if unscored else [entries]
    return bool(prompt) and any(_spell(part).startswith(prompt) for part in begins)


def _entries(held: _Held) -> list[Entry]:
    return [entry for event in held.events if event.lp for entry in event.lp.entries]


def _name_ids(entries: list[Entry]) -> bool:
    """Say whether a token is told by its id alone, so that their text is not known."""
    return any(token_id(entry.token) is not None for entry in entries)


def _spell(entries: list[Entry]) -> str:
    """Return what the tokens say, without spaces."""
    known = (
        entry.token.encode() if entry.bytes == NULL else bytes(_ids(entry.bytes))
        for entry in entries
    )
    return _squeeze(b"".join(known).decode(errors="replace"))


def _agree(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return bool(short) and long.startswith(short)


def _squeeze(text: str) -> str:
    """Return the text without spaces, of which a token may lack some or spell them in its way."""
    return "".join(text.split()).translate(_MARKS)


_MARKS = dict.fromkeys(map(ord, "Ġ▁"))
_ids = json.Decoder(list[int]).decode
