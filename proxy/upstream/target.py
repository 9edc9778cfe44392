"""One server of a backend, with everything that a request to it needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from wellspoken.adapters.exchange import Extensions, Recovered
from wellspoken.adapters.requests.caps import Caps
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Bounds
from wellspoken.adapters.requests.system import SystemForm
from wellspoken.adapters.requests.vendor import Policy
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.detection import Found
from wellspoken.adapters.servers.model_list import NOTHING_LISTED, Listed
from wellspoken.adapters.servers.parameters import PAST_REASONING, PastReasoning
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.proxy.config.tables import Affinity, Responses, Retry, Streams, System
from wellspoken.proxy.upstream.client import HIDDEN, Upstream
from wellspoken.proxy.upstream.context_lengths import ContextLengths
from wellspoken.proxy.upstream.detector import Detector
from wellspoken.proxy.upstream.ejection import Ejection
from wellspoken.proxy.upstream.memory import Memory
from wellspoken.proxy.upstream.refusals import ROLE, SYSTEM, Refusals
from wellspoken.proxy.upstream.system_probe import probe_system
from wellspoken.proxy.upstream.tokenizer import Tokenizer
from wellspoken.proxy.upstream.vocabulary_size import find_size

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

_FILES = re.compile(r"(?<![\w./-])(?!/v\d+/)~?/(?:[\w.@%+~-]+/)+[\w.@%+~-]*")
"""Paths, as in an engine's log; one of a single part, or below /v1, is an endpoint's."""
PROBE_PATH: Final = "/health"
"""Of vLLM, llama.cpp, TGI, SGLang; elsewhere a 404, which is a sign of life too."""
NOT_READY: Final = "engine_not_ready"
LABELLED: Final = 256
"""Listed names that metrics tell apart, in a target's life: a list may be another each time."""
LONGEST: Final = 200
"""Characters of such a name, as of one that is configured."""


class TargetSettings(Struct, frozen=True, kw_only=True):
    """What the configuration says of one backend, as requests need it.

    `endpoints` are the paths that pass through, None for the backend's own list. `forwards` are the
    client's headers that go on; with `auth_pass` its key does, too. `tokenizer` gives a vocabulary
    that the backend does not. `responses`: who makes the answers of /v1/responses, the
    proxy of chat answers or, with "pass", the server. `elsewhere`: clients are on other machines,
    and `places` are the URLs, hosts and paths that they may not read. `affinity`, `retry` and
    `fallback`: what holds for its model's servers together (balance/).
    """

    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}
    upstream_model: str | None = None
    auth_pass: bool = False
    extensions: Extensions = "known"
    keep: frozenset[str] = frozenset()
    bounds: Bounds = "openai"
    tokenizer: Tokenizer | None = None
    ui: bool = False
    vendor: Policy = "pass"
    past_reasoning: PastReasoning = "auto"
    recover: frozenset[Recovered] = frozenset()
    system: System = "auto"
    streams: Streams = "both"
    responses: Responses = "translate"
    endpoints: Sequence[str] | None = None
    forwards: tuple[str, ...] = ()
    caps: Caps = Caps()
    places: tuple[str, ...] = ()
    elsewhere: bool = False
    affinity: Affinity = "none"
    retry: Retry = "unsent"
    fallback: tuple[str, ...] = ()
    health_path: str = PROBE_PATH

    def hide_places(self, text: str) -> str:
        """Return what a client is told without the `places`, and other paths of the machine."""
        for place in self.places:
            text = text.replace(place, HIDDEN)
        return _FILES.sub(HIDDEN, text) if self.elsewhere else text

    def fit(self, backend: Backend) -> Backend:
        """Return the backend with the configuration's word on past reasoning in its chat table."""
        row = PAST_REASONING.get(self.past_reasoning)
        if row is None:
            return backend
        table = {**backend.chat_table, "messages.reasoning_content": row}
        return structs.replace(backend, chat_table=table)


