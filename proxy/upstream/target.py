"""Which backend a request goes to, and under which model name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wellspoken.adapters.exchange import Extensions
from wellspoken.adapters.requests.caps import Caps
from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.shapes import Bounds, Model
from wellspoken.adapters.requests.vendor import Policy
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.proxy.config import Streams
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.upstream.vocabulary_size import VocabularySize

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from wellspoken.adapters.servers.backend import Backend
    from wellspoken.adapters.servers.detection import Found
    from wellspoken.engine.supervisor import Supervisor
    from wellspoken.proxy.upstream.client import Upstream
    from wellspoken.proxy.upstream.detector import Detector
    from wellspoken.proxy.upstream.tokenizer import Tokenizer

_LISTED = 20  # model names that an error message lists at most


class Target:
    """One backend with everything a request to it needs.

    `engine` runs the backend where the proxy does that itself: `Call.enter` waits for it, and
    `upstream` is None while it is not there; `state` then says why. `look` has it found out whether
    the engine still answers, and while it is, `doubt` is under way.
    `endpoints` are the paths that pass through, None for the backend's own list.
    `tokens` belongs to this backend alone, since a token's bytes depend on its vocabulary.
    `lone`: it was seen to give one choice whatever `n` says. `listed`: the models that an engine
    was last seen to list.
    `detector` is None where `backend` is configured; else read `backend` after `ready`.
    """

    __slots__ = (
        "aliases",
        "auth_pass",
        "backend",
        "bounds",
        "caps",
        "detector",
        "doubt",
        "endpoints",
        "engine",
        "extensions",
        "keep",
        "listed",
        "lone",
        "look",
        "models",
        "name",
        "renamed",
        "state",
        "streams",
        "tokenizer",
        "tokens",
        "ui",
        "upstream",
        "upstream_model",
        "vendor",
        "vocabulary_size",
    )

    def __init__(
        self,
        name: str,
        backend: Backend,
        upstream: Upstream | None,
        *,
        models: Sequence[str] = (),
        aliases: dict[str, str] | None = None,
        upstream_model: str | None = None,
        auth_pass: bool = False,
        extensions: Extensions = "known",
        keep: Sequence[str] = (),
        bounds: Bounds = "openai",
        tokenizer: Tokenizer | None = None,
        ui: bool = False,
        vendor: Policy = "pass",
        streams: Streams = "both",
        endpoints: Sequence[str] | None = None,
        caps: Caps | None = None,
    ) -> None:
        self.name = name
        self.vendor: Policy = vendor
        self.streams: Streams = streams
        self.endpoints = endpoints
        self.caps = caps if caps is not None else Caps()
        self.ui = ui
        self.backend = backend
        self.upstream = upstream
        self.engine: Supervisor | None = None
        self.look: Callable[[], None] = lambda: None
        self.doubt: asyncio.Task[None] | None = None
        self.state: Callable[[], str] = lambda: ""
        self.renamed: Callable[[], None] = lambda: None  # whom `rename` tells: the router
        self.models = tuple(models)
        self.aliases = aliases if aliases is not None else {}
        self.upstream_model = upstream_model
        self.auth_pass = auth_pass
        self.extensions: Extensions = extensions
        self.keep = frozenset(keep)
        self.bounds: Bounds = bounds
        self.tokenizer = tokenizer
        self.tokens = TokenTable()
        self.vocabulary_size = VocabularySize(self)
        self.detector: Detector | None = None
        self.lone = False
        self.listed: Mapping[str, Model] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The models a client may name, as configured, or as an engine lists them."""
        return (*self.models, *(alias for alias in self.aliases if alias not in self.models))

    def rename(self, models: Sequence[str]) -> None:
        """Take over the models that an engine lists."""
        self.models = tuple(models)
        self.renamed()

    @property
    def passes(self) -> tuple[str, ...]:
        """The paths that pass through to this backend."""
        return self.backend.passes if self.endpoints is None else tuple(self.endpoints)

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
        return self.upstream_model or self.aliases.get(name)

    @property
    def detected(self) -> Found | None:
        """What the backend was recognised as; None where it is configured or has not answered."""
        return self.detector.found if self.detector is not None else None

    async def ready(self) -> None:
        """Wait for what is found out once: what the backend is, and the vocabulary.

        It neither waits for an engine nor wakes one. Raises RequestError 500 if the vocabulary
        cannot be read.
        """
        detector = self.detector
        if detector is not None and not detector.settled:
            await detector.known()
        tokenizer = self.tokenizer
        if tokenizer is not None and self.tokens.vocabulary is None:
            self.tokens.vocabulary = await tokenizer.vocabulary()

    def connection(self) -> Upstream:
        """Return the upstream; raises RequestError 503 while its engine is not there."""
        if self.upstream is None:
            raise not_ready(self.state(), 2)
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
        code="engine_not_ready",
        headers=headers,
    )


class Router:
    """Model name -> target. With one target every name passes, else only known ones."""

    __slots__ = ("_by_name", "_only", "targets")

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._only = self.targets[0] if len(self.targets) == 1 else None
        self._by_name: dict[str, Target] = {}
        for target in self.targets:
            target.renamed = self._index
        self._index()

    def _index(self) -> None:
        # What an engine calls its models is not configured, so it takes no configured name away.
        ordered = sorted(self.targets, key=lambda target: target.engine is None)
        self._by_name = {name: target for target in ordered for name in target.names}

    @property
    def bounds(self) -> Bounds:
        """The bounds that every request meets, before its backend is known."""
        strict = all(target.bounds == "openai" for target in self.targets)
        return "openai" if strict else "backend"

    def find(self, model: str) -> Target:
        """Return the target of `model`. Raises RequestError 404 model_not_found."""
        if self._only is not None:
            return self._only
        target = self._by_name.get(model)
        if target is None:
            raise self.unknown(model)
        return target

    def unknown(self, model: str) -> RequestError:
        """Return the error for a model that nobody serves, listing those that are."""
        known = sorted(self._by_name)
        listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
        hint = f" Known models: {listed}." if listed else " GET /v1/models lists the known ones."
        return RequestError(
            f"The model '{short(model)}' does not exist.{hint}",
            status=404,
            param="model",
            code="model_not_found",
        )

    def label(self, model: str) -> str:
        """Return the model as a metric label: itself if configured, else `_other`."""
        return model if model in self._by_name else OTHER
