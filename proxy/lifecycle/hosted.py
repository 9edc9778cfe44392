"""A configured engine, and the target that stands for it: started, watched, named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from wellspoken.adapters.servers import registry
from wellspoken.adapters.servers.versions import for_version
from wellspoken.engine.kind import Settings
from wellspoken.engine.supervisor import Supervisor
from wellspoken.proxy.config.tables import Auth, Config, Engine
from wellspoken.proxy.config.values import resolve_references
from wellspoken.proxy.metrics.engine_families import EngineMetrics
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import PROBE_PATH, Target

if TYPE_CHECKING:
    from wellspoken.engine.kind import Facts, Kind


FAILED: Final = frozenset({"refused", "unreachable", "cut"})
"""Failures that an engine's end would have caused."""
LOOKED: Final = 0.25
"""Seconds in which an end that makes an engine not answer becomes its state."""
POLL: Final = 0.02


_AS_CONFIGURED: Final = (
    "grace", "wait", "queue", "idle_unload", "health_interval", "health_timeout", "health_failures",
    "stall_timeout", "restarts",
)  # fmt: skip
"""Settings of a supervisor that are keys of [engine] under the same names."""


def kind_of(settings: Engine, own: Iterable[str] = ()) -> Kind:
    """Return the kind of engine that is configured, with its settings.

    `own`: variables of the environment that hold the proxy's own keys. Raises ConfigError for a
    value of `environment` that cannot be read.
    """
    both: dict[str, Any] = {
        "alias": settings.alias,
        "inherit": settings.inherit,
        "environment": resolve_references(settings.environment, "engine.environment"),
        "own": tuple(own),
    }
    # The other kind is not loaded.
    if settings.kind == "vllm":
        from wellspoken.engine.vllm.vllm_kind import VLLM

        arguments, executable = settings.arguments, settings.executable
        return VLLM(settings.model, arguments=arguments, executable=executable, **both)
    from wellspoken.engine.llamacpp.llamacpp_kind import LlamaCpp

    return LlamaCpp(
        Path(settings.model),
        context=settings.context,
        parallel=settings.parallel,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        chat_template=settings.chat_template,
        mmproj=Path(settings.mmproj) if settings.mmproj is not None else None,
        **both,
    )


def _own(config: Config) -> Iterator[str]:
    """Name the variables that hold what only the proxy may know."""
    auth = config.auth
    keys = auth.references if isinstance(auth, Auth) else ()
    backends = (each for one in config.backend for each in (one.key, *one.headers.values()))
    counters = auth.counters if isinstance(auth, Auth) else None
    for reference in (*keys, *backends, config.store.url, counters):
        kind, _, name = (reference or "").strip().partition(":")
        if kind == "env":
            yield name


class Hosted:
    """One configured engine: its supervisor, and its target, which has an address while it runs.

    `log` is told of each change of state, `relay` each line that the engine prints. Raises
    ConfigError for settings that cannot be used.
    """

    def __init__(
        self,
        config: Config,
        target: Target,
        metrics: Metrics,
        log: logging.Logger,
        relay: Callable[[str], None],
    ) -> None:
        settings = config.engine
        assert settings is not UNSET
        self.target = target
        self.supervisor = Supervisor(
            kind_of(settings, _own(config)),
            Settings(
                start_timeout=settings.start_timeout or None,
                shutdown_timeout=config.server.drain_timeout,
                exits=settings.on_failure == "exit",
                **{name: getattr(settings, name) for name in _AS_CONFIGURED},
            ),
            self,
            relay,
        )
        self._alias = settings.alias
        self.timeouts = config.timeouts
        self._log = log
        self._told = self.supervisor.state
        self._restarts = 0
        target.host(self.supervisor, self._look)
        EngineMetrics(metrics.registry).watch(target.name, self.supervisor)

    async def up(self, socket: Path, facts: Facts) -> None:
        """Give the target its address, the adapter of its version, and its models' names."""
        kind, target = self.supervisor.kind, self.target
        where, places = f"unix:{socket}", target.settings.places
        upstream = Upstream(where, self.timeouts, title=kind.title, places=places)
        upstream.on_failure = self._note_failure
        target.recognise(for_version(registry.find(kind.name), facts.version))
        names = dict.fromkeys((self._alias,) if self._alias is not None else ())
        names.update(dict.fromkeys(facts.models))
        target.rename(tuple(names) or target.models)
        target.upstream = upstream

    async def down(self) -> None:
        """Take the target's address away, then close what is open: its answers fail."""
        upstream, self.target.upstream = self.target.upstream, None
        if upstream is not None:
            upstream.on_failure = None
            await upstream.close()

    def last_heard(self) -> float:
        """Return the loop's time at which the last byte came from the engine, 0.0 before."""
        upstream = self.target.upstream
        return upstream.heard if upstream is not None else 0.0

    def note_change(self) -> None:
        """Log a change of the state, and each end that nobody asked for."""
        engine = self.supervisor
        state, before = engine.state, self._told
        restarts, known = engine.restarts, self._restarts
        if state == before and restarts == known:
            return
        self._told, self._restarts = state, restarts
        who = f"{self.target.name}: {engine.kind.title}"
        if state == "ready":
            version = f" {engine.facts.version}" if engine.facts.version else ""
            models, seconds = ", ".join(self.target.models), engine.start_seconds or 0.0
            self._log.info("%s%s is ready, with %s, after %.1f s", who, version, models, seconds)
        elif state == "failed":
            ends = (
                ". The proxy ends too: engine.on_failure is exit" if engine.settings.exits else ""
            )
            self._log.error("%s stays down: %s%s", who, engine.reason.rstrip("."), ends)
        elif restarts != known:
            self._log.warning("%s: %s", self.target.name, engine.reason)
        elif state == "starting":
            self._log.info("%s is being started", who)
        elif state == "draining":
            self._log.info("%s is ending: %s", who, engine.reason)
        elif before != "failed":
            self._log.info("%s has ended", who)

    def _note_failure(self, error: UpstreamError) -> None:
        """Have the engine looked at, before it gets the next request."""
        if error.reason in FAILED:
            self._look()

    def _look(self) -> None:
        if self.target.doubt is None:
            self.target.doubt = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        """Find out whether the engine still answers; return once its state would tell if not.

        The sockets of a process that was killed are closed one after another, and its end is seen
        after that: a connection of the next request might still be accepted, and then broken off.
        """
        target, upstream = self.target, self.target.upstream
        try:
            await self.supervisor.suspect()
            if upstream is not None and upstream is target.upstream:
                await upstream.probe(PROBE_PATH)
        except UpstreamError:
            loop = asyncio.get_running_loop()
            end = loop.time() + LOOKED
            while self.supervisor.state == "ready" and target.upstream and loop.time() < end:
                await asyncio.sleep(POLL)
        finally:
            target.doubt = None