@dataclass(slots=True, eq=False, repr=False)
class Target:
    """One server with everything a request to it needs: `name` and `settings` never change.

    `backend_name` is the configured backend's, which may have several servers; `weight` says how
    much of their requests it gets, `outstanding` how many it has now. `ejection`: whether it gets
    any, where others have its models, too.

    `backend` and `lone` (it was seen to give one choice whatever `n` says) are what `recognise` was
    told; where `detector` is, they may change while a request waits in `ready`.
    `engine` runs the backend where the proxy does that itself: `upstream` is None while it is not
    there. `look` has it found out whether the engine still answers, and while it is, `doubt` is
    under way. `listed`: what an engine was last seen to list. `lengths`: the context lengths that
    its server tells beside a list, and `served` the model that its list begins with. `acquainted`:
    the `server` that was last seen to be an LLM server although nothing tells which.
    `tokens` belongs to this backend alone, since a token's bytes depend on its vocabulary.
    `slow`: the entries of a small answer of its took long to find their text for.
    `labels`: the names that its server was seen to list, at most LABELLED.
    """

    name: str
    backend: Backend
    upstream: Upstream | None
    _: KW_ONLY
    settings: TargetSettings
    models: Sequence[str] = ()
    backend_name: str = ""
    weight: float = 1.0
    outstanding: int = 0
    ejection: Ejection | None = None
    lone: bool = False
    slow: bool = False
    renamed: Callable[[], None] = lambda: None  # whom `rename` tells: the router
    tokens: TokenTable = field(default_factory=TokenTable)
    detector: Detector | None = None
    engine: Supervisor | None = None
    look: Callable[[], None] = lambda: None
    doubt: asyncio.Task[None] | None = None
    listed: Listed = NOTHING_LISTED
    lengths: ContextLengths = field(default_factory=ContextLengths)
    served: Memory[str] = field(default_factory=lambda: Memory(""))
    acquainted: tuple[object, ...] = ()
    labels: set[str] = field(default_factory=set)
    _systems: Memory[SystemForm] = field(default_factory=lambda: Memory("pass"))
    _refusals: Refusals = field(default_factory=Refusals)
    _sizes: Memory[Mapping[str, int]] = field(default_factory=lambda: Memory({}))

    def system_form(self, model: str) -> SystemForm:
        """Return how a model gets system messages, as far as that is known.

        It may turn out to be refused, unless the configuration says "user" or "pass".
        """
        word = self.settings.system
        if word in ("user", "pass"):
            return word
        if self.saw(ROLE, model):
            return "user"
        folds = word == "fold" or self.backend.one_system or self.saw(SYSTEM, model)
        return "fold" if folds else "pass"

    async def find_system_form(self, model: str) -> SystemForm:
        """Return the same of messages that a template may leave out, which the server can tell."""
        known, tokenize = self.system_form(model), self.backend.tokenize
        asks = self.settings.system in ("auto", "fold") and known != "user"
        if not asks or self.upstream is None or tokenize is None or not tokenize.templates:
            return known
        name = self.model_for(model) or model
        ask = partial(probe_system, self.upstream, tokenize.chat, name)
        told = await self._systems.recall(lambda: (*self.server, name), ask)
        return known if told == "pass" else told

    def saw(self, *seen: str) -> bool:
        """Say whether that was seen of the server (refusals.py)."""
        return self._refusals.hold(self.server, seen)

    def note_seen(self, *seen: str) -> None:
        """Remember it as long as it may be the same server; nothing: that it answers."""
        self._refusals.note(self.server, seen)

    def note_in_vain(self) -> None:
        """Note that the server refused also what was sent it once more."""
        self._refusals.note_in_vain(self.server)

    @property
    def doubtful(self) -> bool:
        """Whether nothing is to be added to a request that the server has not been seen to take."""
        return self._refusals.doubt(self.server)

    @property
    def names(self) -> tuple[str, ...]:
        """The models a client may name, as configured, or as an engine lists them."""
        return (
            *self.models,
            *(alias for alias in self.settings.aliases if alias not in self.models),
        )

    def recognise(self, backend: Backend) -> None:
        """Take over what the server was found to be; what was seen of another one is forgotten."""
        self.backend = self.settings.fit(backend)
        self.lone = False

    def host(self, engine: Supervisor, look: Callable[[], None]) -> None:
        """Have an engine run this backend from now on."""
        self.engine = engine
        self.look = look

    def rename(self, models: Sequence[str]) -> None:
        """Take over the models that an engine lists."""
        self.models = tuple(models)
        self.renamed()

    def learn_labels(self, listed: Iterable[str]) -> None:
        """Remember names that its server lists, so that metrics tell its models apart.

        Ollama lists a model with a tag, and knows it without that, too. A name that a terminal
        acts on is none for /metrics.
        """
        for name in listed:
            for known in (name, name.removesuffix(":latest")):
                if len(self.labels) < LABELLED and 0 < len(name) <= LONGEST and name.isprintable():
                    self.labels.add(known)

    @property
    def passes(self) -> tuple[str, ...]:
        """The paths that pass through to this backend."""
        return (
            self.backend.passes
            if self.settings.endpoints is None
            else tuple(self.settings.endpoints)
        )

    @property
    def away(self) -> bool:
        """Whether its engine was there and is not now, so that a request has to wait for it."""
        engine = self.engine
        if engine is None or engine.first:
            return False
        return self.upstream is None or engine.state != "ready"

    @property
    def unloaded(self) -> bool:
        """Whether its engine is away only because nobody had asked it for long."""
        return self.engine is not None and self.engine.unloaded

    def model_for(self, name: str) -> str | None:
        """Return what the backend calls the model that a client called `name`; None: the same."""
        return self.settings.upstream_model or self.settings.aliases.get(name)

    @property
    def detected(self) -> Found | None:
        """What the backend was recognised as; None where it is configured or has not answered."""
        return self.detector.found if self.detector is not None else None

    @property
    def server(self) -> tuple[object, ...]:
        """All by which its server is told from another in its place, to compare with `==`."""
        losses = self.upstream.losses if self.upstream is not None else 0
        return self.upstream, losses, self.detected

    @property
    def condition(self) -> tuple[object, ...]:
        """All of what is known of it that a request's plan depends on, to compare with `==`."""
        losses = self.upstream.losses if self.upstream is not None else 0
        changes, vocabulary = self._refusals.changes, self.tokens.vocabulary
        return self.backend, self.lone, self.upstream, losses, changes, vocabulary

    async def ready(self) -> None:
        """Wait for what is found out once: what the backend is, and the vocabulary.

        It neither waits for an engine nor wakes one. Raises RequestError 500 if the vocabulary
        cannot be read.
        """
        detector = self.detector
        if detector is not None and not detector.settled:
            await detector.wait_known()
        tokenizer = self.settings.tokenizer
        if tokenizer is not None and self.tokens.vocabulary is None:
            tells = not self.settings.elsewhere
            self.tokens.vocabulary = await tokenizer.vocabulary(tells_path=tells)

    async def vocabulary_size(self, model: str) -> int | None:
        """Return how many token ids `model` has (the backend's name for it), None if unknown."""
        size, path = None, self.backend.sizes
        if self.upstream is not None and path:
            size = await find_size(self._sizes, model, lambda: self.server, self.upstream, path)
        vocabulary = self.tokens.vocabulary
        return vocabulary.size if size is None and vocabulary is not None else size

    @property
    def why_away(self) -> str:
        """Why its engine is not there, "" where it has none."""
        if self.engine is None:
            return ""
        return self.settings.hide_places(self.engine.reason or "it is ending")

    def connection(self) -> Upstream:
        """Return the upstream; raises RequestError 503 while its engine is not there."""
        if self.upstream is None:
            raise not_ready(self.why_away, 2)
        return self.upstream


