"""Plans what is asked of a backend for chat and completions: all at once, or choice by choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import structs

from wellspoken.adapters import prompt_scores
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.merge import Best, Merge, entries_in
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.joint import cannot_join, joins_choices
from wellspoken.adapters.requests.shapes import ChatRequest, CompletionRequest, Prompt
from wellspoken.adapters.rest import Rest
from wellspoken.adapters.servers.backend import Endpoint
from wellspoken.adapters.servers.prepare import lacks_in_streams
from wellspoken.adapters.servers.stream_usage import asks_usage, refuses_usage
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.helping import scoring
from wellspoken.proxy.relay.planning.plan import Amendment, BackendRequest, Outcome, Plan
from wellspoken.proxy.upstream.refusals import TAKEN, USAGE
from wellspoken.proxy.upstream.target import Target

Wanted = TypeVar("Wanted", ChatRequest, CompletionRequest)
Make = Callable[[Exchange, bool, int | None, int], bytes]
"""Makes a payload: for an answer's exchange, whether a stream is asked for, the place of its prompt
(None: for the whole answer at once), and which of that prompt's choices is asked for."""


class Revision(NamedTuple, Generic[Wanted]):
    """What is made of a request that was `refused`, as its answer's status and bytes tell.

    `note` is told the model once the server took that. Made twice, it changes nothing more, since
    each of several requests for one answer may be refused.
    """

    refused: Callable[[int, bytes], bool]
    make: Callable[[Wanted], Wanted]
    note: Callable[[str], None]


