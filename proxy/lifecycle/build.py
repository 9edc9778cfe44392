"""From a checked configuration to a service: adapters, keys, tokenizers, upstreams together."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from wellspoken.adapters.servers import registry
from wellspoken.adapters.servers.backend import Backend as Adapter
from wellspoken.proxy.config.checks import refuse_endpoints
from wellspoken.proxy.config.engine_keys import names_of_models
from wellspoken.proxy.config.tables import Backend, Config, Engine, Timeouts
from wellspoken.proxy.config.values import ConfigError, normal_url, read_key
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.server import ROUTES, Service
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.detector import Detector
from wellspoken.proxy.upstream.target import Router, Target, TargetSettings
from wellspoken.proxy.upstream.tokenizer import Tokenizer

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore


def version() -> str:
    """Return the installed version of this distribution."""
    return importlib.metadata.version("wellspoken")


class Outside(NamedTuple):
    """What belongs to a backend and does not stand in the configuration itself."""

    key: str | None
    adapter: Adapter
    tokenizer: Tokenizer | None


def build(config: Config) -> Service:
    """Return the service of `config`, within a running loop; nothing is connected or read yet.

    Raises ConfigError for an unknown adapter, a key that cannot be read, or a tokenizer that is not
    there.
    """
    found = [outside(at, backend) for at, backend in enumerate(config.backend)]
    targets = [
        target_of(backend, each, config.timeouts)
        for backend, each in zip(config.backend, found, strict=True)
    ]
    if config.engine is not UNSET:
        targets.append(_engine(config.engine))
    metrics = Metrics(version())
    return Service(config, Router(targets), metrics, _store(config, metrics))


def _store(config: Config, metrics: Metrics) -> CompletionStore | None:
    """Return the store if one is configured; what it needs is loaded only then."""
    if not config.store.configured:
        return None
    from wellspoken.proxy.store.completions import CompletionStore
    from wellspoken.proxy.store.database import StoreError

    try:
        return CompletionStore(config.store, metrics.of_store(), logging.getLogger("wellspoken"))
    except StoreError as error:  # a place or a driver that is not there
        raise ConfigError(f"store: {error}") from error


def outside(at: int, backend: Backend) -> Outside:
    """Return what the backend at this place needs, from its files; any thread may ask.

    Raises ConfigError as `build` does.
    """
    try:
        key = read_key(backend.key) if backend.key is not None else None
        refuse_endpoints(backend.endpoints or (), ROUTES)
        return Outside(key, _adapter(backend.adapter), _tokenizer(backend))
    except ConfigError as error:
        raise ConfigError(f"backend[{at}].{error}") from error


def target_of(backend: Backend, found: Outside, timeouts: Timeouts) -> Target:
    """Return the target of a backend, within a running loop."""
    upstream = Upstream(normal_url(backend.url), timeouts, key=found.key)
    target = Target(
        backend.name,
        found.adapter,
        upstream,
        models=backend.models,
        settings=TargetSettings(
            aliases=backend.aliases,
            upstream_model=backend.upstream_model,
            auth_pass=backend.auth == "pass",
            extensions=backend.extensions,
            keep=frozenset(backend.keep),
            # llama.cpp's page names no model and sends max_tokens -1.
            bounds="backend" if backend.ui else backend.bounds,
            tokenizer=found.tokenizer,
            ui=backend.ui,
            vendor=backend.vendor,
            streams=backend.streams,
            endpoints=backend.endpoints,
            caps=backend.caps,
        ),
    )
    if backend.adapter.strip().lower() == "auto":
        log = logging.getLogger("wellspoken")
        target.detector = Detector(target.name, upstream, target.recognise, log)
    return target


def _engine(engine: Engine) -> Target:
    """Return the target of an engine; its upstream comes when the engine has an address."""
    try:
        tokenizer = _tokenizer(engine)
        refuse_endpoints(engine.endpoints or (), ROUTES)
    except ConfigError as error:
        raise ConfigError(f"engine.{error}") from error
    return Target(
        engine.name,
        _adapter(engine.kind),
        None,
        models=names_of_models(engine),
        settings=TargetSettings(
            extensions=engine.extensions,
            keep=frozenset(engine.keep),
            bounds=engine.bounds,
            tokenizer=tokenizer,
            vendor=engine.vendor,
            endpoints=engine.endpoints,
            caps=engine.caps,
        ),
    )


def _tokenizer(part: Backend | Engine) -> Tokenizer | None:
    if part.tokenizer is None:
        return None
    return Tokenizer(part.tokenizer, download=part.tokenizer_download)


def _adapter(name: str) -> Adapter:
    try:
        return registry.find(name)
    except ValueError as error:
        raise ConfigError(f"adapter: {error}.") from error