def not_ready(reason: str, retry_after: int | None) -> RequestError:
    """Return the error for an engine that is not there; `retry_after`: seconds, None for never."""
    headers = {"x-should-retry": "false"}
    hint = "Its log says more."
    if retry_after is not None:
        headers = {"Retry-After": str(retry_after)}
        hint = "Try again shortly; /readyz tells when."
    return RequestError(
        f"The engine is not ready: {reason.rstrip('.')}. {hint}",
        status=503,
        type="server_error",
        code=NOT_READY,
        headers=headers,
    )


def no_endpoint(target: Target, path: str) -> RequestError:
    """Return the error for a path that this backend does not have, though another does."""
    listed = ", ".join(target.passes) or "none"
    return RequestError(
        f"The backend {target.name} ({target.backend.title}) has no endpoint {path}. Those that "
        f"pass through to it: {listed}. `endpoints` in its configuration sets them.",
        status=404,
        code="unknown_url",
    )


def start_detectors(targets: Iterable[Target]) -> None:
    """Begin to ask those backends what they are of which the configuration does not say it."""
    for target in targets:
        if target.detector is not None:
            target.detector.start()


async def stop_detectors(targets: Iterable[Target]) -> None:
    """Ask none of them any more."""
    detectors = [target.detector for target in targets if target.detector is not None]
    await asyncio.gather(*(detector.stop() for detector in detectors))