@dataclass(slots=True, eq=False)
class Planner(Generic[Wanted]):
    """How one request of a client is asked for.

    `found`: each prompt where the proxy puts it, or its logprobs, before the answers. `sizes`: how
    many tokens each has and who says so, where no token is asked for and therefore no backend.
    `ids`: each prompt's token ids, where the proxy tells them.
    `large`: the payloads are made when they are sent, and of the client's request no more is held
    until then and afterwards than its bytes.
    `revisions`: what to make of `wanted`, one after the other, where a template refuses it.
    `usage`: whether a stream is asked for its usage, as far as the server is not known to refuse
    that, nor in doubt; None where no server of its kind is.
    """

    call: Call
    target: Target
    wanted: Wanted
    exchange: Exchange
    endpoint: Endpoint
    large: bool = False
    found: Sequence[scoring.Scored] = ()
    sizes: Sequence[tuple[int, str]] = ()
    ids: Sequence[Sequence[int]] = ()
    streams: bool = False
    usage: bool | None = None
    revisions: Sequence[Revision[Wanted]] = ()
    making: Lock = field(default_factory=Lock)

    def choose_form(self) -> None:
        """Settle whether a stream is asked for, and who ends the answer at a stop string."""
        target, exchange = self.target, self.exchange
        if "return_token_ids" in exchange.switches and not exchange.tells_ids:
            self._leave_out("return_token_ids")  # who gets none need not wait for a body
        streams, lacks = (
            target.settings.streams,
            lacks_in_streams(target.backend, self.wanted.fields),
        )
        wants = (exchange.stream and not lacks and streams != "never") or streams == "always"
        if self._enforces_stops(wants):
            if streams == "never" or lacks:  # a body, which runs on; the stop stage cuts it
                self._leave_out("stop", stop=None)
            else:
                self.exchange = exchange = structs.replace(exchange, enforced=True)
        self.streams = wants or exchange.enforced
        if self.streams and asks_usage(target.backend, exchange):
            self.usage = not self._saw(USAGE) and (self._saw(TAKEN) or not target.doubtful)
            if self.usage and not exchange.include_usage:
                self.exchange = structs.replace(exchange, asks_usage=True)

    def _enforces_stops(self, streams: bool) -> bool:
        """Say whether the stop strings are kept from the backend; `streams`: it is to stream."""
        backend, exchange = self.target.backend, self.exchange
        if not exchange.stops:
            return False
        # With a stop string the backend's logprobs would lack entries, and its text that string.
        if backend.loses_entries and (exchange.logprobs or exchange.keeps_stop):
            return True
        # Stop strings may also be met in thoughts and calls, where the backend alone looks for them
        # once it has taken these out of the text.
        raw = exchange.kind != "chat" or (
            self.endpoint.dialect == "llamacpp" and not exchange.recover
        )
        return streams and backend.withholds_text and raw

    def _saw(self, seen: str) -> bool:
        return self.target.saw(seen, self.endpoint.path, self.wanted.model)

    def _leave_out(self, key: str, **more: Any) -> None:
        """Take a key out of what the backend is asked; `more`: what else of the request changes."""
        fields = {name: raw for name, raw in self.wanted.fields.items() if name != key}
        self.wanted = structs.replace(self.wanted, fields=fields, **more)

    @property
    def tells(self) -> bool:
        """Whether the client asked for the prompt's logprobs, and gets them."""
        return "prompt_logprobs" in self.exchange.switches and self.exchange.keeps(
            "prompt_logprobs"
        )

    @property
    def settled(self) -> bool:
        """Whether nothing about the server is to be learned from its answer."""
        return not self.usage or self._saw(TAKEN)

    async def find_ids(self, prompts: Sequence[Prompt]) -> None:
        """Find the prompts' token ids, which the backend's answer will not tell.

        Counts `prompt_token_ids_missing` where a part of a chat is no text, since its tokens are
        none, and where the backend refuses to tell them.
        """
        exchange = self.exchange
        if exchange.parts:
            prompt_scores.prompt_token_ids_missing(exchange.notes)
            return
        ids: list[Sequence[int]] = []
        for place, prompt in enumerate(prompts):
            known = self.found[place].ids if self.found else []
            if not isinstance(prompt, str):
                known = list(prompt)
            elif not known:
                try:
                    known = (await scoring.split(self.call, self.target, exchange, prompt)).ids
                except RequestError:  # the answer itself tells what is wrong, if anything is
                    prompt_scores.prompt_token_ids_missing(exchange.notes)
                    return
            ids.append(known)
        self.ids = ids

    async def score(self, prompt: Prompt) -> scoring.Scored:
        """Return a prompt with the logprobs that the request asks for."""
        arguments = (self.call, self.target, self.exchange, prompt)
        k = self.exchange.k if self.exchange.echo and self.exchange.logprobs else -1
        if self.tells:
            k = max(k, scoring.count_of(self.wanted.fields["prompt_logprobs"]))
            return await scoring.score(*arguments, k, "prompt_logprobs")
        if k < 0:
            return await scoring.spell_prompt(*arguments)
        return await scoring.score(*arguments, k, "echo")

    def plan(self, make: Make, prompts: int, each: int, *, takes: bool, best: bool = False) -> Plan:
        """Return what to ask for `each` choices of every prompt.

        `takes`: the backend takes several at once. `best`: the best of them are the answer. Raises
        RequestError 400 for choices that are one computation and cannot be asked for at once.
        """
        exchange, target, dialect = self.exchange, self.target, self.endpoint.dialect
        joint = each > 1 and self._joins(takes, best and prompts > 1)
        tops_up = target.backend.tops_up and not joint
        together = joint or each * prompts == 1
        if takes and not together:
            # A choice that has met its stop is cancelled by itself, so each has its own request;
            # and whether a server that was not recognised takes several prompts is not known.
            alone = each > 1 and target.backend.alone(self.wanted.temperature)
            alone = alone or target.lone or exchange.enforced
            together = not (alone or best or (tops_up and prompts > 1))
        if together and not self.found and not self.sizes:
            asks = [self._request(partial(make, exchange, self.streams, None, 0))]
            if each == 1 or not tops_up:
                prelude = self._prelude(exchange, 0, 0) if self.ids else []
                one = exchange.enforced or prelude
                sources = [BackendAnswer(exchange, dialect, prelude)] if one else []
                return Plan(exchange, dialect, asks, sources)
            more = partial(self._choices, make, 0)
            return Plan(
                exchange, dialect, asks, [BackendAnswer(exchange, dialect)], Rest(exchange), more
            )
        asks, sources = [], []
        for place in range(prompts):
            # `best_of` goes by the logprobs, also where the client wants none.
            more_asks, more_sources = self._choices(
                make,
                place,
                range(each),
                logprobs=exchange.logprobs or best,
                echoed=bool(self.found),
            )
            asks += more_asks
            sources += more_sources
        parts = [source.exchange for source in sources]
        merge: Merge | Best | None = Merge(exchange, parts, each) if len(parts) > 1 else None
        if best:
            merge = Best(exchange, parts, each, [len(entries_in(x.prelude)) for x in sources])
        return Plan(exchange, dialect, asks, sources, merge)

    def _joins(self, takes: bool, mixed: bool) -> bool:
        """Say whether a prompt's choices are one computation; raise RequestError 400 for one apart.

        `mixed`: the best choices of several prompts would lie between the others.
        """
        exchange, target = self.exchange, self.target
        if not joins_choices(exchange.switches, self.wanted.fields):
            return False
        apart = not takes or target.lone or exchange.enforced or bool(self.found)
        if not self.sizes and (apart or mixed):
            raise cannot_join(target.backend.title)
        return True

    def _choices(
        self, make: Make, place: int, samples: range, **facts: Any
    ) -> tuple[list[BackendRequest], list[BackendAnswer]]:
        """Return what is asked for single choices of a prompt, and what reads the answers."""
        asks, sources = [], []
        prompt = self.exchange.prompts[place] if self.exchange.prompts else None
        nothing, source = self.sizes[place] if self.sizes else (None, "backend")
        for sample in samples:
            part = self.exchange.part(prompt, **facts)
            prelude = self._prelude(part, place, sample) if self.found or self.ids else []
            request = self._request(partial(make, part, self.streams, place, sample))
            asks.append(structs.replace(request, nothing=nothing, source=source))
            sources.append(BackendAnswer(part, self.endpoint.dialect, prelude))
        return asks, sources

    def _request(self, make: Callable[[], bytes]) -> BackendRequest:
        again = partial(self._make_again, make) if self.large else None
        payload = b"" if self.large else make()
        found: tuple[Amendment, ...] = ()
        for revision in self.revisions:
            revise, note = partial(self._revise, revision, make), partial(self._note, revision)
            found += (Amendment(revision.refused, revise, note),)
        if self.usage is not None:
            refused = partial(_refuses_usage, again or (lambda: payload), self._saw(TAKEN))
            leave = partial(self._leave_usage, again or make)
            found += (Amendment(refused, leave, self._note_usage),)
        return BackendRequest(
            self.endpoint.path, payload, self.streams, make=again, amendments=found
        )

    def _make_again(self, make: Callable[[], bytes]) -> bytes:
        """Return a large payload, for which the client's text is read again."""
        with self.making:  # several choices' payloads are made in threads
            self.wanted = self.wanted.read_text()
            try:
                return make()
            finally:
                self.wanted = self.wanted.drop_text()

    def _revise(self, revision: Revision[Wanted], make: Callable[[], bytes]) -> bytes:
        with self.making:
            self.wanted = revision.make(self.wanted.read_text())
        return self._make_again(make) if self.large else make()

    def _note(self, revision: Revision[Wanted], outcome: Outcome) -> None:
        if outcome == "amended":
            revision.note(self.wanted.model)

    def _leave_usage(self, make: Callable[[], bytes]) -> bytes:
        self.usage = False
        return make()

    def _note_usage(self, outcome: Outcome) -> None:
        if outcome == "in vain":
            self.target.note_in_vain()
        elif outcome == "as it was" and not self.usage:
            self.target.note_seen()
        else:
            seen = USAGE if outcome == "amended" else TAKEN
            self.target.note_seen(seen, self.endpoint.path, self.wanted.model)

    def _prelude(self, exchange: Exchange, place: int, sample: int) -> list[Event]:
        """Return what comes before the generated text: the prompt's ids, its logprobs, itself."""
        prelude = list[Event]()
        if self.ids and not (exchange.kind == "chat" and sample):
            prelude.append(prompt_scores.as_ids(exchange.kind, self.ids[place]))
        if not self.found:
            return prelude
        found = self.found[place]
        if self.tells and not (exchange.kind == "chat" and sample):  # a chat has them once
            k = scoring.count_of(self.wanted.fields["prompt_logprobs"])
            prelude.append(scoring.prompt_logprobs(exchange, found, k))
        if exchange.echo:
            prelude += scoring.echo_prompt(exchange, found)
        return prelude


def _refuses_usage(make: Callable[[], bytes], taken: bool, status: int, said: bytes) -> bool:
    return refuses_usage(status, said, sent=make(), taken=taken)
