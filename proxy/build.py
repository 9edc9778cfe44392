"""From a checked configuration to a service: adapters, keys, tokenizers, upstreams together."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING

from msgspec import UNSET

from wellspoken.adapters import registry
from wellspoken.proxy.config import Backend, Config, Engine
from wellspoken.proxy.config_engine import served_names
from wellspoken.proxy.config_values import ConfigError, normal_url, read_key
from wellspoken.proxy.detect import Detector
from wellspoken.proxy.metrics import Metrics
from wellspoken.proxy.passing import refuse_endpoints
from wellspoken.proxy.routing import Router, Target
from wellspoken.proxy.server import ROUTES, Service
from wellspoken.proxy.tokenizer import Tokenizer
from wellspoken.proxy.upstream import Upstream

if TYPE_CHECKING:
    from wellspoken.adapters.backend import Backend as Adapter
    from wellspoken.proxy.store.store import Store


def version() -> str:
    """Return the installed version of this distribution."""
    return importlib.metadata.version("wellspoken")


def build(config: Config) -> Service:
    """Return the service of `config`, within a running loop; nothing is connected or read yet.

    Raises ConfigError for an unknown adapter, a key that cannot be read, or a tokenizer that is not
    there.
    """
    targets = [_backend(config, at, backend) for at, backend in enumerate(config.backend)]
    if config.engine is not UNSET:
        targets.append(_engine(config.engine))
    metrics = Metrics(version())
    return Service(config, Router(targets), metrics, _store(config, metrics))


def _store(config: Config, metrics: Metrics) -> Store | None:
    """Return the store if one is configured; what it needs is loaded only then."""
    if not config.store.configured:
        return None
    from wellspoken.proxy.store.database import StoreError
    from wellspoken.proxy.store.store import Store

    try:
        return Store(config.store, metrics.of_store(), logging.getLogger("wellspoken"))
    except StoreError as error:  # a place or a driver that is not there
        raise ConfigError(f"store: {error}") from error


def _backend(config: Config, at: int, backend: Backend) -> Target:
    try:
        key = read_key(backend.key) if backend.key is not None else None
        refuse_endpoints(backend.endpoints or (), ROUTES)
        upstream = Upstream(normal_url(backend.url), config.timeouts, key=key)
        target = Target(
            backend.name,
            _adapter(backend.adapter),
            upstream,
            models=backend.models,
            aliases=backend.aliases,
            upstream_model=backend.upstream_model,
            auth_pass=backend.auth == "pass",
            extensions=backend.extensions,
            keep=backend.keep,
            # llama.cpp's page names no model and sends max_tokens -1.
            bounds="backend" if backend.ui else backend.bounds,
            tokenizer=_tokenizer(backend),
            ui=backend.ui,
            vendor=backend.vendor,
            streams=backend.streams,
            endpoints=backend.endpoints,
            caps=backend.caps,
        )
        if backend.adapter.strip().lower() == "auto":
            log = logging.getLogger("wellspoken")
            target.detector = Detector(target, upstream, config.timeouts.probe, log)
        return target
    except ConfigError as error:
        raise ConfigError(f"backend[{at}].{error}") from error


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
        models=served_names(engine),
        extensions=engine.extensions,
        keep=engine.keep,
        bounds=engine.bounds,
        tokenizer=tokenizer,
        vendor=engine.vendor,
        endpoints=engine.endpoints,
        caps=engine.caps,
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
